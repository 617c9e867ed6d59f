"""Ulysses inside the ring: heads are shared within small groups, keys and values pass by between them.

Ulysses sends least but has no more ranks than heads, and its all-to-all between nodes is slow; a ring has any number of
ranks and needs only a neighbour, but passes on all keys. Together n = r u ranks are a grid of rings and head groups:

    4 ranks, r = u = 2      ring 0    0 1     tokens 0 to T/2        across: all-to-all in the node, heads for tokens
                            ring 1    2 3     tokens T/2 to T        down: the ring, between nodes

Inside of a head group each rank then has H / u heads of the group's tokens, and is a rank of a ring of r. What is given
to the ring's ranks is an order of r; each head group cuts its share in u.

Cost for r x u ranks: Ulysses' all-to-alls over u, of T / r tokens; a ring of r with H / u heads, whose messages are
2 B max(G, u) / u T / r K w bytes: with r fixed they shrink with u.
Shapes: as in `context/ulysses.py`; t = T / (r u).
Source: Fang and Zhao, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI", 2024, arXiv
2405.07719 (its algorithm 1; heads within the node, the ring between nodes).
Simplified: a head group is u ranks in sequence; groups are made by the caller, as `Mesh(ring=r, heads=u)` has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.context.merge import FUSED, Passes
from lablib.parallel.context.order import Documents, Order, zigzag_order
from lablib.parallel.context.ring import ring_attention
from lablib.parallel.context.ulysses import heads_of_all_tokens, tokens_of_all_heads
from lablib.parallel.tensor.regions import Group
from lablib.signature import Count, checked


@checked
def nested_order(outer: Order, heads_ranks: Count) -> Order:
    """The order of r u ranks: rank i u + j has the j-th of u parts of what the outer order gives to its rank i.

    >>> from lablib.parallel import zigzag_order
    >>> [nested_order(zigzag_order(8, 2), 2).tokens(rank) for rank in range(4)]
    [[0, 1], [6, 7], [2, 3], [4, 5]]

    Raises:
        ValueError: a rank of the outer order with fewer tokens than parts.
    """
    if min(outer.lengths) < heads_ranks:
        raise ValueError(
            f"each of {outer.num_ranks} ring ranks must have a token for each of its {heads_ranks} head ranks: got "
            f"{min(outer.lengths)}; try {outer.seq_len * heads_ranks // min(outer.lengths)} tokens."
        )
    pieces = []
    for of_rank, length in zip(outer.pieces, outer.lengths, strict=True):
        cuts = [length * j // heads_ranks for j in range(heads_ranks + 1)]
        pieces += [_part(of_rank, *ends) for ends in zip(cuts, cuts[1:], strict=False)]
    return Order(f"{outer.name} of {heads_ranks}", tuple(pieces))


def _part(pieces: tuple[range, ...], first: int, end: int) -> tuple[range, ...]:
    """The tokens at places first to end."""
    found, start = [], 0
    for piece in pieces:
        found.append(piece[max(0, first - start) : max(0, end - start)])
        start += len(piece)
    return tuple(part for part in found if part)


@dataclass(frozen=True)
class UlyssesRing:
    """Both, as `ContextParallel(group, both.order, both.attention)` takes them; `group` has all r u ranks.

    Attributes:
        heads_group, ring_group: as `ulysses_ring_attention` takes them.
        outer: makes the order over the ring.
    """

    heads_group: Group
    ring_group: Group
    outer: Callable[[int, int], Order] = zigzag_order

    def order(self, seq_len: int, num_ranks: int) -> Order:
        u = dist.get_world_size(self.heads_group)
        return nested_order(self.outer(seq_len, num_ranks // u), u)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, order: Order, group: Group, **options: Any) -> Tensor:
        outer = self.outer(order.seq_len, dist.get_world_size(self.ring_group))
        return ulysses_ring_attention(q, k, v, outer, self.heads_group, self.ring_group, **options)


def ulysses_ring_attention(
    q_BHtK: Float[Tensor, "B H t K"],
    k_BGtK: Float[Tensor, "B G t K"],
    v_BGtK: Float[Tensor, "B G t K"],
    outer: Order,
    heads_group: Group,
    ring_group: Group,
    *,
    documents: Documents | None = None,
    is_causal: bool = True,
    passes: Passes = FUSED,
) -> Float[Tensor, "B H t K"]:
    """Attention of this rank's queries over the keys of all ranks. Communicates, in both groups.

    Arguments:
        q_BHtK, k_BGtK, v_BGtK: of this rank's tokens, those of `nested_order(outer, u)`.
        outer: the order over the ring.
        heads_group: u ranks that share heads, those of one place in the ring.
        ring_group: r ranks, one of each head group.
        documents, is_causal, passes: as for `ring_attention`.
    """
    u, i = dist.get_world_size(heads_group), dist.get_rank(ring_group)
    of_group = nested_order(outer, u).lengths[i * u : (i + 1) * u]
    q, k, v = heads_of_all_tokens(q_BHtK, k_BGtK, v_BGtK, of_group, heads_group)
    q = q.clone()  # a view would keep the keys and values that came in the same message, beside the ring's own
    o = ring_attention(q, k, v, outer, ring_group, documents=documents, is_causal=is_causal, passes=passes)
    return tokens_of_all_heads(o, of_group, heads_group)
