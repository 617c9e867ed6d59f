"""Cost of optimizers: bytes of state, bytes and FLOPs of a step, kernels.

An optimizer keeps moments of each parameter, and in mixed precision a master copy in 32 bits. Its step reads and writes
all of them once and computes little, so it is memory-bound. For P parameters, in matrices of r rows and c columns
(P / (r c) of them):

    name           state without the master copy           reason
    sgd            0
    sgd-momentum   4 P                                     one moment
    adamw, adam    8 P                                     two moments
    lamb           8 P                                     and the norms of each matrix and of its update
    lion           4 P                                     the sign of one moment
    sophia         8 P                                     a moment, and an estimate of the Hessian's diagonal
    adafactor      4 P (1/r + 1/c)                         second moment as sums over rows and over columns
    adam-8bit      2 P + 2 * 4 ceil(P / block)             each moment in 8 bits, one 32-bit scale per block
    muon           4 P                                     one moment; embeddings, head and vectors have AdamW's two
    galore         4 P (2 k / min(r, c) + k / max(r, c))   Adam in a space of rank k, and the projection to it
    master         + 4 P                                   in mixed precision

Muon's update is the momentum made orthogonal by s steps of Newton-Schulz, s (4 m^2 n + 2 m^3) FLOPs in 16 bits for a
matrix of sides m <= n. It needs whole matrices; optimizer_step.py has the exchange.

    moved = gradient read + states read and written + parameter written, and second passes over the update

Vectors (norms, biases) have no rows and columns: they keep full moments in every optimizer.

Source: Loshchilov and Hutter, AdamW, arXiv 1711.05101; Shazeer and Stern, Adafactor, arXiv 1804.04235, algorithm 4;
You et al., LAMB, arXiv 1904.00962, algorithm 2; Chen et al., Lion, arXiv 2302.06675, algorithm 2; Liu et al., Sophia,
arXiv 2305.14342, algorithm 3; Dettmers et al., 8-bit optimizers, arXiv 2110.02861, section 2; Zhao et al., GaLore,
arXiv 2403.03507, table 1; Micikevicius et al., mixed precision, arXiv 1710.03740, section 3.1 (master weights).
Simplified: FLOPs are counted from the algorithms, a root or a quotient as one; GaLore's projection is renewed by a
decomposition of about 4 min(r, c) FLOPs per number; Adafactor has no first moment; nearly empty 8-bit blocks, and
tensors that stay in 32 bits (fewer than 4,096 numbers), are not modelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lablib.cost.arrays import Numbers, ceil_div, maximum, minimum
from lablib.errors import unknown_name
from lablib.signature import Count, NonNegative, NonNegativeInt, check_fields

_APPLY_FLOPS = 4.0  # w - rate * (update + decay * w)


@dataclass(frozen=True, slots=True)
class Optimizer:
    """State and cost of one optimizer."""

    name: str  # its name in the catalogue
    source: str  # its publication
    moments: NonNegativeInt = 0  # numbers kept for each parameter
    moment_bytes: NonNegativeInt = 4  # bytes of one of them: 4, or 1 for 8 bits
    block: Count | None = None  # moments that share one 32-bit scale; None: no scales
    is_factored: bool = False  # the second moment is kept as sums over rows and columns of each matrix
    rank: Count | None = None  # of the space that matrices are projected to; None: the full one
    flops_per_param: NonNegative = 2.0  # of one step, without projections
    # how often the update is written out in 32 bits and read again, before it is applied
    update_passes: NonNegativeInt = 0
    extra_reads: NonNegativeInt = 0  # further reads of each parameter or gradient, in 32 bits, for norms and sums
    kernels: NonNegativeInt = 1  # launched per step by an implementation that fuses as much as possible
    is_per_tensor: bool = False  # whether those kernels are launched for each tensor, or once for all of them
    renew_every: Count = 200  # steps between two renewals of the projection
    # steps that make a matrix's momentum orthogonal; 0: none. With them, vectors, embedding and head have AdamW's two
    # moments.
    newton_schulz_steps: NonNegativeInt = 0
    extra_gradients: NonNegative = 0.0  # additional forward and backward passes per step, as a share of the training's

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    def state_bytes(
        self, params: Numbers, *, rows: Numbers | None = None, columns: Numbers | None = None, has_master: bool = True
    ) -> Numbers:
        """Bytes kept between steps, without parameters and gradients.

        Arguments:
            params: number of parameters; a number or a numpy array.
            rows, columns: shape of their matrices; None for vectors.
            has_master: whether parameters are trained in 16 bits, with a copy in 32.
        """
        return self.moment_state_bytes(params, rows=rows, columns=columns) + (4 * params if has_master else 0)

    def moment_state_bytes(
        self, params: Numbers, *, rows: Numbers | None = None, columns: Numbers | None = None
    ) -> Numbers:
        """Bytes of `state_bytes` without the master copy."""
        if rows is None or columns is None:
            full = 2 if self.newton_schulz_steps else max(self.moments, 1 if self.is_factored else 0)
            return full * (self.moment_bytes * params + self._scale_bytes(params))
        if self.is_factored:
            return self.moment_bytes * params * (1 / rows + 1 / columns)
        if self.rank is not None:
            small, large = minimum(rows, columns), maximum(rows, columns)
            rank = minimum(self.rank, small)
            return self.moment_bytes * params * (self.moments * rank / small + rank / large)
        return self.moments * (self.moment_bytes * params + self._scale_bytes(params))

    def moved_bytes(
        self,
        params: Numbers,
        *,
        rows: Numbers | None = None,
        columns: Numbers | None = None,
        has_master: bool = True,
        param_bytes: int = 2,
        grad_bytes: int = 4,
    ) -> Numbers:
        """Bytes that one step reads and writes in device memory.

        Arguments:
            param_bytes: of one parameter as the model uses it; 4 without a master copy in mixed precision.
            grad_bytes: of one gradient as the optimizer reads it.
            Others as in `state_bytes`.
        """
        # The master copy is read and written, the parameter only written; without one, it is both itself.
        weights = (8 + param_bytes) * params if has_master else 2 * param_bytes * params
        passes = (8 * self.update_passes + 4 * self.extra_reads) * params
        if self.rank is not None and rows is not None and columns is not None:
            # The gradient in the small space and its update: each written and read.
            passes = passes + 16 * params * minimum(self.rank, minimum(rows, columns)) / minimum(rows, columns)
        return grad_bytes * params + weights + passes + 2 * self.moment_state_bytes(params, rows=rows, columns=columns)

    def step_flops(self, params: Numbers, *, rows: Numbers | None = None, columns: Numbers | None = None) -> Numbers:
        """FLOPs of one step; arguments as in `state_bytes`."""
        flops = self.flops_per_param * params
        if self.newton_schulz_steps and rows is not None and columns is not None:
            small, large = minimum(rows, columns), maximum(rows, columns)
            return flops + self.newton_schulz_steps * (4 * small + 2 * small**2 / large) * params
        if self.rank is None or rows is None or columns is None:
            return flops
        small = minimum(rows, columns)
        rank = minimum(self.rank, small)
        # To the small space and back, two FLOPs per number and direction of it; periodically a new space.
        renewal = self.renewal_flops(params, rows=rows, columns=columns)
        return flops * rank / small + (4 * rank + _APPLY_FLOPS) * params + renewal

    def renewal_flops(self, params: Numbers, *, rows: Numbers, columns: Numbers) -> Numbers:
        """FLOPs to renew the space, per step on average."""
        return 0 * params if self.rank is None else 4 * minimum(rows, columns) / self.renew_every * params

    def temporary_bytes(self, params: Numbers) -> Numbers:
        """Temporary bytes of the step for a tensor of so many parameters: its update, in 32 bits."""
        return 4 * params if self.update_passes else 0 * params

    def num_kernels(self, num_tensors: Numbers) -> Numbers:
        """Kernels of one step for a model of so many tensors."""
        return self.kernels * num_tensors if self.is_per_tensor else self.kernels

    def _scale_bytes(self, params: Numbers) -> Numbers:
        return 4 * ceil_div(params, self.block) if self.block else 0


_ADAM_FLOPS = 12.0 + _APPLY_FLOPS  # 3 for the first moment, 4 for the second, 2 corrections, root, epsilon, quotient

_RECORDS = (
    Optimizer("sgd", "Robbins and Monro 1951", flops_per_param=_APPLY_FLOPS),
    Optimizer("sgd-momentum", "Polyak 1964; torch.optim.SGD", moments=1, flops_per_param=2 + _APPLY_FLOPS),
    Optimizer("adam", "Kingma and Ba, arXiv 1412.6980", moments=2, flops_per_param=_ADAM_FLOPS),
    Optimizer("adamw", "Loshchilov and Hutter, arXiv 1711.05101", moments=2, flops_per_param=_ADAM_FLOPS),
    Optimizer(
        "lamb",
        "You et al., arXiv 1904.00962, algorithm 2",
        moments=2,
        flops_per_param=_ADAM_FLOPS + 5,  # two norms, and the ratio of them
        update_passes=1,
        extra_reads=3,  # weight and update for their norms, the weight again to apply the update
        kernels=4,
    ),
    Optimizer("lion", "Chen et al., arXiv 2302.06675, algorithm 2", moments=1, flops_per_param=7 + _APPLY_FLOPS),
    Optimizer(
        "sophia",
        "Liu et al., arXiv 2305.14342, algorithm 3",
        moments=2,
        flops_per_param=8 + _APPLY_FLOPS,
        extra_gradients=0.05,  # every tenth step, of half of the batch (section 3.1)
    ),
    Optimizer(
        "adafactor",
        "Shazeer and Stern, arXiv 1804.04235, algorithm 4",
        is_factored=True,
        flops_per_param=12 + _APPLY_FLOPS,
        update_passes=1,
        extra_reads=3,  # the gradient again after its sums, the update and the weight for their sizes
        kernels=4,
        is_per_tensor=True,
    ),
    Optimizer(
        "adam-8bit",
        "Dettmers et al., arXiv 2110.02861, with 2,048 a block; bitsandbytes' optim/optimizer.py has 256",
        moments=2,
        moment_bytes=1,
        block=256,
        flops_per_param=_ADAM_FLOPS + 22,  # each moment: a product, a largest of the block, a quotient, 8 comparisons
        is_per_tensor=True,
    ),
    Optimizer(
        "muon",
        "Jordan et al., 2024, kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982, section 2.2",
        moments=1,
        newton_schulz_steps=5,
        flops_per_param=7 + _APPLY_FLOPS,  # momentum, Nesterov, the norm
        update_passes=1,
        kernels=8,
        is_per_tensor=True,
    ),
    Optimizer(
        "galore",
        "Zhao et al., arXiv 2403.03507, algorithm 2; the rank of its 7B model",
        moments=2,
        rank=1024,
        flops_per_param=_ADAM_FLOPS,
        update_passes=1,
        kernels=4,
        is_per_tensor=True,
    ),
)

OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType({record.name: record for record in _RECORDS})


def find_optimizer(name: str | Optimizer) -> Optimizer:
    """The optimizer of that name ("AdamW" is "adamw"); an `Optimizer` is returned as it is.

    `dataclasses.replace(find_optimizer("galore"), rank=256)` has another rank. An unknown name is a ValueError with the
    nearest names.
    """
    if isinstance(name, Optimizer):
        return name
    found = OPTIMIZERS.get(name.lower().replace("_", "-")) if isinstance(name, str) else None
    if found is None:
        raise unknown_name("optimizer", name, list(OPTIMIZERS))
    return found
