"""An all-to-all whose messages differ in size: closed forms against even ones, bounds, and who sends what to whom."""

from math import isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cost import GroupNetwork, collective_cost, exchange_cost
from lablib.hardware import CLUSTERS, find_cluster
from lablib.hardware.cluster import LIBRARIES

ROUNDING = 1e-12


@st.composite
def groups(draw, least: int = 1) -> GroupNetwork:
    cluster = find_cluster(draw(st.sampled_from(sorted(CLUSTERS))))
    library = draw(st.sampled_from(sorted(LIBRARIES)))
    ranks = draw(st.lists(st.integers(0, 31), min_size=least, max_size=12, unique=True))
    return GroupNetwork(cluster.replace(library=library), ranks)


@st.composite
def exchanges(draw, least: int = 2) -> tuple[GroupNetwork, np.ndarray]:
    net = draw(groups(least))
    sizes = st.one_of(st.just(0), st.integers(0, 10**9))
    rows = draw(st.lists(sizes, min_size=net.size**2, max_size=net.size**2))
    return net, np.array(rows, float).reshape(net.size, net.size)


@given(groups(), st.integers(0, 10**10), st.sampled_from(["auto", "grouped", "direct"]))
def test_equal_messages_cost_what_the_even_collective_does(net, shard, algorithm):
    n = net.size
    found = exchange_cost(np.full((n, n), shard), net, algorithm)
    wanted = collective_cost("all_to_all", float(shard * n), net, algorithm)
    assert found.algorithm == wanted.algorithm
    assert isclose(found.time_s, wanted.time_s, rel_tol=ROUNDING)
    assert isclose(found.latency_s, wanted.latency_s, rel_tol=ROUNDING)
    assert np.allclose(found.sent_bytes, wanted.sent_bytes, rtol=ROUNDING)


@given(exchanges())
def test_routes_are_the_messages_and_add_up_to_what_each_rank_sends(drawn):
    net, sizes = drawn
    cost = exchange_cost(sizes, net)
    assert cost.route is not None
    routes = cost.route()
    wanted = {
        (net.ranks[a], net.ranks[b]): sizes[a, b]
        for a in range(net.size)
        for b in range(net.size)
        if a != b and sizes[a, b]
    }
    assert routes == wanted
    sent = [sum(size for (a, _), size in routes.items() if a == rank) for rank in net.ranks]
    assert np.allclose(cost.sent_bytes, sent, rtol=ROUNDING)


@given(exchanges(), st.data())
def test_no_exchange_is_faster_than_its_fullest_wire_and_more_bytes_never_take_less(drawn, data):
    net, sizes = drawn
    cost = exchange_cost(sizes, net)
    cluster = net.cluster
    for axis in (0, 1):
        for level in ("intra", "inter"):
            for me in range(net.size):
                busy_s = sum(
                    (sizes[me, other] if axis else sizes[other, me]) / edge.bandwidth_bytes_per_s
                    for other in range(net.size)
                    if other != me and (edge := cluster.wire(net.ranks[me], net.ranks[other])).level == level
                )
                assert cost.time_s >= busy_s * (1 - ROUNDING)
    a, b = data.draw(st.integers(0, net.size - 1)), data.draw(st.integers(0, net.size - 1))
    more = sizes.copy()
    more[a, b] += data.draw(st.integers(0, 10**9))
    assert exchange_cost(more, net).time_s >= cost.time_s * (1 - ROUNDING)


@given(exchanges())
def test_what_a_rank_keeps_costs_nothing(drawn):
    net, sizes = drawn
    kept = sizes.copy()
    np.fill_diagonal(kept, 10**12)
    assert exchange_cost(kept, net) == exchange_cost(sizes, net)


def test_by_hand_on_two_nodes_of_two():
    # 8 GB/s inside with 1 us, 1 GB/s outside with 5 us. Rank 0 sends 8 kB to its neighbour, and 2 kB to each other.
    base = find_cluster("dgx-a100")
    inside = type(base.intra)("inside", 1e-6, 8e9)
    outside = type(base.intra)("outside", 5e-6, 1e9)
    cluster = base.replace(devices_per_node=2, intra=inside, inter=outside, collective_overhead_s=0.0)
    cluster = cluster.replace(topology=type(base.topology)())
    net = GroupNetwork(cluster, range(4))
    sizes = [[0, 8000, 2000, 2000], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    edge = cluster.wire(0, 2)
    cost = exchange_cost(sizes, net, "grouped")
    assert isclose(cost.time_s, edge.latency_s + 4000 / edge.bandwidth_bytes_per_s, rel_tol=ROUNDING)
    # Three to one: rank 3 gets 3 messages, 2 of them over the wire into its node's NIC.
    sizes = [[0, 0, 0, 3000], [0, 0, 0, 3000], [0, 0, 0, 3000], [0, 0, 0, 0]]
    cost = exchange_cost(sizes, net, "grouped")
    assert isclose(cost.time_s, edge.latency_s + 6000 / edge.bandwidth_bytes_per_s, rel_tol=ROUNDING)
    assert cost.sent_bytes == (3000.0, 3000.0, 3000.0, 0.0)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([[0, 1]], r"\(2, 2\): got \(1, 2\)"),
        ([[0, 1], [2]], "something else|got"),
        ([["a", 1], [2, 3]], "got"),
        ([[0, -1], [1, 0]], "0 bytes or more"),
        ([[0, float("inf")], [1, 0]], "finite"),
        ([[0, float("nan")], [1, 0]], "finite"),
    ],
)
def test_a_matrix_that_is_none_is_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        exchange_cost(sizes, GroupNetwork(find_cluster("dgx-h100"), range(2)))


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="ring"):
        exchange_cost([[0, 1], [1, 0]], GroupNetwork(find_cluster("dgx-h100"), range(2)), "ring")
