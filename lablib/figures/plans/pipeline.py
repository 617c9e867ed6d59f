"""A replayed pipeline plan: the timeline of each rank and, under it on the same time axis, its memory.

Bars are F, B, I and W with their micro-batch; if a rank holds several pieces of the model, letters from `a` on name the
piece. Below, one strip per rank, all on one scale: micro-batches that wait for their backward, or bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures import style
from lablib.figures.describe import attach
from lablib.figures.run.lanes import Lane, extent, lanes_of, pixels, ranks_to_show
from lablib.figures.run.memory import HIDDEN_AXIS
from lablib.figures.run.timeline import Drawing, bubble_bars, drawing_of, lane_axis, letters, work_bars
from lablib.figures.style import FAINT_INK, LOOKS, MEMORY_LOOKS, PAPER_PIXELS, axis, base_layout, named_rows, texts
from lablib.pipeline.replay import Replay
from lablib.record.rank_text import ranks_in_words
from lablib.run import COMPUTE
from lablib.signature import checked
from lablib.text.units import Unit, axis_title, format_quantity, plural, unit_for

GAP_PIXELS = 26
MAX_STEPS = 400  # of a strip
ROOM = 0.0105  # share of the width that one character of a label needs
_KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


@checked
def figure_pipeline(
    replay: Replay, ranks: Iterable[int] | None = None, in_bytes: bool | None = None, title: str | None = None
) -> go.Figure:
    """The timeline of a plan above, the memory of the ranks below.

    Args:
        ranks: None: all up to 16, otherwise the first 4 and the last 4.
        in_bytes: whether the strips count bytes or micro-batches (a piece of a rank with v pieces counts 1/v). None:
            bytes if `replay.costs` has any other than the default.

    Table: busy, bubble, peak of micro-batches, and peak bytes if counted, of each rank.
    """
    drawn = draw_pipeline(replay, ranks, in_bytes, title)
    return attach(drawn.figure, pipeline_summary(drawn), pipeline_columns(drawn))


@dataclass(frozen=True)
class Drawn:
    """A picture of a replay before its sentence and table are attached, and its positions."""

    figure: go.Figure  # the timeline on the axes x2 and y2, the strips on x and y
    replay: Replay
    lanes: list[Lane]  # of the drawn ranks
    seconds: Unit  # the unit of the time axes
    in_bytes: bool
    top: float  # the value of a strip of full height

    @property
    def ranks(self) -> list[int]:
        return [lane.rank for lane in self.lanes]


def draw_pipeline(
    replay: Replay,
    ranks: Iterable[int] | None,
    in_bytes: bool | None,
    title: str | None,
    until_s: float | None = None,
    room: float = 0.0,
) -> Drawn:
    """As `figure_pipeline`; the time axes go to `until_s`, and strips at least to `room`."""
    plan, costs = replay.plan, replay.costs
    chosen = ranks_to_show(range(plan.num_stages), ranks)
    if in_bytes is None:
        in_bytes = costs.activation_bytes != 1.0 or costs.static_bytes != 0.0
    lanes, until_s = lanes_of([replay.timeline], chosen), until_s or replay.makespan_s
    seconds = unit_for(until_s, "s")
    strips = int(pixels(lanes) * 0.9)
    height = pixels(lanes) + GAP_PIXELS + strips
    sizes = f"{plural(plan.num_stages, 'stages')}, {plural(plan.num_microbatches, 'micro-batches')}"
    title = title or f"{plan.name}, {sizes}"
    figure = go.Figure(layout=base_layout(title, height + PAPER_PIXELS, barmode="overlay"))
    courses = {lane.rank: _course(replay, lane.rank, in_bytes) for lane in lanes}
    top = max((float(held.max()) for _, held in courses.values()), default=0.0)
    drawn = Drawn(figure, replay, lanes, seconds, in_bytes, max(top, room) or 1.0)
    _draw_timeline(drawn, until_s)
    _draw_strips(drawn, courses)
    small = f"<span style='font-size:11px;color:{FAINT_INK}'>at most"
    most = {rank: _amount(float(held.max()), in_bytes) for rank, (_, held) in courses.items()}
    strip_names = [f"{small} {most[lane.rank]}</span>  <b>rank {lane.rank}</b>" for lane in lanes]
    across = [seconds.of(-0.003 * until_s), seconds.of(1.003 * until_s) or 1.0]
    share = strips / height
    axes = {
        "xaxis": axis(axis_title("time", seconds), range=across),
        "xaxis2": HIDDEN_AXIS,
        "yaxis": named_rows(extent(lanes)[::-1], [lane.y for lane in lanes], strip_names) | {"domain": [0, share]},
        "yaxis2": lane_axis(lanes) | {"domain": [share + GAP_PIXELS / height, 1]},
    }
    style.lay_out(figure, axes)
    return drawn


def _draw_timeline(drawn: Drawn, until_s: float) -> None:
    """The bubble, the bars on it, and labels: on each bar if there is room, otherwise the letter of a stretch."""
    figure, replay, lanes = drawn.figure, drawn.replay, drawn.lanes
    spans = [span for rank in drawn.ranks for span in replay.timeline.select(rank)]
    drawing = drawing_of(spans, lanes, drawn.seconds, (0.0, until_s))
    where: dict[str, Any] = {"xaxis": "x2", "yaxis": "y2"}
    compute = [lane for lane in lanes if lane.stream == COMPUTE]
    figure.add_traces(bubble_bars(compute, replay.makespan_s, drawn.seconds, **where))
    figure.add_traces(work_bars(drawing, **where))
    labels = _labels(replay, drawing, until_s, where)
    figure.add_traces([labels] if labels else letters(drawing, **where))


def _labels(replay: Replay, drawing: Drawing, until_s: float, where: Mapping[str, Any]) -> go.Scatter | None:
    """ "F3" on every bar, "F3b" for a rank's second piece; None if a bar of the usual length is too short for it."""
    plan, spans = replay.plan, drawing.spans
    chunks = {piece: plan.rank_of[:piece].count(rank) for piece, rank in enumerate(plan.rank_of)}
    words = []
    for span in spans:  # named by piece, kind and micro-batch
        at = next(i for i, letter in enumerate(span.name) if letter in _KINDS)
        words.append(span.name[at:] + (chr(ord("a") + chunks[int(span.name[:at])]) if plan.num_chunks > 1 else ""))
    room = np.array([span.duration_s for span in spans]) / ROOM / max(until_s, 1e-300)
    if not spans or np.mean(room >= [len(word) for word in words]) < 0.5:
        return None
    shown = np.flatnonzero(room >= 1).tolist()
    words = [word if len(word) <= space else word[0] for word, space in zip(words, room, strict=True)]
    y = {lane.rank: lane.y for lane in drawing.lanes}
    looks = [LOOKS[_KINDS[words[i][0]]] for i in shown]
    middles = [drawing.unit.of((spans[i].start_s + spans[i].end_s) / 2) for i in shown]
    font = {"size": 11, "color": [k.ink for k in looks], "shadow": [f"0 0 3px {k.color}" for k in looks]}
    return texts(middles, [y[spans[i].rank] for i in shown], [words[i] for i in shown], font, **where)


