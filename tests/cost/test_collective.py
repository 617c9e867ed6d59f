"""Collectives cost what the closed forms say, in seconds and in bytes; trees are counted by brute force."""

import re
from dataclasses import replace
from math import ceil, inf, isclose, log2

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lablib.cost import GroupNetwork, algorithms_for, collective_cost
from lablib.cost.algorithms import subtree as subtree_of
from lablib.cost.algorithms import tree_children
from lablib.cost.collectives import COLLECTIVES
from lablib.hardware import CLUSTERS, FatTree, Link, find_cluster

# One switch and one kind of wire: then alpha and beta are the same for every pair, as the closed forms assume.
ALPHA_S, BETA_S = 3e-6, 1 / 50e9
WIRE = Link("wire", ALPHA_S, 1 / BETA_S)
FLAT = find_cluster("dgx-h100").replace(name="flat", devices_per_node=64, intra=WIRE)

ROUNDING = 1e-12  # a closed form and a sum of rounds differ by the order of their additions, nothing else
SIZES = st.integers(0, 10**12)
RANKS = st.integers(2, 64)


def flat(n: int) -> GroupNetwork:
    return GroupNetwork(FLAT, range(n))


def close(value: float, expected: float) -> bool:
    return isclose(value, expected, rel_tol=ROUNDING)


def rounds(n: int) -> int:
    return ceil(log2(n))


def all_subtrees(n: int) -> int:
    """Ranks below each edge of a binomial tree, over all edges."""
    return sum(subtree_of(node, n) for node in range(1, n))


# ---- closed forms on one kind of wire ----


# (collective, algorithm) -> rounds on n ranks, each of which waits one alpha; parts of S/n that a wire carries in turn;
# parts that all ranks send together
CLOSED_FORMS = {
    ("all_reduce", "ring"): lambda n: (2 * (n - 1), 2 * (n - 1), 2 * n * (n - 1)),
    ("all_reduce", "tree"): lambda n: (2 * rounds(n), 2 * n * rounds(n), 2 * n * (n - 1)),
    ("all_gather", "ring"): lambda n: (n - 1, n - 1, n * (n - 1)),
    ("reduce_scatter", "ring"): lambda n: (n - 1, n - 1, n * (n - 1)),
    ("broadcast", "tree"): lambda n: (rounds(n), n * rounds(n), n * (n - 1)),
    ("broadcast", "scatter-gather"): lambda n: (rounds(n) + n - 1, 2 * (n - 1), n * (n - 1) + all_subtrees(n)),
    ("reduce", "tree"): lambda n: (rounds(n), n * rounds(n), n * (n - 1)),
    ("reduce", "scatter-gather"): lambda n: (rounds(n) + n - 1, 2 * (n - 1), n * (n - 1) + all_subtrees(n)),
    ("gather", "direct"): lambda n: (n - 1, n - 1, n - 1),
    ("scatter", "direct"): lambda n: (n - 1, n - 1, n - 1),
    ("all_to_all", "direct"): lambda n: (n - 1, n - 1, n * (n - 1)),
    ("all_to_all", "grouped"): lambda n: (1, n - 1, n * (n - 1)),
    ("barrier", "tree"): lambda n: (2 * rounds(n), 0, 0),
}


@pytest.mark.parametrize("kind", CLOSED_FORMS, ids=" ".join)
@given(RANKS, SIZES, st.data())
def test_an_algorithm_takes_its_rounds_and_sends_its_bytes_whichever_the_root(kind, n, size, data):
    name, algorithm = kind
    size = 0 if name == "barrier" else size
    num_rounds, in_turn, sent = CLOSED_FORMS[kind](n)
    cost = collective_cost(name, size, flat(n), algorithm, root=data.draw(st.integers(0, n - 1)))
    assert close(cost.latency_s, num_rounds * ALPHA_S)
    assert close(cost.time_s, num_rounds * ALPHA_S + in_turn * size / n * BETA_S)
    assert close(sum(cost.sent_bytes), sent * size / n) and len(cost.sent_bytes) == n
    if algorithm == "ring" or name == "all_to_all":
        assert all(close(each, sent * size / n**2) for each in cost.sent_bytes)


