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
Source: prices: lablib/cost, its `exchange_cost` for uneven rows; another dispatcher: lablib/plan/layer/dispatch.py. The
kernels are those of `expert_parallel.py` with `grouped_product`, as the simulator runs them.
Simplified: no tensor ranks; softmax gates; an even load is dealt in turn (`balanced=True`); groups of a rank have equal
lengths; GELU, no dropout; the sum of gradients over ranks is not in it (`data_parallel_scaling.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lablib.cost import GroupNetwork, collective_cost, exchange_cost, matmul_time_s, memory_bound_time_s
from lablib.errors import unknown_name
from lablib.hardware import Cluster
from lablib.models.transformer import Experts
from lablib.parallel.expert_bytes import COUNT_BYTES, ExpertRanks, ExpertSizes, exchanged_rows
from lablib.plan.derating import IDEAL
from lablib.plan.layer.dispatch import exchange_s
from lablib.plan.machine import Machine
from lablib.plan.stack import DISPATCHERS, Stack
from lablib.signature import checked, whole_number

_DTYPES = {2: "bfloat16", 4: "float32", 8: "float64"}


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


class ExpertPrices:
    """Seconds of a mixture's kernels on one rank."""

    def __init__(self, sizes: ExpertSizes, cluster: Cluster, expert_ranks: int):
        if sizes.element_bytes not in _DTYPES:
            raise ValueError(f"element_bytes must be one of {sorted(_DTYPES)}: got {sizes.element_bytes}; try 2.")
        self.sizes, self.device, self.n = sizes, cluster.device, expert_ranks
        self.own = sizes.num_experts // expert_ranks
        self.dtype, self.wide = _DTYPES[sizes.element_bytes], _DTYPES[sizes.router_bytes]

    def touch(self, *size_bytes: float) -> float:
        """Kernels that each move so many bytes, reads and writes together."""
        device = self.device
        return sum(float(memory_bound_time_s(size, device)) + device.kernel_overhead_s for size in size_bytes)

    def mlps(self, rows: int, count: int, width: int, backward: bool) -> float:
        """Up, GELU and down of so many MLPs in a kernel each, all their rows together; or the gradients of all that."""
        sizes, d_model = self.sizes, self.sizes.d_model
        activation = rows * width * sizes.element_bytes
        each = -(-rows // count)
        if not backward:
            up_s, down_s = self._product(each, width, d_model, count), self._product(each, d_model, width, count)
            return up_s + down_s + self.touch(2 * activation)
        of_rows = self._product(each, width, d_model, count), self._product(each, d_model, width, count)
        of_weights = [self._product(a, b, each, count, (a, b)) for a, b in ((d_model, width), (width, d_model))]
        return sum(of_rows) + sum(of_weights) + self.touch(3 * activation)

    def shared(self, tokens: int, backward: bool) -> float:
        """The shared experts, one MLP of all their widths; 0 without any."""
        count = self.sizes.num_shared
        return self.mlps(tokens, 1, count * self.sizes.d_ff, backward) if count else 0.0

    def summed(self, tokens: int) -> float:
        """The gradients of a token's k copies, added."""
        return self.touch(tokens * (self.sizes.k + 1) * self.sizes.row_bytes)

    def _product(
        self, m: int, n: int, k: int, count: int, rows: tuple[int, int] | None = None, dtype: str = ""
    ) -> float:
        time_s = matmul_time_s(m, n, k, dtype or self.dtype, self.device, batch=count, rows=rows)
        return float(time_s) + self.device.kernel_overhead_s

    def picked(self, tokens: int) -> float:
        """Rows by their numbers."""
        rows = tokens * self.sizes.k
        return self.touch(rows * (2 * self.sizes.row_bytes + COUNT_BYTES))

    def ordered(self, rows: int) -> float:
        """Rows of several ranks and experts in the order of the other; nothing where one of them is alone."""
        return self.touch(2 * rows * self.sizes.row_bytes) if self.n > 1 and self.own > 1 else 0.0

    def weighed(self, tokens: int, backward: bool) -> float:
        """k rows of a token times their weights, and summed; or the gradients of rows and weights."""
        sizes, weights = self.sizes, tokens * self.sizes.k * self.sizes.element_bytes
        x, rows = tokens * sizes.row_bytes, tokens * sizes.k * sizes.row_bytes
        cast = tokens * sizes.k * (sizes.element_bytes + sizes.router_bytes)
        cast_s = self.touch(cast) if sizes.element_bytes < sizes.router_bytes else 0.0
        if not backward:
            return cast_s + self.touch(2 * rows + weights, rows + x)
        return cast_s + self.touch(2 * rows + x, rows + x + weights, rows + weights)

    def sorted(self, tokens: int) -> float:
        """Choices by expert."""
        number = COUNT_BYTES * tokens * self.sizes.k
        return self.touch(2 * number, 3 * number, number, number, 4 * number, 2 * number)

    def router(self, tokens: int, backward: bool, is_dealt: bool = True) -> float:
        """Logits, scores, choices and weights; or their gradients.

        Arguments:
            is_dealt: choices in turn; else scores are sorted, and choices counted.
        """
        sizes, v = self.sizes, self.sizes.router_bytes
        choices, scores, d_model = tokens * sizes.k, tokens * sizes.num_experts * v, sizes.d_model
        casts_s = 0.0
        if sizes.element_bytes < v:
            casts_s = self.touch(*((v + sizes.element_bytes) * d_model * many for many in (tokens, sizes.num_experts)))
        number, weight, token = COUNT_BYTES * choices, v * choices, v * tokens
        normal = sizes.k > 1
        if not backward:
            normalized_s = self.touch(weight + token, 2 * token, 2 * weight + token) if normal else 0.0
            dealt_s = self.touch(number, 2 * number)
            if not is_dealt:
                ids = COUNT_BYTES * sizes.num_experts
                dealt_s = self.touch(2 * scores + tokens * ids, 2 * number, ids, number, 4 * number)
            chosen_s = dealt_s + self.touch(2 * scores, number + 2 * weight)
            logits_s = self._product(tokens, sizes.num_experts, d_model, 1, dtype=self.wide)
            return casts_s + logits_s + chosen_s + normalized_s
        normalized_s = 0.0
        if normal:
            divided = 2 * weight + token
            normalized_s = self.touch(
                *(divided, divided, 2 * weight, 3 * weight, divided, weight + token),
                *(0, token + tokens, 2 * token + tokens, divided),
            )
        spread_s = self.touch(scores, 2 * scores + number + weight, 3 * scores)
        products_s = self._product(sizes.num_experts, d_model, tokens, 1, (sizes.num_experts, d_model), self.wide)
        products_s += self._product(tokens, d_model, sizes.num_experts, 1, dtype=self.wide)
        return casts_s + normalized_s + spread_s + products_s + self.touch(3 * tokens * sizes.row_bytes)


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
    machine = Machine(cluster, Stack("dispatched", dispatcher=dispatcher), IDEAL, _DTYPES[sizes.element_bytes])
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
