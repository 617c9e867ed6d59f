"""Seconds of a mixture, forward and backward: products of few rows, moves of rows, and tokens on their way.

What a dense MLP does not do is most of the time where experts are small. By part, R rows of a rank's experts, M = N k:

    products    up and down of E / n experts in one kernel each, R n / E rows for each expert; backward twice that
    moves       4 times M rows are picked by number, 4 times R rows put in order, each read and written; weighed, summed
    router      two products in float32, a softmax, and some twenty kernels on k or E numbers of a token
    exposed     4 all-to-alls of rows, and one of counts before them: nothing is computed beside them

A row's products are 12 D F FLOPs, its moves some 24 D w bytes of memory, its way 4 (n-1)/n D w bytes of the link. With
C FLOP/s, B bytes a second of memory and L of the link, products are less than half of all that where

    F  <  w C (2 / B + (n-1) / (3 n L))            some 2,000 hidden units on H100s within a node, whatever D is

The busiest rank decides: all wait for it at the next all-to-all (`counts` of a real routing).

Cost: a price list; nothing runs.
Legend: as in `expert_bytes.py`.
Source: prices: `expert_prices.py`, and lablib/cost, its `exchange_cost` for uneven rows; another dispatcher:
lablib/plan/layer/dispatch.py.
Simplified: no tensor ranks; softmax gates; an even load is dealt in turn (`balanced=True`); groups of a rank have equal
lengths; GELU, no dropout; the sum of gradients over ranks is not in it (`data_parallel_scaling.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lablib.cost import GroupNetwork, collective_cost, exchange_cost
from lablib.errors import unknown_name
from lablib.hardware import Cluster
from lablib.models.transformer import Experts
from lablib.parallel.expert_bytes import COUNT_BYTES, ExpertRanks, ExpertSizes, exchanged_rows
from lablib.parallel.expert_prices import DTYPES, ExpertPrices
from lablib.plan.derating import IDEAL
from lablib.plan.layer.dispatch import exchange_s
from lablib.plan.machine import Machine
from lablib.plan.stack import DISPATCHERS, Stack
from lablib.signature import checked, whole_number


@dataclass(frozen=True, slots=True)
class ExpertTime:
    """One mixture on the busiest of some ranks, forward and backward, in seconds.

    Attributes:
        expert_ranks: n.
        rows_of_an_expert: on the busiest rank, the mean of its experts.
        products_s: of the experts, activation included.
        shared_s: the same of shared experts.
        moves_s: rows picked, put in order, weighed and summed.
        router_s: everything on k or E numbers of a token, and the router's products.
        exposed_s: tokens and counts on their way.
    """

    expert_ranks: int
    rows_of_an_expert: float
    products_s: float
    shared_s: float
    moves_s: float
    router_s: float
    exposed_s: float

    @property
    def compute_s(self) -> float:
        return self.products_s + self.shared_s + self.moves_s + self.router_s

    @property
    def layer_s(self) -> float:
        return self.compute_s + self.exposed_s


@checked
def expert_time(
    sizes: ExpertSizes,
    cluster: Cluster,
    expert_ranks: int,
    counts: Sequence[Sequence[int]] | None = None,
    dispatcher: str = "alltoall",
) -> ExpertTime:
    """The seconds of one mixture, forward and backward, until the busiest rank is done.

    Arguments:
        cluster: where the first `expert_ranks` ranks are.
        counts: of each rank, its rows for each expert; None: an even load.
        dispatcher: "alltoall", or "deduplicated" as DeepEP's, with even routing (lablib/plan/layer/dispatch.py).

    Raises:
        ValueError: what `expert_sent_bytes` refuses; another dispatcher, or a deduplicated one with counts.
    """
    n = whole_number("expert_ranks", expert_ranks, example=8)
    rows = exchanged_rows(sizes, ExpertRanks(n), counts)
    if dispatcher not in DISPATCHERS:
        raise unknown_name("dispatcher", dispatcher, DISPATCHERS)
    if counts is not None and dispatcher != "alltoall":
        raise ValueError(f"counts are for all-to-alls: got {dispatcher!r} with counts; leave one of them out.")
    received = [sum(column) for column in zip(*rows, strict=True)]
    busiest, prices, tokens = max(received), ExpertPrices(sizes, cluster, n), sizes.tokens
    products_s = sum(prices.mlps(busiest, prices.own, sizes.d_ff, backward) for backward in (False, True))
    shared_s = sum(prices.shared(tokens, backward) for backward in (False, True))
    if sizes.num_shared:
        shared_s += 2 * prices.touch(3 * tokens * sizes.row_bytes)  # outputs added; and the gradients of x
    weighed_s = prices.weighed(tokens, False) + prices.weighed(tokens, True)
    moves_s = 4 * prices.picked(tokens) + 4 * prices.ordered(busiest) + weighed_s + prices.summed(tokens)
    router_s = prices.router(tokens, False, counts is None) + prices.sorted(tokens) + prices.router(tokens, True)
    exposed_s = 0.0
    if n > 1:
        there_s, back_s = _exchanges(sizes, cluster, rows, dispatcher)
        exposed_s = 2 * (there_s + back_s) + counts_time_s(sizes, cluster, n)
    return ExpertTime(n, busiest / prices.own, products_s, shared_s, moves_s, router_s, exposed_s)


@checked
def expert_times(sizes: ExpertSizes, cluster: Cluster, expert_ranks: Sequence[int]) -> list[ExpertTime]:
    """`expert_time` with an even load, on each number of ranks; every rank has as many tokens. Raises as there."""
    return [expert_time(sizes, cluster, n) for n in expert_ranks]


def _exchanges(
    sizes: ExpertSizes, cluster: Cluster, rows: Sequence[Sequence[int]], dispatcher: str
) -> tuple[float, float]:
    """Seconds of tokens to the experts, and back."""
    if dispatcher == "alltoall":
        return exchange_time_s(sizes, cluster, rows), exchange_time_s(sizes, cluster, list(zip(*rows, strict=True)))
    machine = Machine(cluster, Stack("dispatched", dispatcher=dispatcher), IDEAL, DTYPES[sizes.element_bytes])
    mixture = Experts(sizes.num_experts, sizes.k, sizes.d_ff)
    one_s = float(exchange_s(machine, mixture, sizes.tokens, sizes.row_bytes, len(rows), 1))
    return one_s, one_s


def exchange_time_s(sizes: ExpertSizes, cluster: Cluster, rows: Sequence[Sequence[int]]) -> float:
    """Seconds of one all-to-all of rows: so many from each rank to each."""
    size_bytes = [[count * sizes.row_bytes for count in row] for row in rows]
    return exchange_cost(size_bytes, _network(cluster, len(rows))).time_s


def counts_time_s(sizes: ExpertSizes, cluster: Cluster, expert_ranks: int) -> float:
    """Seconds in which ranks tell each other how many rows come."""
    size_bytes = float(COUNT_BYTES * sizes.num_experts)
    return collective_cost("all_to_all", size_bytes, _network(cluster, expert_ranks)).time_s


@lru_cache(maxsize=64)
def _network(cluster: Cluster, ranks: int) -> GroupNetwork:
    return GroupNetwork(cluster, range(ranks))
