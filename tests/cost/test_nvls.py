"""Sums made in the switch: closed form, bytes, where they are possible, and nothing changed where they are off."""

import re
from math import isclose

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given
from hypothesis import strategies as st

from lablib import launch
from lablib.cost import GroupNetwork, algorithms_for, collective_cost, regular_collective_s
from lablib.cost.collectives import COLLECTIVES
from lablib.cost.routes import routes
from lablib.faults import DropLink, SlowLink
from lablib.hardware import CLUSTERS, LINKS, Cluster, find_cluster
from lablib.sim.faults.network import FaultyNetwork

NVLS = [each.name for each in COLLECTIVES["all_reduce"].in_the_switch]
ALPHA_S, BYTES_PER_S = 25e-6, 450e9  # NCCL's tuning.cc, hwLat of NVLS; NVLink 4
H100 = find_cluster("dgx-h100").replace(uses_nvls=True)
WITH_SWITCHES = {name: cluster for name, cluster in CLUSTERS.items() if cluster.intra.nvls_latency_s is not None}
SIZES = st.integers(0, 10**11)


def close(a: float, b: float) -> bool:
    return isclose(a, b, rel_tol=1e-12)


@st.composite
def groups(draw: st.DrawFn, cluster: Cluster = H100) -> GroupNetwork:
    """Any ranks of 4 nodes; whole nodes alike as often as not."""
    if draw(st.booleans()):
        nodes, places = draw(st.integers(1, 4)), draw(st.permutations(range(8)))[: draw(st.integers(1, 8))]
        return GroupNetwork(cluster, [8 * node + place for node in range(nodes) for place in places])
    return GroupNetwork(cluster, draw(st.lists(st.integers(0, 31), min_size=1, max_size=16, unique=True)))


# ---- the closed form ----


@given(st.integers(2, 8), SIZES)
def test_one_latency_and_every_byte_once_and_its_share_of_sums(n, size):
    cost = collective_cost("all_reduce", size, GroupNetwork(H100, range(n)), "nvls")
    assert close(cost.time_s, ALPHA_S + (n + 1) / n * size / BYTES_PER_S) and close(cost.latency_s, ALPHA_S)
    assert len(cost.sent_bytes) == n and all(close(sent, size + size / n) for sent in cost.sent_bytes)


@given(st.integers(2, 4), st.integers(2, 8), SIZES)
def test_on_several_nodes_the_rails_reduce_between_the_two_halves(num_nodes, local, size):
    ranks = [8 * node + place for node in range(num_nodes) for place in range(local)]
    cost = collective_cost("all_reduce", size, GroupNetwork(H100, ranks), "nvls-tree")
    rail = GroupNetwork(H100, [8 * node for node in range(num_nodes)])
    across = min((collective_cost("all_reduce", size / local, rail, way) for way in ("ring", "tree")), key=_time_s)
    assert close(cost.time_s, ALPHA_S + (local + 1) / local * size / BYTES_PER_S + across.time_s)
    assert close(cost.sent_bytes[0], (local + 1) / local * size + across.sent_bytes[0])
    assert close(cost.latency_s, ALPHA_S + across.latency_s)


def _time_s(cost) -> float:
    return cost.time_s


def test_by_hand_on_a_dgx_h100():
    # 8 MB on 8 ranks: 9 MB leave each and come in at 450 GB/s, 20 us, after 25 us. The ring: 14 rounds, 14 MB.
    cost = collective_cost("all_reduce", 8e6, GroupNetwork(H100, range(8)), "nvls")
    assert close(cost.time_s, 45e-6) and cost.sent_bytes == (9e6,) * 8
    ring = collective_cost("all_reduce", 8e6, GroupNetwork(H100, range(8)), "ring")
    assert ring.sent_bytes == (14e6,) * 8 and close(ring.time_s, 14 * (1.9e-6 + 1e6 / 450e9))


@given(st.integers(2, 8), st.integers(1, 10**11))
def test_it_sends_less_than_a_ring_from_four_ranks_on(n, size):
    sent = {way: collective_cost("all_reduce", size, GroupNetwork(H100, range(n)), way).sent_bytes[0] for way in _WAYS}
    assert (sent["nvls"] < sent["ring"] * (1 - 1e-9)) == (n >= 4)


_WAYS = ("ring", "nvls")


# ---- bytes ----


@given(groups(), SIZES)
def test_its_routes_add_up_to_what_each_rank_sends(net, size):
    for algorithm in algorithms_for("all_reduce", net).keys() & set(NVLS):
        cost, sums = collective_cost("all_reduce", size, net, algorithm), dict.fromkeys(net.ranks, 0.0)
        for (a, b), sent in routes("all_reduce", algorithm, net, size).items():
            assert a != b and sent > 0
            sums[a] += sent
        assert all(close(sums[rank], sent) for rank, sent in zip(net.ranks, cost.sent_bytes, strict=True))


# ---- off, and on ----


@given(groups(find_cluster("dgx-h100")), SIZES, st.sampled_from(sorted(COLLECTIVES)))
def test_switched_off_it_is_no_candidate_and_switched_on_it_never_makes_anything_slower(net, size, name):
    on = GroupNetwork(net.cluster.replace(uses_nvls=True), net.ranks)
    assert not algorithms_for(name, net).keys() & {"nvls", "nvls-tree"}
    before, after = collective_cost(name, size, net), collective_cost(name, size, on)
    assert after.time_s <= before.time_s
    if not after.algorithm.startswith("nvls"):
        assert after == before
    if name != "all_reduce":
        assert algorithms_for(name, on).keys() == algorithms_for(name, net).keys()


