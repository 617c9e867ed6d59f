"""Seconds of attention that ranks share, forward and backward: what is computed, and what no kernel hides.

    way        exposed forward                             exposed backward
    ring       max(0, m - p_0) + (n-2) max(0, m - p)       max(0, m - b_0) + (n-2) max(0, m + d - b)
                                                           + max(0, d - b) + d
    gather     a                                           r
    ulysses    2 x                                         2 x
    both       2 x over u ranks, and a ring of r

with p_0, b_0 of a rank's own keys (causal), p, b of another's, m and d the messages of keys and of their gradients, a
and r an all-gather and a reduce-scatter, x an all-to-all. A ring's messages have t tokens, its kernels t^2 pairs; so
from some length on nothing is exposed but the last d. With zigzag, 16 bits and R FLOP/s, L bytes a second of the link:

    2 t^2 H K / R > 4 G t K / L            t > 2 R G / (L H)

A gather and an all-to-all are exposed whole, but grow as T where attention grows as T^2.

A ring takes as long as its slowest rank: with contiguous pieces n - 1/2 blocks, where the mean rank has n / 2. What is
written out between blocks (partial results, in 32 bits) counts as compute: the shorter the blocks, the more of it.

Cost: a price list; nothing runs.
Legend: as in `context_bytes.py`; u of the ranks share heads in "both".
Source: as there; prices: lablib/cost. The kernels are those of `context_blocks.py`, as the simulator runs them.
Simplified: ranks equally fast; messages take no cores; ranks of one ring do the same at the same time, but for order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lablib.cost import GroupNetwork, attention_time_s, collective_cost, memory_bound_time_s
from lablib.hardware import Cluster
from lablib.parallel.context_blocks import Block, blocks_of
from lablib.parallel.context_bytes import ContextSizes, check_ways, context_sent_bytes, keys_bytes
from lablib.parallel.context_order import order_of
from lablib.signature import checked

_DTYPES = {2: "bfloat16", 4: "float32", 8: "float64"}


@dataclass(frozen=True, slots=True)
class ContextTime:
    """Attention of one layer between its projections.

    Attributes:
        way, order, ranks, seq_len: how, on how many ranks, and T.
        compute_s: kernels and copies of the slowest rank, forward and backward.
        exposed_s: communication that nothing hides.
        sent_bytes: by a rank.
    """

    way: str
    order: str
    ranks: int
    seq_len: int
    compute_s: float
    exposed_s: float
    sent_bytes: int

    @property
    def time_s(self) -> float:
        return self.compute_s + self.exposed_s


class _Prices:
    """Seconds on a rank that has some heads; sizes of tensors in bytes for each token."""

    def __init__(self, sizes: ContextSizes, cluster: Cluster, heads_ranks: int):
        if sizes.element_bytes not in _DTYPES:
            raise ValueError(f"element_bytes must be one of {sorted(_DTYPES)}: got {sizes.element_bytes}; try 2.")
        self.sizes, self.device = sizes, cluster.device
        self.heads = sizes.heads // heads_ranks
        self.kv_heads = max(sizes.kv_heads, heads_ranks) // heads_ranks
        self.query = self.heads * sizes.head_bytes(1)
        self.keys = 2 * self.kv_heads * sizes.head_bytes(1)
        self.widening = sizes.sum_bytes / sizes.element_bytes
        self.row = sizes.batch * self.heads * sizes.sum_bytes

    def touch(self, *size_bytes: float) -> float:
        """Kernels that each move so many bytes, reads and writes together."""
        device = self.device
        return sum(float(memory_bound_time_s(size, device)) + device.kernel_overhead_s for size in size_bytes)

    def cast(self, size_bytes: float) -> float:
        """To 32 bits or back; nothing where numbers are as wide anyway."""
        return self.touch(size_bytes * (1 + self.widening)) if self.widening > 1 else 0.0

    def kernel(self, block: Block, backward: bool) -> float:
        sizes, pairs = self.sizes, (_length(block.queries), _length(block.keys))
        dtype, options = _DTYPES[sizes.element_bytes], {"causal": block.is_causal, "backward": backward}
        one = attention_time_s(sizes.batch, self.heads, *pairs, sizes.d_head, dtype, self.device, **options)  # pyright: ignore
        return float(one) + (3 if backward else 1) * self.device.kernel_overhead_s

    def forward(self, blocks: Sequence[Block], tokens: int, has_more: bool) -> float:
        """Blocks of this rank's queries; `has_more`: others come before them."""
        total = 0.0
        for i, block in enumerate(blocks):
            queries = _length(block.queries)
            total += self.kernel(block, backward=False)
            if i == 0 and not has_more and queries == tokens:
                continue
            wide, row = queries * self.query * self.widening, queries * self.row
            total += self.cast(queries * self.query) + self.touch(3 * row, 2 * row, 2 * row, 3 * wide + row, 3 * row)
            if i == 0 and not has_more:
                total += self.touch(tokens * self.query * self.widening, tokens * self.row)
            if queries < tokens:
                total += self.touch(2 * wide, 2 * row)
        return total

    def backward(self, blocks: Sequence[Block], keys: int) -> float:
        """Blocks of so many keys: zeros, kernels, and three sums each."""
        total = self.touch(keys * self.keys * self.widening)
        added = 1 + 2 * self.widening
        for block in blocks:
            part = _length(block.keys) * self.keys / 2 * added
            total += self.kernel(block, backward=True)
            total += self.touch(_length(block.queries) * self.query * added, part, part)
        return total

    def gradients_out(self, tokens: int, keys: int) -> float:
        """The sums of gradients: made before, and narrowed behind."""
        zeros_s = self.touch(tokens * self.query * self.widening)
        return zeros_s + self.cast(tokens * self.query) + 2 * self.cast(keys * self.keys / 2)


