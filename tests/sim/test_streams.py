# pyright: reportOptionalMemberAccess=false, reportUnusedExpression=false

"""Virtual time: what overlaps, what waits, what shares a wire; what is expected follows from the spans' durations."""

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from lablib import Run, launch
from lablib.engine.port import Port, first_common_gap
from tests.sim.toy import TOY, about, compute


def durations(run: Run, rank: int, stream: str) -> list[float]:
    return [span.duration_s for span in run.timeline.select(rank, stream)]


# ---- collectives and compute ----


# ---- point to point: one message at a time through each port ----


def test_a_message_issued_early_is_not_held_up_by_one_issued_late():
    """Rank 1 runs first on the host and sends late in virtual time; rank 2 sends at once, so its message goes first."""

    def program() -> None:
        if dist.get_rank() == 0:
            works = [dist.irecv(torch.empty(1000), src) for src in (1, 2)]
            for work in works:
                work.wait()
        else:
            if dist.get_rank() == 1:
                compute(1_000_000)
            dist.send(torch.empty(1000), 0)

    run = launch(program, ranks=3, cluster=TOY)
    assert {t.ranks[0]: t.start_s for t in run.traffic.transfers} == {1: about(1e-3), 2: 0.0}


def test_a_receive_from_anyone_takes_the_message_that_was_issued_first():
    """All messages wait when rank 0 looks; rank 1 sent last in virtual time, though it ran first on the host."""

    def program() -> list[int]:
        if dist.get_rank() == 0:
            dist.recv(torch.empty(1), 3, tag=7)  # rank 3 runs last, so all others have sent by then
            return [dist.recv(torch.empty(1)) for _ in range(3)]
        compute(20_000 - 4000 * dist.get_rank())
        if dist.get_rank() == 3:
            dist.send(torch.empty(1), 0, tag=7)
        dist.send(torch.empty(1), 0)
        return []

    assert launch(program, ranks=4, cluster=TOY).values[0] == [3, 2, 1]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=25))
def test_a_port_gives_the_first_gap_that_is_long_enough(messages: list[tuple[int, int]]):
    """Against the definition, on a grid of whole seconds."""
    port, busy = Port(), [False] * 1000
    for ready, length in messages:
        expected = next(t for t in range(ready, 1000) if not any(busy[t : t + length]))
        assert port.first_gap(ready, length) == expected
        port.occupy(expected, expected + length)
        busy[expected : expected + length] = [True] * length


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(1, 5)), max_size=12),
    st.integers(0, 40),
    st.integers(1, 9),
)
def test_two_ports_give_the_first_gap_that_both_have(taken: list[tuple[str, int, int]], ready: int, length: int):
    ports, busy = {"a": Port(), "b": Port()}, [False] * 500
    for name, at, size in taken:
        start = int(ports[name].first_gap(at, size))
        ports[name].occupy(start, start + size)
        busy[start : start + size] = [True] * size
    expected = next(t for t in range(ready, 500) if not any(busy[t : t + length]))
    assert first_common_gap(ports["a"], ports["b"], ready, length) == expected


# ---- phases ----


def training_step() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with record_function("prepare"):
        x = torch.ones(4, 8) * 2
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    with record_function("report"):
        with record_function("average"):
            dist.all_reduce(loss.detach())
        torch.ones(3) + 1


def phases_of(run: Run, rank: int) -> set[tuple[str, str]]:
    """(operation, phase) of everything that both backends name alike."""
    named = {"aten.tanh", "aten.tanh_backward", "aten.mul", "aten.sum", "aten.add", "all_reduce"}
    return {(span.name, span.phase) for span in run.timeline.select(rank) if span.name in named}


def test_phases_are_the_same_on_the_simulator_and_in_processes():
    simulated, real = (launch(training_step, ranks=2, backend=backend) for backend in ("sim", "gloo"))
    for rank in range(2):
        assert phases_of(simulated, rank) == phases_of(real, rank)


def test_a_view_of_a_result_under_way_does_not_wait_for_it_but_reading_it_does():
    def program(touch: bool) -> None:
        x = torch.ones(1 << 22)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        result = work.get_future().value()[0]
        if touch:
            result.add_(1)
        y = result.view(2, -1)
        a = torch.ones(64, 64)
        _ = a @ a  # overlaps with the all-reduce unless something has waited for it
        y.add_(1)

    def matmul_starts_s(touch: bool) -> tuple[float, float]:
        run = launch(program, touch, ranks=2)
        (communication,) = run.timeline.select(0, "comm")
        return next(s.start_s for s in run.timeline.select(0) if s.name == "aten.mm"), communication.end_s

    start_s, end_s = matmul_starts_s(touch=False)
    assert start_s < end_s
    start_s, end_s = matmul_starts_s(touch=True)
    assert start_s >= end_s
