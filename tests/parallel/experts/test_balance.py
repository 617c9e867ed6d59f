"""Experts copied and packed: bounds for any loads, the best by trying all, and the example of the source."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.parallel import ExpertPlacement, least_possible_load, place_balanced, place_in_order

# github.com/deepseek-ai/EPLB, README: 12 experts of two layers, 16 slots on 8 GPUs, 4 groups, 2 nodes; and its output.
LOADS = ([90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27])
SLOTS = ([5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1])


def least_load(loads: Sequence[float], num_ranks: int, slots: int) -> float:
    """The busiest rank's load in the best placement, by trying all numbers of copies and all places of the copies."""

    @cache
    def busiest(items: tuple[float, ...], ranks: tuple[tuple[float, int], ...]) -> float:
        if not items:
            return max(load for load, _ in ranks)
        tries = ((load + items[0], left - 1, i) for i, (load, left) in enumerate(ranks) if left)
        placed = {tuple(sorted((*ranks[:i], (load, left), *ranks[i + 1 :]))) for load, left, i in tries}
        return min(busiest(items[1:], each) for each in placed)

    cuts = combinations(range(1, num_ranks * slots), len(loads) - 1)
    copies = ([b - a for a, b in pairwise((0, *cut, num_ranks * slots))] for cut in cuts)
    spread = ([x / n for x, n in zip(loads, some, strict=True) for _ in range(n)] for some in copies)
    return min(busiest(tuple(sorted(items, reverse=True)), ((0.0, slots),) * num_ranks) for items in spread)


@st.composite
def cases(draw: Any, most_experts: int = 24) -> tuple[list[float], int, int]:
    ranks = draw(st.integers(1, 6))
    experts = ranks * draw(st.integers(1, max(1, most_experts // ranks)))
    loads = draw(st.lists(st.integers(0, 1000), min_size=experts, max_size=experts))
    return loads, ranks, experts // ranks + draw(st.integers(0, 2))


@given(cases())
@settings(max_examples=200, deadline=None)
def test_every_expert_is_somewhere_and_no_rank_is_below_the_bound_or_worse_than_in_order(case: Any):
    loads, ranks, slots = case
    placed = place_balanced(loads, ranks, slots)
    assert [len(rank) for rank in placed.ranks] == [slots] * ranks
    assert min(placed.copies) >= 1 and sum(placed.copies) == ranks * slots
    each = placed.rank_loads(loads)
    assert sum(each) == pytest.approx(sum(loads))
    busiest, naive = max(each), max(place_in_order(len(loads), ranks).rank_loads(loads))
    assert least_possible_load(loads, ranks, slots) - 1e-9 <= busiest <= naive + 1e-9
    assert placed.imbalance(loads) >= 1 - 1e-12
    assert place_balanced(loads, ranks, slots) == placed


@given(st.data())
def test_nothing_is_better_than_what_trying_all_finds(data: Any):
    ranks, slots = data.draw(st.sampled_from([(1, 4), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (3, 3)]))
    experts = data.draw(st.integers(1, ranks * slots))
    loads = data.draw(st.lists(st.integers(0, 50), min_size=experts, max_size=experts))
    best = least_load(loads, ranks, slots)
    found = max(place_balanced(loads, ranks, slots).rank_loads(loads))
    assert least_possible_load(loads, ranks, slots) - 1e-9 <= best <= found + 1e-9
    if experts == ranks * slots and slots == 1:
        assert best == max(loads)


def test_trying_all_finds_what_packing_misses():
    loads = [8, 1, 1, 2]
    assert max(place_in_order(4, 2).rank_loads(loads)) == 9
    assert max(place_balanced(loads, 2, 3).rank_loads(loads)) == pytest.approx(8 / 3 + 8 / 3 + 1)
    assert least_load(loads, 2, 3) == 6 == least_possible_load(loads, 2, 3)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_example_of_the_source_is_found_again(layer: int):
    """But for which of two copies of equal load is where: the ranks' loads are the same."""
    loads, slots = LOADS[layer], SLOTS[layer]
    theirs = ExpertPlacement(tuple(tuple(slots[i : i + 2]) for i in range(0, 16, 2)), 12)
    ours = place_balanced(loads, 8, 2, num_nodes=2, num_groups=4)
    assert ours.copies == theirs.copies
    assert ours.rank_loads(loads) == pytest.approx(theirs.rank_loads(loads))
    # All over, without nodes, the busiest has less; within nodes all copies of a group's experts are in one of them.
    assert max(place_balanced(loads, 8, 2).rank_loads(loads)) <= max(ours.rank_loads(loads))
    for group in range(4):
        nodes = {r // 4 for r, rank in enumerate(ours.ranks) for expert in rank if expert // 3 == group}
        assert len(nodes) == 1


@given(st.lists(st.integers(0, 1000), min_size=16, max_size=16), st.sampled_from([(1, 4), (2, 2), (2, 4), (4, 4)]))
def test_nodes_are_never_worse_than_in_order_and_hold_the_same_groups(loads: list[int], sizes: tuple[int, int]):
    nodes, groups = sizes
    placed = place_balanced(loads, 8, 3, num_nodes=nodes, num_groups=groups)
    assert max(placed.rank_loads(loads)) <= max(place_in_order(16, 8).rank_loads(loads)) + 1e-9
    assert min(placed.copies) >= 1 and {len(rank) for rank in placed.ranks} == {3}


def test_more_slots_bring_skewed_loads_near_the_mean():
    """Loads as 1 / rank (Zipf), 64 experts on 8 ranks: one slot more a rank takes most of the imbalance."""
    loads = [1000 / (1 + i) for i in range(64)]
    found = [place_balanced(loads, 8, slots).imbalance(loads) for slots in (8, 9, 10)]
    assert place_in_order(64, 8).imbalance(loads) == pytest.approx(4.58, abs=0.01)
    # Without a copy the best there is: the heaviest expert beside the seven lightest.
    assert found[0] == pytest.approx(8 * (loads[0] + sum(loads[-7:])) / sum(loads))
    assert found[1] < 1.05 and found[2] < 1.01


def test_no_tokens_are_balanced():
    assert place_balanced([0, 0], 2, 1).imbalance([0, 0]) == 1.0


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (place_balanced, ([], 2, 1), "loads must have a number for each"),
        (place_balanced, ([1.0] * 4, 2, 1), "every expert must have a slot: got 2 ranks x 1 for 4; try slots_a_rank=2"),
        (place_balanced, ([1.0] * 4, 4, 1, 3), "num_nodes must divide num_ranks: got 3 and 4"),
        (place_balanced, ([1.0] * 4, 4, 1, 2, 3), "num_nodes must divide num_groups: got 2 and 3"),
        (place_balanced, ([1.0] * 4, 4, 1, 1, 3), "num_groups must divide the experts: got 3 and 4"),
        (place_in_order, (6, 4), "num_ranks must divide num_experts: got 4 and 6; try 3"),
    ],
)
def test_what_cannot_be_placed_is_refused(function: Any, arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_loads_of_other_experts_are_refused():
    with pytest.raises(ValueError, match="loads must have a number for each of the 4: got 3"):
        place_in_order(4, 2).rank_loads([1, 2, 3])
