"""Time of a mixture with tokens in parts: a simulation of its schedule with the time of each piece.

    compute  [before 1][before 2][shared][experts 1][experts 2][behind 1][behind 2]
    link               [there 1 ][there 2][back 1   ]          [back 2  ]

A piece begins when the rank is free and its inputs have come; a message when the link is free and its rows are ready.
Time of the rank without a piece is exposed. Backward is the same with other times, and shared experts come before
`behind`.

Parts pay if an all-to-all is longer than their overhead: products of fewer rows, twice as many kernels, and the sum of
weights' gradients. On 8 H100s a layer of 64 experts of 1,024 units and 8,192 tokens per rank takes 7.7 ms, 2.1 of them
exposed, and in two parts 6.2, 0.3 exposed; with 512 tokens two parts take longer than one.

Cost: some sums; nothing runs on ranks.
Legend: as in `parallel/experts/bytes.py` and `parallel/experts/overlap.py`.
Source: the schedule: `parallel/experts/overlap.py`; prices: `expert_prices.py`.
Simplified: an even load; all ranks do the same at the same time; messages take no cores of the GPU.
"""

from dataclasses import replace

from lablib.hardware import Cluster
from lablib.parallel.experts.bytes import ExpertRanks, ExpertSizes, exchanged_rows
from lablib.parallel.experts.overlap import check_parts
from lablib.signature import checked, whole_number
from lablib.studies.expert_cost import ExpertTime, counts_time_s, exchange_time_s
from lablib.studies.expert_prices import ExpertPrices


@checked
def overlapped_time(
    sizes: ExpertSizes, cluster: Cluster, expert_ranks: int | ExpertRanks, parts: int = 2
) -> ExpertTime:
    """As `expert_time` of an even load, for tokens in parts: the schedule decides the exposed time.

    Arguments:
        cluster: the cluster of the ranks, its first `expert_ranks`; two or more.
        expert_ranks: their number, or `ExpertRanks` without tensor ranks.
        parts: number of parts of a rank's tokens.

    Raises:
        ValueError: parts that do not divide the tokens, one rank, tensor ranks; and as `expert_time`.
    """
    if isinstance(expert_ranks, ExpertRanks):
        if expert_ranks.tensor > 1:
            raise ValueError(
                f"tokens go in parts without tensor ranks, as overlap_experts refuses them: got {expert_ranks}; take "
                "tensor=1, or expert_time without parts."
            )
        expert_ranks = expert_ranks.expert
    n, each = whole_number("expert_ranks", expert_ranks, 2, example=8), check_parts(sizes.tokens, parts)
    part = replace(sizes, tokens=each)
    rows = exchanged_rows(part, ExpertRanks(n))
    prices, tokens, received = ExpertPrices(sizes, cluster, n), sizes.tokens, sum(row[0] for row in rows)
    way_s = exchange_time_s(part, cluster, rows)
    picked_s, ordered_s = prices.picked(each), prices.ordered(received)
    weighed_s = [prices.weighed(each, backward) for backward in (False, True)]
    products_s = [prices.mlps(received, prices.own, sizes.d_ff, backward) for backward in (False, True)]
    shared_s = [prices.shared(tokens, backward) for backward in (False, True)]
    # Sum of the parts' gradients of weights; two matrices.
    added_s = (parts - 1) * 2 * prices.touch(3 * prices.own * sizes.d_model * sizes.d_ff * sizes.element_bytes)
    x, weights = tokens * sizes.row_bytes, tokens * sizes.k * sizes.router_bytes
    cuts_s = [prices.touch(2 * x), prices.touch(2 * x, 2 * weights)] if parts > 1 else [0.0, 0.0]

    experts_s = [one + 2 * ordered_s for one in products_s]
    experts_s[1] += added_s / parts
    summed_s = picked_s + prices.summed(each)
    exposed_s = parts * counts_time_s(sizes, cluster, n)
    exposed_s += _waits_s(way_s, parts, picked_s, experts_s[0], picked_s + weighed_s[0], there_s=shared_s[0])
    exposed_s += _waits_s(way_s, parts, weighed_s[1] + picked_s, experts_s[1], summed_s, back_s=shared_s[1])

    moves_s = parts * (3 * picked_s + 4 * ordered_s + sum(weighed_s) + summed_s) + sum(cuts_s)
    router_s = prices.router(tokens, False) + parts * prices.sorted(each) + prices.router(tokens, True)
    shared = sum(shared_s) + (2 * prices.touch(3 * x) if sizes.num_shared else 0.0)
    products = parts * sum(products_s) + added_s
    return ExpertTime(n, received / prices.own, products, shared, moves_s, router_s, exposed_s)


def _waits_s(
    way_s: float,
    parts: int,
    before_s: float,
    experts_s: float,
    behind_s: float,
    there_s: float = 0.0,
    back_s: float = 0.0,
) -> float:
    """Seconds of one pass without compute.

    All parts are prepared and sent; each is received, computed and sent back, and each is received again; shared
    experts are computed during the first messages there, or in backward during the last ones back. Messages go one
    after another.

    >>> _waits_s(2.0, 1, 0.0, 3.0, 0.0), _waits_s(2.0, 2, 0.0, 3.0, 0.0), _waits_s(2.0, 2, 0.0, 3.0, 0.0, there_s=2.0)
    (4.0, 4.0, 2.0)
    """
    now_s = free_s = waits_s = 0.0  # of the rank; the link is free from then on
    arrivals: list[float] = []
    for _ in range(parts):
        now_s += before_s
        free_s = max(free_s, now_s) + way_s
        arrivals.append(free_s)
    now_s += there_s
    for part in range(parts):
        waits_s += max(0.0, arrivals[part] - now_s)
        now_s = max(now_s, arrivals[part]) + experts_s
        free_s = max(free_s, now_s) + way_s
        arrivals[part] = free_s
    now_s += back_s
    for arrival_s in arrivals:
        waits_s += max(0.0, arrival_s - now_s)
        now_s = max(now_s, arrival_s) + behind_s
    return waits_s
