"""A replayed pipeline plan: the timeline of each rank and, under it on the same time axis, its memory.

Bars are F, B, I and W with the micro-batch they belong to; where a rank holds several pieces of the model, letters from
`a` on tell which. Below, one strip a rank, all to one scale: micro-batches that wait for their backward, or bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.run.bars import picture_of
from lablib.figures.run.lanes import Lane, extent, lanes_of, pixels, ranks_to_show
from lablib.figures.run.timeline import bubble_bars, lane_axis, lane_index, letters, work_bars
from lablib.figures.style import FAINT_INK, GRID, LOOKS, MEMORY_LOOKS, PAPER_PIXELS, axis, base_layout
from lablib.pipeline.replay import Replay
from lablib.record.rank_text import ranks_in_words
from lablib.run import COMPUTE, Span
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
        replay: of a plan.
        ranks: which ranks; None: all up to 16, otherwise the first 4 and the last 4.
        in_bytes: what the strips count: bytes, or micro-batches (a piece of a rank with v pieces counts 1/v). None:
            bytes where `replay.costs` has any that are not the default.

    Returns:
        A figure whose table has one row for each rank: busy, bubble, the peak of micro-batches, and that of bytes if
        they are counted.

    Raises:
        ValueError: for a rank that does not exist.
    """
    drawn = draw_pipeline(replay, ranks, in_bytes, title)
    return attach(drawn.figure, pipeline_summary(drawn), pipeline_columns(drawn))


@dataclass(frozen=True)
class Drawn:
    """A picture of a replay before its sentence and table are attached, and where things stand in it.

    Attributes:
        figure: the timeline on the axes x2 and y2, the strips on x and y.
        lanes: of the ranks that are shown.
        seconds: the unit of the time axes.
        in_bytes: what the strips count.
        top: what a strip of full height stands for.
    """

    figure: go.Figure
    replay: Replay
    lanes: list[Lane]
    seconds: Unit
    in_bytes: bool
    top: float

    @property
    def ranks(self) -> list[int]:
        """Those that are shown."""
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
    heading = (
        title or f"{plan.name}, {plural(plan.num_stages, 'stages')}, {plural(plan.num_microbatches, 'micro-batches')}"
    )
    figure = go.Figure(layout=base_layout(heading, height + PAPER_PIXELS, barmode="overlay"))
    _draw_timeline(figure, replay, chosen, lanes, seconds, until_s)
    courses = {lane.rank: _course(replay, lane.rank, in_bytes) for lane in lanes}
    top = max((float(held.max()) for _, held in courses.values()), default=0.0)
    top = max(top, room) or 1.0
    held_at_most = _draw_strips(figure, replay, lanes, courses, seconds, in_bytes, top)
    across = [seconds.of(-0.003 * until_s), seconds.of(1.003 * until_s) or 1.0]
    share = strips / height
    figure.update_layout(
        xaxis=axis(axis_title("time", seconds), range=across),
        xaxis2={"matches": "x", "anchor": "y2", "showticklabels": False, "ticks": "", "gridcolor": GRID}
        | {"zeroline": False},
        yaxis=_strip_axis(lanes, held_at_most) | {"domain": [0, share]},
        yaxis2=lane_axis(lanes) | {"domain": [share + GAP_PIXELS / height, 1]},
    )
    return Drawn(figure, replay, lanes, seconds, in_bytes, top)


def _draw_timeline(
    figure: go.Figure, replay: Replay, ranks: Sequence[int], lanes: list[Lane], seconds: Unit, until_s: float
) -> None:
    """The bubble, the bars on it, and labels: on each bar where there is room, else the letter of a stretch."""
    window = (0.0, until_s)
    spans = [span for rank in ranks for span in replay.timeline.select(rank)]
    picture = picture_of(spans, lane_index(lanes), until_s)
    where: dict[str, Any] = {"xaxis": "x2", "yaxis": "y2"}
    compute = [lane for lane in lanes if lane.stream == COMPUTE]
    figure.add_traces(bubble_bars(compute, replay.makespan_s, seconds, **where))
    figure.add_traces(work_bars(picture, spans, lanes, seconds, window, **where))
    labels = _labels(replay, spans, lanes, seconds, until_s)
    figure.add_traces([labels] if labels else letters(picture, spans, lanes, seconds, window, **where))


def _labels(
    replay: Replay, spans: Sequence[Span], lanes: Sequence[Lane], seconds: Unit, until_s: float
) -> go.Scatter | None:
    """ "F3" on every bar, "F3b" for a rank's second piece; None where a bar of the usual length is too short for it."""
    plan = replay.plan
    chunks = {piece: plan.rank_of[:piece].count(rank) for piece, rank in enumerate(plan.rank_of)}
    texts = []
    for span in spans:
        piece, kind, microbatch = _parts(span.name)
        texts.append(f"{kind}{microbatch}" + (chr(ord("a") + chunks[piece]) if plan.num_chunks > 1 else ""))
    room = np.array([span.duration_s for span in spans]) / ROOM / max(until_s, 1e-300)
    if not spans or np.mean(room >= [len(text) for text in texts]) < 0.5:
        return None
    shown = np.flatnonzero(room >= 1).tolist()
    texts = [text if len(text) <= space else text[0] for text, space in zip(texts, room, strict=True)]
    y = {lane.rank: lane.y for lane in lanes}
    looks = [LOOKS[_KINDS[texts[i][0]]] for i in shown]
    return go.Scatter(
        mode="text",
        x=[seconds.of((spans[i].start_s + spans[i].end_s) / 2) for i in shown],
        y=[y[spans[i].rank] for i in shown],
        text=[texts[i] for i in shown],
        textfont={"size": 11, "color": [k.ink for k in looks], "shadow": [f"0 0 3px {k.color}" for k in looks]},
        hoverinfo="skip",
        showlegend=False,
        xaxis="x2",
        yaxis="y2",
    )