@checked
def context_time(
    sizes: ContextSizes, cluster: Cluster, ranks: int, way: str = "ring", order: str = "zigzag", heads_ranks: int = 1
) -> ContextTime:
    """The seconds of one layer's attention, forward and backward.

    Arguments:
        cluster: where the first `ranks` ranks are.
        ranks, way, heads_ranks: as for `context_sent_bytes`.
        order: of `ORDERS`; Ulysses takes none, and is contiguous.

    Raises:
        ValueError: what `context_sent_bytes` and `order_of` refuse.
    """
    ring, u = check_ways(sizes, ranks, way, heads_ranks)
    if way == "ulysses":
        order = "contiguous"
    prices = _Prices(sizes, cluster, u)
    made = _gathered if way == "gather" and ring > 1 else _ring
    compute_s, exposed_s = made(prices, _network(cluster, ring, u), sizes, ring, u, order)
    if u > 1:
        copies_s, sent_s = _ulysses(prices, _network(cluster, u, 1), sizes, ranks, u)
        compute_s, exposed_s = compute_s + copies_s, exposed_s + sent_s
    sent = context_sent_bytes(sizes, ranks, way, heads_ranks)
    return ContextTime(way, order, ranks, sizes.seq_len, compute_s, exposed_s, sent)


@checked
def context_times(
    sizes: ContextSizes,
    cluster: Cluster,
    ranks: int,
    lengths: Sequence[int],
    way: str = "ring",
    order: str = "zigzag",
    heads_ranks: int = 1,
) -> list[ContextTime]:
    """`context_time` for each length of sequence: for `lablib.figures.figure_context_times`."""
    each = ({**{name: getattr(sizes, name) for name in sizes.__slots__}, "seq_len": length} for length in lengths)
    return [context_time(ContextSizes(**one), cluster, ranks, way, order, heads_ranks) for one in each]


