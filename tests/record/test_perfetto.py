"""Traces for Perfetto: the fields its format documents, every span in its place, arrows, and memory second by second.

The fields of each kind of event are those of the "Trace Event Format" (Google, 2016).
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.record.memory import Allocation, Memory
from lablib.run import COMPUTE, Span, Timeline

Event = dict[str, Any]

# kind of event -> fields it must have, fields it may have besides
FIELDS = {
    "M": ({"name", "ph", "pid", "args"}, {"tid"}),
    "X": ({"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}, set()),
    "C": ({"name", "ph", "ts", "pid", "args"}, set()),
    "s": ({"name", "cat", "ph", "ts", "pid", "tid", "id"}, set()),
    "t": ({"name", "cat", "ph", "ts", "pid", "tid", "id"}, set()),
    "f": ({"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"}, set()),
}
NUMBERS, TEXTS = {"ts", "dur"}, {"name", "cat"}


@st.composite
def spans(draw) -> Span:
    """A span between two whole microseconds; it may be empty, and may overlap others of its stream."""
    start, duration = draw(st.integers(0, 30)), draw(st.integers(0, 8))
    return Span(
        rank=draw(st.integers(0, 3)),
        stream=draw(st.sampled_from((COMPUTE, "comm:world", "comm:a:b:send"))),
        name=draw(st.sampled_from(["aten.mm", 'a "quoted" \\ name', "send to 2"])),
        phase=draw(st.sampled_from(["forward", ""])),
        start_s=start * 1e-6,
        end_s=(start + duration) * 1e-6,
        flops=float(draw(st.integers(0, 2))),
        dtype=draw(st.sampled_from(["", "bfloat16"])),
    )


SPANS = st.lists(spans(), max_size=25)


def events_of(path: Path) -> list[Event]:
    """The events of a trace, each with the fields of its kind and no others."""
    trace = json.loads(path.read_text("utf-8"))
    assert set(trace) == {"displayTimeUnit", "traceEvents"} and trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        needed, allowed = FIELDS[event["ph"]]
        assert needed <= set(event) <= needed | allowed, event
        assert all(isinstance(event[key], str) for key in TEXTS & set(event))
        assert all(isinstance(event[key], (int, float)) and event[key] >= 0 for key in NUMBERS & set(event))
        # 0 is the kernel's own process in Perfetto, which hides some of its threads.
        assert all(isinstance(event[key], int) and event[key] > 0 for key in ("pid", "tid") if key in event)
    return trace["traceEvents"]


def kind(events: list[Event], *phases: str) -> list[Event]:
    return [e for e in events if e["ph"] in phases]


def names(events: list[Event], what: str) -> dict[Any, Any]:
    """Process, or process and thread -> its name or its place in the order."""
    is_thread = what.startswith("thread")
    found = [e for e in kind(events, "M") if e["name"] == what]
    by_place = {(e["pid"], e["tid"]) if is_thread else e["pid"]: next(iter(e["args"].values())) for e in found}
    assert len(by_place) == len(found)
    return by_place


@given(SPANS)
def test_every_span_is_one_event_on_the_thread_of_its_rank_and_stream(tmp_path_factory, some):
    events = events_of(Timeline.of(some, 4).to_perfetto(tmp_path_factory.mktemp("trace") / "trace.json"))
    assert names(events, "process_name") == {rank + 1: f"rank {rank}" for rank in range(4)}
    assert names(events, "process_sort_index") == {rank + 1: rank for rank in range(4)}
    threads = {place: name.split(" (")[0] for place, name in names(events, "thread_name").items()}
    found = [
        (e["pid"] - 1, threads[e["pid"], e["tid"]], e["ts"], e["dur"], e["name"], e["cat"], e["args"].get("flops", 0))
        for e in kind(events, "X")
    ]
    given = [
        (s.rank, s.stream, round(s.start_s * 1e6), round(s.duration_s * 1e6), s.name, s.phase or "op", s.flops)
        for s in some
    ]
    assert sorted(found) == sorted(given)


@given(SPANS)
def test_spans_of_one_thread_never_overlap_and_threads_have_numbers_of_their_own(tmp_path_factory, some):
    events = events_of(Timeline.of(some, 4).to_perfetto(tmp_path_factory.mktemp("trace") / "trace.json"))
    rows = defaultdict(list)
    for e in kind(events, "X"):
        rows[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for row in rows.values():
        row.sort()
        assert all(end <= start + 1e-9 for (_, end), (start, _) in zip(row, row[1:], strict=False))
    threads = names(events, "thread_name")
    assert set(threads) == set(rows) and len({tid for _, tid in threads}) == len(threads)


@given(SPANS)
def test_compute_is_the_first_thread_of_a_rank(tmp_path_factory, some):
    events = events_of(Timeline.of(some, 4).to_perfetto(tmp_path_factory.mktemp("trace") / "trace.json"))
    order = names(events, "thread_sort_index")
    for (pid, tid), name in names(events, "thread_name").items():
        # The thread with its process's number is the main thread, which Perfetto shows first whatever the order says.
        assert (tid == pid) == (name == COMPUTE)
        if name == COMPUTE:
            assert order[pid, tid] == 0


def test_arguments_are_what_is_known_of_a_span(tmp_path):
    whole = Span(
        0, COMPUTE, "aten.mm", "backward", 0.0, 1.0, 2e9, 1e6, "bfloat16", "train.py:12: loss.backward()", True
    )
    bare = Span(0, COMPUTE, "aten.mm", "", 1.0, 2.0)
    known, nothing = kind(events_of(Timeline.of([whole, bare], 1).to_perfetto(tmp_path / "trace.json")), "X")
    assert known["args"] == {
        "phase": "backward",
        "flops": 2e9,
        "size_bytes": 1e6,
        "dtype": "bfloat16",
        "source": "train.py:12: loss.backward()",
        "is_recompute": True,
    }
    assert nothing["args"] == {"phase": ""} and nothing["cat"] == "op"


def test_durations_add_up_to_the_busy_time(tmp_path):
    # Spans of one stream, one after another: 1 + 2 + ... + 20 ms.
    starts = [sum(range(i)) * 1e-3 for i in range(1, 21)]
    timeline = Timeline.of(
        [Span(0, COMPUTE, "aten.mm", "forward", start, start + (i + 1) * 1e-3) for i, start in enumerate(starts)], 1
    )
    total_us = sum(e["dur"] for e in kind(events_of(timeline.to_perfetto(tmp_path / "trace.json")), "X"))
    assert total_us == pytest.approx(210e3, rel=1e-9) and timeline.busy_s(0) == pytest.approx(total_us / 1e6, rel=1e-9)


def chains(events: list[Event]) -> list[list[tuple[int, str]]]:
    """Each chain of arrows as the (rank, span name) it passes. Every end lies inside a span, and none goes back."""
    threads = defaultdict(list)
    for e in kind(events, "X"):
        threads[e["pid"], e["tid"]].append(e)
    found = defaultdict(list)
    for e in kind(events, "s", "t", "f"):
        (inside,) = [x for x in threads[e["pid"], e["tid"]] if x["ts"] <= e["ts"] <= x["ts"] + x["dur"]]
        found[e["id"]].append((e["ph"], e["ts"], e["pid"] - 1, inside["name"]))
    for chain in found.values():
        assert [ph for ph, *_ in chain] == ["s", *"t" * (len(chain) - 2), "f"]
        assert [ts for _, ts, *_ in chain] == sorted(ts for _, ts, *_ in chain)
    return [[(rank, name) for *_, rank, name in chain] for chain in found.values()]


def test_arrows_lead_from_each_send_to_its_receive(tmp_path):
    # Rank 2 sends to 0 twice; rank 0 to 2 once. The receives were posted before the sends.
    timeline = Timeline.of(
        [
            Span(2, "comm:world:send", "send to 0", "", 1.0, 2.0, transfer_id=0),
            Span(2, "comm:world:send", "send to 0", "", 5.0, 6.0, transfer_id=1),
            Span(0, "comm:world:recv", "recv from 2", "", 0.0, 2.0, transfer_id=0, place=1),
            Span(0, "comm:world:recv", "recv from 2", "", 3.0, 6.0, transfer_id=1, place=1),
            Span(0, "comm:world:send", "send to 2", "", 7.0, 8.0, transfer_id=2),
            Span(2, "comm:world:recv", "recv from 0", "", 7.0, 8.0, transfer_id=2, place=1),
        ],
        3,
    )
    assert sorted(chains(events_of(timeline.to_perfetto(tmp_path / "trace.json")))) == [
        [(0, "send to 2"), (2, "recv from 0")],
        [(2, "send to 0"), (0, "recv from 2")],
        [(2, "send to 0"), (0, "recv from 2")],
    ]


def test_an_arrow_that_would_go_back_in_time_is_left_out(tmp_path):
    """Two hosts whose clocks disagree: the receive ends before the send begins."""
    spans = [
        Span(0, "comm:w:send", "send to 1", "", 5.0, 6.0, transfer_id=0),
        Span(1, "comm:w:recv", "recv from 0", "", 1.0, 2.0, transfer_id=0, place=1),
    ]
    assert not kind(events_of(Timeline.of(spans, 2).to_perfetto(tmp_path / "trace.json")), "s", "t", "f")


def test_arrows_of_a_collective_pass_its_members_and_no_group_of_the_same_name(tmp_path):
    pairs = ((0, 2), (1, 3))  # two groups called "dp", at the same time
    spans = [
        Span(rank, "comm:dp", "all_reduce", "", k, k + 1.0, transfer_id=int(k) + number, place=place)
        for k in (0.0, 4.0)
        for number, pair in enumerate(pairs)
        for place, rank in enumerate(pair)
    ]
    timeline = Timeline.of(spans, 4)
    found = [[rank for rank, _ in chain] for chain in chains(events_of(timeline.to_perfetto(tmp_path / "trace.json")))]
    assert sorted(found) == [[0, 2], [0, 2], [1, 3], [1, 3]]


def test_counters_hold_the_bytes_of_each_category_from_change_to_change(tmp_path):
    blocks = (
        Allocation(0, "parameter", 100, 0.0, 9.0),
        Allocation(0, "activation", 30, 1.0, 4.0),
        Allocation(0, "activation", 12, 2.0, 4.0),
        Allocation(1, "activation", 7, 4.0, 5.0),
        Allocation(1, "activation", 7, 5.0, 6.0),  # one dies when the next is born: nothing changes
    )
    path = Timeline((), 2).to_perfetto(tmp_path / "trace.json", memory=Memory(blocks, 2))
    counters = defaultdict(list)
    for e in kind(events_of(path), "C"):
        assert list(e["args"]) == ["bytes"]
        counters[e["pid"] - 1, e["name"]].append((e["ts"] / 1e6, e["args"]["bytes"]))
    assert counters == {
        (0, "memory: parameter"): [(0.0, 100), (9.0, 0)],
        (0, "memory: activation"): [(1.0, 30), (2.0, 42), (4.0, 0)],
        (1, "memory: activation"): [(4.0, 7), (6.0, 0)],
    }


def _exchange() -> None:
    import torch
    import torch.distributed as dist

    rank, x = dist.get_rank(), torch.ones(1000)
    dist.all_reduce(torch.mm(torch.ones(100, 100), torch.ones(100, 100)))
    if rank == 0:
        dist.send(x, dst=1)
    if rank == 1:
        dist.recv(x, src=0)


def test_the_trace_of_a_run_has_its_arrows(tmp_path):
    run = launch(_exchange, ranks=3)
    found = chains(events_of(run.to_perfetto(tmp_path / "trace.json")))
    assert sorted(found) == [
        [(0, "all_reduce"), (1, "all_reduce"), (2, "all_reduce")],
        [(0, "send to 1"), (1, "recv from 0")],
    ]