def _parts(name: str) -> tuple[int, str, str]:
    """Piece, kind and micro-batch of an action's name."""
    at = next(i for i, letter in enumerate(name) if letter in _KINDS)
    return int(name[:at]), name[at], name[at + 1 :]


def _draw_strips(
    figure: go.Figure,
    replay: Replay,
    lanes: Sequence[Lane],
    courses: dict[int, tuple[np.ndarray, np.ndarray]],
    seconds: Unit,
    in_bytes: bool,
    top: float,
) -> dict[int, str]:
    """Memory of each rank, as a filled step line on the height of its lane; returns the peak of each rank, in words."""
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[str] = []
    for lane in lanes:
        times_s, held = courses[lane.rank]
        bottom = lane.y + lane.height / 2
        x += [0.0, *np.repeat(seconds.of(1) * times_s, 2)[1:].tolist(), seconds.of(replay.makespan_s)]
        x += [seconds.of(replay.makespan_s), None]
        y += [bottom, *(bottom - np.repeat(held / top, 2) * lane.height).tolist(), bottom, None]
        for time_s, value in zip(times_s.tolist(), held.tolist(), strict=True):
            texts += [
                f"<b>rank {lane.rank}</b> holds {_amount(value, in_bytes)}<br>from {format_quantity(time_s, 's', 4)}"
            ] * 2
        texts += [""] * 3
    look = MEMORY_LOOKS["activation"]
    figure.add_trace(
        go.Scatter(
            name="memory" if in_bytes else "micro-batches held",
            x=np.array(x, float),  # arrays, whose gaps are NaN: plotly would look at every number of a list
            y=np.array(y, float),
            mode="lines",
            fill="toself",
            fillcolor=look.color,
            line={"width": 1, "color": FAINT_INK},
            hoveron="points",
            hovertext=np.array(texts, dtype=str),
            hoverinfo="text",
            legendrank=3000,
        )
    )
    return {rank: _amount(float(held.max()), in_bytes) for rank, (_, held) in courses.items()}


def _course(replay: Replay, rank: int, in_bytes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Seconds, and what the rank holds from then on; in at most `MAX_STEPS` steps, each at its highest moment."""
    times_s, held = replay.memory[rank] if in_bytes else replay.held(rank)
    # What one action gives back and the next takes at the same moment is not a dip.
    is_last = np.append(times_s[1:] > times_s[:-1], True)
    times_s, held = times_s[is_last], held[is_last]
    if len(times_s) <= MAX_STEPS:
        return times_s, held
    firsts = np.linspace(0, len(times_s), MAX_STEPS, endpoint=False).astype(int)
    return times_s[firsts], np.maximum.reduceat(held, firsts)


def _amount(value: float, in_bytes: bool) -> str:
    return format_quantity(value, "B") if in_bytes else f"{value:.3g}"


def _strip_axis(lanes: Sequence[Lane], held_at_most: dict[int, str]) -> dict[str, Any]:
    """The axis that names the strips, each with the most it holds: they have one scale."""
    top, bottom = extent(lanes)
    small = f"<span style='font-size:11px;color:{FAINT_INK}'>at most"
    names = [f"{small} {held_at_most[lane.rank]}</span>  <b>rank {lane.rank}</b>" for lane in lanes]
    look = {"range": [bottom, top], "showgrid": False, "zeroline": False, "fixedrange": True, "ticks": ""}
    return look | {"automargin": True, "tickvals": [lane.y for lane in lanes], "ticktext": names}


def pipeline_summary(drawn: Drawn) -> str:
    """The sentence under the title."""
    replay, ranks, in_bytes, plan = drawn.replay, drawn.ranks, drawn.in_bytes, drawn.replay.plan
    text = (
        f"{plan.name} takes {format_quantity(replay.makespan_s, 's')}, of which {replay.bubble_fraction:.1%} is bubble"
    )
    fullest = max(range(plan.num_stages), key=lambda rank: (replay.in_flight[rank], -rank))
    text += f"; rank {fullest} holds the most, {format_quantity(replay.in_flight[fullest], 'micro-batches')} at once"
    if in_bytes:
        highest = max(range(plan.num_stages), key=lambda rank: (replay.peak_bytes[rank], -rank))
        text += f", and {format_quantity(replay.peak_bytes[highest], 'B')} is the highest peak (rank {highest})"
    if len(ranks) < plan.num_stages:
        text += f". Shown: ranks {ranks_in_words(ranks)} of {plan.num_stages}"
    return text + "."


def pipeline_columns(drawn: Drawn) -> dict[str, list[Any]]:
    """The table."""
    replay, ranks = drawn.replay, drawn.ranks
    columns = {
        "rank": list(ranks),
        "busy (s)": [replay.busy_s[rank] for rank in ranks],
        "bubble (s)": [replay.makespan_s - replay.busy_s[rank] for rank in ranks],
        "peak micro-batches": [replay.in_flight[rank] for rank in ranks],
    }
    if drawn.in_bytes:  # else a micro-batch counts 1, and no byte was said
        columns["peak memory (B)"] = [replay.peak_bytes[rank] for rank in ranks]
    return columns
