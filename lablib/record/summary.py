"""Time of a run by rank: compute, exposed communication, waiting for others, and idle.

Every second of the makespan of a rank is exactly one of four:

    busy      its compute stream has work
    exposed   it communicates and does not compute
    waiting   neither, and a communication that it has joined cannot start because a member is missing
    idle      none of these: it has nothing to do

    busy + exposed + waiting + idle = makespan

A rank waits in a communication from its own call until the last member's. That time is attributed to the member that
called last (the straggler; of several, the lowest rank); if two communications wait at the same time, to the straggler
of the one joined first.

    HFU = sum of FLOPs / peak(dtype of the op) / makespan        a device at its peak all the time has 1
    MFU = the same without recomputation for backward

Source: Chowdhery et al., "PaLM", 2022, arXiv 2204.02311, appendix B (MFU); Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022, arXiv 2205.05198, section 6 (HFU and MFU).
Simplified: MFU counts the FLOPs of the operators that ran, not a formula of the model. A span without a dtype counts at
the float32 peak.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lablib.hardware.device import Device
from lablib.record.memory import Memory
from lablib.record.timeline import Interval, Timeline, length, overlap, union
from lablib.record.traffic import Traffic, Transfer
from lablib.signature import check_type, whole_number
from lablib.text.markup import paragraph, table_html
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Summary:
    """Time, FLOPs, bytes and utilization per rank: in every tuple one entry per rank of `ranks`; seconds per step."""

    step_time_s: float  # the makespan, divided by `steps`
    busy_s: tuple[float, ...]  # time in which the compute stream had work
    communication_s: tuple[float, ...]  # time in which a communication stream had work, hidden behind compute or not
    exposed_s: tuple[float, ...]  # communication that compute did not hide
    waiting_s: tuple[float, ...]  # time in which only a communication was pending, as another rank joined later
    idle_s: tuple[float, ...]  # the rest of the step. With `waiting_s`, the bubble of a pipeline.
    # time that others waited for this rank; its sum over ranks equals the sum of `waiting_s`
    straggler_s: tuple[float, ...]
    flops: tuple[float, ...]  # floating-point operations, recomputation included
    sent_bytes: tuple[float, ...]  # bytes sent by the rank
    # largest memory held at once in the whole run; None if not counted
    peak_memory_bytes: tuple[float, ...] | None = None
    # mfu, hfu: fractions of the device's peak, in [0, 1]; None if the device is unknown
    mfu: tuple[float, ...] | None = None
    hfu: tuple[float, ...] | None = None
    steps: int = 1  # number of steps in the run
    ranks: tuple[int, ...] = ()  # all ranks except phantoms. Default: as many as there are entries, from 0 on.

    def __post_init__(self) -> None:
        check_type("busy_s of a Summary", self.busy_s, Sequence)
        if not self.ranks:
            object.__setattr__(self, "ranks", tuple(range(len(self.busy_s))))

    @staticmethod
    def of(
        timeline: Timeline,
        traffic: Traffic | None = None,
        memory: Memory | None = None,
        device: Device | None = None,
        steps: int = 1,
    ) -> Summary:
        """The summary of a timeline, for a run or a part of it (`Timeline.without`, `Timeline.between`).

        Args:
            timeline: the spans to summarize.
            traffic: the communications of the same run, for bytes and waiting; those outside the timeline are ignored.
            memory: the memory of the same run.
            device: the device for MFU and HFU.
            steps: number of equal steps in the timeline: times, FLOPs and bytes are per step.

        Raises:
            ValueError: `steps` is not a whole number of 1 or more.
        """
        steps = whole_number("steps", steps, example=1)
        check_type("timeline", timeline, Timeline)
        check_type("traffic", traffic, Traffic | None)
        check_type("memory", memory, Memory | None)
        check_type("device", device, Device | None)
        makespan_s, n = timeline.makespan_s, timeline.num_ranks
        transfers = _within(traffic or Traffic(), timeline)
        compute, communication = _intervals(timeline)
        waits = [
            _waits(pending, union(compute[rank] + communication[rank]))
            for rank, pending in enumerate(_pending(transfers, timeline))
        ]
        busy_s = [length(compute[rank]) for rank in range(n)]
        exposed_s = [length(communication[r]) - overlap(communication[r], compute[r]) for r in range(n)]
        waiting_s = [math.fsum(seconds for _, seconds in of_rank) for of_rank in waits]
        idle_s = [makespan_s - busy_s[r] - exposed_s[r] - waiting_s[r] for r in range(n)]
        each = _shares(timeline, device, makespan_s)
        ranks = tuple(timeline.ranks)
        counted = memory if memory is not None and memory.is_known else None
        peaks = None if counted is None else tuple(float(counted.peak_bytes(rank)) for rank in ranks)

        def of_ranks(values: Sequence[float], steps: int = 1) -> tuple[float, ...]:
            return tuple(values[rank] / steps for rank in ranks)

        return Summary(
            step_time_s=makespan_s / steps,
            busy_s=of_ranks(busy_s, steps),
            communication_s=of_ranks([length(communication[rank]) for rank in range(n)], steps),
            exposed_s=of_ranks(exposed_s, steps),
            waiting_s=of_ranks(waiting_s, steps),
            # Remove the rounding error of the sum.
            idle_s=of_ranks([s if s > 1e-12 * makespan_s else 0.0 for s in idle_s], steps),
            straggler_s=of_ranks(_blame(waits, n), steps),
            flops=of_ranks(_flops(timeline), steps),
            sent_bytes=of_ranks(_sent_bytes(transfers, n), steps),
            peak_memory_bytes=peaks,
            mfu=each and of_ranks(each[0]),
            hfu=each and of_ranks(each[1]),
            steps=steps,
            ranks=ranks,
        )

    @property
    def num_ranks(self) -> int:
        """Number of simulated ranks."""
        return len(self.busy_s)

    @property
    def bubble_fraction(self) -> float:
        """Fraction of the step in which ranks neither compute nor communicate, as a mean: waiting and idle time.

        In a pipeline this is the bubble, as a stage waits for the one before it. GPipe and 1F1B with p equal stages, m
        micro-batches and links that take no time: (p - 1) / (m + p - 1) (Huang et al., "GPipe", 2018, arXiv 1811.06965;
        Narayanan et al., SC21, arXiv 2104.04473, section 2.2).
        """
        bubble_s = _mean(self.waiting_s) + _mean(self.idle_s)
        return bubble_s / self.step_time_s if self.step_time_s > 0 else 0.0

    @property
    def straggler(self) -> int | None:
        """The rank for which the others waited longest; None if no rank waited."""
        worst_s = max(self.straggler_s, default=0.0)
        return self.ranks[self.straggler_s.index(worst_s)] if worst_s > 0 else None

    def table(self) -> pd.DataFrame:
        """One row per rank, then "all": means of times and fractions, sums of FLOPs and bytes sent, the largest
        peak.
        """
        import pandas as pd

        frame = pd.DataFrame({name: getattr(self, name) for name in _COLUMNS if getattr(self, name) is not None})
        frame.index = pd.Index([str(rank) for rank in self.ranks], name="rank")
        total = {name: frame[name].agg(_COLUMNS[name]) for name in frame.columns}
        return pd.concat([frame, pd.DataFrame(total, index=pd.Index(["all"], name="rank"))])

    def sentence(self) -> str:
        """The step in one sentence, with means over the ranks."""
        parts = [f"{self._share(self.busy_s)} compute", f"{self._share(self.exposed_s)} exposed communication"]
        mostly = f" (mostly for rank {self.straggler})" if self.straggler is not None else ""
        parts += [f"{self._share(self.waiting_s)} waiting{mostly}", f"{self._share(self.idle_s)} idle"]
        text = f"step {format_quantity(self.step_time_s, 's')}: {', '.join(parts)}"
        return text + (f"; MFU {_mean(self.mfu):.0%}" if self.mfu else "")

    def _share(self, seconds: Sequence[float]) -> str:
        return f"{_mean(seconds) / self.step_time_s:.0%}" if self.step_time_s > 0 else "0%"

    def __repr__(self) -> str:
        return f"Summary({plural(self.num_ranks, 'ranks')}, {self.sentence()})"

    def _repr_html_(self) -> str:
        return paragraph(self.sentence()) + table_html(self.table(), max_rows=20, float_format="{:.4g}".format)


# The columns of the table, and the aggregation over ranks in its last row.
_COLUMNS = {
    "busy_s": "mean",
    "exposed_s": "mean",
    "waiting_s": "mean",
    "idle_s": "mean",
    "communication_s": "mean",
    "straggler_s": "mean",
    "flops": "sum",
    "mfu": "mean",
    "hfu": "mean",
    "sent_bytes": "sum",
    "peak_memory_bytes": "max",
}

# An interval in which a rank waits unless it is busy, and the rank it waits for.
_Pending = tuple[Interval, int]


def _within(traffic: Traffic, timeline: Timeline) -> list[Transfer]:
    """The communications in the timeline's own seconds, with the bytes sent inside its window."""
    origin_s = timeline.origin_s
    if timeline.window is None and not origin_s:
        return list(traffic.transfers)
    first_s, last_s = timeline.window or (0.0, math.inf)
    transfers = []
    for t in traffic.transfers:
        start_s, end_s = t.start_s - origin_s, t.end_s - origin_s
        share = _share_inside(start_s, end_s, first_s, last_s)
        sent_bytes = tuple(share * sent for sent in t.sent_bytes)
        issued_s = tuple(s - origin_s for s in t.issued_s)
        transfers.append(replace(t, start_s=start_s, end_s=end_s, issued_s=issued_s, sent_bytes=sent_bytes))
    return transfers