@pytest.mark.parametrize("name", sorted(CLUSTERS))
def test_no_cluster_of_the_catalogue_uses_it_by_itself(name):
    assert CLUSTERS[name].uses_nvls is False


def test_the_switches_of_hopper_and_blackwell_add_and_older_ones_do_not():
    wanted = "dgx-h100 hgx-h800 hgx-h20 hgx-h200 dgx-b200 dgx-b300 gb200-nvl72 gb300-nvl72"
    assert set(WITH_SWITCHES) == set(wanted.split())
    assert all(link.nvls_latency_s == ALPHA_S for link in (LINKS["nvlink4"], LINKS["nvlink5"]))


@given(st.sampled_from(sorted(WITH_SWITCHES)), SIZES, st.integers(1, 20), st.integers(1, 12), st.booleans())
def test_a_planners_groups_take_what_their_ranks_take(name, size, n, stride, is_on):
    cluster = CLUSTERS[name].replace(uses_nvls=is_on)
    net = GroupNetwork(cluster, range(0, n * stride, stride))
    assert close(
        regular_collective_s("all_reduce", size, n, stride, cluster), collective_cost("all_reduce", size, net).time_s
    )
    for algorithm in NVLS:
        if n > 1 and algorithm in algorithms_for(
            "all_reduce", GroupNetwork(cluster.replace(uses_nvls=True), net.ranks)
        ):
            expected_s = collective_cost("all_reduce", size, net, algorithm).time_s
            assert close(regular_collective_s("all_reduce", size, n, stride, cluster, algorithm), expected_s)


def test_a_program_on_the_simulator_takes_it_where_the_cluster_says_so():
    def program() -> float:
        x = torch.ones(10_000_000)
        dist.all_reduce(x)
        return x.sum().item()

    off, on = (launch(program, ranks=8, cluster=H100.replace(uses_nvls=way)) for way in (False, True))
    assert on.values == off.values == [8e7] * 8
    (transfer,) = on.traffic.transfers
    assert transfer.algorithm == "nvls" and transfer.sent_bytes == (45e6,) * 8  # 40 MB and an eighth of them
    assert close(transfer.end_s - transfer.start_s, ALPHA_S + 45e6 / BYTES_PER_S)
    assert off.traffic.transfers[0].algorithm != "nvls"


# ---- faults ----


def test_a_slow_way_into_the_switch_slows_every_sum():
    net = GroupNetwork(H100, range(8))
    network = FaultyNetwork(H100, [SlowLink(3, factor=2.0)], [])
    damaged = network.cost("all_reduce", 1e9, GroupNetwork(network.cluster, range(8)))
    assert damaged.algorithm == collective_cost("all_reduce", 1e9, net).algorithm == "nvls"
    assert close(damaged.time_s, ALPHA_S + 2 * 9 / 8 * 1e9 / BYTES_PER_S)


def test_a_link_that_is_down_stops_it():
    down = DropLink(2, 5)
    assert FaultyNetwork(H100, [], [down]).needs("all_reduce", "nvls", tuple(range(8)), 0) == (down,)


# ---- refused ----


@given(groups(), st.sampled_from(sorted(NVLS)))
def test_a_group_that_cannot_is_told_what_is_needed_and_what_it_has(net, algorithm):
    assume(net.size > 1 and algorithm not in algorithms_for("all_reduce", net))
    needs = {"nvls": "ranks of one node", "nvls-tree": "two or more nodes with the same number"}[algorithm]
    with pytest.raises(ValueError, match=f"algorithm '{algorithm}' needs {needs}.* a node; choose 'auto'") as caught:
        collective_cost("all_reduce", 1e6, net, algorithm)
    assert str([len(members) for members in net.by_node]) in str(caught.value)


@pytest.mark.parametrize("name", sorted(CLUSTERS.keys() - WITH_SWITCHES.keys()))
def test_a_cluster_whose_switches_cannot_add_is_refused_by_name_in_each_way_to_ask(name):
    cluster = CLUSTERS[name]
    whose = re.escape(f"{cluster.intra.name!r} of {cluster.name!r} has none")
    with pytest.raises(ValueError, match=f"uses_nvls needs switches that add .*{whose}; take NVLink 4 or 5"):
        cluster.replace(uses_nvls=True)
    net = GroupNetwork(cluster, range(4))
    for ask in (
        lambda: collective_cost("all_reduce", 1e6, net, "nvls"),
        lambda: regular_collective_s("all_reduce", 1e6, 4, 1, cluster, "nvls"),
    ):
        with pytest.raises(ValueError, match=f"algorithm 'nvls' needs switches that add .*{whose}"):
            ask()


def test_a_regular_group_across_nodes_has_no_sums_of_one_switch():
    with pytest.raises(ValueError, match="algorithm 'nvls' needs ranks of one node: 16 ranks at stride 1"):
        regular_collective_s("all_reduce", 1e6, 16, 1, H100, "nvls")
    with pytest.raises(ValueError, match="algorithm 'nvls-tree' needs two or more nodes"):
        regular_collective_s("all_reduce", 1e6, 8, 1, H100, "nvls-tree")


def test_other_collectives_have_no_sums_of_a_switch():
    with pytest.raises(ValueError, match="unknown all_gather algorithm 'nvls'"):
        collective_cost("all_gather", 1e6, GroupNetwork(H100, range(8)), "nvls")
