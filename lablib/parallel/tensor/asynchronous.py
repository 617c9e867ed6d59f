"""Asynchronous tensor parallelism: product and collective in chunks, each chunk sent during another's product.

Sequence parallelism gathers all tokens, then multiplies; at the other end it multiplies, then scatters the sum. Neither
collective overlaps with the product, which needs all tokens. But the product of a chunk of tokens needs only that
chunk. So the ring of the collective is written out, and a product of the current chunk runs during each of its rounds:

    gather, multiply    compute  [ x_0 W ][ x_3 W ][ x_2 W ][ x_1 W ]      rank 0 of 4: own tokens first
                        comm     [ x_3   ][ x_2   ][ x_1   ]               the received chunk

    multiply, scatter   compute  [ h_3 V ][ h_2 V + ][ h_1 V + ][ h_0 V + ]    + adds the received sum; own tokens last
                        comm              [ sum    ][ sum    ][ sum    ]

Backward of one is the other: dX = dY W^T is a product with a scattered sum, and dW needs the gathered input, a chunk at
a time.

Cost for n ranks, p seconds of the product of one chunk, m of one message, a of adding one chunk:
    time_s      gather: (n-1) max(p, m) + p                     exposed: (n-1) max(0, m - p)
                scatter: p + (n-1) (max(p, m) + a)              exposed: (n-1) (max(0, m - p) + a)
                in one piece: P + (n-1) m, all exposed, with P <= n p, as small products are less efficient
    peak bytes  two chunks of B t D w in flight; the gathered input is never whole: B t D w is kept
    sent bytes  (n-1)/n B T D w in each direction, as the collectives; gather's backward has two rings
Shapes: B batch, T time, D width, F features; t = T / n, f = F / n on this rank; x_tBD has time first.
Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models",
ASPLOS 2023, doi 10.1145/3567955.3567959, sections 5.1 (looped collective einsum) and 5.4 (its cost); for torch: the
pass "async tensor parallel" of torch.distributed._symmetric_memory (torch 2.13), by copies between devices instead.
Simplified: one direction of the ring (the paper uses both); one chunk per rank; communication uses no cores of the GPU.
"""

# pyright: reportIncompatibleMethodOverride=false
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.tensor.mlp import MLPShard
from lablib.parallel.tensor.regions import Group, copy_to_ranks
from lablib.parallel.tensor.sequence_parallel import SEQUENCE_DIM, require_even_sequence
from lablib.signature import Count, checked


def ring_chunks(own: Tensor, group: Group = None) -> Iterator[tuple[int, Tensor]]:
    """Source rank and chunk of all ranks, this one's first: the next one is in flight. Communicates."""
    rank, world_size, chunk = dist.get_rank(group), dist.get_world_size(group), own
    for step in range(world_size):
        is_last = step == world_size - 1
        incoming, works = (chunk, []) if is_last else _pass_on(chunk, group)
        yield (rank - step) % world_size, chunk
        for work in works:
            work.wait()
        chunk = incoming


