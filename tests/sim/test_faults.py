"""Faults do what they say, to the closed form; the program knows nothing of them; what they stop is named."""

import contextlib
from collections.abc import Callable
from math import inf, isclose
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lablib import (
    CorruptGradient,
    DeadlockError,
    DelayStart,
    Device,
    DropLink,
    Fault,
    FaultError,
    KillRank,
    LinkDownError,
    RankError,
    RankKilledError,
    Run,
    SlowLink,
    SlowRank,
    launch,
)
from lablib.cost import GroupNetwork, collective_cost
from lablib.hardware import Link, find_cluster
from lablib.sim.faults.corruption import flip_bit

pytestmark = pytest.mark.usefixtures("everything_is_given_back")

# A product of 64 x 64 matrices takes 2^19 / 2^20 = half a second, exactly; alpha and beta are powers of two.
DEVICE = Device("half a second", {"float32": 2.0**20}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=2.0**60)
WIRE = Link("wire", latency_s=2.0**-6, bandwidth_bytes_per_s=2.0**12)
NIC = Link("nic", latency_s=2.0**-4, bandwidth_bytes_per_s=2.0**10)
CLUSTER = find_cluster("dgx-h100").replace(
    name="constructed", device=DEVICE, devices_per_node=4, intra=WIRE, inter=NIC, collective_overhead_s=0.0
)
PRODUCT_S = 0.5
SQUARE = torch.zeros(64, 64)
ROUNDING = 1e-12


def products(count: int) -> None:
    for _ in range(count):
        torch.mm(SQUARE, SQUARE)


def run_with(*faults: Fault, program: Callable[..., Any], ranks: int = 4, cluster: Any = CLUSTER) -> Run:
    return launch(program, ranks=ranks, cluster=cluster, faults=faults)


def ended_by(*faults: Fault, program: Callable[..., Any], ranks: int = 4) -> FaultError:
    with pytest.raises(FaultError) as caught:
        run_with(*faults, program=program, ranks=ranks)
    return caught.value


def compute_and_reduce() -> int:
    """Two products and an all-reduce, twice."""
    for _ in range(2):
        products(2)
        dist.all_reduce(torch.empty(1024))  # not zeros: to fill them takes time
    return dist.get_rank()


def all_reduce_s(ranks: int = 4, size_bytes: float = 4096) -> float:
    return collective_cost("all_reduce", size_bytes, GroupNetwork(CLUSTER, range(ranks))).time_s


# ---- slow ranks ----


@given(st.sampled_from([0.25, 0.5, 2.0, 3.0, 8.0]), st.integers(1, 5), st.integers(0, 4))
@settings(max_examples=20)
def test_a_slow_rank_takes_exactly_factor_times_as_long(factor, ranks, slow):
    slow %= ranks
    run = run_with(SlowRank(slow, factor), program=lambda: products(3), ranks=ranks)
    for rank in range(ranks):
        expected_s = PRODUCT_S * (factor if rank == slow else 1)
        assert [s.duration_s for s in run.timeline.select(rank, "compute")] == [expected_s] * 3


def test_two_slow_faults_on_a_rank_multiply():
    run = run_with(SlowRank(0, 2.0), SlowRank(0, 2.0), program=lambda: products(1), ranks=1)
    assert run.timeline.makespan_s == 4 * PRODUCT_S


@given(st.integers(0, 6), st.integers(1, 6), st.sampled_from([0.5, 2.0, 4.0]), st.integers(1, 8))
@settings(max_examples=25)
def test_a_window_slows_only_the_work_that_is_done_inside_it(from_quarters, quarters, factor, count):
    """Work is counted in quarters of a second of virtual time, one after another."""
    from_s, until_s = from_quarters / 4, (from_quarters + quarters) / 4
    fault = SlowRank(0, factor, from_s, until_s)
    left_s, now_s, step_s = count * PRODUCT_S, 0.0, 2.0**-10
    while left_s > 0:
        left_s -= step_s / (factor if from_s <= now_s < until_s else 1)
        now_s += step_s
    try:
        run = run_with(fault, program=lambda: products(count), ranks=1)
    except UserWarning:  # the program ended before the window began
        assert from_s >= count * PRODUCT_S
    else:
        # The last step may have more room than there is work.
        assert abs(run.timeline.makespan_s - now_s) <= step_s


