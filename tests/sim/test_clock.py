"""Virtual time: a program takes what its operators cost, on streams that overlap, whatever the host is doing."""

import time
from collections.abc import Callable
from functools import partial
from math import isclose
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

from lablib import launch
from lablib.cost import GroupNetwork, collective_cost
from lablib.hardware import Cluster, Device, find_cluster
from lablib.operators import op_cost

ROUNDING = 1e-12

# A slow device: a product of 32 x 32 matrices takes 65.536 us, as long as a collective does, and is quick to compute.
SLOW = Device("slow", {"float32": 1e9}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e15)
CLUSTER: Cluster = find_cluster("dgx-h100").replace(name="slow dgx", device=SLOW)
PRODUCT_S = 2 * 32**3 / 1e9
SQUARE = torch.zeros(32, 32)


def products(count: int) -> None:
    for _ in range(count):
        torch.mm(SQUARE, SQUARE)


def all_reduce_s(tensor: torch.Tensor, ranks: int, cluster: Cluster = CLUSTER) -> float:
    return collective_cost("all_reduce", tensor.nbytes, GroupNetwork(cluster, range(ranks))).time_s


# ---- compute ----


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100", "laptop"])
def test_a_program_of_products_takes_exactly_what_they_cost_and_their_launches(cluster):
    shapes = [(8, 16, 32), (64, 64, 64), (1, 128, 4), (100, 3, 50)]
    pairs = [(torch.zeros(m, k), torch.zeros(k, n)) for m, k, n in shapes]

    def program() -> None:
        for a, b in pairs:
            torch.mm(a, b)

    host_s, starts_s, ends_s = 0.0, [], [0.0]
    for a, b in pairs:
        cost = op_cost(torch.ops.aten.mm.default, (a, b), {}, a @ b, find_cluster(cluster).device)
        host_s += cost.launch_s  # 0 on a laptop, which launches and computes in turn
        starts_s.append(max(ends_s[-1], host_s))
        ends_s.append(starts_s[-1] + (cost.time_s - cost.launch_s))
    run = launch(program, ranks=2, cluster=cluster)
    assert run.timeline.makespan_s == ends_s[-1]
    for rank in range(2):
        spans = run.timeline.select(rank, "compute")
        assert [s.name for s in spans] == ["aten.mm"] * len(shapes)
        assert [s.end_s for s in spans] == ends_s[1:] and [s.start_s for s in spans] == starts_s
        assert [s.flops for s in spans] == [2 * m * n * k for m, k, n in shapes]
        assert [s.size_bytes for s in spans] == [4 * (m * k + k * n + m * n) for m, k, n in shapes]
        idle_s = sum(start - end for start, end in zip(starts_s, ends_s, strict=False))
        assert run.timeline.compute_idle_s(rank) == pytest.approx(idle_s, abs=1e-12)


def test_with_free_compute_a_program_that_only_computes_takes_no_time():
    run = launch(products, 5, ranks=2, cluster=CLUSTER.free_compute())
    assert run.timeline.makespan_s == 0


def test_a_program_that_makes_views_takes_no_time():
    def program() -> None:
        SQUARE.view(-1).view(32, 32).t()[1:, ::2].unsqueeze(0).expand(3, -1, -1).detach().split(2)

    assert launch(program, ranks=1).timeline.makespan_s == 0


# ---- phases ----


def phases_of(program: Callable[[], Any]) -> list[str]:
    """The phases of rank 0's compute spans in order, each once as long as it lasts."""
    spans = launch(program, ranks=1).timeline.select(0, "compute")
    return [s.phase for i, s in enumerate(spans) if i == 0 or s.phase != spans[i - 1].phase]


def make_step(optimizer_class: type = torch.optim.SGD) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model, optimizer_class(model.parameters(), lr=0.1), torch.ones(3, 4)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_training_step_is_forward_then_backward_then_optimizer(optimizer):
    def program() -> None:
        with record_function("setup"):
            model, optim, x = make_step(optimizer)
        for _ in range(2):
            model(x).sum().backward()
            optim.step()
            optim.zero_grad()

    assert phases_of(program) == ["setup", *["forward", "backward", "optimizer"] * 2]


def test_a_block_that_the_program_names_names_its_spans_and_the_innermost_wins():
    def program() -> None:
        products(1)
        with record_function("outer"):
            products(1)
            with record_function("inner"):
                products(1)
            products(1)
        products(1)

    assert phases_of(program) == ["compute", "outer", "inner", "outer", "compute"]


def test_a_named_block_holds_the_backward_and_the_optimizer_inside_it():
    def program() -> None:
        model, optim, x = make_step()
        with record_function("step"):
            model(x).sum().backward()
            optim.step()

    assert phases_of(program) == ["compute", "step"]


def test_a_block_that_an_exception_leaves_is_left():
    def program() -> None:
        try:
            with record_function("fails"):
                products(1)
                raise KeyError
        except KeyError:
            products(1)

    assert phases_of(program) == ["fails", "compute"]


