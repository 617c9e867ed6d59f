"""Collectives of regular groups equal those of the explicit ranks, on every cluster of the catalogue."""

from dataclasses import replace
from math import isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.cost import GroupNetwork, algorithms_for, collective_cost
from lablib.cost.collectives import COLLECTIVES as TABLE
from lablib.cost.regular_group import NAMES, RegularGroups, regular_collective_s, regular_groups
from lablib.cost.regular_rounds import BlockRounds, PairRounds, levels_of, rounds_of
from lablib.hardware import CLUSTERS, Cluster, Dragonfly, FatTree, Link, Torus, find_cluster

ROUNDING = 1e-12  # a sum of lines and a sum of rounds differ by the order of their additions
EXPLICIT = sorted(set(NAMES) - {"broadcast in turn"})  # those of ranks that one can name
COLLECTIVES = sorted(set(EXPLICIT) - {"send"})
SIZES = st.one_of(st.just(0), st.integers(0, 10**6), st.integers(0, 10**11))
TORUS_RANKS = 4 * 8 * 8 * 16

# Small blocks, so that groups of a few ranks cross every border.
NODES = st.sampled_from([1, 2, 3, 4, 8])
FAT_TREES = st.builds(
    FatTree, st.integers(1, 5), st.integers(1, 4), st.sampled_from([1.0, 2.5]), st.sampled_from([0.0, 1.5e-7])
)
DRAGONFLIES = st.builds(Dragonfly, st.integers(1, 4), st.integers(1, 5), st.sampled_from([0.3, 1.0]))
LINKS = st.builds(
    Link, st.just("wire"), st.sampled_from([0.0, 1e-6, 5e-6, 2e-4]), st.sampled_from([1e9, 1.25e10, 3e11])
)
ANY_CLUSTERS = st.builds(
    lambda topology, devices, intra, inter, call_s: find_cluster("dgx-a100").replace(
        topology=topology, devices_per_node=devices, intra=intra, inter=inter, collective_overhead_s=call_s
    ),
    st.one_of(FAT_TREES, DRAGONFLIES, st.just(Torus((5, 7, 40)))),
    NODES,
    LINKS,
    LINKS,
    st.sampled_from([0.0, 3e-6]),
)


def explicit_s(name: str, size: float, n: int, stride: int, cluster: Cluster, algorithm: str = "auto") -> float:
    """The same from the list of ranks, pair by pair."""
    ranks = range(0, n * stride, stride)
    if name == "send":
        return max((cluster.edge(a, a + stride).transfer_s(size) for a in ranks[:-1]), default=0.0)
    return collective_cost(name, size, GroupNetwork(cluster, ranks), algorithm).time_s


def close(value: float, expected: float) -> bool:
    return isclose(value, expected, rel_tol=ROUNDING)


def fits(n: int, stride: int, cluster: Cluster) -> bool:
    return not isinstance(cluster.topology, Torus) or n * stride <= TORUS_RANKS


# ---- equal to the explicit ranks ----


@settings(max_examples=300)
@given(
    st.sampled_from(EXPLICIT),
    SIZES,
    st.one_of(st.integers(1, 48), st.sampled_from([64, 96])),
    st.one_of(st.integers(1, 40), st.sampled_from([64, 96, 128, 256])),
    st.sampled_from(sorted(CLUSTERS)),
)
def test_a_regular_group_takes_what_its_ranks_take_on_every_cluster_of_the_catalogue(name, size, n, stride, cluster):
    cluster = CLUSTERS[cluster]
    if fits(n, stride, cluster):
        assert close(regular_collective_s(name, size, n, stride, cluster), explicit_s(name, size, n, stride, cluster))


@pytest.mark.parametrize("cluster", ["dgx-a100", "pcie-a100", "perlmutter", "laptop"])
@pytest.mark.parametrize("name", sorted(set(EXPLICIT) - {"all_to_all"}))
def test_large_groups_too(name, cluster):
    cluster = CLUSTERS[cluster]
    for n in (100, 128, 129, 384, 512):
        for stride in (1, 2, 3, 8, 16, 64):
            for size in (0, 1e3, 1e6, 1e10):
                regular_s = regular_collective_s(name, size, n, stride, cluster)
                assert close(regular_s, explicit_s(name, size, n, stride, cluster)), (n, stride, size)


