"""Placement of experts on ranks by load, with copies of heavy experts, to reduce the load of the busiest rank.

Experts get unequal numbers of tokens, and a layer takes as long as its busiest rank. So each rank gets one or two slots
more than its share of experts. Heavy experts are copied into them, and the copies share their tokens evenly:

    loads 8 1 1 2             rank 0        rank 1        busiest
    in order                  8 1           1 2           9         the mean is 6
    balanced, 3 slots / rank  8/3 8/3 1     8/3 2 1       6.33      the best is 6: 4 1 1 and 4 1 1

    1 copies   the next slot goes to the expert with most tokens per copy, which minimizes the heaviest copy
    2 packing  the heaviest copy left goes to the rank with fewest tokens that has a free slot
    nodes      before both, groups of experts are packed onto nodes; then 1 and 2 run in each node

No placement is better than the mean of the ranks, nor than its heaviest copy (`least_possible_load`). Both steps are
heuristics, and can miss the optimum as above (`studies/expert_best.py` tries all); two copies may share a rank, as in
the source. If the result is not better than the placement in order, that one is used.

Cost: n s log n comparisons of loads; does not communicate. Cost of a copy: the bytes of an expert's weights on its
rank, once moved; in training also its optimizer's state, and a sum of the copies' gradients.
Legend: E experts, n ranks, s slots per rank, N nodes.
Source: DeepSeek-V3, 2024, arXiv 2412.19437, section 3.4.1 (redundant experts); github.com/deepseek-ai/EPLB, 2025
(the two policies, hierarchical and global, and the example that the tests repeat); packing: Graham, "Bounds on
Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17(2), 1969.
Simplified: loads are known in advance (in the source: a moving average); copies share evenly; messages are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import isfinite

from lablib.signature import Count, NonNegative, check_fields, check_type, checked, shown
from lablib.text.units import largest_divisor

MAX_SLOTS = 2**20  # placements are processed slot by slot


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """The expert in each slot of each rank.

    ValueError: no rank, unequal numbers of slots, an expert that is not 0 to E - 1, or one that has no slot.
    """

    # for each rank the expert in each of its slots; all ranks have the same number of slots
    ranks: tuple[tuple[int, ...], ...]
    num_experts: Count  # E; each has at least one slot

    def __post_init__(self) -> None:
        check_fields(self)
        if len({len(slots) for slots in self.ranks}) != 1:
            raise ValueError(f"all ranks need equally many slots: got {shown(self.ranks)}; try place_in_order(4, 2).")
        if {expert for slots in self.ranks for expert in slots} != set(range(self.num_experts)):
            raise ValueError(
                f"each expert 0 to {self.num_experts - 1} must have a slot, and no other: got {shown(self.ranks)}; "
                "try place_in_order(4, 2)."
            )

    @property
    def copies(self) -> tuple[int, ...]:
        """The number of copies of each expert."""
        found = [0] * self.num_experts
        for expert in (expert for slots in self.ranks for expert in slots):
            found[expert] += 1
        return tuple(found)

    def rank_loads(self, loads: Sequence[float]) -> list[float]:
        """Tokens of each rank, from the tokens of each expert."""
        each = [load / copies for load, copies in zip(check_loads(loads, self.num_experts), self.copies, strict=True)]
        return [sum(each[expert] for expert in slots) for slots in self.ranks]

    def imbalance(self, loads: Sequence[float]) -> float:
        """Load of the busiest rank over the mean, the factor by which experts take longer; 1 without tokens."""
        ranks = self.rank_loads(loads)
        return max(ranks) * len(ranks) / sum(ranks) if sum(ranks) else 1.0


@checked
def place_in_order(num_experts: Count, num_ranks: Count, slots_a_rank: Count | None = None) -> ExpertPlacement:
    """Naive: experts in order, rank by rank, without regard to loads. Additional slots repeat the rank's experts.

    `slots_a_rank`: s; None: a rank's share. ValueError: ranks that do not divide the experts, or fewer slots.
    """
    if num_experts % num_ranks:
        raise ValueError(
            f"num_ranks must divide num_experts: got {num_ranks} and {num_experts}; "
            f"try {largest_divisor(num_experts, num_ranks)}."
        )
    share = num_experts // num_ranks
    slots = check_slots(num_experts, num_ranks, share if slots_a_rank is None else slots_a_rank)
    held = tuple(tuple(r * share + i % share for i in range(slots)) for r in range(num_ranks))
    return ExpertPlacement(held, num_experts)


@checked
def place_balanced(
    loads: Sequence[NonNegative],
    num_ranks: Count,
    slots_a_rank: Count,
    num_nodes: Count = 1,
    num_groups: Count | None = None,
) -> ExpertPlacement:
    """Copy the heaviest experts, and pack the copies. Pure: equal loads give equal placements.

    Arguments:
        loads: tokens of each expert.
        slots_a_rank: s; n s >= E.
        num_nodes: above 1: hierarchical, all copies of an expert in the node of its group.
        num_groups: of consecutive experts (for a router that is limited to groups); None: one per node.

    Raises:
        ValueError: fewer slots than experts, nodes that do not divide ranks or groups, groups that do not divide
            experts.
    """
    experts, nodes, ranks = len(loads), num_nodes, num_ranks
    loads = check_loads(loads, experts)
    slots = check_slots(experts, ranks, slots_a_rank)
    groups = nodes if num_groups is None else num_groups
    for name, divisor, of, number in (
        ("num_nodes", nodes, "num_ranks", ranks),
        ("num_nodes", nodes, "num_groups", groups),
        ("num_groups", groups, "the experts", experts),
    ):
        if number % divisor:
            raise ValueError(f"{name} must divide {of}: got {divisor} and {number}; try {name}=1.")
    width = experts // groups
    of_groups = [sum(loads[g * width : (g + 1) * width]) for g in range(groups)]
    placed: list[tuple[int, ...]] = []
    for node in _packed(of_groups, nodes, groups // nodes):
        here = [g * width + i for g in sorted(node) for i in range(width)]
        copies = _copies([loads[e] for e in here], ranks // nodes * slots)
        items = [i for i, count in enumerate(copies) for _ in range(count)]
        each = [loads[here[i]] / copies[i] for i in items]
        packed = _packed(each, ranks // nodes, slots)
        placed += [tuple(here[items[item]] for item in rank) for rank in packed]
    found = ExpertPlacement(tuple(placed), experts)
    if experts % ranks:
        return found
    naive = place_in_order(experts, ranks, slots)
    return min(naive, found, key=lambda one: max(one.rank_loads(loads)))


@checked
def least_possible_load(loads: Sequence[NonNegative], num_ranks: Count, slots_a_rank: Count) -> float:
    """Lower bound of the busiest rank's load for any copies and placement: the mean, or one copy."""
    loads = check_loads(loads, len(loads))
    copies = _copies(loads, num_ranks * check_slots(len(loads), num_ranks, slots_a_rank))
    return max(sum(loads) / num_ranks, max(load / count for load, count in zip(loads, copies, strict=True)))