def test_a_recomputed_forward_is_a_phase_of_its_own_inside_backward():
    def program() -> None:
        x = torch.ones(4, 4, requires_grad=True)
        y = checkpoint(lambda x: (x @ x).relu(), x, use_reentrant=False)
        y.sum().backward()

    run = launch(program, ranks=1)
    phases = ("forward", "recompute", "backward")
    by_phase = {phase: [s.name for s in run.timeline.select(0, "compute", phase)] for phase in phases}
    # Forward: one product. Recomputation: that product again. Backward: the two of its gradient.
    assert [by_phase[phase].count("aten.mm") for phase in phases] == [1, 1, 2]
    again = [s for s in run.timeline.select(0, "compute") if s.is_recompute]
    assert {s.phase for s in again} == {"recompute"} and [s.name for s in again].count("aten.mm") == 1


def test_a_communication_keeps_the_phase_in_which_it_was_issued():
    def program() -> None:
        with record_function("issue"):
            work = dist.all_reduce(torch.zeros(4), async_op=True)
        with record_function("wait"):
            assert work is not None
            work.wait()

    run = launch(program, ranks=2)
    assert [s.phase for s in run.timeline.select(stream="comm")] == ["issue", "issue"]


# ---- overlap ----


def overlapped(tensor: torch.Tensor, before: int, behind: int) -> None:
    products(before)
    work = dist.all_reduce(tensor, async_op=True)
    products(behind)
    assert work is not None
    work.wait()
    products(1)


@settings(max_examples=12)
@given(st.integers(2, 12), st.sampled_from([1, 100_000, 3_000_000, 10_000_000]), st.integers(0, 3), st.integers(0, 12))
def test_an_async_all_reduce_hides_exactly_the_smaller_of_itself_and_the_compute_behind_it(ranks, n, before, behind):
    tensor = torch.empty(n)
    run = launch(overlapped, tensor, before, behind, ranks=ranks, cluster=CLUSTER)
    communication_s, compute_s = all_reduce_s(tensor, ranks), behind * PRODUCT_S
    total_s = before * PRODUCT_S + max(communication_s, compute_s) + PRODUCT_S
    assert isclose(run.timeline.makespan_s, total_s, rel_tol=ROUNDING)
    for rank in range(ranks):
        hidden_s = run.timeline.busy_s(rank, "comm") - run.timeline.exposed_s(rank)
        # A difference of sums near the total: rounding is relative to that.
        assert isclose(hidden_s, min(communication_s, compute_s), rel_tol=ROUNDING, abs_tol=ROUNDING * total_s)
        assert isclose(run.timeline.busy_s(rank), (before + behind + 1) * PRODUCT_S, rel_tol=ROUNDING)


def test_a_sync_all_reduce_hides_nothing():
    tensor = torch.zeros(100_000)

    def program() -> None:
        products(2)
        dist.all_reduce(tensor)
        products(3)

    run = launch(program, ranks=4, cluster=CLUSTER)
    communication_s = all_reduce_s(tensor, 4)
    assert isclose(run.timeline.makespan_s, 5 * PRODUCT_S + communication_s, rel_tol=ROUNDING)
    assert all(isclose(run.timeline.exposed_s(rank), communication_s, rel_tol=1e-9) for rank in range(4))


def test_waiting_twice_takes_no_more_time():
    def program(times: int) -> None:
        work = dist.all_reduce(torch.zeros(1000), async_op=True)
        assert work is not None
        for _ in range(times):
            work.wait()

    once, thrice = (launch(program, times, ranks=3, cluster=CLUSTER.free_compute()) for times in (1, 3))
    assert once.timeline == thrice.timeline


# ---- stragglers ----


def test_a_late_rank_delays_its_group_and_no_other():
    def program() -> None:
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        products(5 if dist.get_rank() == 3 else 0)
        dist.all_reduce(torch.empty(10), group=groups[dist.get_rank() // 2])

    starts = {t.ranks: t.start_s for t in launch(program, ranks=4, cluster=CLUSTER).traffic.transfers}
    assert starts[(0, 1)] == 0 and isclose(starts[(2, 3)], 5 * PRODUCT_S, rel_tol=ROUNDING)


# ---- the host ----


def mixed(naps: dict[int, float]) -> float:
    """Compute, collectives, messages and an optimizer; some ranks sleep in real time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model, optim, x = make_step()
    total = torch.zeros(1)
    for _ in range(2):
        loss = model(x).sum()
        loss.backward()
        time.sleep(naps.get(rank, 0.0))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optim.step()
        if rank:
            dist.recv(total, src=rank - 1)
        total += loss.detach()
        time.sleep(naps.get(size - 1 - rank, 0.0))
        if rank < size - 1:
            dist.send(total, dst=rank + 1)
    return total.item()


def test_a_rank_that_sleeps_in_real_time_changes_nothing_in_virtual_time():
    awake, sleepy = (launch(mixed, naps, ranks=4) for naps in ({}, {0: 0.02, 2: 0.01}))
    assert awake.timeline == sleepy.timeline and awake.traffic == sleepy.traffic and awake.values == sleepy.values


def test_without_a_trace_values_and_traffic_are_the_same():
    traced, plain = (launch(partial(mixed, {}), ranks=4, trace=trace) for trace in (True, False))
    assert traced.values == plain.values
    assert len(plain.timeline) == 0 and len(traced.timeline.select(stream="compute")) > 0

    def what_moved(run: Any) -> list[tuple]:
        return sorted(
            (t.group, t.name, t.ranks, t.algorithm, t.tensor_bytes, t.sent_bytes) for t in run.traffic.transfers
        )

    assert what_moved(traced) == what_moved(plain)
    assert all(traced.traffic.sent_bytes(rank) == plain.traffic.sent_bytes(rank) > 0 for rank in range(4))