@settings(max_examples=400)
@given(ANY_CLUSTERS, st.sampled_from(EXPLICIT), SIZES, st.integers(1, 40), st.integers(1, 30))
def test_so_it_does_on_any_network_also_where_the_links_of_a_node_are_the_slower_ones(cluster, name, size, n, stride):
    assert close(regular_collective_s(name, size, n, stride, cluster), explicit_s(name, size, n, stride, cluster))


@settings(max_examples=200)
@given(ANY_CLUSTERS, st.sampled_from(COLLECTIVES), SIZES, st.integers(2, 40), st.integers(1, 30))
def test_every_algorithm_is_that_of_the_explicit_ranks(cluster, name, size, n, stride):
    possible = algorithms_for(name, GroupNetwork(cluster, range(0, n * stride, stride)))
    every = [each.name for each in TABLE[name].algorithms]
    for algorithm in every:
        if algorithm in possible:
            regular_s = regular_collective_s(name, size, n, stride, cluster, algorithm)
            assert close(regular_s, explicit_s(name, size, n, stride, cluster, algorithm))
        else:
            with pytest.raises(ValueError, match="needs two or more nodes with the same number"):
                regular_collective_s(name, size, n, stride, cluster, algorithm)
    assert set(possible) <= set(every)


@given(st.sampled_from(COLLECTIVES), SIZES, st.integers(1, 20))
def test_a_library_keeps_its_own_algorithms(name, size, n):
    gloo = find_cluster("laptop").replace(library="gloo", devices_per_node=4)
    assert close(regular_collective_s(name, size, n, 1, gloo), explicit_s(name, size, n, 1, gloo))


@settings(max_examples=300)
@given(st.one_of(FAT_TREES, DRAGONFLIES), NODES, st.integers(2, 60), st.integers(1, 40))
def test_the_rounds_by_formula_are_the_rounds_pair_by_pair(topology, devices, n, stride):
    cluster = find_cluster("dgx-a100").replace(topology=topology, devices_per_node=devices)
    by_formula, by_pairs = rounds_of(cluster, n, stride), PairRounds(cluster, range(0, n * stride, stride))
    assert isinstance(by_formula, BlockRounds)
    assert by_formula.ring == by_pairs.ring and by_formula.neighbours == by_pairs.neighbours
    assert by_formula.tree == by_pairs.tree
    assert by_formula.local == by_pairs.local
    shifts = [edges for count, edges in by_formula.shifts for _ in range(count)]
    assert sorted(shifts) == sorted(edges for _, edges in by_pairs.shifts)


def test_a_torus_is_gone_through_pair_by_pair():
    assert levels_of(find_cluster("tpu-v4")) is None
    assert isinstance(rounds_of(find_cluster("tpu-v4"), 8, 4), PairRounds)


# ---- by hand ----


def test_data_parallel_groups_across_nodes_by_hand():
    # 8 replicas, one a node: a ring over one leaf's switch; 32 replicas reach a second leaf, three switches away.
    cluster = find_cluster("dgx-a100")
    assert close(regular_collective_s("all_gather", 8e9, 8, 8, cluster), 7 * (4.15e-6 + 1e9 / 25e9))
    assert close(regular_collective_s("all_gather", 32e9, 32, 8, cluster), 31 * (4.45e-6 + 1e9 / 25e9))
    # Two ranks on each of 4 nodes: half of S on each rail (3 rounds of an eighth of S), then half of it in the node.
    by_rails_s = 3 * (4.15e-6 + 1e9 / 25e9) + 1 * (1.9e-6 + 4e9 / 300e9)
    assert close(regular_collective_s("all_gather", 8e9, 8, 4, cluster, "hierarchical"), by_rails_s)


# ---- arrays ----


