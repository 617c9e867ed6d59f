"""The wires of every algorithm, on two nodes of four: which rank's way in or out, inside the node or out of it."""

import pytest

from lablib.cost import GroupNetwork
from lablib.cost.collective import algorithms_for
from lablib.engine.wires import WireSets, collective_wires, pair_wires
from lablib.hardware import find_cluster

TWO_NODES = find_cluster("dgx-h100").replace(devices_per_node=4)


def wires(kind: str, algorithm: str, ranks: list[int], root: int = 0) -> set[str]:
    """As "3 intra out", "4 inter in", ..."""
    found = collective_wires(kind, algorithm, GroupNetwork(TWO_NODES, ranks), root)
    return {" ".join(map(str, wire)) for wire in found}  # type: ignore[call-overload]


def both(*ends: str) -> set[str]:
    return {f"{end} {way}" for end in ends for way in ("in", "out")}


def test_a_message_leaves_one_rank_and_enters_the_other():
    assert pair_wires(TWO_NODES, [(1, 2)]) == {(1, "intra", "out"), (2, "intra", "in")}
    assert pair_wires(TWO_NODES, [(1, 6)]) == {(1, "inter", "out"), (6, "inter", "in")}
    assert pair_wires(TWO_NODES, [(1, 1)]) == set()


def test_a_ring_inside_a_node_uses_both_ways_of_every_rank():
    assert wires("all_reduce", "ring", [0, 1, 3]) == both("0 intra", "1 intra", "3 intra")


def test_a_ring_over_two_nodes_leaves_each_node_once():
    expected = {"0 intra out", "1 intra in", "1 inter out", "4 inter in", "4 intra out", "5 intra in", "5 inter out"}
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        assert wires(kind, "ring", [0, 1, 4, 5]) == expected | {"0 inter in"}


def test_a_tree_goes_down_for_a_broadcast_up_for_a_reduction_and_both_for_an_all_reduce():
    # Of 0, 1, 4, 5: 1 and 4 hang on 0, and 5 on 4.
    down = {"0 intra out", "1 intra in", "0 inter out", "4 inter in", "4 intra out", "5 intra in"}
    up = {"0 intra in", "1 intra out", "0 inter in", "4 inter out", "4 intra in", "5 intra out"}
    ranks = [0, 1, 4, 5]
    assert wires("broadcast", "tree", ranks) == down
    assert wires("reduce", "tree", ranks) == up
    assert wires("all_reduce", "tree", ranks) == up | down


def test_the_root_of_a_tree_may_be_any_rank():
    assert wires("broadcast", "tree", [0, 1, 4], root=2) == {"4 inter out", "0 inter in", "1 inter in"}


def test_a_scatter_leaves_the_root_and_a_gather_enters_it():
    assert wires("scatter", "direct", [0, 1, 4]) == {"0 intra out", "0 inter out", "1 intra in", "4 inter in"}
    assert wires("gather", "direct", [0, 1, 4], root=2) == {"0 inter out", "1 inter out", "4 inter in"}


def test_an_exchange_uses_every_level_that_there_is():
    assert wires("all_to_all", "direct", [0, 1]) == both("0 intra", "1 intra")
    assert wires("all_to_all", "direct", [0, 4]) == both("0 inter", "4 inter")
    assert wires("all_to_all", "direct", [0, 1, 4]) == both("0 intra", "1 intra", "0 inter", "1 inter", "4 inter")


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_hierarchical_collective_uses_both_levels_of_every_rank(kind: str):
    expected = both(*(f"{rank} {level}" for rank in (0, 1, 4, 5) for level in ("intra", "inter")))
    assert wires(kind, "hierarchical", [0, 1, 4, 5]) == expected


@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"]
)
def test_every_algorithm_of_the_cost_model_uses_some_wire_of_every_rank_and_of_no_other(kind: str):
    ranks = [1, 2, 5, 6]
    for algorithm in algorithms_for(kind, GroupNetwork(TWO_NODES, ranks)):
        assert {int(wire[0]) for wire in wires(kind, algorithm, ranks, root=3)} == set(ranks)


def test_an_exchange_uses_the_wires_of_its_messages():
    ranks = [0, 1, 4, 6, 7]
    pairs = [(a, b) for a in ranks for b in ranks]
    assert collective_wires("all_to_all", "direct", GroupNetwork(TWO_NODES, ranks)) == pair_wires(TWO_NODES, pairs)


def test_a_barrier_has_no_bytes_and_uses_no_wire():
    assert wires("barrier", "tree", [0, 1, 4, 5]) == set()


def test_equal_sets_have_one_number_and_know_their_rivals():
    sets = WireSets()
    ab, bc, cd, ef = (sets.number(frozenset(wires)) for wires in ("ab", "bc", "cd", "ef"))
    assert sets.number(frozenset("ba")) == ab
    assert sets.rivals(ab) == {ab, bc} and sets.rivals(bc) == {ab, bc, cd} and sets.rivals(ef) == {ef}


def test_the_load_is_that_of_the_fullest_wire():
    sets = WireSets()
    ab, bc, ca, none = (sets.number(frozenset(wires)) for wires in ("ab", "bc", "ca", ""))
    assert sets.load(ab, ((ab, 1), (bc, 1), (ca, 1))) == 2
    assert sets.load(ab, ((ab, 2), (bc, 3), (ca, 1))) == 5
    assert sets.rivals(none) == {none}
