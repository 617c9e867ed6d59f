"""Megatron's f and g: the ends of a region in which every rank computes with its shard of the weights.

Outside the region all ranks hold the same x. Inside, each computes with its own columns or rows. The sum rule gives
backward at both ends: x is read by all ranks, so its gradient is the sum of theirs; y is the sum of the ranks' parts,
so the gradient of each part is the gradient of y.

                   forward               backward
    f  enter       nothing               all-reduce          `copy_to_ranks`
    g  leave       all-reduce            nothing             `reduce_from_ranks`
       gather      all-gather            own part            `gather_from_ranks`: restores a cut dimension
       scatter     own part              all-gather          `scatter_to_ranks`: its mirror

Sequence parallelism has another pair instead of f and g (`sequence_parallel.py`).

Uneven sizes are cut as by DTensor: ceil(N / n) to each rank in turn, fewer or none to the last ranks. Collectives need
equal sizes, so shards are padded for them.

Cost for n ranks, S bytes of x, alpha and beta of the link (ring), of an all-reduce (a gather: half of each):
    time_s      2(n-1) alpha + 2(n-1)/n S beta
    peak bytes  S for a copy
    sent bytes  2(n-1)/n S per rank
Shapes: x (..., N); a shard (..., n_r) with the N cut; any dimension may be cut.
Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3 and figure 3 (f and g).
Simplified: one group, along which weights are cut; all ranks give tensors of the same shape.
"""

# pyright: reportIncompatibleMethodOverride=false
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.signature import Count, NonNegativeInt, checked

Group = dist.ProcessGroup | None
Map = Callable[[Tensor], Tensor]
# torch 2.13 renamed them; 2.11 has only the old names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@checked
def shard_range(
    size: NonNegativeInt, rank: NonNegativeInt, world_size: Count, multiple_of: Count = 1
) -> tuple[int, int]:
    """First and end index of a rank's shard of a dimension: ceil(size / n) each, the last ranks fewer or none.

    >>> [shard_range(7, rank, 3) for rank in range(3)], shard_range(6, 1, 2, multiple_of=2)
    ([(0, 3), (3, 6), (6, 7)], (4, 6))

    Arguments:
        size: of the whole dimension.
        rank: 0 to `world_size` - 1.
        multiple_of: size of an indivisible unit, such as the width of a head; all shards but the last are a multiple.
    """
    if rank >= world_size:
        raise ValueError(f"rank must be 0 to {world_size - 1}, one of {world_size}: got {rank}.")
    chunk = chunk_size(size, world_size, multiple_of)
    return min(rank * chunk, size), min((rank + 1) * chunk, size)


def chunk_size(size: int, world_size: int, multiple_of: int = 1) -> int:
    """Size of the largest shard, on the first rank: ceil(size / n), rounded up to the multiple."""
    return -(-size // (world_size * multiple_of)) * multiple_of


def shard_of(whole: Tensor, dim: int, group: Group = None, multiple_of: int = 1) -> Tensor:
    """This rank's shard, a view. Does not communicate. Arguments as `shard_range`."""
    start, end = shard_range(whole.shape[dim], dist.get_rank(group), dist.get_world_size(group), multiple_of)
    return whole.narrow(dim, start, end - start)


@torch.no_grad()
def all_gather_dim(shard: Tensor, dim: int, size: int, group: Group = None, multiple_of: int = 1) -> Tensor:
    """The whole tensor (`size` of `dim`) from the shards of `shard_of`. Communicates: one all-gather, padded."""
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return shard.clone()
    chunk = chunk_size(size, world_size, multiple_of)
    first = shard.movedim(dim, 0)  # a collective concatenates ranks along the first dimension
    if len(first) < chunk:
        first = torch.cat([first, first.new_zeros(chunk - len(first), *first.shape[1:])])
    gathered = first.new_empty(world_size * chunk, *first.shape[1:])
    all_gather_single(gathered, first.contiguous(), group=group)
    return gathered[:size].movedim(0, dim).contiguous()


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Map, backward: Map) -> Tensor:
        ctx.rule = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.rule(grad), None, None


def with_gradient(x: Tensor, forward: Map, backward: Map) -> Tensor:
    """`forward(x)`, a new tensor or a view; its gradient is `backward(grad)`."""
    return _WithGradient.apply(x, forward, backward)  # pyright: ignore[reportReturnType]


