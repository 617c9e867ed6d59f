"""Ranks fill nodes in order; hops are shortest paths, found by search in the graph that each topology describes."""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS, Dragonfly, FatTree, Torus, find_cluster

Graph = dict[Hashable, set[Hashable]]


def graph_of(wires: Iterable[tuple[Hashable, Hashable]]) -> Graph:
    graph: Graph = {}
    for a, b in wires:
        graph.setdefault(a, set()).add(b)
        graph.setdefault(b, set()).add(a)
    return graph


def distances(graph: Graph, start: Hashable) -> dict[Hashable, int]:
    """Wires on a shortest path from `start`, by breadth-first search."""
    distance, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for neighbour in graph.get(here, ()):
            if neighbour not in distance:
                distance[neighbour] = distance[here] + 1
                queue.append(neighbour)
    return distance


# ---- hops ----


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_hops_of_a_fat_tree_are_the_switches_on_a_shortest_path(nodes_per_leaf, leaves_per_pod, num_pods):
    tree = FatTree(nodes_per_leaf, leaves_per_pod)
    num_nodes = nodes_per_leaf * leaves_per_pod * num_pods
    leaves = range(num_nodes // nodes_per_leaf)
    graph = graph_of(
        [
            *((node, ("leaf", node // nodes_per_leaf)) for node in range(num_nodes)),
            *((("leaf", leaf), ("pod", leaf // leaves_per_pod)) for leaf in leaves),
            *((("pod", pod), "core") for pod in range(num_pods)),
        ]
    )
    for a in range(num_nodes):
        wires = distances(graph, a)
        # A path of w wires between two nodes passes w - 1 switches.
        assert all(tree.hops(a, b) == wires[b] - 1 for b in range(num_nodes) if b != a)


def dragonfly(nodes_per_router: int, routers_per_group: int, num_groups: int) -> Graph:
    """Groups of routers wired all to all; between two groups one long wire, spread over the routers in turn."""
    routers = list(product(range(num_groups), range(routers_per_group)))
    wires: list[tuple[Hashable, Hashable]] = [
        ((group, i), (group, j)) for group, i in routers for j in range(i) if i != j
    ]
    for group_a, group_b in product(range(num_groups), repeat=2):
        if group_a < group_b:
            wires.append(((group_a, (group_b - 1) % routers_per_group), (group_b, group_a % routers_per_group)))
    wires += [
        (("node", (group * routers_per_group + i) * nodes_per_router + k), (group, i))
        for group, i in routers
        for k in range(nodes_per_router)
    ]
    return graph_of(wires)


@given(st.integers(1, 3), st.integers(2, 5), st.integers(2, 5))
def test_hops_of_a_dragonfly_are_the_routers_on_a_shortest_path(nodes_per_router, routers_per_group, num_groups):
    topology = Dragonfly(nodes_per_router, routers_per_group)
    graph = dragonfly(nodes_per_router, routers_per_group, num_groups)
    group_size = nodes_per_router * routers_per_group
    longest: dict[tuple[int, int], int] = {}
    for a in range(group_size * num_groups):
        wires = distances(graph, ("node", a))
        for b in range(group_size * num_groups):
            routers, pair = wires[("node", b)] - 1, (a // group_size, b // group_size)
            if a == b:
                continue
            if pair[0] == pair[1]:
                assert topology.hops(a, b) == routers
            else:
                # Source, gateway, gateway, destination; fewer where a node sits at the gateway itself.
                assert routers <= topology.hops(a, b)
                longest[pair] = max(longest.get(pair, 0), routers)
    assert set(longest.values()) == {topology.hops(0, group_size)} == {4}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
def test_hops_of_a_torus_are_the_wires_on_a_shortest_path_of_the_wrapped_grid(shape):
    torus, places = Torus(shape), list(product(*map(range, shape)))

    def neighbour(place: tuple[int, ...], axis: int) -> tuple[int, ...]:
        return tuple((x + (i == axis)) % shape[i] for i, x in enumerate(place))

    graph = graph_of((place, neighbour(place, axis)) for place in places for axis in range(len(shape)))
    # itertools.product counts in row-major order, as nodes are numbered.
    for a, place in enumerate(places):
        wires = distances(graph, place)
        assert [torus.hops(a, b) for b in range(len(places))] == [wires[other] for other in places]
        assert torus.coordinates(a) == place


@pytest.mark.parametrize("topology", [FatTree(2, 2), Dragonfly(2, 2), Torus((3, 2, 4))], ids=lambda t: t.name)
def test_hops_and_taper_are_the_same_both_ways(topology):
    for a, b in product(range(24), repeat=2):
        assert topology.hops(a, b) == topology.hops(b, a)
        assert topology.taper(a, b) == topology.taper(b, a) and 0 < topology.taper(a, b) <= 1


# ---- taper ----


def test_uplinks_of_a_fat_tree_are_shared_and_its_leaves_are_not():
    tree = FatTree(nodes_per_leaf=2, leaves_per_pod=2, oversubscription=4.0)
    assert [tree.taper(0, b) for b in (1, 2, 4)] == [1.0, 0.25, 0.25]


def test_only_the_long_wires_of_a_dragonfly_are_shared():
    topology = Dragonfly(nodes_per_router=2, routers_per_group=2, global_taper=0.25)
    assert [topology.taper(0, b) for b in (1, 2, 4)] == [1.0, 1.0, 0.25]


def test_a_message_across_d_wires_of_a_torus_leaves_each_a_dth():
    torus = Torus((8,))
    assert [torus.taper(0, b) for b in range(8)] == [1, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 3, 1 / 2, 1]


# ---- too small a torus ----


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), st.integers(0, 100))
def test_a_node_outside_a_torus_is_refused_with_the_size(shape, beyond):
    size = prod(shape)
    with pytest.raises(ValueError) as caught:
        Torus(shape).hops(0, size + beyond)
    assert str(caught.value) == (
        f"a torus of shape {shape} has {size} nodes: node {size + beyond} is outside; give a larger shape"
    )


def test_a_cluster_with_more_nodes_than_its_torus_is_refused():
    cluster = find_cluster("dgx-h100").replace(topology=Torus((2, 2)))
    assert cluster.edge(0, 31).level == "inter"
    with pytest.raises(ValueError, match=r"a torus of shape \(2, 2\) has 4 nodes: node 4 is outside"):
        cluster.edge(0, 32)


# ---- ranks on nodes ----


@given(st.integers(1, 9), st.integers(1, 60))
def test_ranks_fill_nodes_in_order(per_node, ranks):
    cluster = find_cluster("dgx-h100").replace(devices_per_node=per_node)
    nodes = [cluster.node(rank) for rank in range(ranks)]
    by_hand = [node for node in range(ranks) for _ in range(per_node)][:ranks]
    assert nodes == by_hand
    assert cluster.num_nodes(ranks) == len(set(nodes))


@pytest.mark.parametrize("name", sorted(CLUSTERS))
def test_edges_are_symmetric_and_inside_a_node_where_both_ranks_are(name):
    cluster = CLUSTERS[name]
    for a, b in product(range(3 * 8), repeat=2):
        edge = cluster.edge(a, b)
        assert edge == cluster.edge(b, a)
        same_node = a // cluster.devices_per_node == b // cluster.devices_per_node
        assert edge.level == ("self" if a == b else "intra" if same_node else "inter")


def test_an_edge_adds_switches_to_the_latency_and_tapers_the_bandwidth():
    # pcie-a100: 100 Gb/s RoCE of 5 us, a 2 : 1 fat tree of 16 nodes a leaf and 150 ns a switch, 8 ranks a node.
    cluster = find_cluster("pcie-a100")
    near, far = cluster.edge(0, 8), cluster.edge(0, 16 * 8)
    assert (near.latency_s, near.bandwidth_bytes_per_s) == (pytest.approx(5.15e-6, rel=1e-12), 12.5e9)
    assert (far.latency_s, far.bandwidth_bytes_per_s) == (pytest.approx(5.45e-6, rel=1e-12), 6.25e9)
    assert cluster.edge(0, 1).latency_s == 2.5e-6 and cluster.edge(0, 1).bandwidth_bytes_per_s == 31e9


@given(st.integers(0, 10**12))
def test_a_message_takes_its_latency_and_its_bytes_over_the_bandwidth(size):
    edge = find_cluster("dgx-h100").edge(0, 1)
    assert edge.transfer_s(size) == pytest.approx(1.9e-6 + size / 450e9, rel=1e-12)


def test_a_rank_reaches_itself_in_no_time():
    assert find_cluster("dgx-h100").edge(5, 5).transfer_s(1e12) == 0.0


def test_a_message_pays_for_its_call_and_a_round_of_a_collective_does_not():
    cluster = find_cluster("dgx-h100").replace(collective_overhead_s=7e-6)
    for a, b in ((0, 1), (0, 8)):
        edge, wire = cluster.edge(a, b), cluster.wire(a, b)
        assert wire == find_cluster("dgx-h100").edge(a, b)
        assert edge == replace(wire, latency_s=wire.latency_s + 7e-6)
    assert cluster.edge(3, 3).transfer_s(1e12) == 0.0


@pytest.mark.parametrize("place", [-1, None, "0", 0.5, True])
@pytest.mark.parametrize("name", ["dgx-a100", "tpu-v4"])
def test_what_is_no_rank_has_no_place(name: str, place: Any):
    cluster = find_cluster(name)
    asked = [lambda: cluster.node(place), lambda: cluster.edge(0, place), lambda: cluster.edge(place, place)]
    asked += [lambda: cluster.topology.hops(0, place), lambda: cluster.topology.taper(place, 1)]
    for ask in asked:
        with pytest.raises(ValueError, match=r"(rank|node) must be .*: got"):
            ask()
