"""ZeRO stage 1 over the ranks that hold the same part of a model, and the norm of a gradient that lies on every axis.

Ranks along data and context have the same parameters and saw different tokens. Their gradients are averaged, and the
optimizer's state is cut over all of them together. A rank's parameters lie in flat buffers (`zero/shards.py`), its
gradients in others of the same layout, so that backward adds up where they are to be sent from:

    parameters   [ piece 0 ............ ]   [ piece 3 .......... ]    one buffer for each piece of the pipeline
    gradients    [ ..................... ]   [ ................. ]    reduce-scatter when a piece's last backward ends
    optimizer    [ 1/n ]                     [ 1/n ]                  steps its shards; then all-gather

What counts in the norm of the whole gradient, each number once:

    over data, context   shards are disjoint                       every rank counts
    over tensor          shards of matrices are disjoint           every rank counts
                         norms and some biases are whole           the first rank counts
    over pipeline        pieces are disjoint                       every rank counts
                         a tied embedding is on both ends          the first of them counts

So buffers are cut so that one counts as a whole or not at all, and one number is summed over all ranks of the mesh.

Phases of a step (the code has the same headings):
    1. begin      gradients are zero
    2. reduce     a piece is done: its buffers' reduce-scatters start, beside the backward of other pieces
    3. finish     after the pipeline: what is tied; wait for all
    4. clip       unscale, norm, shorten
    5. step       the shards, unless gradients overflowed anywhere; all-gather

Cost for P parameters of w bytes on this rank, n = data * context ranks, K bytes of optimizer state for each:
    peak bytes  (2 w + (w + K) / n) P
    sent bytes  2 (n-1)/n w P, and 8 for the norm
Shapes: a buffer is [N], N its padded elements; a shard is [N / n].
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, section 5.1; NVIDIA/Megatron-LM,
megatron/core/optimizer/distrib_optimizer.py (one buffer of gradients) and clip_grads.py (what counts).
Simplified: gradients have the dtype of parameters; one buffer for a piece, not buckets; all parameters are gathered
before the next step begins.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.overlapped import Handle
from lablib.parallel.tensor.state import each_parameter
from lablib.parallel.zero.shards import FlatUnit, all_gather_shards, reduce_scatter_average
from lablib.phases import phase
from lablib.precision.loss_scaling import LossScaler

OptimizerFn = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
EPS = 1e-6  # of clipping, as torch's


class Owned(NamedTuple):
    """A parameter of this rank: its name in the whole model, itself, and the layer that has it, by which name."""

    name: str
    param: nn.Parameter
    owner: nn.Module
    key: str


@dataclass(eq=False, slots=True)
class Buffer:
    """Parameters that are reduced together, and count together.

    Attributes:
        owned: they.
        unit: they as a flat buffer and this rank's shard.
        gradients: the flat buffer of their gradients.
        grads: of each, its gradient: a view of that buffer.
        counts: whether this rank counts them in the norm, and saves them.
        handle: of what is under way.
    """

    owned: Sequence[Owned]
    unit: FlatUnit
    gradients: Tensor
    grads: Sequence[Tensor]
    counts: bool
    handle: Handle | None = None


class CombinedOptimizer:
    """The optimizer of this rank's part.

    Arguments:
        part: the module; a layer that is cut over tensor ranks says so (`cuts`).
        pieces: of this rank, by number: which parameters are complete together.
        group: of the ranks that hold the same part, along data and context.
        counts: whether this rank counts a parameter, given whether that is a shard of its own over tensor ranks.
        tied: a parameter that is complete only after the pipeline's step, if there is one.
        optimizer_fn: makes the optimizer of this rank's shards, a flat parameter for each buffer.

    Attributes:
        buffers: in the order of the pieces; what is tied comes last.
        optimizer: what `optimizer_fn` made.
    """

    def __init__(
        self,
        part: nn.Module,
        pieces: Mapping[int, nn.Module],
        group: dist.ProcessGroup,
        counts: Callable[[Owned], bool],
        tied: nn.Parameter | None,
        optimizer_fn: OptimizerFn,
    ):
        self.group, self.world_size = group, dist.get_world_size(group)
        self.buffers: list[Buffer] = []
        self._of_piece: dict[int | None, list[Buffer]] = {}
        piece_of = {param: number for number, piece in pieces.items() for param in piece.parameters()}
        classes: dict[tuple[int | None, bool], list[Owned]] = {}
        for owned in starmap(Owned, each_parameter(part)):
            number = None if owned.param is tied else piece_of[owned.param]
            classes.setdefault((number, counts(owned)), []).append(owned)
        for (number, does_count), some in sorted(classes.items(), key=lambda each: (each[0][0] is None, each[0])):
            buffer = self._buffer(some, does_count)
            self.buffers.append(buffer)
            self._of_piece.setdefault(number, []).append(buffer)
        self.optimizer = optimizer_fn([buffer.unit.master for buffer in self.buffers])

    def _buffer(self, some: Sequence[Owned], counts: bool) -> Buffer:
        unit = FlatUnit([(one.name, one.param) for one in some], self.group, in_place=True)
        gradients = torch.zeros_like(unit.full)
        grads = unit.layout.views(gradients)
        for one, view, grad in zip(some, unit.layout.views(unit.full), grads, strict=True):
            one.param.data, one.param.grad = view, grad
        return Buffer(some, unit, gradients, grads, counts)

    # ---- 1. begin ----

    def begin(self) -> None:
        """Gradients become zero, and stay where they are: backward adds to them in place."""
        for buffer in self.buffers:
            buffer.unit.gradient = None
            buffer.gradients.zero_()

    # ---- 2. reduce ----

    def reduce(self, number: int | None, _: Any = None) -> None:
        """Start to average the gradients of a piece, or of the tied parameter. Communicates, and does not wait."""
        with phase("reduce"):
            for buffer in self._of_piece.get(number, ()):
                self._reduce(buffer)

    def _reduce(self, buffer: Buffer) -> None:
        for one, grad in zip(buffer.owned, buffer.grads, strict=True):
            if one.param.grad is not grad:  # a sum over tied copies is a new tensor
                assert one.param.grad is not None
                grad.copy_(one.param.grad)
                one.param.grad = grad
        if self.world_size == 1:
            buffer.unit.gradient = buffer.gradients
            return
        shard = buffer.gradients.new_empty(buffer.unit.layout.shard_numel)
        buffer.unit.gradient, buffer.handle = shard, reduce_scatter_average(buffer.gradients, shard, self.group)

    # ---- 3. finish ----

    def finish(self) -> None:
        """After the pipeline: average the tied parameter's gradient, and wait for all."""
        self.reduce(None)
        for buffer in self.buffers:
            if buffer.handle is not None:
                buffer.handle.wait()
                buffer.handle = None

    # ---- 4. clip ----

    def clip(self, max_norm: float, scaler: LossScaler | None = None) -> tuple[Tensor, bool]:
        """Shorten the whole model's gradient to `max_norm`; its norm before, and whether it overflowed on any rank.

        Communicates: one number, and the scaler's flag.
        """
        overflowed = scaler.unscale_(self.optimizer) if scaler is not None else False
        squared = torch.zeros((), dtype=torch.float64)
        for buffer in self.buffers:
            if buffer.counts:  # in float64: a square overflows FP32 beyond 1.8e19. Padding is zero.
                squared = squared + torch.linalg.vector_norm(_grad(buffer), dtype=torch.float64).square()
        dist.all_reduce(squared)
        norm = squared.sqrt()
        if max_norm < math.inf:
            factor = (max_norm / (norm + EPS)).clamp(max=1.0)  # no `if`: the host does not wait for the norm
            for buffer in self.buffers:
                _grad(buffer).mul_(factor)
        return norm, overflowed

    # ---- 5. step ----

    def step(self, scaler: LossScaler | None = None) -> None:
        """Step this rank's shards, and bring all parameters up to date. Communicates."""
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.gather()

    def gather(self) -> None:
        """Parameters follow the shards. Communicates."""
        if self.world_size == 1:
            return
        handles = [all_gather_shards(b.unit.shard.detach(), b.unit.full, self.group) for b in self.buffers]
        for handle in handles:
            handle.wait()

    # ---- tensors of this rank's part, unsharded over data and context ----

    def gathered(self, of: Callable[[Buffer], Tensor]) -> Iterator[tuple[Owned, Tensor]]:
        """Each parameter's part of a tensor like the shards, gathered. Communicates."""
        for buffer in self.buffers:
            yield from zip(buffer.owned, buffer.unit.gather(of(buffer)), strict=True)

    def gradients(self) -> Iterator[tuple[Owned, Tensor]]:
        """The mean gradients, this rank's shard over tensor ranks alone. Communicates."""
        return self.gathered(_grad)


def _grad(buffer: Buffer) -> Tensor:
    gradient = buffer.unit.gradient
    if gradient is None:
        raise ValueError("a step needs gradients: there are none; call backward(tokens, targets) first.")
    return gradient