@given(st.sampled_from(["gather", "scatter"]), RANKS, st.data())
def test_a_root_scatters_and_the_others_gather(name, n, data):
    root = data.draw(st.integers(0, n - 1))
    sent_bytes = collective_cost(name, 1e6, flat(n), root=root).sent_bytes
    senders = [rank for rank, sent in enumerate(sent_bytes) if sent]
    assert senders == ([root] if name == "scatter" else [rank for rank in range(n) if rank != root])


@given(st.integers(2, 6), st.integers(1, 8), SIZES)
def test_across_nodes_its_wires_inside_and_outside_work_at_the_same_time(nodes, local, size):
    cluster = find_cluster("dgx-h100")
    ranks = [node * 8 + place for node in range(nodes) for place in range(local)]
    net, n = GroupNetwork(cluster, ranks), nodes * local
    outside_s = cluster.edge(0, 8).latency_s + (n - local) / n * size / cluster.inter.bandwidth_bytes_per_s
    inside_s = (local > 1) * (cluster.intra.latency_s + (local - 1) / n * size / cluster.intra.bandwidth_bytes_per_s)
    assert close(collective_cost("all_to_all", size, net).time_s, max(outside_s, inside_s))
    # What leaves the node is sent by the direct exchange in rounds of which nearly all wait for the slower wires.
    assert collective_cost("all_to_all", size, net, "direct").time_s >= max(outside_s, inside_s) * (1 - ROUNDING)


@given(RANKS, SIZES, st.sampled_from(sorted(COLLECTIVES)))
def test_wires_without_an_end_to_their_bandwidth_cost_their_latency_alone(n, size, name):
    free = FLAT.replace(intra=replace(WIRE, bandwidth_bytes_per_s=inf))
    for algorithm in algorithms_for(name, flat(n)):
        cost = collective_cost(name, size, GroupNetwork(free, range(n)), algorithm)
        assert cost.time_s == cost.latency_s


# ---- two levels ----


@st.composite
def node_grids(draw) -> GroupNetwork:
    """A group with the same number of ranks on each of several nodes, in any order of its ranks."""
    num_nodes, per_node = draw(st.integers(2, 8)), draw(st.integers(2, 8))
    cluster = find_cluster(draw(st.sampled_from(["dgx-a100", "dgx-h100", "pcie-a100"])))
    nodes = draw(st.lists(st.integers(0, 40), min_size=num_nodes, max_size=num_nodes, unique=True))
    places = draw(st.lists(st.integers(0, 7), min_size=per_node, max_size=per_node, unique=True))
    ranks = [node * cluster.devices_per_node + place for node in nodes for place in places]
    return GroupNetwork(cluster, draw(st.permutations(ranks)))


