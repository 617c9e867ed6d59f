"""Ring attention: every rank keeps its queries, while the keys and values of all ranks move around a ring.

In round j rank r has the keys and values of rank r - j. While it sends them on, it attends to them with its own
queries, and merges the output with its earlier output (`context/merge.py`). A rank holds the keys of at most three
ranks: its own, for backward, and the keys of this round and the next.

    rank 2 of 4      compute   [ k_2 v_2 ][ k_1 v_1 ][ k_0 v_0 ][ k_3 v_3 ]     causal, contiguous: skipped
                     comm      [ 1       ][ 0       ][ 3       ]                received at the same time

Backward is a ring again: keys and values go around once more, followed one round later by the sum of their gradients.
Each rank adds the part of its queries; after n rounds the sum is back on its rank.

    rank 2           compute   [ k_2 v_2 ][ k_1 v_1 ][ k_0 v_0 ][ k_3 v_3 ]
                     comm [ 1 ][ 0 d1 ][ 3 d0 ][ d3 ][ d2 ] d: gradients, the last one of its own keys

A causal mask skips blocks (`blocks_of`), not rounds: with contiguous pieces the last rank works in all rounds, and the
others wait for it, so no time is saved. Zigzag and striped orders balance the work (`context/order.py`).

Cost for n ranks, t = T / n tokens each, S = 2 B G t K w bytes of keys and values, p_j seconds of a round's kernels:
    time_s      forward: the sum of max(p_j, alpha + S beta) over n - 1 rounds, and the last p_j
    peak bytes forward 2 S in addition to its own; backward also 3 S 4 / w: gradients computed, sent and received sent
    bytes forward (n - 1) S; backward (n - 1) S + n S 4 / w: gradients are sent in 32 bits
Shapes: B batch, H heads, G key-value heads, K width of a head; t this rank's tokens, T all.
Source: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023, arXiv 2310.01889,
section 3 and algorithm 1; the skipped blocks and gradients one round behind: zhuzilin/ring-flash-attention at 01c8baf.
Simplified: one direction of the ring; the MLP is not computed in blocks as in the paper, as it has few tokens here.
"""

# pyright: reportIncompatibleMethodOverride=false
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lablib.parallel.context.blocks import blocks_of
from lablib.parallel.context.merge import FUSED, BlockPasses, PartialAttention, PartialGradients
from lablib.parallel.context.order import Documents, Order
from lablib.parallel.tensor.regions import Group


class RingTransfer:
    """Receive a tensor from the previous rank while sending another to the next; `wait` returns it. Communicates."""

    def __init__(self, outgoing: Tensor, num_tokens: int, group: Group):
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        # Ranks may differ by a token: a message has the length of its source.
        self.incoming = outgoing.new_empty(*outgoing.shape[:-2], num_tokens, outgoing.shape[-1])
        self.outgoing = outgoing  # keep it until it is sent
        self.works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank + 1) % n),
                dist.P2POp(dist.irecv, self.incoming, group=group, group_peer=(rank - 1) % n),
            ]
        )

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.incoming


def ring_rounds(kv: Float[Tensor, "2 B G t K"], order: Order, group: Group = None) -> Iterator[tuple[int, Tensor]]:
    """Source rank, keys and values of all ranks, this one's first; each is sent on while the caller works."""
    rank, n = dist.get_rank(group), order.num_ranks
    for step in range(n):
        source, under_way = (rank - step) % n, None
        if step < n - 1:
            under_way = RingTransfer(kv, order.lengths[source - 1], group)
        yield source, kv
        if under_way:
            kv = under_way.wait()


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, order: Order, group: Group, call: Any) -> Tensor:
        documents, is_causal, passes = call
        own, part = order.pieces[dist.get_rank(group)], PartialAttention(q, passes)
        kv = torch.stack([k, v])  # one message
        for source, (k_s, v_s) in ring_rounds(kv, order, group):
            part.add(k_s, v_s, blocks_of(own, order.pieces[source], documents, is_causal))
        o, lse = part.result()
        ctx.save_for_backward(q, kv, o, lse)
        ctx.call = order, group, call
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (q, kv, o, lse), (order, group, (documents, is_causal, passes)) = ctx.saved_tensors, ctx.call
        rank, n = dist.get_rank(group), order.num_ranks
        own, part, under_way = order.pieces[rank], PartialGradients(grads[0], q, o, lse, passes), None
        for source, (k_s, v_s) in ring_rounds(kv, order, group):
            dkv = part.add(k_s, v_s, blocks_of(own, order.pieces[source], documents, is_causal))
            if under_way:
                dkv += under_way.wait()  # the sum of earlier ranks, received during the computation
            if n > 1:
                under_way = RingTransfer(dkv, order.lengths[source - 1], group)
        dk, dv = under_way.wait() if under_way else dkv
        return part.dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None, None


def ring_attention(
    q_BHtK: Float[Tensor, "B H t K"],
    k_BGtK: Float[Tensor, "B G t K"],
    v_BGtK: Float[Tensor, "B G t K"],
    order: Order,
    group: Group = None,
    *,
    documents: Documents | None = None,
    is_causal: bool = True,
    passes: BlockPasses = FUSED,
) -> Float[Tensor, "B H t K"]:
    """Attention of this rank's queries over the keys of all ranks. Communicates: n - 1 messages forward.

    Backward: 2 n - 1 messages.

    Arguments:
        q_BHtK, k_BGtK, v_BGtK: of this rank's tokens, in storage order.
        order: assignment of tokens to the ranks of the group.
        group: None for all ranks.
        documents: of each sequence; None: one document.
        is_causal: whether a query sees only keys up to its own position.
        passes: functions that compute one block.

    Raises ValueError: an order for another number of ranks, or another number of tokens than it assigns to this rank.
    """
    require_shard(q_BHtK, k_BGtK, order, group)
    return _Ring.apply(q_BHtK, k_BGtK, v_BGtK, order, group, (documents, is_causal, passes))  # pyright: ignore


def require_shard(q_BHtK: Tensor, k_BGtK: Tensor, order: Order, group: Group) -> None:
    """Raise ValueError for tensors that are not this rank's shard of an order's tokens."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if order.num_ranks != n:
        raise ValueError(
            f"an order must be for the group's ranks: got one for {order.num_ranks} instead of {n}; "
            f"try order_of({order.name!r}, {order.seq_len}, {n})."
        )
    found = {q_BHtK.shape[-2], k_BGtK.shape[-2]}
    if found != {order.lengths[rank]}:
        raise ValueError(
            f"rank {rank} must have {order.lengths[rank]} of {order.seq_len} tokens, by its order: "
            f"got {' and '.join(map(str, sorted(found)))}; take the tokens of `order.tokens({rank})`."
        )
