"""What runs inside a block is inside it, however deep: simulated, in a recording of real processes, in a comparison."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from lablib import Run, Span, Timeline, Traffic, Transfer, launch
from lablib.real.measurement.events import ProfilerEvent
from lablib.real.measurement.labels import Phases
from lablib.record.phase_path import joined, split, within
from lablib.record.saved import plain_records, records_of
from lablib.record.spent import TimePart, parts_of

NAMES = ("setup", "forward", "backward", "Optimizer.step#SGD.step", "FSDP::all_gather", "1F0")
leaves = st.sampled_from(["compute", "all_reduce"])
blocks = st.recursive(
    leaves, lambda inner: st.tuples(st.sampled_from(NAMES), st.lists(inner, max_size=3)), max_leaves=8
)
programs = st.lists(blocks, min_size=1, max_size=4)
OWN = {"setup", "forward", "backward", "1F0"}  # names of the program, not of a library


def run_through(program) -> None:
    for each in program:
        if each == "compute":
            torch.ones(64).neg()
        elif each == "all_reduce":
            dist.all_reduce(torch.ones(64))
        else:
            with torch.profiler.record_function(each[0]):
                run_through(each[1])


def leaves_of(program, around=()):
    """(kind, names of the blocks around it), in the order in which they run; those of libraries name nothing."""
    for each in program:
        if isinstance(each, str):
            yield each, around
        else:
            name, inner = each
            name = name if name in OWN else "optimizer" if name.startswith("Optimizer.") and not around else ""
            yield from leaves_of(inner, (*around, name) if name else around)


def once(names) -> tuple[str, ...]:
    """A block directly inside one of its own name adds nothing."""
    return tuple(name for i, name in enumerate(names) if i == 0 or names[i - 1] != name)


@settings(max_examples=15, deadline=None)
@given(programs)
def test_without_leaves_out_what_ran_inside_a_block_and_select_keeps_it(program):
    run = launch(run_through, program, ranks=2)
    for rank in range(2):
        for kind, name in (("compute", "aten.neg"), ("all_reduce", "all_reduce")):
            around = [names for leaf, names in leaves_of(program) if leaf == kind]

            def seen(spans, name=name):
                return [(*s.outer_phases, s.phase) for s in spans if s.name == name and not s.is_waiting]

            spans = run.timeline.select(rank)
            assert [path for path, names in zip(seen(spans), around, strict=True) if names] == [
                once(names) for names in around if names
            ]
            for block in (*OWN, "optimizer"):
                kept = [once(names) for names in around if block not in names]
                rest = seen(run.timeline.without(block).select(rank))
                assert [path for path, names in zip(rest, kept, strict=True) if names] == [n for n in kept if n]
                assert len(seen(run.timeline.select(rank, phase=block))) == len(around) - len(kept)


def test_forward_code_run_again_inside_a_block_is_inside_it():
    def program():
        x = torch.ones(8, 8, requires_grad=True)
        with torch.profiler.record_function("setup"), torch.profiler.record_function("backward"):
            checkpoint(lambda x: x.sin().cos(), x, use_reentrant=False).sum().backward()

    timeline = launch(program, ranks=1).timeline
    assert {(s.phase, s.outer_phases) for s in timeline if s.is_recompute} == {("recompute", ("setup",))}
    assert not [s for s in timeline.without("setup") if s.name in ("aten.sin", "aten.cos")]


def test_one_line_in_two_blocks_is_one_origin_of_memory():
    def program():
        kept = []
        for block in ("setup", "step"):
            with torch.profiler.record_function(block), torch.profiler.record_function("forward"):
                kept.append(torch.ones(64))
        return len(kept)

    memory = launch(program, ranks=1).memory
    assert [(group.phase, group.num_allocations) for group in memory.allocations_at_peak(0)] == [("forward", 2)]
    assert memory.by_phase(0).index.tolist() == ["forward"]


# ---- a recording of real processes ----


def events_of(program, thread: int, at: int, events: list[ProfilerEvent], moments: list[int]) -> int:
    """Labels as a profiler has them; and (moment, names around it) of each leaf."""
    for each in program:
        at += 1
        if isinstance(each, str):
            moments.append(at)
        else:
            start = at
            at = events_of(each[1], thread, at, events, moments)
            at += 1
            events.append(ProfilerEvent(each[0], start, at, thread, is_label=True))
    return at


@given(programs)
def test_a_recording_has_the_same_paths(program):
    events, moments = [], []
    events_of(program, 1, 0, events, moments)
    phases = Phases(events, main_thread=1)
    for at, (_, names) in zip(moments, leaves_of(program), strict=True):
        phase, outer = split(phases.at(at, 1, False))
        assert (*outer, phase) == once(names) or not names
        # Another thread's block lies inside those that the main thread has open.
        both = Phases([*events, ProfilerEvent("hook", at, at + 1, 2, is_label=True)], main_thread=1)
        assert split(both.at(at, 2, True)) == ("hook", once(names))


@given(
    st.lists(st.sampled_from(["setup", "a b", ""]), max_size=4), st.lists(st.sampled_from(["setup", "c"]), max_size=3)
)
def test_paths_are_put_together_and_taken_apart(outer, inner):
    path = ""
    for name in outer:
        path = within(path, name)
    rest = ""
    for name in inner:
        rest = within(rest, name)
    whole = once([name for name in (*outer, *inner) if name])
    phase, others = split(joined(path, rest))
    assert ((*others, phase) if phase else ()) == whole


# ---- comparisons, files ----


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_a_call_inside_a_phase_left_out_is_no_waiting(calls):
    """By the calls that a run knows as by its spans; and the same as the summary says."""
    spans, transfers = [Span(0, "compute", "mm", "forward", 0.0, 0.5)], []
    for number, (first, second, *in_setup) in enumerate(calls):
        begins, ends = max(first, second) + 20.0 * number, 20.0 * number + 10
        issued = (first + 20.0 * number, second + 20.0 * number)
        transfers.append(
            Transfer("world", "all_reduce", (0, 1), "ring", 8.0, (8.0, 8.0), begins, ends, issued, id=number)
        )
        for rank in range(2):
            outer = ("setup",) if in_setup[rank] else ()
            tie = {"transfer_id": number, "place": rank, "outer_phases": outer}
            if issued[rank] < begins:
                spans.append(Span(rank, "wait:world", "all_reduce", "reduce", issued[rank], begins, **tie))
            spans.append(Span(rank, "comm:world", "all_reduce", "reduce", begins, ends, 0.0, 8.0, **tie))
    run = Run([None] * 2, Timeline.of(spans, 2), Traffic(tuple(transfers)), [""] * 2, "sim", "somewhere")
    step, found = run.timeline.without("setup"), parts_of(run, "setup")
    for name, seconds in (("waiting", step.waiting_s), ("idle", step.idle_s)):
        assert found[TimePart(name, name)].time_s == pytest.approx((seconds(0) + seconds(1)) / 2)


def test_a_file_keeps_the_blocks_around_and_an_old_one_has_none():
    run = launch(run_through, [("setup", [("forward", ["compute"])])], ranks=1)
    plain = plain_records(run.timeline, run.traffic, run.memory)
    assert records_of(plain)[0].spans == run.timeline.spans
    table = plain["timeline"]["spans"]
    at = table["fields"].index("outer_phases")
    for row in (table["fields"], *table["rows"]):
        row.pop(at)
    assert records_of(plain)[0].spans == tuple(replace(span, outer_phases=()) for span in run.timeline)
