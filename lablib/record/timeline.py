"""Timeline of a run: spans of work per rank and stream, and the times computed from them.

Makespan, overlap and exposed communication come from the spans alone, the same for simulated and measured runs.

Terms:
    stream    a queue of work on one rank that runs in order: "compute"; "comm:<group>" for one process group;
              "compute:callbacks" for callbacks on futures of communications; "loader 0" for a process that loads
              data for the rank.
    busy      time in which a stream has work.
    exposed   time in which a rank communicates and does not compute; the rest of its communication is hidden.
    waiting   time in which it does neither, as a communication that it has joined cannot start without another rank.
    idle      none of these: it has nothing to do.

A run may have hundreds of thousands of spans. They are grouped by rank and stream once, at the first query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lablib.record.draw import draw
from lablib.record.phase_path import is_inside
from lablib.record.rank_text import ranks_in_words
from lablib.signature import checked
from lablib.text.units import plural

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from lablib.record.memory import Memory

COMPUTE = "compute"
CALLBACKS = "compute:callbacks"
WAIT = "wait:"  # prefix of streams of waiting time


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one stream of one rank."""

    rank: int  # global rank
    # "compute", "compute:callbacks", "comm:<group>", or "wait:<group>" from its call until the last member's
    stream: str
    name: str  # the operation, e.g. "aten.mm" or "all_reduce"
    # the name of the innermost `torch.profiler.record_function` block of the program, otherwise "forward", "backward",
    # "optimizer", or "compute" for other work (passes.py). Communication has the phase of its call.
    phase: str
    start_s: float  # start_s, end_s: seconds since the launch began (virtual seconds on `sim`)
    end_s: float
    flops: float = 0.0  # floating-point operations (a multiply-add counts as two)
    size_bytes: float = 0.0  # bytes read and written by an op; bytes of the payload of a communication
    dtype: str = ""  # dtype in which an op computed, as in `Device.peak_flops_per_s`; "" if irrelevant
    source: str = ""  # the line of the program that made it, "train.py:12: loss.backward()"; "" if unknown
    is_recompute: bool = False  # computed a second time, for backward (activation checkpointing)
    # for a communication: the `id` of its `Transfer`, the same on every rank; None: unknown
    transfer_id: int | None = None
    # for a communication: index of this rank in the `ranks` of its `Transfer`; 0 sends a message, 1 receives
    place: int = 0
    outer_phases: tuple[str, ...] = ()  # the names of the program's blocks around its phase, outermost first

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s

    @property
    def is_communication(self) -> bool:
        """Whether it is on a communication stream."""
        return self.stream.startswith("comm")

    @property
    def is_compute(self) -> bool:
        """Whether it is the rank's own compute: on its compute stream, or in a callback."""
        return self.stream in (COMPUTE, CALLBACKS)

    @property
    def is_waiting(self) -> bool:
        """Whether it is the time between the rank's call and the last member's; the rank may compute in that time."""
        return self.stream.startswith(WAIT)


