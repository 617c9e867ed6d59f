"""A simulated pipeline plan: its replay with the critical path, the memory limit, a moment, or a deadlock.

Bars and strips as in pipeline.py. On them:

    a dark line with dots     the critical path, along the lower edge of its actions; between ranks it follows a message
    a red line in a strip     the memory limit of a rank; memory above it is red
    a line from top to bottom the chosen moment; later bars are pale
    hatched bars, arrows      a deadlock: an arrow leads to the awaited rank
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.plans.pipeline import Drawn, draw_pipeline, pipeline_columns, pipeline_summary
from lablib.figures.style import INK, STATES, texts
from lablib.pipeline.plan import Action
from lablib.pipeline.simulation import Simulation
from lablib.record.rank_text import ranks_in_words
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

RED, PALE = "#B00020", "rgba(200,200,200,0.5)"
WAIT_SHARE = 0.3  # of the width, for waits of a deadlock
MAX_STATES = 8  # ranks in the sentence about a moment


@checked
def figure_pipeline_simulation(
    simulation: Simulation, moment_s: float | None = None, shows_critical_path: bool = True, title: str | None = None
) -> go.Figure:
    """Timeline and memory of a plan, with its critical path, the ranks above the memory limit, or its deadlock.

    `moment_s`: a second to mark.

    Table: as of `figure_pipeline`, with the action of each rank at the moment.
    """
    replayed, limits = simulation.replay, simulation.max_in_flight
    until_s = replayed.makespan_s
    if simulation.circle:
        until_s = (until_s or 1.0) / (1 - WAIT_SHARE)
    drawn = draw_pipeline(replayed, None, False if limits else None, title, until_s, max(limits or (0.0,)))
    figure = drawn.figure
    if limits is not None:
        _draw_limits(drawn, limits, simulation.ranks_over, until_s)
    if simulation.circle:
        _draw_circle(drawn, simulation, until_s)
    elif shows_critical_path:
        _draw_path(drawn, simulation)
    columns = pipeline_columns(drawn)
    states = () if moment_s is None else simulation.at(moment_s)
    if moment_s is not None:
        x, end = drawn.seconds.of(min(moment_s, until_s)), drawn.seconds.of(until_s)
        place = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}
        later = {"type": "rect", "x0": x, "x1": end, "fillcolor": PALE, "line": {"width": 0}}
        line = {"type": "line", "x0": x, "x1": x, "line": {"color": INK, "width": 2}}
        figure.update_layout(shapes=[place | later, place | line])
        columns[f"at {_time(moment_s)}"] = [str(states[rank] or "idle") for rank in drawn.ranks]
    if simulation.circle:
        waits = {wait.rank: wait for wait in simulation.circle}
        columns["waits for"] = [waits[rank].reason if rank in waits else "" for rank in drawn.ranks]
    return attach(figure, _summary(drawn, simulation, moment_s, states), columns)


def _draw_path(drawn: Drawn, simulation: Simulation) -> None:
    """One line through the drawn actions of the path, along the lower edge of the bars, below their labels."""
    lane = {each.rank: each.y + 0.36 * each.height for each in drawn.lanes}
    x, y, hover = list[float](), list[float](), list[str]()
    for each in simulation.critical_path:
        place = lane.get(each.rank, np.nan)
        x += [drawn.seconds.of(each.start_s), drawn.seconds.of(each.end_s)]
        y += [place, place]
        words = f"<b>{each.action}</b> on the critical path<br>rank {each.rank}, from {_time(each.start_s)}"
        words += f"<br>{_time(each.lag_s)} after the action before it" if each.lag_s > 0 else ""
        hover += [words] * 2
    drawn.figure.add_trace(
        go.Scatter(
            name="critical path",
            x=np.array(x),
            y=np.array(y),
            mode="lines+markers" if len(x) <= 400 else "lines",
            line={"color": INK, "width": 2.5},
            marker={"size": 5, "color": INK, "line": {"color": "#FFFFFF", "width": 1}},
            hovertext=np.array(hover, dtype=str),
            hoverinfo="text",
            xaxis="x2",
            yaxis="y2",
            legendrank=2500,
        )
    )


def _draw_limits(drawn: Drawn, limits: Sequence[float], over: Sequence[int], until_s: float) -> None:
    """A line at the limit in every strip, and the memory above it in red."""
    x, y, over_x, over_y = list[float](), list[float](), list[float](), list[float]()
    end = drawn.seconds.of(until_s)
    for lane in drawn.lanes:
        bottom, limit = lane.y + lane.height / 2, limits[lane.rank]
        line = bottom - limit / drawn.top * lane.height
        x += [0.0, end, np.nan]
        y += [line, line, np.nan]
        times_s, held = drawn.replay.held(lane.rank)
        if lane.rank in over:
            edges = drawn.seconds.of(1) * np.append(times_s, drawn.replay.makespan_s)
            heights = bottom - np.maximum(held, limit) / drawn.top * lane.height
            over_x += [edges[0], *np.repeat(edges, 2)[1:-1], edges[-1], np.nan]
            over_y += [line, *np.repeat(heights, 2), line, np.nan]
    shared: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip", "legendrank": 3100}
    if over_x:
        fill = {"fill": "toself", "fillcolor": RED, "line": {"width": 0}}
        red = go.Scatter(name="over the limit", x=np.array(over_x), y=np.array(over_y), **fill, **shared)
        drawn.figure.add_trace(red)
    words = limits_in_words(limits)
    name = f"limit: {words} micro-batch{'es' * (words != '1')}"
    line = {"color": RED, "width": 1.5, "dash": "dash"}
    drawn.figure.add_trace(go.Scatter(name=name, x=np.array(x), y=np.array(y), line=line, **shared))


def _draw_circle(drawn: Drawn, simulation: Simulation, until_s: float) -> None:
    """The ranks of a deadlock, from their last finished action; the awaited action; an arrow to its rank."""
    lanes = {lane.rank: lane for lane in drawn.lanes}
    waits = [wait for wait in simulation.circle if wait.rank in lanes]
    ends_s = {wait.rank: float(max(simulation.replay.end_s[wait.rank], default=0.0)) for wait in waits}
    rows = [lanes[wait.rank] for wait in waits]
    drawn.figure.add_trace(
        go.Bar(
            orientation="h",
            name="waits for ever",
            x=[drawn.seconds.of(until_s - ends_s[wait.rank]) for wait in waits],
            base=[drawn.seconds.of(ends_s[wait.rank]) for wait in waits],
            y=[row.y for row in rows],
            width=[row.height for row in rows],
            marker=STATES["waiting"].marker(),
            hovertext=[f"<b>{wait}</b>" for wait in waits],
            hoverinfo="text",
            xaxis="x2",
            yaxis="y2",
            legendrank=2100,
        )
    )
    start = drawn.seconds.of(simulation.replay.makespan_s)
    width = drawn.seconds.of(until_s) - start
    names = [f" <b>{wait.step}?</b>" for wait in waits]
    font = {"size": 12, "color": INK, "shadow": "0 0 3px #FFFFFF, 0 0 3px #FFFFFF, 0 0 6px #FFFFFF"}
    place: dict[str, Any] = {"xaxis": "x2", "yaxis": "y2", "hoverinfo": "skip", "showlegend": False}
    x = [drawn.seconds.of(ends_s[wait.rank]) for wait in waits]
    drawn.figure.add_trace(texts(x, [row.y for row in rows], names, font, textposition="middle right", **place))
    # Each arrow has a separate x, so that one from 0 to 1 does not cover one from 1 to 0.
    for number, wait in enumerate(waits):
        if wait.on_rank in lanes:
            at = start + width * (0.35 + 0.5 * (number + 0.5) / len(waits))
            ends = [lanes[wait.rank].y, lanes[wait.on_rank].y]
            ends[1] += 0.3 if ends[1] < ends[0] else -0.3
            drawn.figure.add_trace(
                go.Scatter(
                    x=[at, at],
                    y=ends,
                    mode="lines+markers",
                    line={"color": RED, "width": 2.5},
                    marker={"symbol": ["circle", "triangle-up" if ends[1] < ends[0] else "triangle-down"]}
                    | {"size": [8, 14], "color": RED, "opacity": 1},
                    **place,
                )
            )


def limits_in_words(limits: Sequence[float]) -> str:
    """ "3" for equal limits, otherwise "3, 2, 2"; of many the first and the last."""
    words = [f"{limit:g}" for limit in limits]
    if len(set(words)) == 1:
        return words[0]
    return ", ".join(words if len(words) <= MAX_STATES else [*words[:3], "...", *words[-3:]])


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s", 4)


def _summary(drawn: Drawn, simulation: Simulation, moment_s: float | None, states: Sequence[Action | None]) -> str:
    parts = []
    if simulation.circle:
        done = simulation.replay.plan.num_actions
        parts.append(
            f"{simulation.plan.name} deadlocks after {done} of {plural(simulation.plan.num_actions, 'actions')}: "
            + "; ".join(map(str, simulation.circle))
            + "."
        )
    else:
        parts.append(pipeline_summary(drawn))
        busy_s = {}
        for each in simulation.critical_path:
            busy_s[each.rank] = busy_s.get(each.rank, 0.0) + each.end_s - each.start_s
        if busy_s and simulation.replay.makespan_s:
            most = max(busy_s, key=lambda rank: (busy_s[rank], -rank))
            share = busy_s[most] / simulation.replay.makespan_s
            lag_s = sum(each.lag_s for each in simulation.critical_path)
            messages = f", and {_time(lag_s)} of it are messages" if lag_s > 0 else ""
            parts.append(f"The critical path spends {share:.0%} of its time on rank {most}{messages}.")
    if simulation.max_in_flight is not None:
        over, limit = simulation.ranks_over, limits_in_words(simulation.max_in_flight)
        who = f"rank{'s' * (len(over) > 1)} {ranks_in_words(over)} hold{'s' * (len(over) == 1)} more"
        verdict = who if over else "no rank holds more"
        parts.append(f"At most {limit} micro-batches may be held: {verdict}.")
    if moment_s is not None:
        words = [f"rank {rank} {action or 'idle'}" for rank, action in enumerate(states[:MAX_STATES])]
        parts.append(f"At {_time(moment_s)}: {', '.join(words)}{' ...' if len(states) > MAX_STATES else ''}.")
    return " ".join(parts)