def _share_inside(start_s: float, end_s: float, first_s: float, last_s: float) -> float:
    """Fraction of a communication inside the window. One of zero duration belongs to the window that it begins."""
    if start_s == end_s:
        return float(first_s <= start_s < last_s)
    return max(0.0, min(end_s, last_s) - max(start_s, first_s)) / (end_s - start_s)


def _intervals(timeline: Timeline) -> tuple[list[list[Interval]], list[list[Interval]]]:
    """For each rank: compute and communication intervals. One pass, as a timeline may have 1,000 ranks."""
    compute: list[list[Interval]] = [[] for _ in range(timeline.num_ranks)]
    communication: list[list[Interval]] = [[] for _ in range(timeline.num_ranks)]
    for span in timeline.spans:
        if span.is_compute:
            compute[span.rank].append((span.start_s, span.end_s))
        elif span.is_communication:
            communication[span.rank].append((span.start_s, span.end_s))
    return [union(each) for each in compute], [union(each) for each in communication]


def _pending(transfers: Iterable[Transfer], timeline: Timeline) -> list[list[_Pending]]:
    """For each rank, the intervals between its calls and the last member's, in the order of its calls."""
    pending: list[list[_Pending]] = [[] for _ in range(timeline.num_ranks)]
    for t in transfers:
        last_s = max(t.issued_s, default=-math.inf)
        until_s = min(t.start_s, last_s, timeline.end_s)
        if until_s <= timeline.start_s:
            continue
        last = t.ranks[t.issued_s.index(last_s)]
        for rank, issued_s in zip(t.ranks, t.issued_s, strict=True):
            if issued_s < until_s:
                pending[rank].append(((max(issued_s, timeline.start_s), until_s), last))
    return [sorted(of_rank) for of_rank in pending]


