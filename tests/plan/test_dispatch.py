"""Tokens on their way to experts: rows over each kind of wire counted token by token, for every choice of experts."""

from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS, Dragonfly, FatTree
from lablib.models import Experts, find_transformer
from lablib.plan import IDEAL, STACKS, Parallel, predict, predict_many
from lablib.plan.layer.dispatch import exchange_s, neighbours_share, visited_share
from lablib.plan.machine import Machine

DGX = CLUSTERS["dgx-h100"]
WIRES = DGX.replace(
    intra=replace(DGX.intra, latency_s=0.0),
    inter=replace(DGX.inter, latency_s=0.0),
    topology=FatTree(switch_latency_s=0.0),
    collective_overhead_s=0.0,
)
CORE = STACKS["megatron-core"]
DEDUPLICATED = replace(CORE, dispatcher="deduplicated")


def counted(num_experts, num_active, nodes, inside):
    """Rows a token of one rank sends outside its node, and inside nodes, in the mean over all choices of experts."""
    ranks, mine = nodes * inside, 0
    each = num_experts // ranks
    plain, once = [0, 0], [0, 0]
    for chosen in combinations(range(num_experts), num_active):
        visited = [expert // each for expert in chosen]
        plain[0] += sum(rank // inside != mine for rank in visited)
        plain[1] += sum(rank // inside == mine and rank != mine for rank in visited)
        once[0] += sum(node != mine for node in {rank // inside for rank in visited})
        # Over the NIC a row arrives at the rank with the same place in its node, which passes it on.
        once[1] += sum(rank % inside != mine for rank in set(visited))
    count = comb(num_experts, num_active)
    return [total / count for total in plain], [total / count for total in once]


@pytest.mark.parametrize(("num_experts", "num_active"), [(8, 2), (8, 3), (16, 4)])
@pytest.mark.parametrize(("nodes", "inside"), [(1, 4), (1, 8), (2, 2), (2, 4), (4, 2), (8, 1)])
def test_rows_over_each_wire_are_those_of_every_choice_of_experts(num_experts, num_active, nodes, inside):
    mixture, cluster = Experts(num_experts, num_active, 64), WIRES.replace(devices_per_node=inside)
    found = counted(num_experts, num_active, nodes, inside)
    for stack, (outside_rows, inside_rows) in zip((CORE, DEDUPLICATED), found, strict=True):
        seconds = exchange_s(Machine(cluster, stack, IDEAL, "bfloat16"), mixture, 1000, 64, nodes * inside, 1)
        wires = (cluster.inter.bandwidth_bytes_per_s, cluster.intra.bandwidth_bytes_per_s)
        times = [1000 * 64 * rows / wire for rows, wire in zip((outside_rows, inside_rows), wires, strict=True)]
        assert seconds == pytest.approx(max(times), rel=1e-9)


@settings(deadline=None)
@given(k=st.integers(1, 12), groups=st.integers(1, 12), parts=st.integers(1, 24))
def test_neighbours_are_on_as_many_parts_as_are_counted_for_every_token(k, groups, parts):
    num_experts = k * groups
    if num_experts % parts:
        return
    of_part = num_experts // parts
    visited = [len({expert // of_part for expert in range(k * i, k * i + k)}) for i in range(groups)]
    share = neighbours_share(Experts(num_experts, k, 64), parts)
    assert share * parts == pytest.approx(sum(visited) / groups, rel=1e-12)
    assert share <= visited_share(Experts(num_experts, k, 64), parts) + 1e-12
    many = neighbours_share(Experts(num_experts, k, 64), np.array([parts, parts]))
    assert many.tolist() == [share, share]


@settings(deadline=None)
@given(
    nodes=st.integers(1, 12),
    inside=st.sampled_from([1, 2, 8]),
    topology=st.one_of(
        st.builds(FatTree, st.integers(1, 4), st.integers(1, 3), st.sampled_from([1.0, 4.0]), st.just(0.0)),
        st.builds(Dragonfly, st.integers(1, 2), st.integers(1, 3), switch_latency_s=st.just(0.0)),
    ),
)
def test_a_token_that_crosses_to_a_node_once_goes_at_the_rate_that_the_topology_leaves(nodes, inside, topology):
    mixture, cluster = Experts(nodes * inside, 1, 64), WIRES.replace(devices_per_node=inside, topology=topology)
    wires, row_bytes = (cluster.inter.bandwidth_bytes_per_s, cluster.intra.bandwidth_bytes_per_s), 64e3
    # With one expert for a token, each node gets as many.
    each = 1000 * row_bytes / nodes
    outside = [sum(each / (wires[0] * topology.taper(a, b)) for b in range(nodes) if b != a) for a in range(nodes)]
    inside_s = 1000 * row_bytes * (1 - 1 / inside) / wires[1]
    seconds = exchange_s(Machine(cluster, DEDUPLICATED, IDEAL, "bfloat16"), mixture, 1000, row_bytes, nodes * inside, 1)
    assert seconds == pytest.approx(max(inside_s, *outside), rel=1e-9)


def test_deepseek_v3s_tokens_cross_to_each_node_once():
    # Eight experts of 256 on four nodes: 6 messages of 8 leave the node, or one for each of the 2.7 others visited.
    mixture = find_transformer("deepseek-v3").experts
    assert mixture is not None
    assert 3 * visited_share(mixture, 4) == pytest.approx(2.7, abs=0.02)
    v3 = [
        predict("deepseek-v3", "dgx-h100", Parallel(data=32, expert=32), 32, seq_len=4096, stack=stack)
        for stack in (CORE, DEDUPLICATED)
    ]
    times = [each.communication["expert"][0] for each in v3]
    assert times[0] / times[1] == pytest.approx(6 / 2.7, rel=0.02)


def test_hidden_exchanges_take_cores_and_no_more():
    """DeepSeek-V3, arXiv 2412.19437, section 3.2.2: 20 of 132 cores communicate."""
    parallel = Parallel(data=8, expert=8)
    shown, hidden = (
        predict("mixtral-8x7b", "dgx-h100", parallel, 8, seq_len=4096, stack=replace(CORE, hides_dispatch=hides))
        for hides in (False, True)
    )
    total_s = shown.communication["expert"][0]
    assert hidden.communication["expert"] == pytest.approx((total_s, total_s * 20 / 132), rel=1e-6)
    assert hidden.step_time_s == pytest.approx(shown.step_time_s - total_s * 112 / 132, rel=1e-6)


def test_many_plans_dispatch_as_each_alone():
    expert = [1, 2, 4, 8, 8, 8]
    tensor = [1, 1, 2, 4, 8, 16]
    found = predict_many(
        *("mixtral-8x7b", "dgx-h100"),
        **{"data": 16, "tensor": tensor, "expert": expert, "expert_tensor": 1, "batch": 16, "seq_len": 4096},
        stack=DEDUPLICATED,
    )
    for i in range(len(expert)):
        assert found[i].step_time_s == pytest.approx(found.step_time_s[i], rel=1e-12)