def _ring(
    prices: _Prices, network: GroupNetwork, sizes: ContextSizes, n: int, u: int, order: str
) -> tuple[float, float]:
    """Compute and exposed seconds of a ring of n; a ring of one is attention alone."""
    pieces, t = order_of(order, sizes.seq_len, n).pieces, sizes.seq_len // n
    own = blocks_of(pieces[-1], pieces[-1])
    first_s, first_back_s = prices.forward(own, t, False), prices.backward(own, t)
    ends_s = prices.gradients_out(t, t)
    if n == 1:
        return first_s + first_back_s + ends_s, 0.0
    # The first rank sees most from its queries' side, the last one from its keys'.
    others = [blocks_of(pieces[a], pieces[b]) for a, b in ((0, n - 1), (n - 1, 0))]
    round_s = max(prices.forward(blocks, t, True) for blocks in others)
    back_s = max(prices.backward(blocks, t) for blocks in others)
    wide = t * prices.keys * prices.widening
    added_s, stacked_s = prices.touch(3 * wide), prices.touch(2 * t * prices.keys)
    merged_s = 2 * prices.cast(t * prices.query)  # widened once, narrowed at the end
    compute_s = stacked_s + first_s + merged_s + first_back_s + ends_s + (n - 1) * (round_s + back_s + added_s)
    keys = keys_bytes(sizes, n, u)
    m, d = (
        network.ring.time_s(size) + network.cluster.collective_overhead_s for size in (keys, keys * prices.widening)
    )
    waits = [m - first_s, *[m - round_s] * (n - 2), m - first_back_s, *[m + d - back_s] * (n - 2), d - back_s]
    return compute_s, sum(max(0.0, wait) for wait in waits) + d


def _gathered(
    prices: _Prices, network: GroupNetwork, sizes: ContextSizes, n: int, u: int, order: str
) -> tuple[float, float]:
    """The same with the keys of all ranks gathered first."""
    made, t, total = order_of(order, sizes.seq_len, n), sizes.seq_len // n, sizes.seq_len
    keys = [range(total)] if order != "striped" else [piece for pieces in made.pieces for piece in pieces]
    ranks = [blocks_of(pieces, keys) for pieces in made.pieces]
    own, whole = t * prices.keys, total * prices.keys
    compute_s = max(prices.forward(blocks, t, False) for blocks in ranks) + prices.cast(t * prices.query)
    compute_s += max(prices.backward(blocks, total) for blocks in ranks) + prices.gradients_out(t, total)
    compute_s += prices.touch(2 * own, own, 2 * own, 2 * whole)  # stacked, padded; put in order
    compute_s += prices.touch(2 * whole, whole, 2 * whole)  # the same for gradients
    if len(ranks[-1]) > 1 and _length(ranks[-1][0].queries) == t:
        compute_s += prices.cast(t * prices.query)
    return compute_s, sum(
        collective_cost(name, float(whole), network).time_s for name in ("all_gather", "reduce_scatter")
    )


def _ulysses(prices: _Prices, network: GroupNetwork, sizes: ContextSizes, ranks: int, u: int) -> tuple[float, float]:
    """Copies and all-to-alls around attention: queries, keys and values there, the output back; and their gradients."""
    one = sizes.head_bytes(sizes.seq_len // ranks)
    kv_heads = max(sizes.kv_heads, u)
    there, back = (sizes.heads + 2 * kv_heads) * one, sizes.heads * one
    copies_s = 2 * prices.touch(2 * there, 2 * there, 2 * back, 2 * back)
    if kv_heads > sizes.kv_heads:  # repeated; their gradients summed
        copies_s += 4 * prices.touch((kv_heads + sizes.kv_heads) * one)
    sent_s = sum(2 * collective_cost("all_to_all", float(size), network).time_s for size in (there, back))
    return copies_s, sent_s


def _length(part: slice) -> int:
    return part.stop - part.start


@lru_cache(maxsize=64)
def _network(cluster: Cluster, size: int, stride: int) -> GroupNetwork:
    return GroupNetwork(cluster, range(0, size * stride, stride))