def _waits(pending: Iterable[_Pending], occupied: list[Interval]) -> list[tuple[int, float]]:
    """(rank waited for, seconds): the pending intervals without busy time, each second once."""
    waits, covered_until_s = [], -math.inf
    for (start_s, end_s), last in pending:
        start_s = max(start_s, covered_until_s)
        if start_s < end_s:
            waits.append((last, end_s - start_s - overlap([(start_s, end_s)], occupied)))
            covered_until_s = end_s
    return waits


def _blame(waits: Iterable[Iterable[tuple[int, float]]], num_ranks: int) -> list[float]:
    seconds: list[list[float]] = [[] for _ in range(num_ranks)]
    for of_rank in waits:
        for last, waited_s in of_rank:
            seconds[last].append(waited_s)
    return [math.fsum(each) for each in seconds]


def _flops(timeline: Timeline) -> list[float]:
    flops = [0.0] * timeline.num_ranks
    for span in timeline.spans:
        flops[span.rank] += span.flops
    return flops


def _shares(
    timeline: Timeline, device: Device | None, makespan_s: float
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """MFU and HFU of each rank."""
    if device is None:
        return None
    once_s, all_s = [0.0] * timeline.num_ranks, [0.0] * timeline.num_ranks
    for span in timeline.spans:
        seconds = span.flops / device.peak(span.dtype or "float32") if span.flops else 0.0
        all_s[span.rank] += seconds
        once_s[span.rank] += 0.0 if span.is_recompute else seconds
    divisor_s = makespan_s or 1.0
    return tuple(s / divisor_s for s in once_s), tuple(s / divisor_s for s in all_s)


def _sent_bytes(transfers: Iterable[Transfer], num_ranks: int) -> list[float]:
    sent_bytes = [0.0] * num_ranks
    for transfer in transfers:
        for rank, sent in zip(transfer.ranks, transfer.sent_bytes, strict=True):
            sent_bytes[rank] += sent
    return sent_bytes


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