def ring_sum(part_of: Callable[[int], Tensor], group: Group = None) -> Tensor:
    """This rank's chunk of the sum over ranks. Communicates. `part_of` makes a new part of a chunk, its own last."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    total = part_of((rank - 1) % world_size)
    for step in range(1, world_size):
        incoming, works = _pass_on(total, group)
        part = part_of((rank - 1 - step) % world_size)
        for work in works:
            work.wait()
        total = part.add_(incoming)
    return total


def _pass_on(chunk: Tensor, group: Group) -> tuple[Tensor, list[dist.Work]]:
    """Start to send a chunk to the next rank, and to receive one from the rank before."""
    rank, world_size, incoming = dist.get_rank(group), dist.get_world_size(group), torch.empty_like(chunk)
    send = dist.P2POp(dist.isend, chunk, group=group, group_peer=(rank + 1) % world_size)
    receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % world_size)
    return incoming, dist.batch_isend_irecv([send, receive])


class _GatherLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BtD: Tensor, w_fD: Tensor, bias_f: Tensor | None, group: Group) -> Tensor:
        x_tBD = _time_first(x_BtD)
        ctx.save_for_backward(x_tBD, w_fD)
        ctx.group = group
        t, batch, _ = x_tBD.shape
        y_TBf = x_tBD.new_empty(t * dist.get_world_size(group), batch, len(w_fD))
        for c, chunk in ring_chunks(x_tBD, group):
            out = y_TBf[c * t : (c + 1) * t].flatten(0, 1)
            if bias_f is None:
                torch.mm(chunk.flatten(0, 1), w_fD.t(), out=out)
            else:
                torch.addmm(bias_f, chunk.flatten(0, 1), w_fD.t(), out=out)
        return y_TBf.movedim(0, SEQUENCE_DIM)

    @staticmethod
    def backward(ctx: Any, grad_BTf: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x_tBD, w_fD = ctx.saved_tensors
        grad_TBf, t = _time_first(grad_BTf), len(x_tBD)
        grad_tBD = ring_sum(lambda c: grad_TBf[c * t : (c + 1) * t] @ w_fD, ctx.group)
        grad_w = torch.zeros_like(w_fD)
        for c, chunk in ring_chunks(x_tBD, ctx.group):
            grad_w.addmm_(grad_TBf[c * t : (c + 1) * t].flatten(0, 1).t(), chunk.flatten(0, 1))
        grad_bias = grad_TBf.sum((0, 1)) if ctx.needs_input_grad[2] else None
        return grad_tBD.movedim(0, SEQUENCE_DIM), grad_w, grad_bias, None


class _LinearScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_BTf: Tensor, w_Df: Tensor, group: Group) -> Tensor:
        h_TBf = _time_first(h_BTf)
        ctx.save_for_backward(h_TBf, w_Df)
        ctx.group = group
        t = len(h_TBf) // dist.get_world_size(group)
        y_tBD = ring_sum(lambda c: h_TBf[c * t : (c + 1) * t] @ w_Df.t(), group)
        return y_tBD.movedim(0, SEQUENCE_DIM)

    @staticmethod
    def backward(ctx: Any, grad_BtD: Tensor) -> tuple[Tensor, Tensor, None]:
        h_TBf, w_Df = ctx.saved_tensors
        grad_tBD = _time_first(grad_BtD)
        t, grad_h, grad_w = len(grad_tBD), torch.empty_like(h_TBf), torch.zeros_like(w_Df)
        for c, chunk in ring_chunks(grad_tBD, ctx.group):
            here = slice(c * t, (c + 1) * t)
            torch.mm(chunk.flatten(0, 1), w_Df, out=grad_h[here].flatten(0, 1))
            grad_w.addmm_(chunk.flatten(0, 1).t(), h_TBf[here].flatten(0, 1))
        return grad_h.movedim(0, SEQUENCE_DIM), grad_w, None


def _time_first(x_BTD: Tensor) -> Tensor:
    """A contiguous chunk of tokens, copied only if necessary."""
    return x_BTD.movedim(SEQUENCE_DIM, 0).contiguous()


def gather_linear(
    x_BtD: Float[Tensor, "B t D"], w_fD: Float[Tensor, "f D"], bias_f: Float[Tensor, " f"] | None, group: Group = None
) -> Float[Tensor, "B T f"]:
    """`column_linear` with `SEQUENCE`, in chunks. Communicates: n - 1 messages forward, 2 (n - 1) backward."""
    return _GatherLinear.apply(x_BtD, w_fD, bias_f, group)  # pyright: ignore[reportReturnType]


def linear_scatter(
    h_BTf: Float[Tensor, "B T f"], w_Df: Float[Tensor, "D f"], group: Group = None
) -> Float[Tensor, "B t D"]:
    """`row_linear` with `SEQUENCE` and no bias, in chunks. Communicates: n - 1 messages forward, n - 1 backward."""
    require_even_sequence(h_BTf.shape[SEQUENCE_DIM], dist.get_world_size(group))
    return _LinearScatter.apply(h_BTf, w_Df, group)  # pyright: ignore[reportReturnType]


def async_mlp(x_BtD: Float[Tensor, "B t D"], shard: MLPShard, group: Group = None) -> Float[Tensor, "B t D"]:
    """`tensor_mlp` with `SEQUENCE`, in chunks. Arguments as there."""
    h_BTf = F.gelu(gather_linear(x_BtD, shard.up_fD, shard.up_bias_f, group), approximate="tanh")
    return linear_scatter(h_BTf, shard.down_Df, group) + copy_to_ranks(shard.down_bias_D, group)


@checked
def chunked_product_s(product_s: float, message_s: float, ranks: Count, add_s: float = 0.0) -> float:
    """Seconds of one product and its collective in chunks, forward.

    p and m: `product_s` and `message_s` of one chunk; n ranks; a: `add_s`, of adding a chunk to a sum, 0 for a gather.
    """
    return product_s + (ranks - 1) * (max(product_s, message_s) + add_s)


@checked
def exposed_chunks_s(product_s: float, message_s: float, ranks: Count, add_s: float = 0.0) -> float:
    """The part of `chunked_product_s` without products. Arguments as there."""
    return chunked_product_s(product_s, message_s, ranks, add_s) - ranks * product_s
