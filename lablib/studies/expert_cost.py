"""Time of a mixture of experts, forward and backward: products, moves of rows, and communication.

Small experts spend most of their time on work that a dense MLP does not have. R rows of a rank's experts, M = N k:

    products    up and down of E / n experts in one kernel each, R n / E rows for each expert; backward twice that
    moves       4 times M rows gathered by index, 4 times R rows put in order, each read and written; weighed, summed
    router      two products in float32, a softmax, and some twenty kernels on k or E numbers per token
    exposed     4 all-to-alls of rows, and one of counts before them, without compute at the same time
    tensor      with tensor ranks: cut experts: x is summed once each way; whole ones: gathered once each way; and the
                gradients of weights, k per token. Exposed, too

A row's products are 12 D F FLOPs, its moves some 24 D w bytes of memory, its messages 4 (n-1)/n D w bytes of the link.
With C FLOP/s, B bytes per second of memory and L of the link, products take less than half of the total if

    F  <  w C (2 / B + (n-1) / (3 n L))            some 2,000 hidden units on H100s within a node, for any D

The busiest rank decides: all wait for it at the next all-to-all (`counts` of a real routing).

Cost: a price list; nothing runs.
Legend: as in `parallel/experts/bytes.py`.
Source: prices: `expert_prices.py`, and lablib/cost, its `exchange_cost` for uneven rows; another dispatcher:
lablib/plan/layer/dispatch.py.
Simplified: softmax gates; an even load is assigned in turn (`balanced=True`); groups of a rank have equal lengths;
GELU, no dropout; without the sum of gradients over ranks (`data_parallel_scaling.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lablib.cost import GroupNetwork, collective_cost, exchange_cost
from lablib.errors import unknown_name
from lablib.hardware import Cluster
from lablib.models.transformer import Experts
from lablib.parallel.experts.bytes import COUNT_BYTES, ExpertRanks, ExpertSizes, exchanged_rows
from lablib.plan.derating import IDEAL
from lablib.plan.layer.dispatch import exchange_s
from lablib.plan.machine import Machine
from lablib.plan.stack import DISPATCHERS, Stack
from lablib.signature import checked, whole_number
from lablib.studies.expert_prices import DTYPES, ExpertPrices


@dataclass(frozen=True, slots=True)
class ExpertTime:
    """One mixture on the busiest of some ranks, forward and backward, in seconds.

    Attributes:
        expert_ranks: n, ranks that share the experts.
        rows_of_an_expert: on the busiest rank, the mean of its experts.
        products_s: products of the experts, with activation.
        shared_s: the same of shared experts.
        moves_s: gathering, ordering, weighing and summing rows.
        router_s: all kernels on k or E numbers per token, and the router's products.
        exposed_s: communication of tokens and counts, and sums or gathers of tensor ranks.
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
    expert_ranks: int | ExpertRanks,
    counts: Sequence[Sequence[int]] | None = None,
    dispatcher: str = "alltoall",
) -> ExpertTime:
    """The seconds of one mixture, forward and backward, until the busiest rank is done.

    Arguments:
        cluster: the cluster of the ranks, its first `expert_ranks`.
        expert_ranks: their number, or `ExpertRanks`: with tensor ranks, neighbours inside the expert ranks. Data ranks
            are outside, and change nothing.
        counts: of each rank that shares experts, its rows for each of them; None: an even load.
        dispatcher: "alltoall", or "deduplicated" as DeepEP's, with even routing (lablib/plan/layer/dispatch.py).

    Raises:
        ValueError: as `expert_sent_bytes`; an unknown dispatcher, or a deduplicated one with counts or with
            tensor ranks.
    """
    ranks = expert_ranks
    if not isinstance(ranks, ExpertRanks):
        ranks = ExpertRanks(whole_number("expert_ranks", ranks, example=8))
    n, rows = ranks.sharing, exchanged_rows(sizes, ranks, counts)
    if dispatcher not in DISPATCHERS:
        raise unknown_name("dispatcher", dispatcher, DISPATCHERS)
    if counts is not None and dispatcher != "alltoall":
        raise ValueError(f"counts are for all-to-alls: got {dispatcher!r} with counts; leave one of them out.")
    if ranks.tensor > 1 and dispatcher != "alltoall":
        raise ValueError(f"tensor ranks are priced beside all-to-alls: got {dispatcher!r} and {ranks}; leave one out.")
    received = [sum(column) for column in zip(*rows, strict=True)]
    busiest, prices, tokens = max(received), ExpertPrices(sizes, cluster, n, ranks.cut), sizes.tokens
    own = tokens // ranks.token_parts
    products_s = sum(prices.mlps(busiest, prices.own, prices.width, backward) for backward in (False, True))
    shared_s = sum(prices.shared(tokens, backward) for backward in (False, True))
    if sizes.num_shared:
        shared_s += 2 * prices.touch(3 * tokens * sizes.row_bytes)  # outputs added; and the gradients of x
    weighed_s = prices.weighed(own, False) + prices.weighed(own, True)
    moves_s = 4 * prices.picked(own) + 4 * prices.ordered(busiest) + weighed_s + prices.summed(own)
    router_s = prices.router(tokens, False, counts is None) + prices.sorted(own) + prices.router(tokens, True)
    exposed_s = _tensor_s(sizes, cluster, ranks)
    if ranks.cut > 1:  # the input of a sum over ranks is copied first: others may hold it
        weights_bytes = 2 * tokens * sizes.k * sizes.router_bytes
        moves_s += prices.touch(2 * tokens * sizes.row_bytes, 2 * tokens * sizes.row_bytes, weights_bytes)
    if n > 1:
        there_s, back_s = _exchanges(sizes, cluster, rows, dispatcher, ranks.cut)
        exposed_s += 2 * (there_s + back_s) + counts_time_s(sizes, cluster, n, ranks.cut)
    return ExpertTime(n, busiest / prices.own, products_s, shared_s, moves_s, router_s, exposed_s)