@dataclass(frozen=True)
class Timeline:
    """The spans of a run, ordered by rank, stream and start. Times in seconds."""

    spans: tuple[Span, ...]  # the work of all ranks
    num_ranks: int  # number of ranks; some may have no span
    # (first, last) second, for a part of a run; None: all of it. See `between`.
    window: tuple[float, float] | None = None
    # the time since the launch that is 0 here; not 0 if earlier spans were removed. See `without`.
    origin_s: float = 0.0
    deaths: tuple[tuple[int, float], ...] = ()  # (rank, second) of ranks that died in a fault
    simulated: tuple[int, ...] | None = None  # the simulated ranks, if the others were phantoms; None: all
    notes: tuple[str, ...] = ()  # notes below each of its figures, such as that ranks shared a GPU

    @staticmethod
    @checked
    def of(
        spans: Iterable[Span],
        num_ranks: int,
        deaths: Sequence[tuple[int, float]] = (),
        simulated: tuple[int, ...] | None = None,
        notes: Sequence[str] = (),
    ) -> Timeline:
        """A timeline with its spans in order: rank, stream, start."""
        ordered = sorted(spans, key=lambda s: (s.rank, s.stream != COMPUTE, s.stream, s.start_s))
        return Timeline(tuple(ordered), num_ranks, deaths=tuple(deaths), simulated=simulated, notes=tuple(notes))

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks with records: all except phantoms."""
        return range(self.num_ranks) if self.simulated is None else self.simulated

    @property
    def start_s(self) -> float:
        """Its begin: 0, the launch, or the start of the window."""
        return self.window[0] if self.window else 0.0

    @cached_property
    def end_s(self) -> float:
        """Its end: the end of the last span, or of the window."""
        return self.window[1] if self.window else max((span.end_s for span in self.spans), default=0.0)

    @property
    def makespan_s(self) -> float:
        """Seconds from the launch to the end of the last span, or the length of the window."""
        return self.end_s - self.start_s

    @cached_property
    def _by_rank(self) -> dict[int, list[Span]]:
        ranks: dict[int, list[Span]] = {}
        for span in self.spans:
            ranks.setdefault(span.rank, []).append(span)
        return ranks

    def _spans_of(self, rank: int) -> Sequence[Span]:
        check_rank(rank, self.num_ranks, self.simulated)
        return self._by_rank.get(rank, ())

    @cached_property
    def _busy(self) -> dict[tuple[int, str], list[Interval]]:
        """Busy intervals of each rank and stream; "comm", "wait" and "work" include all streams of a kind."""
        intervals: dict[tuple[int, str], list[Interval]] = {}
        for s in self.spans:
            intervals.setdefault((s.rank, s.stream), []).append((s.start_s, s.end_s))
            # A loader's work ("loader 0") is none of these: the rank itself may be idle.
            kind = "work" if s.is_compute else "wait" if s.is_waiting else "comm" if s.is_communication else s.stream
            intervals.setdefault((s.rank, kind), []).append((s.start_s, s.end_s))
        return {key: union(some) for key, some in intervals.items()}

    @checked
    def select(self, rank: int | None = None, stream: str | None = None, phase: str | None = None) -> list[Span]:
        """The spans of one rank, stream or phase (None: any). `stream="comm"` means every communication stream.

        A phase includes nested blocks.
        """
        return [
            s
            for s in (self.spans if rank is None else self._spans_of(rank))
            if (stream is None or s.stream == stream or (stream == "comm" and s.is_communication))
            and (phase is None or is_inside(phase, s.phase, s.outer_phases))
        ]

    @checked
    def without(self, phase: str) -> Timeline:
        """The timeline without blocks of this name, timed from its first remaining span: a step without its setup.

        Nested blocks are removed too, at any depth.
        """
        kept = [s for s in self.spans if not is_inside(phase, s.phase, s.outer_phases)]
        first_s = min((s.start_s for s in kept), default=0.0)
        moved = [replace(s, start_s=s.start_s - first_s, end_s=s.end_s - first_s) for s in kept]
        deaths = tuple((rank, at_s - first_s) for rank, at_s in self.deaths)
        origin_s = self.origin_s + first_s
        return replace(self, spans=tuple(moved), window=None, origin_s=origin_s, deaths=deaths)

    @checked
    def between(self, start_s: float, end_s: float) -> Timeline:
        """The part of the run between two times, for a closer look: `figure_timeline(timeline.between(a, b))`.

        Times are not shifted. A span that reaches beyond is cut, with its FLOPs and bytes in proportion, so adjacent
        parts add up to the whole. A span of zero duration belongs to the part it begins.

        Raises:
            ValueError: unless start_s < end_s.
        """
        if not start_s < end_s:
            raise ValueError(f"a part of a run begins before it ends: got {start_s} s to {end_s} s.")
        inside = (s for s in self.spans if s.start_s < end_s and (s.end_s > start_s or s.start_s >= start_s))
        deaths = tuple((rank, at_s) for rank, at_s in self.deaths if start_s <= at_s <= end_s)
        spans = tuple(_cut(s, start_s, end_s) for s in inside)
        return replace(self, spans=spans, window=(start_s, end_s), deaths=deaths)

    @checked
    def streams(self, rank: int) -> list[str]:
        """The streams of this rank with work, compute first; without waiting."""
        return sorted(
            {s.stream for s in self._spans_of(rank) if not s.is_waiting}, key=lambda name: (name != COMPUTE, name)
        )

    @checked
    def busy_s(self, rank: int, stream: str = COMPUTE) -> float:
        """Seconds in which the rank's stream had work. `stream="comm"`: any communication stream."""
        check_rank(rank, self.num_ranks, self.simulated)
        return length(self._busy.get((rank, stream), []))

    @checked
    def exposed_s(self, rank: int) -> float:
        """Seconds in which the rank communicated and did not compute: |communication| - |communication and compute|."""
        check_rank(rank, self.num_ranks, self.simulated)
        communication, compute = (self._busy.get((rank, stream), []) for stream in ("comm", "work"))
        return length(communication) - overlap(communication, compute)

    @checked
    def compute_idle_s(self, rank: int) -> float:
        """Seconds of the makespan without compute: communication, waiting and idle time."""
        return self.makespan_s - self.busy_s(rank)

    @checked
    def waiting_s(self, rank: int) -> float:
        """Seconds in which the rank was not busy and waited in a communication for another rank."""
        check_rank(rank, self.num_ranks, self.simulated)
        waits = self._busy.get((rank, "wait"), [])
        return length(self.states(rank)["waiting"]) if waits else 0.0

    @checked
    def idle_s(self, rank: int) -> float:
        """Seconds of the makespan in which the rank neither computed nor communicated nor waited."""
        return length(self.states(rank)["idle"])

    @checked
    def states(self, rank: int) -> dict[str, list[Interval]]:
        """Intervals "busy" (compute), "exposed" (communication), "waiting" and "idle", which cover every second
        once.
        """
        check_rank(rank, self.num_ranks, self.simulated)
        left, states = [(self.start_s, self.end_s)] if self.start_s < self.end_s else [], {}
        for state, kind in (("busy", "work"), ("exposed", "comm"), ("waiting", "wait")):
            taken = self._busy.get((rank, kind), [])
            states[state], left = intersection(left, taken), difference(left, taken)
        return states | {"idle": left}

    def table(self) -> pd.DataFrame:
        """One row per span."""
        import pandas as pd

        names = [field.name for field in fields(Span)]
        return pd.DataFrame([{name: getattr(s, name) for name in names} for s in self.spans], columns=names)

    def figure(self, **options: Any) -> go.Figure:
        """The timeline as a figure: one lane per rank and stream."""
        return draw("figure_timeline", self, **options)

    @checked
    def to_perfetto(self, path: str | Path, memory: Memory | None = None) -> Path:
        """Write Trace Event JSON for ui.perfetto.dev: a process for each rank, a thread for each stream.

        Args:
            path: the file to write; returned as a `Path`.
            memory: of the same run; adds a counter for each rank and category of memory.
        """
        from lablib.record.perfetto import write_trace

        return write_trace(self, Path(path), memory)

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __repr__(self) -> str:
        return (
            f"Timeline({plural(len(self.spans), 'spans')}, {plural(self.num_ranks, 'ranks')}, makespan "
            f"{self.makespan_s:.3g} s)"
        )