@given(
    ANY_CLUSTERS,
    st.sampled_from(EXPLICIT),
    st.lists(st.tuples(SIZES, st.integers(1, 24), st.integers(1, 40)), min_size=1, max_size=12),
)
def test_an_array_of_groups_takes_what_each_of_them_takes(cluster, name, groups):
    size, n, stride = (np.array(column) for column in zip(*groups, strict=True))
    groups_of = RegularGroups(cluster)
    times = groups_of.time_s(name, size, n, stride)
    assert times.shape == n.shape
    assert times.tolist() == [groups_of.time_s(name, *group) for group in groups]
    # Plain numbers beside arrays, either way round.
    assert groups_of.time_s(name, size, 4, 2).tolist() == [groups_of.time_s(name, int(s), 4, 2) for s in size]
    assert groups_of.time_s(name, 1e6, n, 2).tolist() == [groups_of.time_s(name, 1e6, int(k), 2) for k in n]


def test_an_array_with_very_large_strides_and_one_of_two_dimensions():
    cluster = find_cluster("dgx-h100")
    strides = np.array([1, 8, 10**9])
    expected = [regular_collective_s("all_reduce", 1e9, 4, int(s), cluster) for s in strides]
    assert regular_collective_s("all_reduce", 1e9, 4, strides, cluster).tolist() == expected
    grid = regular_collective_s("all_reduce", 1e9, np.array([[2], [4]]), strides, cluster)
    assert grid.shape == (2, 3) and grid[1].tolist() == expected
    assert regular_collective_s("all_reduce", np.ones(0), np.ones(0, int), np.ones(0, int), cluster).shape == (0,)


def test_a_plain_number_stays_plain():
    assert type(regular_collective_s("all_reduce", 10**9, 16, 8, find_cluster("dgx-a100"))) is float


@pytest.mark.parametrize("cluster", ["dgx-a100", "pcie-a100", "perlmutter", "laptop"])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e8])
@pytest.mark.parametrize(("n", "stride"), [(2, 1), (4, 1), (8, 1), (16, 1), (16, 2), (4, 8), (12, 4)])
def test_a_broadcast_in_turn_takes_the_mean_of_those_from_each_rank(cluster, size, n, stride):
    net = GroupNetwork(CLUSTERS[cluster], range(0, n * stride, stride))
    mean_s = sum(collective_cost("broadcast", size, net, root=root).time_s for root in range(n)) / n
    # Each root chooses the faster algorithm for itself; and a round that leaves a node may do so in one pair alone.
    in_turn_s = regular_collective_s("broadcast in turn", size, n, stride, CLUSTERS[cluster])
    assert mean_s <= in_turn_s * 1.001 and in_turn_s <= 1.1 * mean_s


# ---- remembered, refused ----


def test_clusters_that_differ_in_figures_left_out_of_the_hash_have_groups_of_their_own():
    cluster = find_cluster("dgx-a100")
    assert regular_groups(cluster) is regular_groups(cluster)
    slower = cluster.replace(inter=replace(cluster.inter, bandwidth_bytes_per_s=1e9))
    assert regular_collective_s("send", 1e9, 2, 8, slower) > 10 * regular_collective_s("send", 1e9, 2, 8, cluster)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("allreduce", 1.0, 4, 1), "unknown collective of a regular group 'allreduce': did you mean 'all_reduce'"),
        (("all_reduce", -1.0, 4, 1), "size_bytes must be 0 or more: got -1.0 for all_reduce"),
        (("all_reduce", np.array([1.0, -1.0]), np.array([4, 4]), 1), "size_bytes must be 0 or more: got -1.0"),
        (("all_reduce", 1.0, 0, 1), "got n 0 and stride 1"),
        (("all_reduce", 1.0, 4, 0), "got n 4 and stride 0"),
        (("all_reduce", 1.0, 4, 1, "rings"), "unknown all_reduce algorithm 'rings': did you mean 'ring'"),
        (("all_reduce", 1.0, 12, 1, "hierarchical"), "12 ranks at stride 1 on nodes of 8 are no such group"),
    ],
)
def test_what_makes_no_group_is_refused(arguments, message):
    name, size, n, stride, *algorithm = arguments
    with pytest.raises(ValueError, match=message):
        regular_collective_s(name, size, n, stride, find_cluster("dgx-a100"), *algorithm)
