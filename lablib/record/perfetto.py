"""Export a timeline as Trace Event JSON for ui.perfetto.dev and chrome://tracing.

A rank is a process and each of its streams a thread, compute first. Events:

    M   names, and the order of processes and threads
    X   one complete event per span: microseconds, and phase, FLOPs, bytes, dtype and line of the program as arguments
    s, t, f   flows, drawn as arrows: from a send to its receive, and through the members of a collective
    C   counters: bytes of memory by category (if memory is given)

Two spans of one thread must be nested or disjoint, so spans that overlap (two collectives that gloo runs side by side)
get further rows. Times are rounded to nanoseconds, as in Perfetto. Processes and threads are numbered from 1: number 0
belongs to the Linux kernel, and Perfetto hides some of it.

Source: "Trace Event Format", Google, 2016 (the Chromium project's document of these fields).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lablib.record.memory import Memory
from lablib.record.timeline import COMPUTE, Span, Timeline
from lablib.text.files import replacing

Event = dict[str, Any]
Place = tuple[int, int]  # process, thread
Stop = tuple[float, Place]  # of a chain of arrows: time, place


def write_trace(timeline: Timeline, path: Path, memory: Memory | None = None) -> Path:
    """Write the trace, rank by rank. `memory` adds counters."""
    rows = {rank: rows_of(timeline, rank) for rank in timeline.ranks}
    with replacing(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for number, (rank, own) in enumerate(rows.items()):
            events = [*_names(rank, own), *_work(rank, own)]
            file.write((",\n" if number else "") + _without_brackets(events))
        for events in (_flows(rows), _counters(memory, timeline.origin_s) if memory is not None else ()):
            if text := _without_brackets(list(events)):
                file.write(",\n" + text)
        file.write("]}\n")
    return path


def rows_of(timeline: Timeline, rank: int) -> list[tuple[str, list[Span]]]:
    """The threads of one rank: name and non-overlapping spans of each."""
    streams: dict[str, list[list[Span]]] = {}
    for span in sorted(timeline.select(rank), key=lambda s: (s.stream != COMPUTE, s.stream, s.start_s, s.end_s)):
        rows = streams.setdefault(span.stream, [[]])
        row = next((row for row in rows if not row or row[-1].end_s <= span.start_s), None)
        if row is None:
            rows.append(row := [])
        row.append(span)
    return [
        (stream if number == 1 else f"{stream} ({number})", row)
        for stream, rows in streams.items()
        for number, row in enumerate(rows, 1)
    ]


def _places(rank: int, rows: Sequence[tuple[str, list[Span]]]) -> list[Place]:
    """Process and thread of each row. The thread with its process's number is shown first: compute."""
    first = 0 if rows and rows[0][0] == COMPUTE else 1
    # No two threads of the trace share a number: a rank has fewer than a thousand rows.
    return [
        (rank + 1, rank + 1 if row == 0 else 1_000_000 + 1000 * rank + row) for row in range(first, first + len(rows))
    ]


def _names(rank: int, rows: Sequence[tuple[str, list[Span]]]) -> Iterator[Event]:
    process = {"ph": "M", "pid": rank + 1}
    yield process | {"name": "process_name", "args": {"name": f"rank {rank}"}}
    yield process | {"name": "process_sort_index", "args": {"sort_index": rank}}
    for order, ((pid, tid), (name, _)) in enumerate(zip(_places(rank, rows), rows, strict=True)):
        thread = {"ph": "M", "pid": pid, "tid": tid}
        yield thread | {"name": "thread_name", "args": {"name": name}}
        yield thread | {"name": "thread_sort_index", "args": {"sort_index": order}}


def _work(rank: int, rows: Sequence[tuple[str, list[Span]]]) -> Iterator[Event]:
    for (pid, tid), (_, spans) in zip(_places(rank, rows), rows, strict=True):
        for s in spans:
            start_ns, end_ns = round(s.start_s * 1e9), round(s.end_s * 1e9)
            times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
            yield {"ph": "X", "pid": pid, "tid": tid, "name": s.name, "cat": s.phase or "op", **times, "args": _args(s)}


def _args(span: Span) -> dict[str, Any]:
    """Arguments that Perfetto shows for a selected span, without unknown ones."""
    args: dict[str, Any] = {"phase": span.phase}
    if span.flops:
        args["flops"] = span.flops
    if span.size_bytes:
        args["size_bytes"] = span.size_bytes
    if span.dtype:
        args["dtype"] = span.dtype
    if span.source:
        args["source"] = span.source
    if span.is_recompute:
        args["is_recompute"] = True
    return args


def _flows(rows: dict[int, list[tuple[str, list[Span]]]]) -> Iterator[Event]:
    """One chain of arrows for each message and each collective, through its participants.

    For a message from the beginning of the send to the end of the receive, for a collective between the middles.
    """
    meetings: dict[int, list[tuple[Span, Place]]] = defaultdict(list)
    for rank, own in rows.items():
        for place, (_, row) in zip(_places(rank, own), own, strict=True):
            for span in row:
                if span.is_communication and span.transfer_id is not None:
                    meetings[span.transfer_id].append((span, place))
    for number, parts in meetings.items():
        parts.sort(key=lambda part: (part[0].place, part[0].start_s))
        is_message = len(parts) == 2 and parts[0][0].name != parts[1][0].name
        shares = (0.01, 0.99) if is_message else (0.5,) * len(parts)
        stops = [(s.start_s + share * s.duration_s, place) for share, (s, place) in zip(shares, parts, strict=True)]
        # An arrow cannot go back in time: omitted if the clocks of two hosts disagree so.
        times_s = [time_s for time_s, _ in stops]
        if len(stops) > 1 and (times_s == sorted(times_s) or not is_message):
            yield from _chain(number, sorted(stops))


def _chain(number: int, stops: Sequence[Stop]) -> Iterator[Event]:
    for index, (time_s, (pid, tid)) in enumerate(stops):
        phase = "s" if index == 0 else "f" if index == len(stops) - 1 else "t"
        event = {"ph": phase, "id": number, "cat": "flow", "name": "communication", "ts": time_s * 1e6}
        yield event | {"pid": pid, "tid": tid} | ({"bp": "e"} if phase == "f" else {})


def _counters(memory: Memory, origin_s: float) -> Iterator[Event]:
    """Each rank's bytes by category: one event per change."""
    for rank in memory.ranks:
        times_s, held = memory.curve(rank)
        if not len(times_s):
            continue
        last = np.append(np.flatnonzero(np.diff(times_s)), len(times_s) - 1)  # the last of several changes at one time
        for category, size_bytes in held.items():
            after = size_bytes[last]
            for i in np.flatnonzero(np.diff(after, prepend=0)):
                where = {"ph": "C", "pid": rank + 1, "name": f"memory: {category}"}
                time_us = (float(times_s[last[i]]) - origin_s) * 1e6
                if time_us >= 0:
                    yield where | {"ts": time_us, "args": {"bytes": int(after[i])}}


def _without_brackets(events: Iterable[Event]) -> str:
    return json.dumps(events, separators=(",", ":"))[1:-1]
