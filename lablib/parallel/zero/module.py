"""ZeRO: one module and its optimizer, sharded at stage 1, 2 or 3.

    stage   sharded                                    at rest, bytes per rank      sent in a step
    1       optimizer state                            (p + g + K/n) P              2 (n-1)/n p P
    2       ... and gradients                          (p + (g + K)/n) P            2 (n-1)/n p P
    3       ... and parameters                         (p + g + K)/n P              3 (n-1)/n p P

Experts on several ranks: their state is cut over the ranks with the same experts, everything else over all.

        zero = Zero(model, torch.optim.AdamW, stage=3)
        for inputs, targets in batches:
            loss_of(zero(inputs), targets).backward()
            zero.clip_grad_norm_(1.0)
            zero.step()
            zero.zero_grad()

Mixed precision: `param_dtype=torch.bfloat16` of a module in float32 computes and gathers in bfloat16, while the
optimizer updates a float32 master copy of the shard: p = 2, g = 2, K = 4 + 8 with Adam. `reduce_dtype=torch.float32`
reduces and accumulates gradients in float32: 4 bytes are sent, and g = 4 for shards. Before the update gradients of 2
bytes are cast, which temporarily takes 4/n P bytes more.

Accumulation. Stage 1 reduces once per step: every micro-batch but the last runs under `no_sync`. Stages 2 and 3 may
reduce after every micro-batch, (n-1)/n g P bytes each; or once, with `no_sync`, which keeps the full gradient, g P
bytes, until then.

Cost for n ranks, P parameters of p bytes, gradients of g, K bytes of optimizer state and master copy per parameter:
above; exact, for uneven shards, in `zero/bytes.py`.
Shapes: a shard is [N / n], N the padded elements of its unit.
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, figure 1; Micikevicius et al., 2017, arXiv 1710.03740
(master parameters).
Simplified: the optimizer gets flat shards, so it must work element by element; one learning rate and weight decay for
all parameters of a unit.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.naive import broadcast_module
from lablib.parallel.experts.gradients import ExpertGroup
from lablib.parallel.zero.hybrid import HybridReduceScatter
from lablib.parallel.zero.shards import FlatUnit, ReduceScatter, reduce_scatter_average, require_in_group
from lablib.parallel.zero.stage1 import Zero1
from lablib.parallel.zero.stage2 import Zero2
from lablib.parallel.zero.stage3 import Zero3
from lablib.precision.loss_scaling import LossScaler
from lablib.signature import Range, check_types, checked

OptimizerFn = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Stage = Annotated[int, Range(ge=1, le=3), "use 1 (optimizer state), 2 (and gradients) or 3 (and parameters)"]
MaxNorm = Annotated[float, Range(gt=0), "try 1.0, or math.inf to measure only"]
STAGES: dict[int, type[Zero1] | type[Zero3]] = {1: Zero1, 2: Zero2, 3: Zero3}


class Zero(nn.Module):
    """A module and its optimizer, sharded by one of the three stages.

    Arguments:
        module: on this rank's device; its parameters have one floating-point dtype.
        optimizer_fn: makes the optimizer of this rank's shards, one flat parameter for each unit.
        stage: 1, 2 or 3.
        group: the ranks that share the state; None for all.
        replicate_group: the ranks that hold the same shards, in hybrid sharding; see `zero/hybrid.py`.
        reduce_scatter: averages gradients into shards.
        experts: the experts that `ExpertParallel` has spread over ranks of `group`, without `replicate_group`.
        options: of the stage, see `Zero1` and `Zero3`: `all_gather`, `param_dtype`, `reduce_dtype`, `multiple_of`; for
            1 and 2 `bucket_bytes`; for 3 `units`, `reshard_after_forward`, `prefetch`, `backward_all_gather`.

    Attributes:
        sharded: the stage.
        units: the flat units; the optimizer updates the `master` of each.
        optimizer: the result of `optimizer_fn`; learning-rate schedules take it.

    Raises ValueError: an option that the stage does not have, or as raised by the stage.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_fn: OptimizerFn,
        stage: int,
        group: dist.ProcessGroup | None = None,
        *,
        replicate_group: dist.ProcessGroup | None = None,
        reduce_scatter: ReduceScatter = reduce_scatter_average,
        experts: ExpertGroup | None = None,
        **options: Any,
    ):
        super().__init__()
        given = [("module", module, nn.Module), ("optimizer_fn", optimizer_fn, Callable), ("stage", stage, Stage)]
        check_types("Zero", given)
        for name, one in (("group", group), ("replicate_group", replicate_group)):
            require_in_group(name, one)
        if replicate_group is not None and experts is not None:
            raise ValueError("hybrid sharding takes no experts on several ranks: got both; leave replicate_group out.")
        if replicate_group is not None:
            broadcast_module(module, replicate_group)
            reduce_scatter = HybridReduceScatter(replicate_group, reduce_scatter)
        self._first_names = first_names(module)
        self._shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
        try:
            self.sharded = STAGES[stage](module, group, reduce_scatter=reduce_scatter, experts=experts, **options)
        except TypeError as error:
            raise ValueError(f"stage {stage} takes no such option: {error}") from None
        self.stage, self.group, self.replicate_group, self.experts = stage, group, replicate_group, experts
        self.units: list[FlatUnit] = self.sharded.units
        self.optimizer = optimizer_fn([unit.master for unit in self.units if unit.is_trainable])

    @property
    def module(self) -> nn.Module:
        """The given module; in stage 3 its parameters are flat pieces outside forward and backward."""
        return self.sharded.module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.sharded(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """In this block, backward accumulates full gradients without reduction: for all micro-batches but the last."""
        return self.sharded.no_sync()

    # ---- a step ----

    @checked
    def clip_grad_norm_(self, max_norm: MaxNorm, scaler: LossScaler | None = None) -> Tensor:
        """Clip the gradient of all shards together to `max_norm`; returns its norm before, the same on every rank.

        Communicates: one number, and the scaler's flag. An inf or NaN of one rank is in the norm of all. `max_norm`:
        infinity measures only. `scaler`: of the loss, by which gradients are divided first. Raises as `step`.
        """
        self.sharded.before_step()
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        shards = [unit.master.grad for unit in self.units if unit.master.grad is not None]
        # In float64: a square overflows FP16 beyond 256, and FP32 beyond 1.8e19. Padding is zero.
        squared = torch.stack([torch.linalg.vector_norm(shard, dtype=torch.float64).square() for shard in shards]).sum()
        dist.all_reduce(squared, group=self.group)
        norm = squared.sqrt()
        if max_norm < math.inf:
            for shard in shards:
                shard.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))  # no `if`: the host does not wait for the norm
        return norm

    def step(self, scaler: LossScaler | None = None) -> None:
        """Update this rank's shards and the parameters. Stages 1 and 2 communicate.

        `scaler`: of the loss; it skips the step if gradients overflowed on any rank. ValueError: no gradients have been
        reduced since the last `zero_grad`.
        """
        self.sharded.before_step()
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.sharded.after_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free the gradients, full and sharded, also with `set_to_none=False`."""
        self.sharded.zero_grad(set_to_none)

    # ---- everything, on every rank ----

    def full_gradients(self) -> dict[str, Tensor]:
        """The mean gradient of every trainable parameter, gathered; of experts, this rank's. Communicates.

        Raises as `step`.
        """
        self.sharded.before_step()
        return self._gathered((unit, unit.master.grad) for unit in self.units if unit.is_trainable)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Parameters, gathered from the masters, and buffers, by the module's names; as `full_gradients`."""
        full = self._gathered((unit, unit.master) for unit in self.units)
        own = self.module.state_dict()
        found = {name: full[first] if first in full else own[name] for name, first in self._first_names.items()}
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def load_full_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load parameters and buffers from the state of an unsharded module; keeps the optimizer's state. Communicates.

        ValueError: names or shapes do not match the module; then nothing has changed.
        """
        require_same_state(state, self._shapes)
        sharded = set[str]()
        for unit in self.units:
            unit.load([state[name] for name in unit.layout.names])
            sharded.update(unit.layout.names)
        with torch.no_grad():
            for name, tensor in self.module.state_dict().items():
                if self._first_names[name] not in sharded:
                    tensor.copy_(state[name])
        self.sharded.after_step()

    def _gathered(self, shards: Iterable[tuple[FlatUnit, Any]]) -> dict[str, Tensor]:
        return {
            name: view
            for unit, shard in shards
            for name, view in zip(unit.layout.names, unit.gather(shard), strict=True)
        }


def first_names(module: nn.Module) -> dict[str, str]:
    """Every name in the module's state, and the first name of the same parameter; a tied one has several."""
    params = dict(module.named_parameters(remove_duplicate=False))
    first = {param: name for name, param in module.named_parameters()}
    return {name: first[params[name]] if name in params else name for name in module.state_dict()}


def require_same_state(state: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Raise ValueError unless the state has the names and shapes of the module."""
    if state.keys() != shapes.keys():
        odd = sorted(state.keys() ^ shapes.keys())[0]
        raise ValueError(
            f"the state must be of the same module: {odd} is in the {'state' if odd in state else 'module'} only; "
            "save it with full_state_dict(), or state_dict() of the module before it is sharded."
        )
    wrong = [name for name in shapes if state[name].shape != shapes[name]]
    if wrong:
        raise ValueError(
            f"the state must be of the same module: {wrong[0]} has the shape {tuple(state[wrong[0]].shape)}, not "
            f"{tuple(shapes[wrong[0]])}."
        )
