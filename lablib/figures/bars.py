"""From spans to bars: one bar a span while they are few, and an honest smaller number when they are many.

A screen is about a thousand pixels wide, so 200,000 spans cannot be seen one by one. Past `MANY_SPANS`:

    1. Neighbours on a lane that are of one kind and less than a `step` apart become one bar. The step is smaller than
       a pixel, so no gap that could be seen is closed.
    2. If kinds alternate faster than a step, the spans of a step become one bar of the kind that was busiest in it.

A bar keeps the busy seconds, the count, the operations and bytes of what it stands for, so nothing is lost from the
sums: the busy seconds of a lane are the same before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lablib.figures.style import LOOKS, kind_of_span
from lablib.run import Span

KINDS = tuple(LOOKS)
MANY_SPANS, MOST_BARS = 2000, 6000


@dataclass(frozen=True)
class Bars:
    """Parallel arrays, one entry a bar. `first` is the index of the bar's first span in the list it was made from."""

    lane: np.ndarray
    kind: np.ndarray  # index into KINDS
    start_s: np.ndarray
    end_s: np.ndarray
    busy_s: np.ndarray  # time in which a span ran; less than end_s - start_s where gaps were closed
    count: np.ndarray
    flops: np.ndarray
    size_bytes: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True)
class Picture:
    """The bars to draw and what was done to the spans to get them. `step_s` is 0 when every span is a bar."""

    bars: Bars
    num_spans: int
    step_s: float = 0.0
    is_mixed: bool = False

    def note(self, seconds_in_words: str) -> str:
        """What the reader must know about merging, as a sentence; empty if nothing was merged."""
        if self.step_s == 0.0:
            return ""
        mixed = "; where kinds alternate faster, a bar has the kind that was busiest" if self.is_mixed else ""
        return (
            f"{self.num_spans:,} spans are drawn as {len(self.bars):,} bars: neighbours of one kind less than "
            f"{seconds_in_words} apart are joined{mixed}."
        )


def picture_of(spans: Sequence[Span], lanes: Mapping[tuple[int, str], int], window_s: float) -> Picture:
    """The bars for these spans.

    Args:
        spans: the spans to draw; every (rank, stream) is a key of `lanes`.
        lanes: index of the lane of each rank and stream.
        window_s: width of the picture in seconds, which decides what is too small to see.
    """
    bars = _one_each(spans, lanes)
    if len(spans) <= MANY_SPANS or window_s <= 0:
        return Picture(bars, len(spans))
    step_s = window_s / 1600
    while True:
        joined = _join(bars, _runs(bars, step_s))
        if len(joined) <= MOST_BARS:
            return Picture(joined, len(spans), step_s)
        mixed = _join(joined, _cells(joined, step_s))
        mixed = _join(mixed, _runs(mixed, step_s))
        if len(mixed) <= MOST_BARS:
            return Picture(mixed, len(spans), step_s, is_mixed=True)
        step_s *= 2


def stretches_of(bars: Bars, gap_s: float) -> Bars:
    """What a letter is written on: a stretch of one kind without a gap of `gap_s`, or one communication."""
    if not len(bars):
        return bars
    return _join(bars, _runs(bars, gap_s) | (bars.kind == KINDS.index("communication")))


def _one_each(spans: Sequence[Span], lanes: Mapping[tuple[int, str], int]) -> Bars:
    """One bar a span, ordered by lane and start."""
    kinds: dict[tuple[str, str], int] = {}
    for span in spans:
        if (span.stream, span.phase) not in kinds:
            kinds[span.stream, span.phase] = KINDS.index(kind_of_span(span))
    numbers = np.array([(s.start_s, s.end_s, s.flops, s.size_bytes) for s in spans], dtype=float).reshape(-1, 4)
    lane = np.array([lanes[s.rank, s.stream] for s in spans], dtype=int)
    kind = np.array([kinds[s.stream, s.phase] for s in spans], dtype=int)
    order = np.lexsort((numbers[:, 0], lane))
    lane, kind, numbers = lane[order], kind[order], numbers[order]
    start_s, end_s, flops, size_bytes = numbers.T
    # Spans of one lane may overlap (two asynchronous collectives); the second then only adds what is not covered yet.
    covered_s = np.concatenate(([-np.inf], _latest_end(lane, end_s)[:-1])) if len(lane) else end_s
    covered_s[_is_new(lane)] = -np.inf
    busy_s = np.maximum(0.0, end_s - np.maximum(start_s, covered_s))
    return Bars(lane, kind, start_s, end_s, busy_s, np.ones(len(lane), int), flops, size_bytes, order)


def _is_new(values: np.ndarray) -> np.ndarray:
    """True where a value differs from the one before it, and for the first."""
    return np.concatenate(([True], values[1:] != values[:-1])) if len(values) else np.zeros(0, bool)


def _latest_end(lane: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """The largest end so far on the lane, for bars ordered by lane and start."""
    latest = end_s.copy()
    for index in np.unique(lane):
        here = lane == index
        latest[here] = np.maximum.accumulate(end_s[here])
    return latest


def _runs(bars: Bars, step_s: float) -> np.ndarray:
    """True where a new run begins: another lane, another kind, or a gap of a step or more."""
    starts = _is_new(bars.lane) | _is_new(bars.kind)
    gap_s = bars.start_s[1:] - _latest_end(bars.lane, bars.end_s)[:-1]
    starts[1:] |= gap_s >= step_s
    return starts


def _cells(bars: Bars, step_s: float) -> np.ndarray:
    """True where a new cell begins: bars shorter than a step share the cell their middle falls in."""
    cell = np.floor((bars.start_s + bars.end_s) / (2 * step_s)).astype(int)
    is_long = bars.end_s - bars.start_s >= step_s
    after_long = np.concatenate(([False], is_long[:-1]))
    return _is_new(bars.lane) | _is_new(cell) | is_long | after_long


def _join(bars: Bars, starts: np.ndarray) -> Bars:
    """One bar for each group of consecutive bars; `starts` is True at the first of each group."""
    first = np.flatnonzero(starts)
    group = np.cumsum(starts) - 1
    share = np.zeros((len(first), len(KINDS)))
    np.add.at(share, (group, bars.kind), bars.busy_s)
    # A group of zero-length spans has no busiest kind; it keeps its first.
    kind = np.where(share.any(axis=1), share.argmax(axis=1), bars.kind[first])

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, first)

    return Bars(
        lane=bars.lane[first],
        kind=kind,
        start_s=bars.start_s[first],
        end_s=np.maximum.reduceat(bars.end_s, first),
        busy_s=total(bars.busy_s),
        count=total(bars.count),
        flops=total(bars.flops),
        size_bytes=total(bars.size_bytes),
        first=bars.first[first],
    )
