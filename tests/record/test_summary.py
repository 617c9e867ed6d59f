"""The summary of a run: every second has one name, counted second by second; shares of the peak by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import lablib
from lablib import Allocation, Device, Memory, Run, Span, Summary, Timeline, Traffic, Transfer, launch
from lablib.hardware import find_cluster

RANKS = 4
DEVICE = Device("ten per second", {"float32": 10.0, "bfloat16": 20.0}, 1e9, 1e9)
SLOW = Device("slow", {"float32": 1e9}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e15)
CLUSTER = find_cluster("dgx-h100").replace(name="slow dgx", device=SLOW)
PRODUCT_S = 2 * 32**3 / 1e9
SQUARE = torch.zeros(32, 32)


def products(count: int) -> None:
    for _ in range(count):
        torch.mm(SQUARE, SQUARE)


@st.composite
def spans(draw) -> Span:
    start, duration = draw(st.integers(0, 30)), draw(st.integers(0, 8))
    return Span(
        rank=draw(st.integers(0, RANKS - 1)),
        stream=draw(st.sampled_from(["compute", "comm:world", "comm:dp:send"])),
        name="op",
        phase=draw(st.sampled_from(["setup", "forward"])),
        start_s=float(start),
        end_s=float(start + duration),
        flops=float(draw(st.integers(0, 5))),
        dtype=draw(st.sampled_from(["", "float32", "bfloat16"])),
        is_recompute=draw(st.booleans()),
    )


@st.composite
def transfers(draw) -> Transfer:
    """A communication that starts when its last member has come, or later; it ends within the 50 seconds of a run."""
    ranks = tuple(draw(st.lists(st.integers(0, RANKS - 1), min_size=2, max_size=RANKS, unique=True)))
    issued = tuple(float(draw(st.integers(0, 30))) for _ in ranks)
    start_s = max(issued) + draw(st.integers(0, 3))
    sent = tuple(float(draw(st.integers(0, 9))) for _ in ranks)
    is_known = draw(st.booleans()) or draw(st.booleans())
    return Transfer("world", "all_reduce", ranks, "ring", 8.0, sent, start_s, start_s + 2, issued if is_known else ())


@st.composite
def runs(draw) -> tuple[Timeline, Traffic]:
    """Spans and communications of a run of 50 whole seconds."""
    some = draw(st.lists(spans(), max_size=20))
    end = Span(0, "compute", "last", "forward", 50.0, 50.0)
    moved = tuple(sorted(draw(st.lists(transfers(), max_size=8)), key=lambda t: t.start_s))
    return Timeline.of([*some, end], RANKS), Traffic(moved)


def seconds_of(timeline: Timeline, rank: int, prefix: str) -> set[int]:
    return {
        second
        for s in timeline.spans
        if s.rank == rank and s.stream.startswith(prefix)
        for second in range(int(s.start_s), int(s.end_s))
    }


def waits_of(traffic: Traffic, rank: int) -> dict[int, int]:
    """second -> the rank waited for, in a communication that this rank has joined and the last member has not."""
    waits: dict[int, tuple[float, float, int]] = {}
    for t in traffic.transfers:
        if t.issued_s and rank in t.ranks:
            mine, last_s = t.issued_s[t.ranks.index(rank)], max(t.issued_s)
            straggler = t.ranks[t.issued_s.index(last_s)]
            for second in range(int(mine), int(last_s)):
                waits[second] = min(waits.get(second, (math.inf, 0.0, 0)), (mine, last_s, straggler))
    return {second: straggler for second, (*_, straggler) in waits.items()}


@given(runs())
def test_every_second_of_every_rank_is_compute_exposed_communication_waiting_or_bubble(run):
    timeline, traffic = run
    summary = Summary.of(timeline, traffic)
    charged = [0] * RANKS
    for rank in range(RANKS):
        compute = seconds_of(timeline, rank, "compute")
        exposed = seconds_of(timeline, rank, "comm") - compute
        waits = {s: late for s, late in waits_of(traffic, rank).items() if s not in compute | exposed}
        for late in waits.values():
            charged[late] += 1
        assert summary.busy_s[rank] == len(compute)
        assert summary.communication_s[rank] == len(seconds_of(timeline, rank, "comm"))
        assert summary.exposed_s[rank] == len(exposed) == timeline.exposed_s(rank)
        assert summary.waiting_s[rank] == len(waits)
        assert summary.idle_s[rank] == 50 - len(compute) - len(exposed) - len(waits)
    assert summary.straggler_s == tuple(charged)
    assert summary.step_time_s == 50


@given(runs())
def test_flops_bytes_and_shares_of_the_peak_are_sums_over_spans(run):
    timeline, traffic = run
    summary = Summary.of(timeline, traffic, device=DEVICE)
    assert summary.mfu and summary.hfu
    for rank in range(RANKS):
        own = [s for s in timeline.spans if s.rank == rank]
        at_peak_s = {s: s.flops / (20 if s.dtype == "bfloat16" else 10) for s in own}
        assert summary.flops[rank] == sum(s.flops for s in own)
        assert summary.hfu[rank] == pytest.approx(sum(at_peak_s[s] for s in own) / 50)
        assert summary.mfu[rank] == pytest.approx(sum(at_peak_s[s] for s in own if not s.is_recompute) / 50)
        assert summary.sent_bytes[rank] == traffic.sent_bytes(rank)


@given(runs(), st.integers(1, 4))
def test_several_steps_divide_times_flops_and_bytes_and_no_share(run, steps):
    timeline, traffic = run
    memory = Memory((Allocation(0, "other", 8, 0.0, 1.0),), RANKS)
    whole = Summary.of(timeline, traffic, memory, DEVICE)
    step = Summary.of(timeline, traffic, memory, DEVICE, steps)
    for name in ("busy_s", "communication_s", "exposed_s", "waiting_s", "idle_s", "straggler_s", "flops"):
        assert getattr(step, name) == tuple(value / steps for value in getattr(whole, name))
    assert step.step_time_s == whole.step_time_s / steps
    assert step.sent_bytes == tuple(sent / steps for sent in whole.sent_bytes)
    assert (step.mfu, step.hfu, step.peak_memory_bytes) == (whole.mfu, whole.hfu, whole.peak_memory_bytes)


@given(runs(), st.integers(1, 20))
def test_a_run_that_begins_later_has_the_same_summary_without_its_setup(run, later_s):
    timeline, traffic = run
    first = Span(0, "compute", "first", "forward", 0.0, 0.0)
    step = Timeline.of([*(replace(s, phase="forward") for s in timeline.spans), first], RANKS)
    setup = [Span(rank, "compute", "init", "setup", 0.0, float(later_s)) for rank in range(RANKS)]
    late = [replace(s, start_s=s.start_s + later_s, end_s=s.end_s + later_s) for s in step.spans]
    late_traffic = Traffic(
        (
            Transfer("world", "broadcast", (0, 1), "tree", 8.0, (8.0, 0.0), 0.0, later_s / 2, (0.0, 0.0)),
            *(
                replace(
                    t,
                    start_s=t.start_s + later_s,
                    end_s=t.end_s + later_s,
                    issued_s=tuple(s + later_s for s in t.issued_s),
                )
                for t in traffic.transfers
            ),
        )
    )
    whole = Timeline.of([*setup, *late], RANKS)
    assert Summary.of(whole.without("setup"), late_traffic, device=DEVICE) == Summary.of(step, traffic, device=DEVICE)


@given(runs(), st.sets(st.integers(1, 49), max_size=3))
def test_the_parts_of_a_run_add_up_to_the_whole(run, cuts):
    timeline, traffic = run
    whole = Summary.of(timeline, traffic, device=DEVICE)
    ends = [0, *sorted(cuts), 51]  # the run ends at 50, with a span that takes no time
    parts = [Summary.of(timeline.between(a, b), traffic, device=DEVICE) for a, b in zip(ends, ends[1:], strict=False)]
    for name in ("busy_s", "communication_s", "exposed_s", "flops", "sent_bytes"):
        for rank in range(RANKS):
            total = sum(getattr(part, name)[rank] for part in parts)
            assert total == pytest.approx(getattr(whole, name)[rank])
    # Which of two waits is the earlier is not known to a part that begins after both: their sum is.
    assert sum(sum(part.waiting_s) for part in parts) == pytest.approx(sum(whole.waiting_s))
    assert sum(sum(part.straggler_s) for part in parts) == pytest.approx(sum(whole.straggler_s))


def test_a_device_that_is_at_its_peak_all_the_time_has_an_hfu_of_one():
    run = launch(products, 4, ranks=2, cluster=CLUSTER)
    summary = run.summary()
    assert summary.hfu == summary.mfu == pytest.approx((1.0, 1.0))
    assert summary.flops == (4 * 2 * 32**3,) * 2 and summary.step_time_s == run.timeline.makespan_s


def test_a_recomputed_span_counts_for_hfu_and_not_for_mfu():
    once = Span(0, "compute", "mm", "forward", 0.0, 2.0, flops=10.0)
    again = Span(0, "compute", "mm", "backward", 2.0, 4.0, flops=10.0, is_recompute=True)
    summary = Summary.of(Timeline.of([once, again], 1), device=DEVICE)
    assert (summary.mfu, summary.hfu) == ((0.25,), (0.5,))


def test_where_the_device_is_not_known_there_is_no_mfu_until_one_is_named():
    run = Run([None], Timeline.of([Span(0, "compute", "mm", "", 0.0, 2.0, 10.0)], 1), Traffic(), [""], "gloo", "here")
    assert run.summary().mfu is None and "MFU" not in run.summary().sentence()
    assert "mfu" not in run.summary().table()
    assert run.summary(device=DEVICE).mfu == (0.5,)


@pytest.mark.parametrize("late", [0, 2, 3])
def test_a_late_rank_stands_out_as_the_one_the_others_waited_for(late):
    def program() -> None:
        products(7 if dist.get_rank() == late else 2)
        dist.all_reduce(torch.zeros(1000))

    summary = launch(program, ranks=4, cluster=CLUSTER).summary()
    assert summary.straggler == late
    for rank in range(4):
        assert summary.waiting_s[rank] == pytest.approx(0.0 if rank == late else 5 * PRODUCT_S)
        assert summary.straggler_s[rank] == pytest.approx(3 * 5 * PRODUCT_S if rank == late else 0.0)
        assert summary.idle_s[rank] == pytest.approx(0.0, abs=1e-15)
    assert f"(mostly for rank {late})" in summary.sentence()


def test_what_a_rank_computes_while_others_are_late_is_no_wait():
    def program() -> None:
        products(7 if dist.get_rank() == 1 else 2)
        work = dist.all_reduce(torch.zeros(1000), async_op=True)
        products(3)
        assert work is not None
        work.wait()

    summary = launch(program, ranks=2, cluster=CLUSTER).summary()
    assert summary.waiting_s == pytest.approx((2 * PRODUCT_S, 0.0), abs=1e-15)


def test_a_receiver_waits_for_its_sender():
    def program() -> None:
        if dist.get_rank() == 0:
            products(4)
            dist.send(torch.zeros(4), dst=1)
        else:
            dist.recv(torch.zeros(4), src=0)

    summary = launch(program, ranks=2, cluster=CLUSTER).summary()
    assert summary.straggler_s == pytest.approx((4 * PRODUCT_S, 0.0))
    assert summary.waiting_s == pytest.approx((0.0, 4 * PRODUCT_S))


def test_a_phase_can_be_left_out():
    def program() -> None:
        with lablib.phase("setup"):
            products(dist.get_rank())
            dist.barrier()
        products(2)
        dist.all_reduce(torch.zeros(10))

    run = launch(program, ranks=3, cluster=CLUSTER)
    step = run.summary(timeline=run.timeline.without("setup"))
    assert step.busy_s == pytest.approx((2 * PRODUCT_S,) * 3)
    assert step.waiting_s == (0.0,) * 3 and step.straggler is None
    assert run.summary().straggler == 2
    assert step.sent_bytes == run.summary().sent_bytes  # a barrier sends nothing
    assert step.mfu == pytest.approx((2 * PRODUCT_S / step.step_time_s,) * 3)


def example() -> Summary:
    return Summary(
        0.0123, (0.006, 0.009), (0.0, 0.0), (0.0025, 0.0), (0.003, 0.0), (0.0008, 0.0033), (0.0, 0.003), (1.0, 2.0),
        (10.0, 20.0), (5.0, 7.0), (0.3, 0.38), (0.3, 0.5),
    )  # fmt: skip


def test_the_sentence_says_where_the_time_went():
    assert example().sentence() == (
        "step 12.3 ms: 61% compute, 10% exposed communication, 12% waiting (mostly for rank 1), 17% idle; MFU 34%"
    )
    assert example().sentence() in repr(example()) and example().sentence() in example()._repr_html_()


def test_the_table_has_a_row_a_rank_and_one_for_all():
    table = example().table()
    assert list(table.index) == ["0", "1", "all"]
    assert table.loc["0", "waiting_s"] == 0.003 and table.loc["1", "straggler_s"] == 0.003
    total = table.loc["all"]
    assert (total["flops"], total["sent_bytes"], total["peak_memory_bytes"]) == (3.0, 30.0, 7.0)
    assert (total["mfu"], total["hfu"], total["busy_s"]) == pytest.approx((0.34, 0.4, 0.0075))


def test_a_run_in_which_nothing_happened_has_a_summary():
    summary = launch(lambda: None, ranks=3).summary()
    assert summary.busy_s == summary.waiting_s == summary.idle_s == summary.mfu == (0.0,) * 3
    assert summary.sentence().startswith("step 0 s: 0% compute") and len(summary.table()) == 4


def test_the_peak_of_memory_is_that_of_each_rank():
    given = ((0, 8, 0.0, 2.0), (0, 4, 1.0, 3.0), (1, 5, 0.0, 1.0))
    held = [Allocation(rank, "other", size, start_s, end_s) for rank, size, start_s, end_s in given]
    summary = Summary.of(Timeline((), 3), memory=Memory(held, 3))
    assert summary.peak_memory_bytes == (12.0, 5.0, 0.0)
    assert Summary.of(Timeline((), 3), memory=Memory((), 3)).peak_memory_bytes is None


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_a_number_of_steps_that_is_none_is_refused(steps):
    with pytest.raises(ValueError, match="steps must be a whole number, 1 or more"):
        Summary.of(Timeline((), 1), steps=steps)
