"""From spans to bars: one bar per span while they are few, fewer bars of the same busy time when they are many.

A screen is about a thousand pixels wide, so 200,000 spans are not visible one by one. Past `MANY_SPANS`:

    1. Neighbours of one lane and one kind that touch become one bar, without loss.
    2. If these are still more than `MAX_BARS`, bars shorter than a `step` (at first less than a pixel, doubled until
       the number fits) are gathered in cells of one step. The kinds of a cell are side by side, each as long as its
       share of the cell's work, and all as high as the busy share of the cell.
    3. Cells of one kind, less than a step apart and equally high to an eighth, become one bar.

So the area of a bar, its length times its `height`, is the busy time of its spans: for each lane and kind the sum is
the same before and after, to rounding. No lane and no kind is lost, and no work moves by more than two steps within
its cell. A bar keeps the count, the operations and the bytes of its spans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lablib.figures.style import LOOKS, kind_of_span
from lablib.run import Span

KINDS = tuple(LOOKS)
MANY_SPANS, MAX_BARS = 2000, 6000
STEPS, HEIGHTS = 1600, 8  # first steps of a window; number of different heights when cells are joined
_TOUCH = 1e-9  # share of the window: a gap by rounding


@dataclass(frozen=True)
class Bars:
    """Parallel arrays, one entry per bar. `first` is the index of the bar's first span in the list of spans."""

    lane: np.ndarray
    kind: np.ndarray  # index into KINDS
    start_s: np.ndarray
    end_s: np.ndarray
    busy_s: np.ndarray  # time in which a span ran; less than end_s - start_s if gaps were closed
    count: np.ndarray
    flops: np.ndarray
    size_bytes: np.ndarray
    first: np.ndarray
    height: np.ndarray  # share of the lane: 1 for a span, the busy share of its length for joined spans

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True)
class DrawnBars:
    """The bars to draw, the number of spans, and the step of the joined cells; `step_s` is 0 if no gap is closed."""

    bars: Bars
    num_spans: int
    step_s: float = 0.0

    def note(self, seconds_in_words: str) -> str:
        """A sentence on merged spans; empty if nothing was merged."""
        if len(self.bars) == self.num_spans:
            return ""
        text = f"{self.num_spans:,} spans are drawn as {len(self.bars):,} bars: "
        if not self.step_s:
            return text + "neighbours of one kind that touch are joined."
        return (
            f"{text}within {seconds_in_words}, spans of one kind are joined, as long as their share of the work and as "
            "high as the share of time in use; timeline.between(start_s, end_s) draws a part in full."
        )


def picture_of(spans: Sequence[Span], lanes: Mapping[tuple[int, str], int], window_s: float) -> DrawnBars:
    """The bars for these spans, in a picture of `window_s` seconds; `lanes` has the lane of each rank and stream."""
    bars = _one_each(spans, lanes)
    if len(spans) <= MANY_SPANS or window_s <= 0:
        return DrawnBars(bars, len(spans))
    touching = _join(bars, _runs(bars, _TOUCH * window_s))
    if len(touching) <= MAX_BARS:
        return DrawnBars(touching, len(spans))
    step_s = window_s / STEPS
    while True:
        cells = _join(touching, _cells(touching, step_s))
        joined = _join(cells, _runs(cells, step_s) | _is_new(np.round(HEIGHTS * cells.height)))
        if len(joined) <= MAX_BARS or step_s > window_s:
            return DrawnBars(joined, len(spans), step_s)
        step_s *= 2


def is_alone(bars: Bars, gap_s: float) -> np.ndarray:
    """True for a bar on an empty lane for `gap_s` before and after it."""
    starts = _is_new(bars.lane)
    starts[1:] |= bars.start_s[1:] - _latest_end(bars.lane, bars.end_s)[:-1] >= gap_s
    return starts & np.append(starts[1:], len(bars) > 0)[: len(bars)]


def stretches_of(bars: Bars, gap_s: float) -> Bars:
    """The stretches that get a letter: of one kind without a gap of `gap_s`, or one communication."""
    if not len(bars):
        return bars
    return _join(bars, _runs(bars, gap_s) | (bars.kind == KINDS.index("communication")))


def _one_each(spans: Sequence[Span], lanes: Mapping[tuple[int, str], int]) -> Bars:
    kinds: dict[tuple[str, str, bool], int] = {}
    for span in spans:
        if (span.stream, span.phase, span.is_recompute) not in kinds:
            kinds[span.stream, span.phase, span.is_recompute] = KINDS.index(kind_of_span(span))
    numbers = np.array([(s.start_s, s.end_s, s.flops, s.size_bytes) for s in spans], dtype=float).reshape(-1, 4)
    lane = np.array([lanes[s.rank, s.stream] for s in spans], dtype=int)
    kind = np.array([kinds[s.stream, s.phase, s.is_recompute] for s in spans], dtype=int)
    order = np.lexsort((numbers[:, 0], lane))
    lane, kind, numbers = lane[order], kind[order], numbers[order]
    start_s, end_s, flops, size_bytes = numbers.T
    # Spans of one lane may overlap (two asynchronous collectives); the second then adds only its uncovered part.
    covered_s = np.concatenate(([-np.inf], _latest_end(lane, end_s)[:-1])) if len(lane) else end_s
    covered_s[_is_new(lane)] = -np.inf
    busy_s = np.maximum(0.0, end_s - np.maximum(start_s, covered_s))
    count, height = np.ones(len(lane), int), np.ones(len(lane))
    return Bars(lane, kind, start_s, end_s, busy_s, count, flops, size_bytes, order, height)


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
    """One bar for each kind in each group of consecutive bars; `starts` is True at the first of each group.

    The kinds of a group share its extent in the order in which they begin, in proportion to their busy seconds.
    """
    if not len(bars):
        return bars
    group = np.cumsum(starts) - 1
    # Of each pair of group and kind: its first bar, and the sums over its bars.
    pair, first, place = np.unique(group * len(KINDS) + bars.kind, return_index=True, return_inverse=True)
    order = np.argsort(first)  # bars are in order of time, so this is the order in which the kinds begin

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(place, values, len(pair))[order]

    first, busy_s, of = first[order], total(bars.busy_s), group[first[order]]
    heads = np.flatnonzero(starts)
    begin_s, end_s = bars.start_s[heads][of], np.maximum.reduceat(bars.end_s, heads)[of]
    done_s = np.cumsum(busy_s) - busy_s  # by earlier kinds; of the own group alone after the next line
    done_s -= done_s[_is_new(of)][of]
    group_s = np.bincount(of, busy_s)[of]
    is_last = np.append(_is_new(of)[1:], True)
    scale = np.divide(end_s - begin_s, group_s, out=np.zeros(len(of)), where=group_s > 0)
    start_s = begin_s + scale * done_s
    end_s = np.where(is_last, end_s, begin_s + scale * (done_s + busy_s))
    is_long = end_s > start_s
    return Bars(
        lane=bars.lane[first],
        kind=bars.kind[first],
        start_s=start_s,
        end_s=end_s,
        busy_s=busy_s,
        count=total(bars.count).astype(int),
        flops=total(bars.flops),
        size_bytes=total(bars.size_bytes),
        first=bars.first[first],
        height=np.minimum(np.divide(busy_s, end_s - start_s, out=np.ones(len(of)), where=is_long), 1.0),
    )