def test_a_slow_rank_is_the_straggler_of_the_summary():
    run = run_with(SlowRank(2, 2.0), program=compute_and_reduce)
    summary = run.summary()
    assert summary.straggler == 2
    assert summary.waiting_s == pytest.approx((2.0, 2.0, 0.0, 2.0)) and summary.straggler_s[2] == pytest.approx(6.0)


def test_a_late_start_shifts_everything_that_rank_does():
    late, healthy = (run_with(*faults, program=lambda: products(2), ranks=2) for faults in ([DelayStart(1, 3.0)], []))
    for run, shift_s in ((healthy, 0.0), (late, 3.0)):
        assert [s.start_s for s in run.timeline.select(1)] == [shift_s, shift_s + PRODUCT_S]
    assert late.timeline.select(0) == healthy.timeline.select(0)


def test_everybody_waits_for_a_rank_that_starts_late():
    late, healthy = (run_with(*faults, program=compute_and_reduce) for faults in ([DelayStart(1, 3.0)], []))
    assert isclose(late.timeline.makespan_s, healthy.timeline.makespan_s + 3.0)
    assert late.values == healthy.values


def test_faults_that_cannot_be_felt_change_no_number():
    healthy = run_with(program=compute_and_reduce)
    same = run_with(SlowRank(0, 1.0), DelayStart(1, 0.0), program=compute_and_reduce)
    assert same.timeline == healthy.timeline and same.traffic == healthy.traffic and same.values == healthy.values


def test_a_run_with_faults_repeats_to_the_bit():
    faults = (SlowRank(1, 1.7, 0.3, 1.9), SlowLink(0, factor=3.3), DelayStart(3, 0.1))
    first, second = (run_with(*faults, program=compute_and_reduce) for _ in range(2))
    assert first.timeline == second.timeline and first.traffic == second.traffic


# ---- slow links ----


@given(st.integers(2, 8), st.integers(0, 7), st.sampled_from([0.5, 2.0, 7.0, 100.0]), st.sampled_from([0.0, 0.125]))
@settings(max_examples=20)
def test_a_ring_takes_as_long_as_its_slowest_edge(n, first, factor, latency_s):
    """2 (n-1) (alpha + latency + S/n beta factor), for a link between neighbours on the ring."""
    one_node = CLUSTER.replace(devices_per_node=8)
    size_bytes = 2**16 * 4
    a, b = first % n, (first + 1) % n

    def program() -> None:
        dist.all_reduce(torch.empty(2**16))

    run = run_with(SlowLink(a, b, factor=factor, latency_s=latency_s), program=program, ranks=n, cluster=one_node)
    (transfer,) = run.traffic.transfers
    alpha_s, beta = WIRE.latency_s, 1 / WIRE.bandwidth_bytes_per_s
    slow_s = alpha_s + latency_s + size_bytes / n * beta * factor
    healthy_s = alpha_s + size_bytes / n * beta
    # With two ranks the ring is one wire; otherwise healthy edges are left, which count when the link is a fast one.
    expected_s = 2 * (n - 1) * (slow_s if n == 2 else max(slow_s, healthy_s))
    assert transfer.algorithm == "ring"
    assert isclose(transfer.end_s - transfer.start_s, expected_s, rel_tol=ROUNDING)


def test_the_algorithm_is_that_of_the_healthy_network():
    def program() -> None:
        dist.all_reduce(torch.empty(2**16))

    for ranks in (3, 4, 8, 12):
        (healthy,) = run_with(program=program, ranks=ranks).traffic.transfers
        (slow,) = run_with(SlowLink(0, 1, factor=1e6), program=program, ranks=ranks).traffic.transfers
        assert slow.algorithm == healthy.algorithm and slow.end_s > 100 * healthy.end_s


def message_s(run: Run) -> float:
    (transfer,) = run.traffic.transfers
    return transfer.end_s - transfer.start_s


def send(source: int, target: int) -> Callable[[], None]:
    def program() -> None:
        if dist.get_rank() == source:
            dist.send(torch.empty(1024), dst=target)
        elif dist.get_rank() == target:
            dist.recv(torch.empty(1024), src=source)

    return program


SLOW_S = WIRE.latency_s + 4096 / WIRE.bandwidth_bytes_per_s * 4
HEALTHY_S = WIRE.latency_s + 4096 / WIRE.bandwidth_bytes_per_s


