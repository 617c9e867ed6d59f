"""Routes: what leaves each rank is what the cost of its collective says it sends, and it reaches who needs it."""

from collections import defaultdict
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cost import GroupNetwork, algorithms_for, collective_cost
from lablib.cost.collectives import COLLECTIVES
from lablib.cost.routes import Route, routes
from lablib.hardware import CLUSTERS, find_cluster
from lablib.hardware.cluster import LIBRARIES

CLUSTER_NAMES = st.sampled_from(sorted(CLUSTERS))
ROUNDING = 1e-12  # the order of additions


@st.composite
def groups(draw) -> GroupNetwork:
    """Any 1 to 24 of 32 ranks, in any order, on any cluster of the catalogue; whole nodes as often as not."""
    cluster = find_cluster(draw(CLUSTER_NAMES))
    if draw(st.booleans()):
        nodes, local = draw(st.integers(2, 4)), draw(st.integers(2, cluster.devices_per_node + 1))
        local = min(local, cluster.devices_per_node)
        return GroupNetwork(cluster, [n * cluster.devices_per_node + i for n in range(nodes) for i in range(local)])
    return GroupNetwork(cluster, draw(st.lists(st.integers(0, 31), min_size=1, max_size=24, unique=True)))


def sent_by(found: dict[tuple[int, int], float]) -> dict[int, float]:
    sums: dict[int, float] = defaultdict(float)
    for (a, _), sent in found.items():
        sums[a] += sent
    return sums


@given(st.data(), groups(), st.integers(0, 10**12))
def test_the_routes_of_every_algorithm_add_up_to_the_bytes_that_each_rank_sends(data, net, size):
    name = data.draw(st.sampled_from(sorted(COLLECTIVES)))
    algorithm = data.draw(st.sampled_from(sorted(algorithms_for(name, net))))
    root = data.draw(st.integers(0, net.size - 1))
    cost = collective_cost(name, size, net, algorithm, root)
    found = routes(name, cost.algorithm, net, size, root)
    sums = sent_by(found)
    assert all(isclose(sums[r], sent, rel_tol=ROUNDING) for r, sent in zip(net.ranks, cost.sent_bytes, strict=True))
    assert set(sums) <= set(net.ranks)
    assert all(a != b and sent > 0 for (a, b), sent in found.items())


@given(st.data(), st.sampled_from([2, 4, 8, 16, 32]), st.integers(0, 10**6))
def test_where_shards_are_whole_bytes_the_sums_are_exact_to_the_bit(data, n, shard):
    net = GroupNetwork(find_cluster("dgx-h100"), range(n))
    name = data.draw(st.sampled_from(sorted(COLLECTIVES)))
    algorithm = data.draw(st.sampled_from(sorted(algorithms_for(name, net))))
    root = data.draw(st.integers(0, n - 1))
    cost = collective_cost(name, n * shard, net, algorithm, root)
    sums = sent_by(routes(name, algorithm, net, n * shard, root))
    assert tuple(sums[r] for r in net.ranks) == cost.sent_bytes


@given(
    st.sampled_from(sorted(LIBRARIES)), st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 20), st.integers(0, 10**9)
)
def test_what_a_library_does_by_itself_has_routes_that_add_up(library, name, n, size):
    net = GroupNetwork(find_cluster("dgx-h100").replace(library=library), range(n))
    cost = collective_cost(name, size, net)
    sums = sent_by(routes(name, cost.algorithm, net, size))
    assert all(isclose(sums[r], sent, rel_tol=ROUNDING) for r, sent in enumerate(cost.sent_bytes))


# ---- by hand ----


def eight() -> GroupNetwork:
    """Two nodes of four, in global ranks 0 to 3 and 8 to 11 of a cluster of 8 a node."""
    return GroupNetwork(find_cluster("dgx-h100"), [0, 1, 2, 3, 8, 9, 10, 11])


def test_a_ring_goes_round_once():
    net = GroupNetwork(find_cluster("dgx-h100"), [5, 2, 7])
    assert routes("all_gather", "ring", net, 300) == {(5, 2): 200, (2, 7): 200, (7, 5): 200}


def test_a_tree_of_five_from_root_1_is_the_binomial_tree_drawn_by_hand():
    # Numbered from the root: 0 -> 1, 2, 4; 2 -> 3. With root 1: 1 -> 2, 3, 0; 3 -> 4.
    net = GroupNetwork(find_cluster("dgx-h100"), range(5))
    assert routes("broadcast", "tree", net, 10, root=1) == {(1, 2): 10, (1, 3): 10, (1, 0): 10, (3, 4): 10}
    assert routes("reduce", "tree", net, 10, root=1) == {(2, 1): 10, (3, 1): 10, (0, 1): 10, (4, 3): 10}


def test_a_scatter_down_the_tree_carries_the_shards_of_a_subtree():
    net = GroupNetwork(find_cluster("dgx-h100"), range(4))
    found = routes("broadcast", "scatter-gather", net, 400)
    ring = {(0, 1): 300, (1, 2): 300, (2, 3): 300, (3, 0): 300}
    tree = {(0, 1): 100, (0, 2): 200, (2, 3): 100}  # 2 gets its own shard and 3's
    assert found == {pair: ring.get(pair, 0) + tree.get(pair, 0) for pair in ring | tree}


def test_hierarchical_bytes_leave_a_node_on_the_rails_alone():
    net = eight()
    for name, across in (("all_reduce", 2 * 0.5), ("all_gather", 0.5)):
        found = routes(name, "hierarchical", net, 800)
        outside = {pair: sent for pair, sent in found.items() if pair[0] // 8 != pair[1] // 8}
        # One rail for each place on a node: i and i + 8, a quarter of the bytes each.
        assert outside == {(a, (a + 8) % 16): across * 200 for a in net.ranks}


def test_direct_messages_go_from_source_to_target():
    net = GroupNetwork(find_cluster("dgx-h100"), [3, 4, 9])
    assert routes("scatter", "direct", net, 30, root=2) == {(9, 3): 10, (9, 4): 10}
    assert routes("gather", "direct", net, 30, root=0) == {(4, 3): 10, (9, 3): 10}
    assert routes("all_to_all", "direct", net, 30) == {(a, b): 10 for a in (3, 4, 9) for b in (3, 4, 9) if a != b}


@given(st.sampled_from(["broadcast", "reduce"]), st.integers(2, 40), st.integers(0, 39))
def test_a_tree_reaches_every_rank_from_its_root(name, n, root):
    root %= n
    net = GroupNetwork(find_cluster("dgx-h100"), range(n))
    pairs = routes(name, "tree", net, 1, root)
    reached, edges = {root}, [pair if name == "broadcast" else pair[::-1] for pair in pairs]
    while new := {b for a, b in edges if a in reached} - reached:
        reached |= new
    assert reached == set(range(n)) and len(edges) == n - 1


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_one_rank_alone_sends_nothing(name):
    assert routes(name, "none", GroupNetwork(find_cluster("dgx-h100"), [4]), 100) == {}


def test_equal_collectives_have_equal_routes():
    net = eight()
    assert Route("all_gather", "ring", net, 8.0) == Route("all_gather", "ring", net, 8.0)
    assert len({Route("all_gather", "ring", net, 8.0), Route("all_gather", "ring", net, 8.0)}) == 1
    assert Route("all_gather", "ring", net, 8.0)() == routes("all_gather", "ring", net, 8.0)
