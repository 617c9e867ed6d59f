"""The timeline of a run: one lane for each rank and stream, one bar for each piece of work."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from textwrap import shorten
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures import style
from lablib.figures.describe import attach
from lablib.figures.run.bars import KINDS, Bars, DrawnBars, is_alone, picture_of, stretches_of
from lablib.figures.run.lanes import Lane, extent, lanes_of, pixels, ranks_to_show
from lablib.figures.style import BUBBLE, INK, LOOKS, PAPER_PIXELS, STATES, Look, axis, base_layout, named_rows, texts
from lablib.record.rank_text import ranks_in_words
from lablib.record.timeline import Interval, intersection, length
from lablib.run import COMPUTE, Span, Timeline
from lablib.signature import checked
from lablib.text.markup import plain
from lablib.text.units import Unit, axis_title, format_quantity, plural, unit_for

LOWEST = 1 / 8  # of a lane: the least height of a bar
SOURCE_COLUMNS = 80  # of a hover
MAX_STRETCHES = 400  # of one state on one lane
PIXEL, SLIVER = 1 / 1000, 1 / 5000  # of the width


@checked
def figure_timeline(timeline: Timeline, ranks: Iterable[int] | None = None, title: str = "Timeline") -> go.Figure:
    """The spans as bars: a lane for each rank and stream, a colour, pattern and letter for each kind of work.

    Args:
        timeline: of a simulated or a real run, or a part of one (`timeline.between`). More spans than can be seen are
            drawn as fewer bars (bars.py), and the sentence says so; a part of the run is drawn in full detail.
        ranks: None: all up to 16, otherwise the first 4 and the last 4. At most 64 are drawn.

    Table: one row for each rank, stream and kind of work.
    """
    ranks = None if ranks is None else set(ranks)
    chosen = ranks_to_show(timeline.ranks, ranks)
    start_s, end_s = timeline.start_s, timeline.end_s
    spans = [s for rank in chosen for s in timeline.select(rank) if not s.is_waiting]
    lanes, unit = lanes_of([timeline], chosen), unit_for(end_s, "s")
    drawing = drawing_of(spans, lanes, unit, (start_s, end_s))
    figure = go.Figure(layout=base_layout(title, pixels(lanes) + PAPER_PIXELS))
    figure.add_traces(lane_traces(timeline, drawing))
    margin_s = 0.012 * (end_s - start_s) if timeline.window is None else 0.0
    after_s = 0.0 if timeline.deaths else margin_s  # an endless wait leaves the picture
    span_of_x = [unit.of(start_s - margin_s / 4), unit.of(end_s + after_s) or 1.0]
    across = axis(axis_title("time since launch", unit), range=span_of_x)
    style.lay_out(figure, {"barmode": "overlay", "xaxis": across, "yaxis": lane_axis(lanes)})
    summary = _summary(timeline, chosen, len(ranks or ()), drawing.picture, timeline.window)
    return attach(figure, summary, _columns(drawing.picture, lanes), timeline.notes)


@dataclass(frozen=True)
class Drawing:
    """Spans as bars on lanes, and the part of the time axis that is drawn."""

    picture: DrawnBars
    spans: Sequence[Span]
    lanes: Sequence[Lane]
    unit: Unit
    window: tuple[float, float]

    @property
    def width_s(self) -> float:
        return self.window[1] - self.window[0]


def drawing_of(spans: Sequence[Span], lanes: Sequence[Lane], unit: Unit, window: tuple[float, float]) -> Drawing:
    """The spans as bars for a picture of this window."""
    return Drawing(picture_of(spans, lane_index(lanes), window[1] - window[0]), spans, lanes, unit, window)


def lane_traces(timeline: Timeline, drawing: Drawing, until_s: float | None = None, **trace: Any) -> list[Any]:
    """States, work, letters and deaths on the lanes. `until_s`: the end of an axis that is longer than the window."""
    shown = drawing if until_s is None else replace(drawing, window=(0.0, until_s))
    return [
        *state_bars(timeline, drawing, **trace),
        *work_bars(shown, **trace),
        *letters(shown, **trace),
        *death_marks(timeline, drawing.lanes, drawing.unit, **trace),
    ]


def lane_index(lanes: Sequence[Lane]) -> dict[tuple[int, str], int]:
    return {(lane.rank, lane.stream): index for index, lane in enumerate(lanes)}


def lane_axis(lanes: Sequence[Lane]) -> dict[str, Any]:
    """The y axis that names the lanes."""
    return named_rows(extent(lanes)[::-1], [lane.y for lane in lanes], [lane.label for lane in lanes])


def state_bars(timeline: Timeline, drawing: Drawing, **trace: Any) -> list[go.Bar]:
    """States of the ranks in which they do not compute, on their compute lanes: exposed, waiting, idle.

    Of many stretches, those less than a pixel apart are joined. Invisible ones are left out: chunks that differ by one
    element make such gaps. A dead rank has no state.
    """
    traces, lanes = [], drawing.lanes
    died_s = dict(timeline.deaths)
    waits = {lane.rank: [s for s in timeline.select(lane.rank) if s.is_waiting] for lane in lanes}
    states = {lane.rank: timeline.states(lane.rank) for lane in lanes if lane.stream == COMPUTE}
    for number, look in enumerate(STATES.values()):
        drawn = [
            (lane, start_s, end_s)
            for lane in lanes
            if lane.stream == COMPUTE
            for start_s, end_s in _seen(states[lane.rank][look.name], drawing.window, died_s.get(lane.rank, inf))
        ]
        if drawn:
            times = [(start_s, end_s - start_s) for _, start_s, end_s in drawn]
            rows = [lane for lane, _, _ in drawn]
            hover = [_state_hover(waits[lane.rank], lane.rank, look.name, *ends) for lane, *ends in drawn]
            bar = _background(look, rows, times, drawing.unit, hovertext=hover, hoverinfo="text")
            traces.append(bar.update(legendrank=2000 + number, **trace))
    return traces


def bubble_bars(lanes: Sequence[Lane], makespan_s: float, unit: Unit, **trace: Any) -> list[go.Bar]:
    """The background of the lanes of a pipeline; its visible part is the bubble."""
    bar = _background(BUBBLE, lanes, [(0.0, makespan_s)] * len(lanes), unit, hoverinfo="skip")
    return [bar.update(legendrank=2000, **trace)] if makespan_s > 0 else []


def _background(
    look: Look, lanes: Sequence[Lane], times: Sequence[tuple[float, float]], unit: Unit, **trace: Any
) -> go.Bar:
    """Bars of one look on these lanes, each with its start and its length in seconds."""
    return go.Bar(
        orientation="h",
        name=look.title,
        y=[lane.y for lane in lanes],
        x=[unit.of(time_s) for _, time_s in times],
        base=[unit.of(start_s) for start_s, _ in times],
        width=[lane.height for lane in lanes],
        marker=look.marker(),
        legendgroup=look.name,
        **trace,
    )


def _seen(times: Sequence[Interval], window: tuple[float, float], until_s: float) -> list[Interval]:
    """The stretches in the window and before `until_s`, without slivers of less than a pixel in sum."""
    width_s = window[1] - window[0]
    inside = intersection(list(times), [(window[0], min(window[1], until_s))])
    if len(inside) > MAX_STRETCHES:  # as one if less than a pixel apart
        joined = inside[:1]
        for start_s, end_s in inside[1:]:
            is_near = start_s - joined[-1][1] < PIXEL * width_s
            joined[-1:] = [(joined[-1][0], end_s)] if is_near else [joined[-1], (start_s, end_s)]
        inside = joined
    wide = [(start_s, end_s) for start_s, end_s in inside if end_s - start_s >= SLIVER * width_s]
    return wide if length(inside) - length(wide) < PIXEL * width_s else inside


def _state_hover(waits: Sequence[Span], rank: int, state: str, start_s: float, end_s: float) -> str:
    """Hover text of a stretch: "rank 0 is waiting in all_reduce", its start and its length."""
    lines = [f"<b>rank {rank} is {state}</b>" if state != "exposed" else f"<b>rank {rank}: exposed communication</b>"]
    if state == "waiting":
        name = next(span.name for span in waits if span.start_s < end_s and span.end_s > start_s)
        lines.append(f"in {plain(name)}, for another rank")
    lines += [f"starts at {format_quantity(start_s, 's', 4)}", f"takes {format_quantity(end_s - start_s, 's', 4)}"]
    return "<br>".join(lines)


def death_marks(timeline: Timeline, lanes: Sequence[Lane], unit: Unit, **trace: Any) -> list[go.Scatter]:
    """A cross and the word where a rank died, on its compute lane."""
    y_of = {lane.rank: lane.y for lane in lanes if lane.stream == COMPUTE}
    deaths = [(rank, at_s) for rank, at_s in timeline.deaths if rank in y_of]
    mark = go.Scatter(
        mode="markers+text",
        name="died",
        x=[unit.of(at_s) for _, at_s in deaths],
        y=[y_of[rank] for rank, _ in deaths],
        text=["<b>died</b>"] * len(deaths),
        textposition="middle right",
        textfont={"size": 13, "color": INK},
        marker={"symbol": "x", "size": 15, "color": INK, "line": {"width": 1.5, "color": "#FFFFFF"}},
        hovertext=[f"<b>rank {rank} died</b><br>at {format_quantity(at_s, 's', 4)}" for rank, at_s in deaths],
        hoverinfo="text",
        cliponaxis=False,
        legendrank=3000,
        **trace,
    )
    return [mark] if deaths else []


def work_bars(drawing: Drawing, **trace: Any) -> list[go.Bar]:
    """One trace for each kind of work that occurs, in the order of `LOOKS`; and one for those too short to see."""
    bars, width_s = drawing.picture.bars, drawing.width_s
    share = (bars.end_s - bars.start_s) / width_s if width_s > 0 else np.zeros(len(bars))
    # A single bar that is too short to see gets a line of its colour.
    is_tick = is_alone(bars, width_s / 250) & (share < 1 / 1000)
    traces: list[go.Bar] = []
    for index, kind in enumerate(KINDS):
        chosen = np.flatnonzero((bars.kind == index) & ~is_tick)
        # A hairline separates neighbours, but would hide a bar that is hardly wider than the line.
        hairline = {"width": np.select([share[chosen] > 0.012, share[chosen] > 0.004], [0.8, 0.35], 0.0)}
        ticks = np.flatnonzero((bars.kind == index) & is_tick)
        groups = ((chosen, hairline | {"color": "#FFFFFF"}), (ticks, {"width": 1.0, "color": LOOKS[kind].color}))
        found = [_kind_bars(drawing, some, line) for some, line in groups if len(some)]
        for number, bar in enumerate(found):
            traces.append(bar.update(showlegend=number == 0, **trace))
    return traces


def _kind_bars(drawing: Drawing, chosen: np.ndarray, line: dict[str, Any]) -> go.Bar:
    """The chosen bars, all of one kind, with lines of this look around them."""
    bars, unit = drawing.picture.bars, drawing.unit
    kind = KINDS[int(bars.kind[chosen[0]])]
    rows = [drawing.lanes[int(bars.lane[i])] for i in chosen]
    heights = np.maximum(bars.height[chosen], LOWEST)
    return go.Bar(
        orientation="h",
        name=LOOKS[kind].title,
        y=np.array([row.y for row in rows]),  # arrays: plotly would look at every number of a list
        x=(bars.end_s[chosen] - bars.start_s[chosen]) / unit.scale,
        base=bars.start_s[chosen] / unit.scale,
        width=np.array([row.height for row in rows]) * heights,
        marker=LOOKS[kind].marker() | {"line": line},
        hovertext=np.array([_hover(drawing.picture, int(i), drawing.spans, kind) for i in chosen]),
        hoverinfo="text",
        legendgroup=kind,
    )


def letters(drawing: Drawing, **trace: Any) -> list[go.Scatter]:
    """The letter of the kind on every stretch of work wide enough for it; long communications also have their name."""
    picture, width_s = drawing.picture, drawing.width_s
    if width_s <= 0:
        return []
    stretches = stretches_of(picture.bars, width_s / 100)
    starts = np.maximum(stretches.start_s, drawing.window[0])
    ends = np.minimum(stretches.end_s, drawing.window[1])
    share = (ends - starts) / width_s
    chosen = _apart(stretches, np.flatnonzero((share > 0.018) & (picture.step_s == 0 or stretches.height > 0.25)))
    looks = [LOOKS[KINDS[stretches.kind[i]]] for i in chosen]
    words = []
    for i, look in zip(chosen, looks, strict=True):
        named = f"{look.letter}  {drawing.spans[stretches.first[i]].name}"
        is_room = look.name == "communication" and stretches.count[i] == 1 and share[i] > 0.012 * len(named)
        words.append(f"<b>{named if is_room else look.letter}</b>")
    x = [_inside_a_bar(picture, stretches.lane[i], starts[i], ends[i], width_s) / drawing.unit.scale for i in chosen]
    y = [drawing.lanes[stretches.lane[i]].y for i in chosen]
    # The halo in the colour of the bar keeps the letter readable on hatching and on the lines between bars; between
    # narrow bars the background is the page, which is black in the dark theme.
    halos = [", ".join([f"0 0 2px {k.color}"] * 4 + [f"0 0 5px {k.color}"] * 6) for k in looks]
    font = {"size": 12, "color": [k.ink for k in looks], "shadow": halos}
    return [texts(x, y, words, font, **trace)] if len(chosen) else []


def _inside_a_bar(picture: DrawnBars, lane: int, start_s: float, end_s: float, width_s: float) -> float:
    """The middle of a stretch or, if a line between bars would cross the letter, of the bar there that has room."""
    bars, middle_s = picture.bars, (start_s + end_s) / 2
    here = np.flatnonzero((bars.lane == lane) & (bars.start_s <= middle_s) & (bars.end_s >= middle_s))
    if not len(here):
        return middle_s
    bar = here[np.argmax(bars.end_s[here] - bars.start_s[here])]
    first_s, last_s = max(float(bars.start_s[bar]), start_s), min(float(bars.end_s[bar]), end_s)
    edge_s = min(middle_s - first_s, last_s - middle_s)  # from the middle to the nearer line
    return (first_s + last_s) / 2 if edge_s < 0.014 * width_s and last_s - first_s > 0.018 * width_s else middle_s


def _apart(stretches: Bars, chosen: np.ndarray) -> list[int]:
    """The chosen stretches that begin after the previous one on their lane has ended, so that letters do not collide.

    Real collectives of one group may overlap in time.
    """
    kept: list[int] = []
    ends_s: dict[int, float] = {}
    for i in map(int, chosen):
        lane = int(stretches.lane[i])
        if stretches.start_s[i] >= ends_s.get(lane, -np.inf) - 1e-12:
            kept.append(i)
            ends_s[lane] = stretches.end_s[i]
    return kept


def _hover(picture: DrawnBars, index: int, spans: Sequence[Span], kind: str) -> str:
    """Hover text of a bar: name, phase, start, duration, operations, bytes, dtype, line of the program."""
    bars = picture.bars
    span, count = spans[bars.first[index]], int(bars.count[index])
    duration_s = bars.end_s[index] - bars.start_s[index]
    name = f"<b>{plain(span.name)}</b>" + (f" and {count - 1:,} more" if count > 1 else "")
    lines = [name, f"{kind}, {'first in ' if count > 1 else ''}phase {plain(span.phase) or 'not given'}"]
    lines.append(f"rank {span.rank}, {plain(span.stream)}")
    lines.append(f"starts at {format_quantity(bars.start_s[index], 's', 4)}")
    busy = f", busy {format_quantity(bars.busy_s[index], 's', 4)}" if count > 1 else ""
    lines.append(f"takes {format_quantity(duration_s, 's', 4)}{busy}")
    totals = [format_quantity(bars.flops[index], "FLOP")] if bars.flops[index] else []
    totals += [format_quantity(bars.size_bytes[index], "B")] if bars.size_bytes[index] else []
    totals += [span.dtype] if span.dtype else []
    if totals:
        lines.append(", ".join(totals))
    if span.source:
        lines.append(plain(shorten(span.source, SOURCE_COLUMNS, placeholder=" ...")))
    return "<br>".join(lines)


def _summary(
    timeline: Timeline, ranks: Sequence[int], num_wanted: int, picture: DrawnBars, window: tuple[float, float] | None
) -> str:
    if not len(timeline):
        ends = " and ".join(format_quantity(end_s, "s") for end_s in window or ())
        when = f" between {ends}" if ends else ""
        return f"No spans were recorded on the {plural(timeline.num_ranks, 'ranks')}{when}."
    which, makespan_s = _which(ranks, num_wanted, timeline.num_ranks), timeline.makespan_s
    died = "".join(f" Rank {r} died at {format_quantity(at_s, 's')}." for r, at_s in timeline.deaths if r in ranks)
    if timeline.deaths and timeline.window is None:  # its last wait has no end, so no share of the time means anything
        last_s = max((span.end_s for span in timeline if not span.is_waiting), default=0.0)
        text = f"{which}: the run stopped; the last work ended at {format_quantity(last_s, 's')}.{died}"
        text += _who_hangs(timeline, ranks)
        return " ".join(filter(None, [text, *_how_drawn(picture, window)]))
    busy_s, comm_s, exposed_s, waiting_s = (
        sum(map(seconds, ranks)) / len(ranks)
        for seconds in (
            timeline.busy_s,
            lambda rank: timeline.busy_s(rank, "comm"),
            timeline.exposed_s,
            timeline.waiting_s,
        )
    )
    took = format_quantity(makespan_s, "s")
    text = f"{which}, {f'{took} of the run' if timeline.window else f'makespan {took}'}: a rank computes "
    text += f"{busy_s / makespan_s:.0%} of it" if makespan_s else "none of it"
    if comm_s:
        hidden = 1 - exposed_s / comm_s
        text += f" and communicates for {format_quantity(comm_s, 's')}, of which {hidden:.0%} is hidden behind compute"
    if waiting_s >= 0.005 * makespan_s > 0:  # less is 0% in words
        text += f"{' and' if not comm_s else '; it'} waits for others {waiting_s / makespan_s:.0%} of the time"
    drawn = f"the {len(ranks)} ranks drawn" if len(ranks) < timeline.num_ranks else "ranks"
    text += f" (mean over {drawn})." if len(ranks) > 1 else "."
    return " ".join(filter(None, [text + died, *_how_drawn(picture, window)]))


def _who_hangs(timeline: Timeline, ranks: Sequence[int]) -> str:
    """The ranks that wait to the end of a run that stopped, and their calls."""
    dead, waits = dict(timeline.deaths), dict[str, set[int]]()
    for span in timeline:
        if span.is_waiting and span.end_s >= timeline.end_s and span.rank in ranks and span.rank not in dead:
            waits.setdefault(span.name.partition(" (")[0], set()).add(span.rank)  # "all_reduce (unfinished)"
    told = [
        f" Ranks {ranks_in_words(sorted(who))} wait in {name}" if len(who) > 1 else f" Rank {min(who)} waits in {name}"
        for name, who in waits.items()
    ]
    return "".join(f"{text} and cannot go on." for text in told)


def _how_drawn(picture: DrawnBars, window: tuple[float, float] | None) -> list[str]:
    """The shown seconds, and the number of spans per bar."""
    shown = f"Shown: {format_quantity(window[0], 's')} to {format_quantity(window[1], 's')}." if window else ""
    return [shown, picture.note(format_quantity(picture.step_s, "s"))]


def _which(ranks: Sequence[int], num_wanted: int, num_ranks: int) -> str:
    """The drawn ranks: "4 ranks", "Ranks 0 to 3, 16 to 19 of 20"."""
    if len(ranks) == num_ranks:
        return plural(num_ranks, "ranks")
    text = f"Rank{'s' if len(ranks) > 1 else ''} {ranks_in_words(ranks)} of {num_ranks}"
    return text + (f" ({len(ranks)} of the {num_wanted} chosen)" if num_wanted > len(ranks) else "")


def _columns(picture: DrawnBars, lanes: Sequence[Lane]) -> dict[str, list[Any]]:
    bars = picture.bars
    columns: dict[str, list[Any]] = {
        name: []
        for name in ("rank", "stream", "kind", "spans", "first_start_s", "last_end_s", "busy_s", "flops", "bytes")
    }
    for lane_number, lane in enumerate(lanes):
        for kind_number, kind in enumerate(KINDS):
            here = (bars.lane == lane_number) & (bars.kind == kind_number)
            if here.any():
                row = (lane.rank, lane.stream, kind, bars.count[here].sum(), bars.start_s[here].min())
                row += (bars.end_s[here].max(), bars.busy_s[here].sum(), bars.flops[here].sum())
                for name, value in zip(columns, (*row, bars.size_bytes[here].sum()), strict=True):
                    columns[name].append(value)
    return columns