@pytest.mark.parametrize(("source", "target"), [(1, 2), (2, 1)])
def test_a_slow_link_is_slow_in_both_directions(source, target):
    assert message_s(run_with(SlowLink(1, 2, factor=4.0), program=send(source, target))) == SLOW_S


@pytest.mark.parametrize(
    ("fault", "intra", "inter"),
    [
        (SlowLink(1, factor=4.0), True, True),
        (SlowLink(1, factor=4.0, level="intra"), True, False),
        (SlowLink(1, factor=4.0, level="inter"), False, True),
        (SlowLink(node=0, factor=4.0), False, True),
        (SlowLink(node=1, factor=4.0), False, True),
    ],
)
@pytest.mark.filterwarnings("ignore:SlowLink.*never came")
def test_all_wires_of_a_rank_or_of_a_node_or_those_of_one_level(fault, intra, inter):
    for target, is_slow in ((0, intra), (4, inter)):
        slow = run_with(fault, program=send(1, target), ranks=5)
        healthy_s, beta_s = (
            message_s(run_with(program=send(1, target), ranks=5)),
            4096 / (WIRE if target == 0 else NIC).bandwidth_bytes_per_s,
        )
        assert isclose(message_s(slow), healthy_s + (3 * beta_s if is_slow else 0), rel_tol=ROUNDING)


def test_a_link_that_nobody_uses_is_reported():
    with pytest.warns(UserWarning, match=r"SlowLink\(a=0, b=3.*never came: no communication crossed it"):
        run = run_with(SlowLink(0, 3, factor=4.0), program=send(1, 2))
    assert "never came" in run.notes[0] and message_s(run) == HEALTHY_S


# ---- dead ranks ----


def test_a_rank_that_dies_in_an_operator_is_cut_off_there():
    error = ended_by(KillRank(1, at_s=0.75), program=lambda: products(4), ranks=2)
    assert isinstance(error, RankKilledError) and (error.rank, error.at_s) == (1, 0.75)
    spans = error.run.timeline.select(1, "compute")
    assert [(s.start_s, s.end_s) for s in spans] == [(0.0, 0.5), (0.5, 0.75)]
    assert spans[1].flops == spans[0].flops / 2
    assert len(error.run.timeline.select(0, "compute")) == 4  # the other one finished


def test_ranks_that_never_meet_the_dead_one_finish_and_the_launch_still_fails():
    error = ended_by(KillRank(0, at_s=0.75), program=lambda: (products(4), dist.get_rank())[1], ranks=3)
    assert error.waits == () and error.run.values == [None, 1, 2]
    assert "no rank waits for it" in str(error)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("at_s", [0.0, 0.3, 1.0])
def test_the_others_wait_in_the_first_collective_that_the_dead_rank_did_not_join(ranks, at_s):
    dead = ranks - 1
    error = ended_by(KillRank(dead, at_s=at_s), program=compute_and_reduce, ranks=ranks)
    assert isinstance(error, RankKilledError) and (error.rank, error.killed) == (dead, {dead: at_s})
    assert [wait.rank for wait in error.waits] == list(range(dead))
    for wait in error.waits:
        assert f"waits in all_reduce #0 of group world since 1 s; rank {dead} is not there" in wait.text
        assert "test_faults.py" in wait.source and "all_reduce" in wait.source
    assert f"rank {dead} died at {at_s:g} s (KillRank)" in str(error)


def test_a_rank_that_dies_between_two_collectives_is_missed_in_the_second():
    first_s = 1.0 + all_reduce_s()
    error = ended_by(KillRank(2, at_s=first_s + 0.25), program=compute_and_reduce)
    assert all("all_reduce #1 of group world" in wait.text for wait in error.waits) and len(error.waits) == 3
    finished = [t for t in error.run.traffic.transfers if t.algorithm != "unfinished"]
    assert [(t.start_s, t.end_s) for t in finished] == [(1.0, first_s)]


def test_a_rank_that_dies_while_it_waits_takes_the_collective_with_it():
    def program() -> None:
        products(6 if dist.get_rank() == 0 else 1)
        dist.all_reduce(torch.empty(1024))

    error = ended_by(KillRank(1, at_s=2.0), program=program)
    assert [wait.rank for wait in error.waits] == [0, 2, 3]
    assert "since 3 s; rank 1 died in it" in error.waits[0].text
    assert all("since 0.5 s; rank 1 died in it" in wait.text for wait in error.waits[1:])