def _copies(loads: Sequence[float], total: int) -> list[int]:
    """The number of copies of each expert that minimizes the heaviest copy."""
    copies = [1] * len(loads)
    queue = [(-load, e) for e, load in enumerate(loads)]
    heapify(queue)
    for _ in range(total - len(loads)):
        _, e = heappop(queue)
        copies[e] += 1
        heappush(queue, (-loads[e] / copies[e], e))
    return copies


def _packed(weights: Sequence[float], num_bins: int, each: int) -> list[list[int]]:
    """The items of each bin, `each` per bin: the heaviest item left goes to the lightest bin with room."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    queue = [(0.0, b) for b in range(num_bins)]
    for item in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        weight, b = heappop(queue)
        bins[b].append(item)
        if len(bins[b]) < each:
            heappush(queue, (weight + weights[item], b))
    return bins


def check_loads(loads: Sequence[float], num_experts: int) -> list[float]:
    """The loads as numbers; raises ValueError if they are invalid."""
    check_type("loads", loads, Sequence[NonNegative])
    if not num_experts or len(loads) != num_experts:
        raise ValueError(f"loads must have a number for each of the {num_experts or 'experts'}: got {len(loads)}.")
    if not isfinite(sum(loads)):
        raise ValueError(f"loads must have a finite sum: got {shown(loads)}; divide all by the same number.")
    return [float(load) for load in loads]


@checked
def check_slots(num_experts: int, num_ranks: Count, slots_a_rank: Count) -> int:
    """Slots of a rank; raises ValueError if an expert would have none."""
    slots = slots_a_rank
    if num_ranks * slots > MAX_SLOTS:
        raise ValueError(
            f"there must be at most {MAX_SLOTS:,} slots: got {num_ranks} ranks x {slots}; try a slot or two more than "
            "a rank's share of experts."
        )
    if num_ranks * slots < num_experts:
        raise ValueError(
            f"every expert must have a slot: got {num_ranks} ranks x {slots} for {num_experts}; "
            f"try slots_a_rank={-(-num_experts // num_ranks)}."
        )
    return slots
