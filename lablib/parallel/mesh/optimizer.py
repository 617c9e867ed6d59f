"""ZeRO stage 1 over the ranks with the same part of a model, and the norm of a gradient spread over all axes.

Ranks along data, expert and context have the same parameters, but for experts, and different tokens. Their gradients
are averaged, and the optimizer's state is cut over all of them. Experts are in separate buffers: only ranks along data
and context have the same ones, and a gradient is already a sum over the expert ranks (`experts/gradients.py`). A rank's
parameters are in flat buffers (`zero/shards.py`), its gradients in buffers of the same layout, so backward accumulates
directly into the send buffer:

    parameters   [ piece 0 ............ ]   [ piece 3 .......... ]    one buffer for each piece of the pipeline
    gradients    [ ..................... ]   [ ................. ]    reduce-scatter when a piece's last backward ends
    optimizer    [ 1/n ]                     [ 1/n ]                  updates its shards; then all-gather

The norm of the whole gradient counts each number once:

    over data, context   shards are disjoint                       every rank counts
    over expert          shards and experts are disjoint           every rank counts
    over tensor          shards of matrices are disjoint           every rank counts
                         norms and some biases are whole           the first rank counts
    over pipeline        pieces are disjoint                       every rank counts
                         a tied embedding is on both ends          the first end counts

So each buffer counts as a whole or not at all, and one number is summed over all ranks of the mesh.

Phases of a step (the code has the same headings):
    1. begin      gradients are zero
    2. reduce     after a piece's last backward, its reduce-scatters start, during the backward of other pieces
    3. finish     after the pipeline: tied parameters; wait for all
    4. clip       unscale, norm, scale down
    5. step       update the shards, unless any gradient overflowed; all-gather

Cost for P parameters of w bytes on this rank, n = data * expert * context ranks (of experts data *
context), K bytes of optimizer state per parameter:
    peak bytes  (2 w + (w + K) / n) P
    sent bytes  2 (n-1)/n w P, and 8 for the norm
Shapes: a buffer is [N], N its padded elements; a shard is [N / n].
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, section 5.1; NVIDIA/Megatron-LM,
megatron/core/optimizer/distrib_optimizer.py (one buffer of gradients) and clip_grads.py (parameters in the norm).
Simplified: gradients have the dtype of parameters; one buffer per piece, not buckets; all parameters are gathered
before the next step.
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
from lablib.parallel.experts.gradients import ExpertGroup
from lablib.parallel.tensor.state import each_parameter
from lablib.parallel.zero.shards import FlatUnit, all_gather_shards, reduce_scatter_average, require_same_training
from lablib.phases import phase
from lablib.precision.loss_scaling import LossScaler

OptimizerFn = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
EPS = 1e-6  # of clipping, as in torch


class Owned(NamedTuple):
    """A parameter of this rank: its name in the whole model, the parameter, its layer, and its name in the layer."""

    name: str
    param: nn.Parameter
    owner: nn.Module
    key: str


@dataclass(eq=False)
class Sharded:
    """Parameters in one flat buffer, of which this rank has a shard."""

    owned: Sequence[Owned]  # the parameters, in the order of the buffer
    unit: FlatUnit  # the buffer and the shard
    counts: Sequence[bool]  # of each, whether this rank counts it in the norm, and saves it

    def counted(self, tensor: Tensor) -> list[Tensor]:
        """The parts of a tensor like the shard that this rank counts; all of it includes padding, which is zero.

        Neighbours are one part: each part is a kernel of the norm.
        """
        if all(self.counts):
            return [tensor]
        names = {name for name, counts in zip(self.unit.layout.names, self.counts, strict=True) if counts}
        pieces = self.unit.layout.pieces(dist.get_rank(self.unit.group))
        parts: list[list[int]] = []  # start and length
        for _, _, start, numel in (piece for piece in pieces if piece.name in names):
            if parts and sum(parts[-1]) == start:
                parts[-1][1] += numel
            else:
                parts.append([start, numel])
        return [tensor.narrow(0, *part) for part in parts]


@dataclass(eq=False)
class Buffer(Sharded):
    """Parameters that are reduced together; this rank counts all of them or none."""

    gradients: Tensor  # the flat buffer of their gradients
    grads: Sequence[Tensor]  # the gradient of each: a view of that buffer
    num_summed: int  # ranks over whose losses a gradient of this rank is already a sum
    handle: Handle | None = None  # of the communication in flight


class ShardedOptimizer:
    """The optimizer of this rank's shards, and the norm of all gradients."""

    buffers: Sequence[Sharded]
    optimizer: torch.optim.Optimizer  # of the master of each buffer

    # ---- 4. clip ----

    def clip(self, max_norm: float, scaler: LossScaler | None = None) -> tuple[Tensor, bool]:
        """Clip the whole model's gradient to `max_norm`; returns its norm before, and whether any rank overflowed.

        Communicates: one number, and the scaler's flag.
        """
        overflowed = scaler.unscale_(self.optimizer) if scaler is not None else False
        squared = torch.zeros((), dtype=torch.float64)
        for buffer in self.buffers:
            for grad in buffer.counted(_grad(buffer)):  # in float64: a square overflows FP32 beyond 1.8e19
                squared = squared + torch.linalg.vector_norm(grad, dtype=torch.float64).square()
        dist.all_reduce(squared)
        norm = squared.sqrt()
        if max_norm < math.inf:
            factor = (max_norm / (norm + EPS)).clamp(max=1.0)  # no `if`: the host does not wait for the norm
            for buffer in self.buffers:
                _grad(buffer).mul_(factor)
        return norm, overflowed

    # ---- 5. step ----

    def step(self, scaler: LossScaler | None = None) -> None:
        """Update this rank's shards, and gather all parameters. Communicates."""
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.gather()

    def gather(self) -> None:
        """Give the module the updated parameters. Communicates."""
        raise NotImplementedError

    # ---- tensors of this rank's part, unsharded over data and context ----

    def gathered(self, of: Callable[[Sharded], Tensor]) -> Iterator[tuple[Owned, Tensor]]:
        """Each parameter's part of a tensor like the shards, gathered. Communicates."""
        for buffer in self.buffers:
            yield from zip(buffer.owned, buffer.unit.gather(of(buffer)), strict=True)

    def gradients(self) -> Iterator[tuple[Owned, Tensor]]:
        """The mean gradients, cut only over tensor ranks. Communicates."""
        return self.gathered(_grad)