def test_a_rank_that_dies_in_the_middle_of_a_collective_takes_it_with_it():
    at_s = 1.0 + all_reduce_s() / 2
    error = ended_by(KillRank(3, at_s=at_s), program=compute_and_reduce)
    assert [wait.rank for wait in error.waits] == [0, 1, 2]
    assert all("all_reduce #0" in wait.text and "rank 3 died in it" in wait.text for wait in error.waits)


def test_what_ended_before_the_death_reached_the_others():
    end_s = 1.0 + all_reduce_s()

    def program() -> bool:
        products(2)
        dist.all_reduce(torch.empty(1024))
        return True

    error = ended_by(KillRank(3, at_s=end_s), program=program)
    assert error.run.values == [True, True, True, None] and error.waits == ()


def test_a_receiver_waits_for_a_dead_sender_and_a_sender_for_a_dead_receiver():
    for source, target in ((0, 1), (1, 0)):

        def program(source: int = source, target: int = target) -> None:
            products(2)
            send(source, target)()

        error = ended_by(KillRank(0, at_s=0.6), program=program, ranks=3)
        (wait,) = error.waits
        assert wait.rank == 1 and ("recv from rank 0" if source == 0 else "send to rank 0") in wait.text


def test_those_who_wait_for_one_who_waits_for_the_dead_are_named_too():
    def program() -> None:
        rank = dist.get_rank()
        products(1)
        if rank:
            dist.recv(torch.empty(1), src=rank - 1)
        if rank < 3:
            dist.send(torch.empty(1), dst=rank + 1)

    error = ended_by(KillRank(0, at_s=0.2), program=program)
    assert [(wait.rank, f"recv from rank {wait.rank - 1}" in wait.text) for wait in error.waits] == [
        (rank, True) for rank in (1, 2, 3)
    ]


def test_the_run_up_to_the_death_shows_the_wait():
    error = ended_by(KillRank(2, at_s=0.25), program=compute_and_reduce)
    run = error.run
    assert run.values == [None] * 4
    waits = [s for s in run.timeline.spans if s.stream == "wait:world"]
    # The last thing that happened was at 1 s; the picture goes on for a tenth of that.
    assert [(s.rank, s.start_s, s.end_s) for s in waits] == [(rank, 1.0, 1.1) for rank in (0, 1, 3)]
    summary = run.summary()
    assert summary.straggler == 2 and summary.waiting_s == pytest.approx((0.1, 0.1, 0.0, 0.1))
    assert run.traffic.transfers[0].issued_s == (1.0, 1.0, inf, 1.0)
    assert run.timeline.figure() is not None and len(summary.table()) == 5


def train(steps: int = 2) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@given(st.floats(0, 1, exclude_max=True), st.integers(2, 5), st.integers(0, 4))
@settings(max_examples=12)
def test_whenever_a_rank_dies_in_data_parallel_training_the_launch_names_it(share, ranks, dead):
    dead %= ranks
    whole_s = launch(train, ranks=ranks).summary()
    at_s = share * (whole_s.busy_s[dead] + whole_s.exposed_s[dead])
    error = None
    try:
        launch(train, ranks=ranks, faults=[KillRank(dead, at_s=at_s)])
    except RankKilledError as caught:
        error = caught
    assert error is not None and error.rank == dead and error.at_s == at_s
    assert all(s.end_s <= at_s * (1 + ROUNDING) for s in error.run.timeline.select(dead))
    assert dead not in [wait.rank for wait in error.waits]


def test_a_message_about_many_ranks_stays_short_and_the_record_complete():
    error = ended_by(KillRank(5, at_s=0.0), program=compute_and_reduce, ranks=64)
    assert len(error.waits) == 63 and "and 47 more" in str(error) and len(str(error).splitlines()) == 1 + 16 + 1 + 1


def test_two_dead_ranks_are_both_named_and_the_first_counts():
    error = ended_by(KillRank(0, at_s=0.75), KillRank(3, at_s=0.5), program=compute_and_reduce)
    assert isinstance(error, RankKilledError)
    assert (error.rank, error.killed) == (3, {0: 0.75, 3: 0.5}) and [w.rank for w in error.waits] == [1, 2]


