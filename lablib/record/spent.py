"""Time of a run by part, to compare a simulated run with a measured one.

Every second of a rank is one of four, as in lablib/record/summary.py:

    compute + exposed communication + waiting + idle = makespan

Compute is split by innermost phase. Each communication also has a row, by name, group and size, with all of its time,
hidden behind compute or not. Seconds are means over ranks. Spans inside an excluded phase do not count, and a call made
there does not count as waiting.

Two rules make runs of different machines comparable:

    zero     Time begins with the first span of any rank, after the launch. A rank that begins later is idle until then.
    start    A communication begins when its last rank has joined. A real library's record begins at a rank's call, so
             the part before is subtracted, and is waiting. A message counts for the rank that receives it.

A `Transfer` and its spans share an id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from lablib.record.timeline import Interval, Span, Timeline, length, overlap, union

if TYPE_CHECKING:
    from lablib.run import Run

KINDS = ("compute", "communication", "exposed", "waiting", "idle", "makespan")
_NO_PHASE = "#"  # not a valid phase name


@dataclass(frozen=True, slots=True)
class TimePart:
    """A part of a run's time."""

    kind: str  # "compute" (by phase), "communication" (by name, group, size), "exposed", "waiting", "idle", "makespan"
    name: str  # the phase, the collective, or "send"; the kind itself for the others
    group: str = ""  # process group of a communication
    size_bytes: float = 0.0  # payload of a communication


@dataclass(frozen=True, slots=True)
class Spent:
    """Mean seconds per rank, and the number of operations or communications of all ranks."""

    time_s: float
    calls: int = 0


MAKESPAN = TimePart("makespan", "makespan")


def counted(run: Run, without: str = "") -> Timeline:
    """The timeline of a run without one phase ("": all of it), timed from the first span of any rank."""
    return run.timeline.without(without or _NO_PHASE)


def parts_of(run: Run, without: str = "") -> dict[TimePart, Spent]:
    """Mean time per rank by part. "exposed", "waiting", "idle" and "makespan" are always included."""
    timeline = counted(run, without)
    num_ranks = max(timeline.num_ranks, 1)
    meetings = _meetings(timeline)
    busy = {rank: union(_times(_work(timeline.select(rank)))) for rank in range(num_ranks)}
    # Intervals of communication per rank, without waiting for the last member
    times: list[list[Interval]] = [[] for _ in range(num_ranks)]
    for spans in meetings:
        start_s = _start_s(spans)
        for span in spans:
            times[span.rank].append((min(start_s, span.end_s), span.end_s))
    talking = [union(each) for each in times]
    exposed = [length(talking[rank]) - overlap(talking[rank], busy[rank]) for rank in range(num_ranks)]
    waiting = []
    for rank, pending in enumerate(_pending(run, timeline, meetings)):
        occupied = union(busy[rank] + talking[rank])
        waiting.append(length(pending) - overlap(pending, occupied))
    makespan_s = timeline.makespan_s
    left = {
        "exposed": fsum(exposed) / num_ranks,
        "waiting": fsum(waiting) / num_ranks,
        "idle": fsum(makespan_s - length(busy[r]) - exposed[r] - waiting[r] for r in range(num_ranks)) / num_ranks,
        "makespan": makespan_s,
    }
    parts = _by_phase(timeline, num_ranks) | _by_communication(run, meetings, num_ranks)
    return parts | {TimePart(kind, kind): Spent(max(0.0, time_s)) for kind, time_s in left.items()}


def _times(spans: Iterable[Span]) -> list[Interval]:
    return [(span.start_s, span.end_s) for span in spans]


def _work(spans: Iterable[Span]) -> Iterator[Span]:
    return (span for span in spans if span.is_compute)


def _by_phase(timeline: Timeline, num_ranks: int) -> dict[TimePart, Spent]:
    spans: dict[str, dict[int, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for span in _work(timeline):
        spans[span.phase][span.rank].append(span)
    return {
        TimePart("compute", phase): Spent(
            fsum(length(union(_times(each))) for each in by_rank.values()) / num_ranks, sum(map(len, by_rank.values()))
        )
        for phase, by_rank in spans.items()
    }


# ---- communications ----


def _meetings(timeline: Timeline) -> list[list[Span]]:
    """The spans of each communication: one per member, in the order of ranks."""
    meetings: dict[int, list[Span]] = defaultdict(list)
    alone: list[list[Span]] = []
    for span in timeline:
        if span.is_communication and span.transfer_id is not None:
            meetings[span.transfer_id].append(span)
        elif span.is_communication:
            alone.append([span])
    return [*meetings.values(), *alone]


def _start_s(spans: Iterable[Span]) -> float:
    """Time at which the last rank joined."""
    return max(span.start_s for span in spans)


def _by_communication(run: Run, meetings: Iterable[list[Span]], num_ranks: int) -> dict[TimePart, Spent]:
    transfers = {transfer.id: transfer for transfer in run.traffic.transfers}
    seconds: dict[TimePart, list[float]] = defaultdict(list)
    for spans in meetings:
        first, transfer = spans[0], transfers.get(spans[0].transfer_id)
        name, group = (transfer.name, transfer.group) if transfer else (first.name, first.stream.removeprefix("comm:"))
        # A profiler may not report the size of a copy to the host: one row per direction.
        size_bytes = 0.0 if group.startswith("host:") else first.size_bytes
        receivers = 1 if name == "send" else len(spans)
        took_s = max(0.0, max(span.end_s for span in spans) - _start_s(spans))
        seconds[TimePart("communication", name, group, size_bytes)].append(took_s * receivers / num_ranks)
    return {part: Spent(fsum(each), len(each)) for part, each in seconds.items()}


def _made(timeline: Timeline) -> set[tuple[int, int | None]]:
    """(rank, number) of each call."""
    return {(span.rank, span.transfer_id) for span in timeline if span.transfer_id is not None}


def _pending(run: Run, timeline: Timeline, meetings: Iterable[list[Span]]) -> list[list[Interval]]:
    """Intervals between a rank's call and the last member's; from the calls themselves if the run has them."""
    pending: list[list[Interval]] = [[] for _ in range(max(timeline.num_ranks, 1))]
    if any(transfer.issued_s for transfer in run.traffic.transfers):
        left_out = _made(run.timeline) - _made(timeline)
        for transfer in run.traffic.transfers:
            issued = [max(0.0, issued_s - timeline.origin_s) for issued_s in transfer.issued_s]
            for rank, issued_s in zip(transfer.ranks, issued, strict=False):
                if (rank, transfer.id) not in left_out:
                    pending[rank].append((issued_s, max(issued)))
    else:
        for spans in meetings:
            start_s = _start_s(spans)
            for span in spans:
                pending[span.rank].append((span.start_s, min(start_s, span.end_s)))
    return [union((start, end) for start, end in each if start < end) for each in pending]