def all_reduced(x: Tensor, group: Group = None) -> Tensor:
    """The sum over ranks. The input is not changed: autograd may use a gradient elsewhere."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _Reduce(torch.autograd.Function):
    """g."""

    @staticmethod
    def forward(ctx: Any, x_partial: Tensor, group: Group) -> Tensor:
        ctx.mark_dirty(x_partial)
        dist.all_reduce(x_partial, group=group)
        return x_partial

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def copy_to_ranks(x: Tensor, group: Group = None) -> Tensor:
    """f: `x`, the same on all ranks, enters the region. Backward: one all-reduce of its gradient.

    For a weight that all ranks hold whole but use on different parts, it sums the gradient.
    """
    if dist.get_world_size(group) == 1:
        return x
    return with_gradient(x, lambda x: x.view_as(x), lambda grad: all_reduced(grad, group))


def reduce_from_ranks(x_partial: Tensor, group: Group = None) -> Tensor:
    """g: the sum over ranks of their parts, on all ranks. Forward: one all-reduce. The input is not changed."""
    return reduce_from_ranks_(x_partial.clone(memory_format=torch.contiguous_format), group)


def reduce_from_ranks_(x_partial: Tensor, group: Group = None) -> Tensor:
    """g in place, for a contiguous tensor without other readers, such as the result of a product."""
    if dist.get_world_size(group) == 1:
        return x_partial
    return _Reduce.apply(x_partial, group)  # pyright: ignore[reportReturnType]


def gather_from_ranks(shard: Tensor, dim: int, size: int, group: Group = None, multiple_of: int = 1) -> Tensor:
    """The whole tensor, for the same computation on all ranks: backward keeps this rank's part of the gradient.

    Communicates: one all-gather forward. Not to be confused with `gather_sequence`, after which ranks compute
    differently. Arguments as `all_gather_dim`.
    """
    gather = partial(all_gather_dim, dim=dim, size=size, group=group, multiple_of=multiple_of)
    return with_gradient(shard, gather, lambda grad: shard_of(grad, dim, group, multiple_of))


def scatter_to_ranks(whole: Tensor, dim: int, group: Group = None, multiple_of: int = 1) -> Tensor:
    """This rank's shard of a tensor on all ranks. Communicates: one all-gather of gradients backward."""
    gather = partial(all_gather_dim, dim=dim, size=whole.shape[dim], group=group, multiple_of=multiple_of)
    return with_gradient(whole, lambda x: shard_of(x, dim, group, multiple_of).contiguous(), gather)


def exchange_rows(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: Group = None) -> Tensor:
    """All-to-all of rows, `sent` to and `received` from each rank, in rank order. Backward: the reverse.

    Communicates: one all-to-all forward, one backward.
    """
    if dist.get_world_size(group) == 1:
        return rows

    def exchanged(rows: Tensor) -> Tensor:
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent), group=group)
        return out

    return with_gradient(rows, exchanged, lambda grad: exchange_rows(grad, received, sent, group))


@dataclass(frozen=True, slots=True)
class Region:
    """A pair of ends: entrance of an activation into the region, and exit of a sum over ranks."""

    name: str  # in plans
    # enter, leave: functions of (tensor, group); `leave` may overwrite its tensor
    enter: Callable[[Tensor, Group], Tensor]
    leave: Callable[[Tensor, Group], Tensor]
    # outside the region each rank has only some tokens, and weights used there have a partial gradient on each rank
    cuts_sequence: bool = False

    def __repr__(self) -> str:
        return self.name

    def shared(self, weight: Tensor, group: Group = None) -> Tensor:
        """A weight for use outside the region; its gradient on every rank is over all tokens."""
        return copy_to_ranks(weight, group) if self.cuts_sequence else weight


class Entrance:
    """An entrance that several layers share: the first one enters the input, the others reuse it.

    Queries, keys and values read one tensor; with separate entrances its gradient would be reduced three times.
    `forget` is a forward hook of the module around them, so nothing is kept after the layers.
    """

    def __init__(self, region: Region):
        self.region, self._outside, self._inside = region, None, None

    def enter(self, x: Tensor, group: Group) -> Tensor:
        if self._outside is not x:
            self._outside, self._inside = x, self.region.enter(x, group)
        assert self._inside is not None
        return self._inside

    def forget(self, *_: Any) -> None:
        self._outside = self._inside = None


TENSOR = Region("TENSOR", copy_to_ranks, reduce_from_ranks_)