def on_nodes(net: GroupNetwork) -> tuple[list[GroupNetwork], list[GroupNetwork]]:
    """The group's ranks by node, and by place on the node (rails), found without the network's own help."""
    nodes: dict[int, list[int]] = {}
    for rank in net.ranks:
        nodes.setdefault(rank // net.cluster.devices_per_node, []).append(rank)
    inside = [GroupNetwork(net.cluster, members) for members in nodes.values()]
    rails = [GroupNetwork(net.cluster, rail) for rail in zip(*nodes.values(), strict=True)]
    return inside, rails


@given(node_grids(), SIZES)
def test_a_hierarchical_all_reduce_is_scatter_in_the_node_reduce_on_the_rails_gather_in_the_node(net, size):
    inside, rails = on_nodes(net)
    local = inside[0].size
    flat_reduces = [
        min((collective_cost("all_reduce", size / local, r, kind) for kind in ("ring", "tree")), key=lambda c: c.time_s)
        for r in rails
    ]
    parts_s = [
        max(collective_cost("reduce_scatter", size, node, "ring").time_s for node in inside),
        max(cost.time_s for cost in flat_reduces),
        max(collective_cost("all_gather", size, node, "ring").time_s for node in inside),
    ]
    cost = collective_cost("all_reduce", size, net, "hierarchical")
    assert close(cost.time_s, sum(parts_s))
    in_node = 2 * (local - 1) / local * size
    outside = {
        rank: sent
        for r, c in zip(rails, flat_reduces, strict=True)
        for rank, sent in zip(r.ranks, c.sent_bytes, strict=True)
    }
    for rank, sent in zip(net.ranks, cost.sent_bytes, strict=True):
        assert close(sent, in_node + outside[rank])


@given(st.sampled_from(["all_gather", "reduce_scatter"]), node_grids(), SIZES)
def test_a_hierarchical_gather_is_a_gather_on_the_rails_and_one_in_the_node(name, net, size):
    inside, rails = on_nodes(net)
    local, num_nodes = inside[0].size, len(inside)
    across_s = max(collective_cost(name, size / local, rail, "ring").time_s for rail in rails)
    within_s = max(collective_cost(name, size, node, "ring").time_s for node in inside)
    cost = collective_cost(name, size, net, "hierarchical")
    assert close(cost.time_s, across_s + within_s)
    # In the end every rank has everything but its own shard from others: n (n-1)/n S in all, however it travelled.
    assert close(sum(cost.sent_bytes), (net.size - 1) * size)
    assert all(
        close(sent, (num_nodes - 1) / num_nodes * size / local + (local - 1) / local * size) for sent in cost.sent_bytes
    )


def test_a_ring_on_two_nodes_moves_at_the_speed_of_its_slowest_edge():
    # 2 nodes of a DGX A100, 16 ranks: every round waits for the NIC, 25 GB/s, one switch of 150 ns on the way.
    cost = collective_cost("all_reduce", 1.6e9, GroupNetwork(find_cluster("dgx-a100"), range(16)), "ring")
    assert close(cost.time_s, 30 * (4.0e-6 + 150e-9 + 0.1e9 / 25e9))


def test_a_tree_on_two_nodes_leaves_the_node_in_one_round():
    cost = collective_cost("broadcast", 1e9, GroupNetwork(find_cluster("dgx-a100"), range(16)), "tree")
    assert close(cost.time_s, 3 * (1.9e-6 + 1e9 / 300e9) + (4.0e-6 + 150e-9 + 1e9 / 25e9))


UNEVEN = [
    pytest.param(range(12), id="eight and four"),
    pytest.param(range(8), id="one node"),
    pytest.param(range(0, 32, 8), id="one rank a node"),
    pytest.param([0, 1, 8], id="two and one"),
]


@pytest.mark.parametrize("ranks", UNEVEN)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_hierarchical_on_uneven_nodes_is_refused_with_the_counts(name, ranks):
    net = GroupNetwork(find_cluster("dgx-h100"), ranks)
    with pytest.raises(ValueError, match="needs two or more nodes with the same number") as caught:
        collective_cost(name, 1e6, net, "hierarchical")
    counts = [sum(rank // 8 == node for rank in ranks) for node in sorted({rank // 8 for rank in ranks})]
    assert str(counts) in str(caught.value) and "choose from ring" in str(caught.value)
    assert "hierarchical" not in algorithms_for(name, net)


# ---- what holds for every collective ----


@st.composite
def networks(draw) -> GroupNetwork:
    cluster = CLUSTERS[draw(st.sampled_from(sorted(CLUSTERS)))]
    ranks = draw(st.lists(st.integers(0, 95), min_size=1, max_size=24, unique=True))
    return GroupNetwork(cluster, ranks)


NAMES = st.sampled_from(sorted(COLLECTIVES))


@given(NAMES, networks(), SIZES, st.data())
def test_auto_is_the_fastest_algorithm(name, net, size, data):
    assume(net.size > 1)
    root = data.draw(st.integers(0, net.size - 1))
    costs = [collective_cost(name, size, net, algorithm, root) for algorithm in algorithms_for(name, net)]
    auto = collective_cost(name, size, net, root=root)
    assert auto in costs and auto.time_s == min(cost.time_s for cost in costs)


@given(NAMES, networks(), SIZES, SIZES, st.data())
def test_more_bytes_never_take_less_time(name, net, size_a, size_b, data):
    less, more = sorted((size_a, size_b))
    algorithm = data.draw(st.sampled_from(["auto", *algorithms_for(name, net)]))
    cost, larger = (collective_cost(name, size, net, algorithm) for size in (less, more))
    assert cost.time_s <= larger.time_s * (1 + ROUNDING)
    if algorithm != "auto":  # another algorithm may be faster and send less
        assert sum(cost.sent_bytes) <= sum(larger.sent_bytes) * (1 + ROUNDING)


@given(NAMES, st.sampled_from(sorted(CLUSTERS)), st.integers(0, 95), SIZES)
def test_one_rank_alone_pays_nothing(name, cluster, rank, size):
    cost = collective_cost(name, size, GroupNetwork(CLUSTERS[cluster], [rank]))
    assert (cost.time_s, cost.sent_bytes) == (0.0, (0.0,))


# ---- the binomial tree, built by hand ----


def binomial_tree(n: int) -> dict[int, int]:
    """Child -> parent, as a broadcast grows it: in each round everyone who has the data tells one who has not."""
    parents: dict[int, int] = {}
    stride = 2 ** rounds(n) // 2
    while stride:
        for parent in range(0, n, 2 * stride):
            if parent + stride < n:
                parents[parent + stride] = parent
        stride //= 2
    return parents


@given(st.integers(1, 300))
def test_children_and_subtrees_are_those_of_a_binomial_tree(n):
    parents = binomial_tree(n)
    assert len(parents) == n - 1
    subtree = [1] * n
    # A child has a larger number than its parent, so the leaves come first.
    for child in sorted(parents, reverse=True):
        subtree[parents[child]] += subtree[child]
    for node in range(n):
        assert tree_children(node, n) == sum(parent == node for parent in parents.values())
        assert subtree_of(node, n) == subtree[node]
    assert sum(tree_children(node, n) for node in range(n)) == n - 1


class Telltale(FatTree):
    """A network on which each pair of nodes has a distance of its own, so that an edge tells who talks to whom."""

    def hops(self, node_a: int, node_b: int) -> int:
        return 1000 * min(node_a, node_b) + max(node_a, node_b)


@given(RANKS, st.data())
def test_the_rounds_of_the_tree_are_the_edges_of_the_binomial_tree(n, data):
    cluster = FLAT.replace(devices_per_node=1, inter=WIRE, topology=Telltale())
    net, parents = GroupNetwork(cluster, data.draw(st.permutations(range(n)))), binomial_tree(n)
    assert len(net.tree) == rounds(n)
    for k, step in enumerate(net.tree):
        pairs = [(child, parent) for child, parent in parents.items() if child - parent == 2**k]
        assert set(step.edges) == {cluster.edge(net.ranks[child], net.ranks[parent]) for child, parent in pairs}


@given(RANKS)
def test_the_rounds_of_a_ring_and_of_an_exchange_pair_each_rank_with_its_neighbours(n):
    net = GroupNetwork(FLAT.replace(devices_per_node=1, inter=WIRE, topology=Telltale()), range(n))
    assert set(net.ring.edges) == {net.cluster.edge(rank, (rank + 1) % n) for rank in range(n)}
    exchanged = {edge for _, step in net.shifts for edge in step.edges}
    assert exchanged == {net.cluster.edge(a, b) for a in range(n) for b in range(n) if a != b}


@given(NAMES, networks(), SIZES, st.sampled_from([0.0, 1e-6, 3e-4]), st.data())
def test_a_call_costs_its_fixed_time_once_however_many_rounds_it_is_made_of(name, net, size, overhead_s, data):
    algorithm = data.draw(st.sampled_from(["auto", *algorithms_for(name, net)]))
    called = GroupNetwork(net.cluster.replace(collective_overhead_s=overhead_s), net.ranks)
    without, cost = (collective_cost(name, size, network, algorithm) for network in (net, called))
    assert cost.sent_bytes == without.sent_bytes and cost.algorithm == without.algorithm
    call_s = overhead_s if net.size > 1 else 0.0
    assert cost.time_s == without.time_s + call_s and cost.latency_s == without.latency_s + call_s


# ---- latency and transfer ----


@given(NAMES, networks(), SIZES, st.data())
def test_every_algorithm_takes_its_latency_and_its_transfer_and_nothing_else(name, net, size, data):
    algorithm = data.draw(st.sampled_from(["auto", *algorithms_for(name, net)]))
    cost = collective_cost(name, size, net, algorithm)
    assert cost.transfer_s == cost.time_s - cost.latency_s and cost.latency_s >= 0
    assert cost.transfer_s >= -ROUNDING * cost.time_s
    empty = (
        collective_cost(name, 0, net, algorithm if algorithm != "auto" else cost.algorithm) if net.size > 1 else cost
    )
    assert close(empty.transfer_s, 0.0) or abs(empty.transfer_s) <= ROUNDING * empty.time_s
    # A round waits for its slowest edge, which need not be the one with the largest alpha.
    assert cost.latency_s <= empty.time_s * (1 + ROUNDING)


@given(node_grids(), SIZES)
def test_the_latency_of_a_hierarchical_all_reduce_is_that_of_its_three_parts(net, size):
    inside, rails = on_nodes(net)
    local = inside[0].size
    across = max(
        (
            min(
                (collective_cost("all_reduce", size / local, r, kind) for kind in ("ring", "tree")),
                key=lambda c: c.time_s,
            )
            for r in rails
        ),
        key=lambda c: c.time_s,
    )
    cost = collective_cost("all_reduce", size, net, "hierarchical")
    assert close(cost.latency_s, 2 * (local - 1) * net.cluster.intra.latency_s + across.latency_s)


def test_a_faster_link_shortens_the_transfer_alone():
    base = find_cluster("dgx-h100")
    for name, row in COLLECTIVES.items():
        for algorithm in [each.name for each in row.algorithms]:
            nets = []
            for speed in (1, 4):
                links = {
                    level: replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * speed)
                    for level, link in (("intra", base.intra), ("inter", base.inter))
                }
                nets.append(GroupNetwork(base.replace(**links), range(16)))
            slow, fast = (collective_cost(name, 1e10, net, algorithm) for net in nets)
            assert close(slow.latency_s, fast.latency_s)
            assert isclose(slow.transfer_s, 4 * fast.transfer_s, rel_tol=1e-9)  # a difference: its rounding


# ---- refused ----


@pytest.mark.parametrize("size", [-1, -1e-9, float("nan")])
def test_a_negative_size_is_refused(size):
    with pytest.raises(ValueError, match=rf"size_bytes must be 0 or more: got {size} for all_reduce"):
        collective_cost("all_reduce", size, flat(4))


@pytest.mark.parametrize("root", [-1, 4])
def test_a_root_outside_the_group_is_refused(root):
    with pytest.raises(ValueError, match=rf"root is a group rank, 0 to 3: got {root} for broadcast"):
        collective_cost("broadcast", 1.0, flat(4), root=root)


@pytest.mark.parametrize("n", [1, 4])
def test_an_unknown_collective_is_refused_with_the_nearest_names(n):
    with pytest.raises(ValueError, match=r"unknown collective 'allreduce': did you mean 'all_reduce'"):
        collective_cost("allreduce", 1.0, flat(n))


def test_an_unknown_algorithm_is_refused_with_the_nearest_names():
    with pytest.raises(ValueError, match=re.escape("unknown all_reduce algorithm 'rings': did you mean 'ring'")):
        collective_cost("all_reduce", 1.0, flat(4), "rings")
    with pytest.raises(ValueError, match=re.escape("Valid: tree, scatter-gather.")):
        collective_cost("broadcast", 1.0, flat(4), "ring")