def _draw_strips(drawn: Drawn, courses: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> None:
    """Memory of each rank, as a filled step line on the height of its lane."""
    in_bytes, second, end = drawn.in_bytes, drawn.seconds.of(1), drawn.seconds.of(drawn.replay.makespan_s)
    x, y, hover = list[float | None](), list[float | None](), list[str]()
    for lane in drawn.lanes:
        times_s, held = courses[lane.rank]
        bottom = lane.y + lane.height / 2
        x += [0.0, *np.repeat(second * times_s, 2)[1:].tolist(), end, end, None]
        y += [bottom, *(bottom - np.repeat(held / drawn.top, 2) * lane.height).tolist(), bottom, None]
        for time_s, value in zip(times_s.tolist(), held.tolist(), strict=True):
            amount, start = _amount(value, in_bytes), format_quantity(time_s, "s", 4)
            hover += [f"<b>rank {lane.rank}</b> holds {amount}<br>from {start}"] * 2
        hover += [""] * 3
    look = MEMORY_LOOKS["activation"]
    drawn.figure.add_trace(
        go.Scatter(
            name="memory" if in_bytes else "micro-batches held",
            x=np.array(x, float),  # arrays with NaN for gaps: plotly would check every number of a list
            y=np.array(y, float),
            mode="lines",
            fill="toself",
            fillcolor=look.color,
            line={"width": 1, "color": FAINT_INK},
            hoveron="points",
            hovertext=np.array(hover, dtype=str),
            hoverinfo="text",
            legendrank=3000,
        )
    )


def _course(replay: Replay, rank: int, in_bytes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Seconds, and the memory of the rank from then on; in at most `MAX_STEPS` steps, each at its highest moment."""
    times_s, held = replay.memory[rank] if in_bytes else replay.held(rank)
    # Memory that is freed and taken at the same moment is no dip.
    is_last = np.append(times_s[1:] > times_s[:-1], True)
    times_s, held = times_s[is_last], held[is_last]
    if len(times_s) <= MAX_STEPS:
        return times_s, held
    firsts = np.linspace(0, len(times_s), MAX_STEPS, endpoint=False).astype(int)
    return times_s[firsts], np.maximum.reduceat(held, firsts)


def _amount(value: float, in_bytes: bool) -> str:
    return format_quantity(value, "B") if in_bytes else f"{value:.3g}"


def pipeline_summary(drawn: Drawn) -> str:
    replay, ranks, in_bytes, plan = drawn.replay, drawn.ranks, drawn.in_bytes, drawn.replay.plan
    text = f"{plan.name} takes {format_quantity(replay.makespan_s, 's')}"
    text += f", of which {replay.bubble_fraction:.1%} is bubble"
    fullest = max(range(plan.num_stages), key=lambda rank: (replay.in_flight[rank], -rank))
    text += f"; rank {fullest} holds the most, {format_quantity(replay.in_flight[fullest], 'micro-batches')} at once"
    if in_bytes:
        highest = max(range(plan.num_stages), key=lambda rank: (replay.peak_bytes[rank], -rank))
        text += f", and {format_quantity(replay.peak_bytes[highest], 'B')} is the highest peak (rank {highest})"
    if len(ranks) < plan.num_stages:
        text += f". Shown: ranks {ranks_in_words(ranks)} of {plan.num_stages}"
    return text + "."


def pipeline_columns(drawn: Drawn) -> dict[str, list[Any]]:
    replay, ranks = drawn.replay, drawn.ranks
    columns = {
        "rank": list(ranks),
        "busy (s)": [replay.busy_s[rank] for rank in ranks],
        "bubble (s)": [replay.makespan_s - replay.busy_s[rank] for rank in ranks],
        "peak micro-batches": [replay.in_flight[rank] for rank in ranks],
    }
    if drawn.in_bytes:
        columns["peak memory (B)"] = [replay.peak_bytes[rank] for rank in ranks]
    return columns
