"""Time of context-parallel attention, forward and backward: compute and exposed communication.

    way        exposed forward                             exposed backward
    ring       max(0, m - p_0) + (n-2) max(0, m - p)       max(0, m - b_0) + (n-2) max(0, m + d - b)
                                                           + max(0, d - b) + d
    gather     a                                           r
    ulysses    2 x                                         2 x
    both       2 x over u ranks, and a ring of r

with p_0, b_0 for a rank's own keys (causal), p, b for another's, m and d the messages of keys and of their gradients, a
and r an all-gather and a reduce-scatter, x an all-to-all. A ring's messages have t tokens, its kernels t^2 pairs; so
above some length only the last d is exposed. With zigzag, 16 bits and R FLOP/s, L bytes per second of the link:

    2 t^2 H K / R > 4 G t K / L            t > 2 R G / (L H)

A gather and an all-to-all are exposed whole, but grow as T where attention grows as T^2.

A ring takes as long as its slowest rank: n - 1/2 blocks with contiguous pieces, where the mean rank has n / 2. Writes
between blocks (partial results, in 32 bits) count as compute: their share grows as blocks get shorter.

Cost: a price list; nothing runs.
Legend: as in `parallel/context/bytes.py`; u of the ranks share heads in "both".
Source: as there; prices: lablib/cost. The kernels of `parallel/context/merge.py`, as the simulator runs them.
Simplified: ranks equally fast; messages take no cores; ranks of one ring do the same at the same time, apart from
order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from lablib.cost import GroupNetwork, collective_cost
from lablib.hardware import Cluster
from lablib.parallel.context.blocks import blocks_of
from lablib.parallel.context.bytes import ContextSizes, can_share_heads, check_ways, context_sent_bytes
from lablib.parallel.context.order import ORDERS, order_of
from lablib.signature import checked, whole_number
from lablib.studies.context_prices import Prices, length_of

Pieces = tuple[tuple[range, ...], ...]  # by rank


@dataclass(frozen=True, slots=True)
class ContextTime:
    """Attention of one layer between its projections.

    Attributes:
        way, order, ranks, seq_len: the method, the order of tokens, the number of ranks, and T.
        compute_s: kernels and copies of the slowest rank, forward and backward.
        exposed_s: communication that nothing hides.
        sent_bytes: bytes sent by a rank.
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