class CombinedOptimizer(ShardedOptimizer):
    """Stage 1: gradients and parameters of this rank's part are whole.

    Arguments:
        part: the module; layers that are cut over tensor ranks have `cuts`.
        pieces: of this rank, by number; the parameters of a piece are complete together.
        group: of the ranks with the same part, along data, expert and context.
        tied: the parameter that is complete only after the pipeline's step, if any.
        counts: whether this rank counts a parameter in the norm.
        optimizer_fn: makes the optimizer of this rank's shards, a flat parameter for each buffer.
        experts: of the part, if any.
    """

    def __init__(
        self,
        part: nn.Module,
        pieces: Mapping[int, nn.Module],
        group: dist.ProcessGroup,
        tied: nn.Parameter | None,
        counts: Callable[[Owned], bool],
        optimizer_fn: OptimizerFn,
        experts: ExpertGroup,
    ):
        self.group, self._experts = group, experts
        self.buffers: list[Buffer] = []  # in the order of the pieces; the tied parameter last
        self._of_piece: dict[int | None, list[Buffer]] = {}
        piece_of = {param: number for number, piece in pieces.items() for param in piece.parameters()}
        classes: dict[tuple[int | None, bool, bool], list[Owned]] = {}
        for owned in starmap(Owned, each_parameter(part)):
            number = None if owned.param is tied else piece_of[owned.param]
            classes.setdefault((number, counts(owned), owned.param in experts.params), []).append(owned)
        for (number, *of_buffer), some in sorted(classes.items(), key=lambda each: (each[0][0] is None, each[0])):
            buffer = self._buffer(some, *of_buffer)
            self.buffers.append(buffer)
            self._of_piece.setdefault(number, []).append(buffer)
        self.optimizer = optimizer_fn([buffer.unit.master for buffer in self.buffers])  # the result of `optimizer_fn`

    def _buffer(self, some: Sequence[Owned], counts: bool, is_of_experts: bool) -> Buffer:
        group = self._experts.group if is_of_experts else self.group
        unit = FlatUnit([(one.name, one.param) for one in some], group, in_place=True)
        gradients = torch.zeros_like(unit.full)
        grads = unit.layout.views(gradients)
        for one, view, grad in zip(some, unit.layout.views(unit.full), grads, strict=True):
            one.param.data, one.param.grad = view, grad
        num_summed = dist.get_world_size(self.group) // unit.layout.world_size
        return Buffer(some, unit, [counts] * len(some), gradients, grads, num_summed)

    # ---- 1. begin ----

    def begin(self) -> None:
        """Set gradients to zero in place; backward adds to them."""
        for buffer in self.buffers:
            for one in buffer.owned:
                require_same_training(one.name, one.param, True)
            buffer.unit.gradient = None
            buffer.gradients.zero_()

    # ---- 2. reduce ----

    def reduce(self, number: int | None, _: Any = None) -> None:
        """Start to average the gradients of a piece, or of the tied parameter. Communicates, without waiting."""
        with phase("reduce"):
            for buffer in self._of_piece.get(number, ()):
                self._reduce(buffer)

    def _reduce(self, buffer: Buffer) -> None:
        for one, grad in zip(buffer.owned, buffer.grads, strict=True):
            if one.param.grad is not grad:  # a sum over tied copies is a new tensor
                assert one.param.grad is not None
                grad.copy_(one.param.grad)
                one.param.grad = grad
        if buffer.num_summed > 1:
            buffer.gradients.div_(buffer.num_summed)
        if buffer.unit.layout.world_size == 1:
            buffer.unit.gradient = buffer.gradients
            return
        shard = buffer.gradients.new_empty(buffer.unit.layout.shard_numel)
        buffer.unit.gradient, buffer.handle = shard, reduce_scatter_average(buffer.gradients, shard, buffer.unit.group)

    # ---- 3. finish ----

    def finish(self) -> None:
        """After the pipeline: average the tied parameter's gradient, and wait for all."""
        self.reduce(None)
        for buffer in self.buffers:
            if buffer.handle is not None:
                buffer.handle.wait()
                buffer.handle = None

    # ---- 5. step ----

    def gather(self) -> None:
        """All-gather the parameters from the shards. Communicates."""
        units = [buffer.unit for buffer in self.buffers if buffer.unit.layout.world_size > 1]
        handles = [all_gather_shards(unit.shard.detach(), unit.full, unit.group) for unit in units]
        for handle in handles:
            handle.wait()

    def parameters(self) -> Iterator[tuple[Owned, Tensor]]:
        """The parameters, cut only over tensor ranks."""
        return ((one, one.param.detach()) for buffer in self.buffers for one in buffer.owned)


def _grad(buffer: Sharded) -> Tensor:
    gradient = buffer.unit.gradient
    if gradient is None:
        raise ValueError("a step needs gradients: there are none; call backward(tokens, targets) first.")
    return gradient