def test_a_rank_that_starts_after_its_death_does_nothing():
    error = ended_by(DelayStart(0, 2.0), KillRank(0, at_s=1.0), program=compute_and_reduce)
    assert error.run.timeline.select(0) == [] and len(error.waits) == 3


def test_a_dead_rank_runs_no_more_of_the_program():
    went_on: list[str] = []

    def program() -> None:
        try:
            products(4)
            went_on.append("after")
        finally:
            with contextlib.suppress(Exception):
                dist.barrier()
                went_on.append("barrier")

    ended_by(KillRank(0, at_s=0.75), program=program, ranks=1)
    assert went_on == []


def test_a_death_that_never_came_is_reported():
    with pytest.warns(UserWarning, match=r"KillRank\(rank=1, at_s=99\) never came: rank 1 had ended at"):
        run = run_with(KillRank(1, at_s=99), program=compute_and_reduce)
    assert run.values == [0, 1, 2, 3] and len(run.notes) == 1


def test_a_deadlock_of_the_programs_own_stays_one():
    def program() -> None:
        if dist.get_rank() != 0:
            dist.barrier()

    with pytest.raises(DeadlockError):
        run_with(KillRank(1, at_s=99), SlowRank(2, 2.0), program=program)


def test_the_next_launch_after_a_death_is_healthy():
    ended_by(KillRank(0, at_s=0.1), program=compute_and_reduce)
    assert run_with(program=compute_and_reduce).values == [0, 1, 2, 3]


# ---- links that are down ----


def test_a_message_over_a_link_that_is_down_never_ends():
    error = ended_by(DropLink(2, 1), program=send(1, 2))
    assert isinstance(error, LinkDownError) and error.link == (2, 1) and error.at_s == 0.0
    assert "the message from rank 1 to rank 2" in error.operation and "the message from rank 1" in str(error)
    assert [wait.rank for wait in error.waits] == [1, 2]
    assert all("the link between ranks 2 and 1 is down since 0 s" in wait.text for wait in error.waits)
    assert "dist.send" in error.waits[0].source and "dist.recv" in error.waits[1].source


def test_a_link_carries_what_ends_before_it_goes_down():
    assert message_s(run_with_unused(DropLink(1, 2, at_s=HEALTHY_S), program=send(1, 2))) == HEALTHY_S
    assert isinstance(ended_by(DropLink(1, 2, at_s=HEALTHY_S / 2), program=send(1, 2)), LinkDownError)


def run_with_unused(*faults: Fault, program: Callable[..., Any]) -> Run:
    with pytest.warns(UserWarning, match="never came"):
        return run_with(*faults, program=program)


def ring_of_ones() -> float:
    x = torch.ones(2**16)
    dist.all_reduce(x)
    return x[0].item()


@pytest.mark.parametrize("a", [0, 4])
@pytest.mark.parametrize("b", range(6))
def test_a_ring_needs_the_links_between_neighbours_and_no_others(a, b):
    if a == b:
        return
    one_node = CLUSTER.replace(devices_per_node=8)
    if (a - b) % 6 in (1, 5):
        with pytest.raises(LinkDownError, match="all_reduce #0 of group world cannot end") as caught:
            launch(ring_of_ones, ranks=6, cluster=one_node, faults=[DropLink(a, b)])
        assert [wait.rank for wait in caught.value.waits] == list(range(6))
    else:
        with pytest.warns(UserWarning, match="no communication needed that link"):
            assert launch(ring_of_ones, ranks=6, cluster=one_node, faults=[DropLink(a, b)]).values == [6.0] * 6


def test_what_hangs_on_a_link_is_communication_under_way():
    error = ended_by(DropLink(0, 1, at_s=0.5), program=compute_and_reduce, ranks=2)
    hanging = error.run.timeline.select(stream="comm")
    assert [(s.rank, s.start_s, s.end_s) for s in hanging] == [(0, 1.0, 1.1), (1, 1.0, 1.1)]
    assert "is down since 0.5 s" in str(error) and error.run.values == [None, None]


def test_whatever_came_first_is_to_blame():
    def program() -> None:
        products(4)
        send(1, 2)()
        dist.barrier()

    assert isinstance(ended_by(DropLink(1, 2, at_s=0.5), KillRank(0, at_s=1.0), program=program), LinkDownError)
    assert isinstance(ended_by(DropLink(1, 2, at_s=1.5), KillRank(0, at_s=1.0), program=program), RankKilledError)