@checked
def context_time(
    sizes: ContextSizes,
    cluster: Cluster,
    ranks: int,
    way: str = "ring",
    order: str = "zigzag",
    heads_ranks: int = 1,
    *,
    forward_only: bool = False,
) -> ContextTime:
    """The seconds of one layer's attention, forward and backward.

    Arguments:
        cluster: the cluster of the ranks, its first `ranks`.
        ranks, way, heads_ranks: as for `context_sent_bytes`.
        order: of `ORDERS`; Ulysses ignores it, and is contiguous.
        forward_only: leave out backward; `sent_bytes` still has its bytes.

    Raises:
        ValueError: as `context_sent_bytes` and `order_of`.
    """
    ring, u = check_ways(sizes, ranks, way, heads_ranks)
    order = "contiguous" if way == "ulysses" else order
    pieces = order_of(order, sizes.seq_len, ring).pieces
    prices, network, compute_s, exposed_s = Prices(sizes, cluster, u), _network(cluster, ring, u), 0.0, 0.0
    for backward in (False,) if forward_only else (False, True):
        made = _gathered if way == "gather" and ring > 1 else _ring
        one_s, sent_s = made(prices, network, pieces, backward)
        compute_s, exposed_s = compute_s + one_s, exposed_s + sent_s
        if u > 1:
            one_s, sent_s = _ulysses(prices, _network(cluster, u, 1), sizes, ranks, backward)
            compute_s, exposed_s = compute_s + one_s, exposed_s + sent_s
            if way == "both" and not backward:  # the queries, copied for the ring
                compute_s += prices.touch(2 * sizes.seq_len // ring * prices.query)
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
    """`context_time` for each length of sequence. Arguments and Raises as there."""
    each = [replace(sizes, seq_len=whole_number("lengths", length)) for length in lengths]
    return [context_time(one, cluster, ranks, way, order, heads_ranks) for one in each]


@checked
def fair_share_s(sizes: ContextSizes, cluster: Cluster, ranks: int, *, forward_only: bool = False) -> float:
    """Seconds of one device's kernels for the whole sequence, over the number of ranks: perfect sharing."""
    prices, whole = Prices(sizes, cluster, 1), [range(sizes.seq_len)]
    (block,) = blocks_of(whole, whole)
    return sum(prices.kernel(block, backward) for backward in ((False,) if forward_only else (False, True))) / ranks


@checked
def context_efficiencies(
    sizes: ContextSizes, cluster: Cluster, ranks: int, lengths: Sequence[int], heads_ranks: int = 1
) -> dict[str, list[float]]:
    """Fair share over time, for each length.

    Arguments:
        heads_ranks: u of "both", which is left out for u = 1; Ulysses is left out if these ranks cannot share the
            heads. Others as for `context_times`.
    """
    ways = [("ring", order, 1) for order in ORDERS] + [("gather", "zigzag", 1), ("ulysses", "contiguous", 1)]
    ways += [("both", "zigzag", heads_ranks)] if heads_ranks > 1 else []
    shares = [fair_share_s(replace(sizes, seq_len=length), cluster, ranks) for length in lengths]
    found: dict[str, list[float]] = {}
    for way, order, u in ways:
        if way == "ulysses" and not can_share_heads(sizes, ranks):
            continue
        times = context_times(sizes, cluster, ranks, lengths, way, order, u)
        name = f"{order} ring" if way == "ring" else f"ulysses of {u} in a zigzag ring" if way == "both" else way
        found[name] = [share / time.time_s for share, time in zip(shares, times, strict=True)]
    return found


def _ring(prices: Prices, network: GroupNetwork, pieces: Pieces, backward: bool) -> tuple[float, float]:
    """Compute and exposed seconds of one pass of a ring; a ring of one is attention alone."""
    n, t = len(pieces), sum(map(len, pieces[-1]))
    own = blocks_of(pieces[-1], pieces[-1])
    # The first rank attends to the others' keys with its late queries, the last one to their early keys with all.
    others = [blocks_of(pieces[a], pieces[b]) for a, b in ((0, -1), (-1, 0))] if n > 1 else []
    keys = t * prices.keys
    m, d = (_message_s(network, size) for size in (keys, keys * prices.widening))
    stacked_s = prices.touch(2 * keys)
    if not backward:
        first_s = prices.forward(own, t, False)
        if n == 1:
            return first_s, 0.0
        round_s = max(prices.forward(blocks, t, True) for blocks in others)
        compute_s = stacked_s + first_s + (n - 1) * round_s
        compute_s += prices.widen(t * prices.query) + prices.narrow(t * prices.query)
        return compute_s, sum(max(0.0, wait) for wait in (m - first_s, *[m - round_s] * (n - 2)))
    first_s, ends_s = prices.backward(own, t), prices.gradients_out(t, t)
    if n == 1:
        return first_s + ends_s, 0.0
    round_s = max(prices.backward(blocks, t) for blocks in others)
    added_s = prices.touch(3 * keys * prices.widening)
    waits = (m - first_s, *[m + d - round_s] * (n - 2), d - round_s)
    return first_s + ends_s + (n - 1) * (round_s + added_s), sum(max(0.0, wait) for wait in waits) + d


def _gathered(prices: Prices, network: GroupNetwork, pieces: Pieces, backward: bool) -> tuple[float, float]:
    """The same with the keys of all ranks gathered first."""
    t, total = sum(map(len, pieces[0])), sum(len(piece) for of_rank in pieces for piece in of_rank)
    is_cut = all(piece.step == 1 for of_rank in pieces for piece in of_rank)
    keys = [range(total)] if is_cut else [piece for of_rank in pieces for piece in of_rank]
    ranks = [blocks_of(of_rank, keys) for of_rank in pieces]
    own, whole = t * prices.keys, total * prices.keys
    if backward:  # after it gradients are put in order of ranks, and summed
        compute_s = max(prices.backward(blocks, total) for blocks in ranks) + prices.gradients_out(t, total)
        compute_s += prices.touch(2 * whole, whole, 2 * whole)
        return compute_s, collective_cost("reduce_scatter", float(whole), network).time_s
    widened_s = prices.widen(t * prices.query) if length_of(ranks[-1][0].queries) == t else 0.0
    compute_s = max(prices.forward(blocks, t, False) for blocks in ranks) + prices.narrow(t * prices.query) + widened_s
    compute_s += prices.touch(2 * own, own, 2 * own, 2 * whole)  # stacked, padded; put in order
    return compute_s, collective_cost("all_gather", float(whole), network).time_s


def _ulysses(
    prices: Prices, network: GroupNetwork, sizes: ContextSizes, ranks: int, backward: bool
) -> tuple[float, float]:
    """Copies and all-to-alls around attention: queries, keys and values there, the output back; or gradients."""
    one, kv_heads = sizes.head_bytes(sizes.seq_len // ranks), max(sizes.kv_heads, network.size)
    there, back = (sizes.heads + 2 * kv_heads) * one, sizes.heads * one
    copies_s = prices.touch(2 * there, 2 * there, 2 * back)
    if kv_heads > sizes.kv_heads:  # repeated, or their gradients summed
        copies_s += 2 * prices.of_kind("sum over rows" if backward else "", (kv_heads + sizes.kv_heads) * one)
    return copies_s, sum(collective_cost("all_to_all", float(size), network).time_s for size in (there, back))


def _message_s(network: GroupNetwork, size_bytes: float) -> float:
    """Seconds of a message to the next rank, on all ranks at once."""
    return network.ring.time_s(size_bytes) + network.cluster.collective_overhead_s


@lru_cache(maxsize=64)
def _network(cluster: Cluster, size: int, stride: int) -> GroupNetwork:
    return GroupNetwork(cluster, range(0, size * stride, stride))
