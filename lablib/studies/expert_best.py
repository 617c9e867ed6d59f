"""Optimal placement of experts by exhaustive search: the reference for `place_balanced`.

Tries every number of slots per expert, one or more, and for each every assignment of the copies to ranks, heaviest
first. A branch ends when a rank has as much as the best so far; of two equal ranks only one is tried.

Cost: exponential in the slots; up to ten, a second at most.
Legend: as in `parallel/experts/balance.py`.
Source: Land and Doig, "An Automatic Method of Solving Discrete Programming Problems", Econometrica 28(3), 1960 (branch
and bound); packing equal numbers of items is NP-hard from three slots per rank on: Garey and Johnson, "Computers and
Intractability", 1979, problem SP15 (3-partition).
Simplified: copies of an expert have equal shares of its tokens.
"""

from collections.abc import Sequence
from math import inf

from lablib.parallel.experts.balance import ExpertPlacement, check_loads, check_slots
from lablib.signature import Count, checked

_MOST_SLOTS = 10


@checked
def place_best(loads: Sequence[float], num_ranks: Count, slots_a_rank: int) -> ExpertPlacement:
    """The optimal placement, for up to ten slots, to compare `place_balanced` with.

    Raises ValueError: more slots; and as `place_balanced`.
    """
    experts = len(loads)
    loads, slots = check_loads(loads, experts), check_slots(experts, num_ranks, slots_a_rank)
    if num_ranks * slots > _MOST_SLOTS:
        raise ValueError(f"all placements are too many: got {num_ranks * slots} slots; try at most {_MOST_SLOTS}.")
    best, placed = inf, ()
    for copies in _compositions(num_ranks * slots, experts):
        each = [load / count for load, count in zip(loads, copies, strict=True)]
        items = sorted((e for e in range(experts) for _ in range(copies[e])), key=lambda e: (-each[e], e))
        found = _search([each[e] for e in items], num_ranks, slots, best)
        if found:
            best, places = found
            placed = tuple(tuple(items[i] for i, r in enumerate(places) if r == rank) for rank in range(num_ranks))
    return ExpertPlacement(placed, experts)


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    """Every way to give each of `parts` experts one slot or more, all slots in use."""
    if parts == 1:
        return [(total,)]
    rest = range(1, total - parts + 2)
    return [(first, *others) for first in rest for others in _compositions(total - first, parts - 1)]


def _search(weights: Sequence[float], num_bins: int, each: int, below: float) -> tuple[float, list[int]] | None:
    """The smallest heaviest bin below `below`, and the bin of each item; items one by one, worse branches left out."""
    best: tuple[float, list[int]] | None = None
    loads, counts, places = [0.0] * num_bins, [0] * num_bins, [0] * len(weights)

    def place(item: int) -> None:
        nonlocal best, below
        if item == len(weights):
            best, below = (max(loads), list(places)), max(loads)
            return
        tried = set()
        for b in range(num_bins):  # of two equal bins only one is tried
            if counts[b] == each or (loads[b], counts[b]) in tried or loads[b] + weights[item] >= below:
                continue
            tried.add((loads[b], counts[b]))
            before = loads[b]
            loads[b], counts[b], places[item] = before + weights[item], counts[b] + 1, b
            place(item + 1)
            loads[b], counts[b] = before, counts[b] - 1

    place(0)
    return best