# ---- corrupted gradients ----


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, dtype=dtype)
        self.second = nn.Linear(4, 2, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def gradients(dtype: torch.dtype = torch.float32, steps: int = 1, wrap: Any = lambda model: model) -> dict:
    """name -> gradient after the last of `steps` backward passes, each on its own."""
    torch.manual_seed(0)
    model = wrap(Net(dtype))
    for _ in range(steps):
        model.zero_grad()
        model(torch.ones(5, 4, dtype=dtype) * (dist.get_rank() + 1)).sum().backward()
    return {
        name.removeprefix("module."): (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad)
        for name, p in model.named_parameters()
    }


def where_nan(values: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    """name -> the elements that are NaN, counted row by row; parameters without any are left out."""
    found = {name: grad.isnan().flatten().nonzero().flatten().tolist() for name, grad in values.items()}
    return {name: elements for name, elements in found.items() if elements}


@pytest.mark.parametrize(
    ("parameter", "name"),
    [(None, "first.weight"), (0, "first.weight"), (1, "first.bias"), (3, "second.bias")]
    + [(name, name) for name in ("first.weight", "first.bias", "second.weight", "second.bias")],
)
def test_one_element_of_one_gradient_on_one_rank_is_nan(parameter, name):
    run = launch(gradients, ranks=3, faults=[CorruptGradient(1, parameter, element=1)])
    assert [where_nan(values) for values in run.values] == [{}, {name: [1]}, {}]


def test_it_spreads_to_all_ranks_through_the_all_reduce_of_data_parallel_training():
    run = launch(gradients, torch.float32, 1, DistributedDataParallel, ranks=3, faults=[CorruptGradient(1, element=5)])
    assert [where_nan(values) for values in run.values] == [{"first.weight": [5]}] * 3


def test_it_spreads_through_fsdp():
    def wrap(model: Net) -> nn.Module:
        for layer in (model.first, model.second):
            fully_shard(layer)
        fully_shard(model)
        return model

    for parameter in ("second.weight", "first.bias"):
        run = launch(gradients, torch.float32, 2, wrap, ranks=2, faults=[CorruptGradient(1, parameter, 1, element=1)])
        assert [where_nan(values) for values in run.values] == [{parameter: [1]}] * 2


@pytest.mark.parametrize("parameter", ["first.weight", "second.weight"])
def test_it_is_in_the_shard_of_a_tensor_parallel_parameter(parameter):
    def program() -> dict:
        model = Net()
        mesh = init_device_mesh("cpu", (2,))
        parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        model(torch.ones(5, 4)).sum().backward()
        return where_nan(
            {name: p.grad.to_local() for name, p in model.named_parameters() if isinstance(p.grad, DTensor)}
        )

    run = launch(program, ranks=2, faults=[CorruptGradient(1, parameter, element=1)])
    assert run.values == [{}, {parameter: [1]}]


@pytest.mark.parametrize("step", [0, 3])
def test_a_micro_batch_of_a_pipeline_counts_as_a_step(step):
    def program() -> dict:
        model = nn.Linear(4, 4)
        stage = PipelineStage(model, dist.get_rank(), 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, target: (y - target).square().sum(), scale_grads=False)
        schedule.step(*([torch.ones(4, 4)] if dist.get_rank() == 0 else []), target=torch.ones(4, 4))
        return where_nan({name: p.grad for name, p in model.named_parameters() if p.grad is not None})

    assert launch(program, ranks=2, faults=[CorruptGradient(1, "bias", step)]).values == [{}, {"bias": [0]}]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_it_finds_parameters_whose_forward_is_computed_again(use_reentrant):
    def program() -> dict:
        model = Net()
        y = checkpoint(model, torch.ones(5, 4, requires_grad=True), use_reentrant=use_reentrant)
        y.sum().backward()
        return where_nan({name: p.grad for name, p in model.named_parameters() if p.grad is not None})

    run = launch(program, ranks=2, faults=[CorruptGradient(0, "second.weight")])
    assert run.values == [{"second.weight": [0]}, {}]


def test_without_synchronization_it_stays_on_its_rank():
    def program() -> bool:
        model = DistributedDataParallel(Net())
        with model.no_sync():
            model(torch.ones(5, 4)).sum().backward()
        return any(bool(p.grad.isnan().any()) for p in model.parameters() if p.grad is not None)

    assert launch(program, ranks=3, faults=[CorruptGradient(2)]).values == [False, False, True]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_only_the_gradient_of_the_chosen_step_is_wrong(step):
    def program() -> list[int]:
        model, wrong = Net(), []
        for number in range(3):
            model.zero_grad()
            model(torch.ones(5, 4)).sum().backward()
            wrong += [number] * sum(int(p.grad.isinf().sum()) for p in model.parameters() if p.grad is not None)
        return wrong

    assert launch(program, ranks=2, faults=[CorruptGradient(0, step=step, kind="inf")]).values == [[step], []]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bit", [0, 9, 15, None])
def test_a_flipped_bit_is_exactly_that_bit(dtype, bit):
    width = dtype.itemsize * 8
    healthy, flipped = (
        launch(gradients, dtype, ranks=1, faults=faults).values[0]["first.weight"]
        for faults in ([], [CorruptGradient(0, kind="bit flip", bit=bit, element=7)])
    )
    integers = {16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    difference = (healthy.view(integers) ^ flipped.view(integers)).flatten()
    expected = 1 << (width - 2 if bit is None else bit)
    assert int(difference[7]) % (1 << width) == expected
    assert int(difference.count_nonzero()) == 1


@pytest.mark.parametrize(
    ("dtype", "bit", "before", "after"),
    [
        # IEEE 754: 1.0 has the exponent 01...1 and no mantissa; its top exponent bit set makes infinity.
        (torch.float32, 30, 1.0, inf),
        (torch.float8_e4m3fn, 2, 1.0, 1.5),
        (torch.float8_e5m2, 7, 1.0, -1.0),
    ],
)
def test_bits_are_counted_from_the_lowest_of_the_mantissa(dtype, bit, before, after):
    x = torch.tensor(before).to(dtype)
    flip_bit(x, bit)
    assert x.float().item() == after
    flip_bit(x, bit)
    assert x.float().item() == before


def test_a_gradient_that_two_parameters_share_is_wrong_for_one_of_them_only():
    def program() -> list[bool]:
        a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        (a + b).sum().backward()
        return [bool(p.grad.isnan().any()) for p in (a, b) if p.grad is not None]

    assert launch(program, ranks=1, faults=[CorruptGradient(0, parameter=1)]).values == [[False, True]]


def test_a_model_that_all_ranks_share_is_corrupted_on_one():
    with torch.random.fork_rng():
        model = Net()

    def program() -> bool:
        grads = torch.autograd.grad(model(torch.ones(5, 4)).sum(), list(model.parameters()))
        return any(bool(grad.isnan().any()) for grad in grads)

    assert launch(program, ranks=3, faults=[CorruptGradient(1)]).values == [False, True, False]
    assert launch(program, ranks=3).values == [False] * 3  # no hook is left behind


def test_the_clock_does_not_notice():
    healthy, corrupt = (launch(train, ranks=2, faults=faults) for faults in ([], [CorruptGradient(0)]))
    assert healthy.timeline == corrupt.timeline and healthy.traffic == corrupt.traffic


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (CorruptGradient(1, "third.weight"), "forward used 0 'first.weight', 1 'first.bias', 2 'second.weight'"),
        (CorruptGradient(1, 4), "no such parameter had a gradient on rank 1"),
        (CorruptGradient(1, step=2), "that parameter had 2 gradients, the last is step=1"),
    ],
)
def test_a_corruption_that_never_came_is_reported(fault, message):
    with pytest.warns(UserWarning, match=message):
        run = launch(gradients, torch.float32, 2, ranks=2, faults=[fault])
    assert message in run.notes[0] and [where_nan(values) for values in run.values] == [{}, {}]


def test_an_element_or_a_bit_that_does_not_exist_is_an_error():
    with pytest.raises(RankError, match="elements 0 to 15"):
        launch(gradients, ranks=1, faults=[CorruptGradient(0, element=16)])
    with pytest.raises(RankError, match="bits 0 to 31: got bit=32"):
        launch(gradients, ranks=1, faults=[CorruptGradient(0, kind="bit flip", bit=32)])
