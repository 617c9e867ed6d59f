"""Ulysses inside a ring: heads are split within small groups, keys and values move around between groups.

Ulysses sends least but has at most as many ranks as heads, and its all-to-all is slow between nodes. A ring has any
number of ranks and needs only neighbours, but sends all keys. Combined, n = r u ranks are a grid of rings and head
groups:

    4 ranks, r = u = 2      ring 0    0 1     tokens 0 to T/2        across: all-to-all in the node, heads for tokens
                            ring 1    2 3     tokens T/2 to T        down: the ring, between nodes

Inside a head group each rank then has H / u heads of the group's tokens, and is a rank of a ring of r. The order
assigns tokens to the r ring ranks; each head group cuts its share in u.

Cost for r x u ranks: Ulysses' all-to-alls over u, of T / r tokens; a ring of r with H / u heads and messages of 2 B
max(G, u) / u T / r K w bytes, which shrink with u for fixed r.
Shapes: as in `context/ulysses.py`; t = T / (r u).
Source: Fang and Zhao, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI", 2024, arXiv
2405.07719 (its algorithm 1; heads within the node, the ring between nodes).
Simplified: a head group is u ranks in sequence; groups are made by the caller, as in `Mesh(ring=r, heads=u)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.context.merge import FUSED, BlockPasses
from lablib.parallel.context.order import Documents, Order, zigzag_order
from lablib.parallel.context.ring import ring_attention
from lablib.parallel.context.ulysses import heads_of_all_tokens, tokens_of_all_heads
from lablib.parallel.tensor.regions import Group
from lablib.signature import Count, checked


@checked
def nested_order(outer: Order, heads_ranks: Count) -> Order:
    """The order of r u ranks: rank i u + j has the j-th of u parts of the tokens of rank i in the outer order.

    >>> from lablib.parallel import zigzag_order
    >>> [nested_order(zigzag_order(8, 2), 2).tokens(rank) for rank in range(4)]
    [[0, 1], [6, 7], [2, 3], [4, 5]]

    Raises ValueError: a rank of the outer order with fewer tokens than parts.
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
    found, start = [], 0
    for piece in pieces:
        found.append(piece[max(0, first - start) : max(0, end - start)])
        start += len(piece)
    return tuple(part for part in found if part)


@dataclass(frozen=True)
class UlyssesRing:
    """Both combined, for `ContextParallel(group, both.order, both.attention)`; `group` has all r u ranks."""

    heads_group: Group  # heads_group, ring_group: as in `ulysses_ring_attention`
    ring_group: Group
    outer: Callable[[int, int], Order] = zigzag_order  # makes the order over the ring

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
    passes: BlockPasses = FUSED,
) -> Float[Tensor, "B H t K"]:
    """Attention of this rank's queries over the keys of all ranks. Communicates, in both groups.

    Arguments:
        q_BHtK, k_BGtK, v_BGtK: of this rank's tokens in `nested_order(outer, u)`.
        outer: the order over the ring.
        heads_group: u ranks that share heads, at one place of the ring.
        ring_group: r ranks, one of each head group.
        documents, is_causal, passes: as for `ring_attention`.
    """
    u, i = dist.get_world_size(heads_group), dist.get_rank(ring_group)
    of_group = nested_order(outer, u).lengths[i * u : (i + 1) * u]
    q, k, v = heads_of_all_tokens(q_BHtK, k_BGtK, v_BGtK, of_group, heads_group)
    q = q.clone()  # a view would keep the keys and values of the same message in memory
    o = ring_attention(q, k, v, outer, ring_group, documents=documents, is_causal=is_causal, passes=passes)
    return tokens_of_all_heads(o, of_group, heads_group)