Interval = tuple[float, float]


def check_rank(rank: int | None, num_ranks: int, simulated: Sequence[int] | None = None) -> None:
    """Raise ValueError for a rank that the run does not have or did not simulate; None is valid."""
    if rank is not None and not 0 <= rank < num_ranks:
        has = f"ranks 0 to {num_ranks - 1}" if num_ranks else "no ranks"
        raise ValueError(f"this run has {has}: got rank {rank}; give one of those")
    if rank is not None and simulated is not None and rank not in simulated:
        raise ValueError(
            f"rank {rank} was not simulated: it was taken to do the same as a rank of its groups; give one of "
            f"{ranks_in_words(simulated)}, or launch with it in simulate="
        )


def _cut(span: Span, start_s: float, end_s: float) -> Span:
    if start_s <= span.start_s and span.end_s <= end_s:
        return span
    first_s, last_s = max(span.start_s, start_s), min(span.end_s, end_s)
    share = (last_s - first_s) / span.duration_s
    return replace(span, start_s=first_s, end_s=last_s, flops=share * span.flops, size_bytes=share * span.size_bytes)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint, sorted intervals covering the same points."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def overlap(a: list[Interval], b: list[Interval]) -> float:
    """Total length of the intersection of two lists of disjoint, sorted intervals."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return total


def intersection(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """The intersection of two lists of disjoint, sorted intervals, sorted."""
    if not a or not b:
        return []
    import numpy as np  # on demand: a replay needs none

    both = [np.array(some) for some in (a, b)]
    edges = np.unique(np.concatenate([some.ravel() for some in both]))
    # Between two adjacent edges, each list covers everything or nothing.
    inside = np.ones(len(edges) - 1, bool)
    for some in both:
        begun, ended = (np.searchsorted(some[:, side], edges[:-1], "right") for side in (0, 1))
        inside &= begun > ended
    return list(zip(edges[:-1][inside].tolist(), edges[1:][inside].tolist(), strict=True))


def difference(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """The part of `a` outside `b`; both are disjoint and sorted."""
    edges = [-inf, *(edge for interval in b for edge in interval), inf]
    return intersection(a, list(zip(edges[::2], edges[1::2], strict=True)))