@checked
def expert_times(sizes: ExpertSizes, cluster: Cluster, expert_ranks: Sequence[int | ExpertRanks]) -> list[ExpertTime]:
    """`expert_time` with an even load, on each number of ranks; every rank has as many tokens. Raises as there."""
    return [expert_time(sizes, cluster, n) for n in expert_ranks]


def _exchanges(
    sizes: ExpertSizes, cluster: Cluster, rows: Sequence[Sequence[int]], dispatcher: str, stride: int
) -> tuple[float, float]:
    """Seconds of sending tokens to the experts, and back."""
    if dispatcher == "alltoall":
        back = list(zip(*rows, strict=True))
        return exchange_time_s(sizes, cluster, rows, stride), exchange_time_s(sizes, cluster, back, stride)
    machine = Machine(cluster, Stack("dispatched", dispatcher=dispatcher), IDEAL, DTYPES[sizes.element_bytes])
    mixture = Experts(sizes.num_experts, sizes.k, sizes.d_ff)
    one_s = float(exchange_s(machine, mixture, sizes.tokens, sizes.row_bytes, len(rows), 1))
    return one_s, one_s


def _tensor_s(sizes: ExpertSizes, cluster: Cluster, ranks: ExpertRanks) -> float:
    """Seconds of tensor ranks' sums or gathers of outputs, gradients of x, and gradients of weights."""
    if ranks.tensor == 1:
        return 0.0
    name, network = ("all_reduce" if ranks.cuts_experts else "all_gather"), _network(cluster, ranks.tensor)
    x, weights = sizes.tokens * sizes.row_bytes, sizes.tokens * sizes.k * sizes.router_bytes
    return sum(collective_cost(name, float(size), network).time_s for size in (x, x, weights))


def exchange_time_s(sizes: ExpertSizes, cluster: Cluster, rows: Sequence[Sequence[int]], stride: int = 1) -> float:
    """Seconds of one all-to-all of rows, from each rank to each, between ranks `stride` apart."""
    size_bytes = [[count * sizes.row_bytes for count in row] for row in rows]
    return exchange_cost(size_bytes, _network(cluster, len(rows), stride)).time_s


def counts_time_s(sizes: ExpertSizes, cluster: Cluster, expert_ranks: int, stride: int = 1) -> float:
    """Seconds of exchanging the numbers of rows."""
    size_bytes = float(COUNT_BYTES * sizes.num_experts)
    return collective_cost("all_to_all", size_bytes, _network(cluster, expert_ranks, stride)).time_s


@lru_cache(maxsize=64)
def _network(cluster: Cluster, ranks: int, stride: int = 1) -> GroupNetwork:
    return GroupNetwork(cluster, range(0, ranks * stride, stride))
