"""Ranks that are processes on a CPU take turns on its cores, and their communication needs cores too: closed forms."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import find_cluster, launch
from lablib.faults import SlowRank
from lablib.hardware import Cluster, Device, Link
from lablib.operators.op import op_cost

LINK = Link("a wire", 1e-3, 1e9)
CORE = Device("a core", {"float32": 1e9}, 1e9, 1e9)
NODE = Cluster("a node", CORE, 8, LINK, LINK, library="gloo")
PRODUCT_S = 2 * 64**3 / 1e9


def cores(count: int) -> Cluster:
    return NODE.replace(shared_cores=count)


def multiply(times: int = 1):
    x = torch.ones(64, 64)
    for _ in range(times):
        torch.mm(x, x)


def compute_s(run) -> list[float]:
    return [span.duration_s for span in run.timeline.select(stream="compute") if span.name == "aten.mm"]


def the_last_end_s(run) -> float:
    return max(span.end_s for span in run.timeline if span.name == "aten.mm")


@settings(max_examples=8, deadline=None)
@given(ranks=st.integers(1, 6), count=st.integers(1, 4), times=st.integers(1, 3))
def test_more_ranks_than_cores_are_slower_by_the_turns_they_take(ranks, count, times):
    def program():
        multiply(times)

    runs = [launch(program, ranks=ranks, cluster=NODE.replace(shared_cores=n)) for n in (0, count)]
    alone_s, shared_s = (run.timeline.makespan_s for run in runs)
    assert shared_s == pytest.approx(alone_s * -(-ranks // count))


def test_a_collective_of_all_ranks_takes_what_it_takes_however_few_the_cores():
    def program():
        dist.all_reduce(torch.ones(1000))

    times_s = []
    for count in (0, 1, 2, 4):
        (transfer,) = launch(program, ranks=4, cluster=cores(count)).traffic.transfers
        times_s.append(transfer.end_s - transfer.start_s)
    assert times_s == pytest.approx([times_s[0]] * 4)


def test_a_collective_waits_until_others_leave_it_a_core():
    def program():
        pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
        if dist.get_rank() < 2:
            multiply(50)
            return
        dist.all_reduce(torch.ones(1), group=pair)

    def took_s(count: int) -> float:
        (transfer,) = launch(program, ranks=4, cluster=cores(count)).traffic.transfers
        return transfer.end_s

    assert took_s(0) == took_s(4) < 50 * PRODUCT_S
    assert took_s(2) > 50 * PRODUCT_S


def test_a_message_under_way_takes_a_core_from_those_who_compute():
    def program():
        x = torch.ones(250_000)  # a millisecond of latency and one of bytes
        if dist.get_rank() == 0:
            work = dist.isend(x, 1)
        else:
            work = dist.irecv(x, 0)
        multiply(20)
        assert work is not None
        work.wait()

    ends_s = [launch(program, ranks=2, cluster=cores(count)).timeline.makespan_s for count in (0, 2, 3)]
    one_core = 20 * PRODUCT_S
    assert ends_s[0] == pytest.approx(ends_s[2]) and ends_s[0] == pytest.approx(one_core, rel=0.2)
    assert ends_s[1] > ends_s[0] + 1e-3  # two compute: the message is a third that needs a core


def test_the_price_of_an_operation_is_that_of_a_rank_with_a_core_and_its_span_is_longer():
    runs = [launch(multiply, ranks=2, cluster=cores(count)) for count in (2, 1)]
    x = torch.ones(64, 64)
    alone_s = op_cost(torch.ops.aten.mm.default, (x, x), {}, x, CORE).time_s
    assert compute_s(runs[0]) == pytest.approx([alone_s] * 2)
    first, second = (runs[1].timeline.select(rank) for rank in (0, 1))
    assert min(span.start_s for span in second) == 0.0 == min(span.start_s for span in first)
    # Rank 1 is ready at once and has its core when rank 0 has done with it: its first span is so much longer.
    assert max(span.duration_s for span in second) == pytest.approx(the_last_end_s(runs[0]), rel=0.05)


def test_every_node_has_cores_of_its_own():
    two_nodes = cores(2).replace(devices_per_node=2)
    runs = [launch(multiply, ranks=4, cluster=cluster) for cluster in (two_nodes, cores(2))]
    assert the_last_end_s(runs[1]) == pytest.approx(2 * the_last_end_s(runs[0]))


def test_runs_on_shared_cores_repeat_to_the_bit_and_faults_still_count():
    def program():
        multiply(3)
        dist.all_reduce(torch.ones(10))
        multiply(2)

    spans = [list(launch(program, ranks=5, cluster=cores(2)).timeline) for _ in range(2)]
    assert spans[0] == spans[1]
    slow = launch(program, ranks=5, cluster=cores(2), faults=[SlowRank(0, 3.0)])
    assert slow.timeline.makespan_s > max(span.end_s for span in spans[0])


@pytest.mark.parametrize("name", ["dgx-h100", "laptop"])
def test_clusters_of_the_catalogue_share_no_cores(name):
    cluster = find_cluster(name)
    assert cluster.shared_cores == 0 and cluster.device.element_s == {}
