"""Lab 07: timeline of a loop fed by a loader, and the causes of each wait of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import plotly.graph_objects as go

from lablib.data.loading.loaded_run import LoadedRun
from lablib.figures.describe import attach
from lablib.figures.style import COMPUTE, LOOKS, PAPER_PIXELS, Look, axis, base_layout
from lablib.signature import Range, checked
from lablib.text.units import Unit, axis_title, format_quantity, plural, unit_for

LANE_PIXELS = 34
_LOAD = Look("load", "", "#E69F00", "")
_COPY = Look("copy", "", LOOKS["communication"].color, ".")
_GAPS = {  # by the words of the causes: the device waits, on white
    "workers start": Look("waits: workers start", "", "#FFFFFF", "x", hatch="#707070", edge="#C4C4C4"),
    "batch not loaded": Look("waits: batch not loaded", "", "#FFFFFF", "/", hatch="#707070", edge="#C4C4C4"),
    "batch not copied": Look("waits: batch not copied", "", "#FFFFFF", ".", hatch="#707070", edge="#C4C4C4"),
}


@checked
def figure_loading(run: LoadedRun, batches: Annotated[int, Range(ge=1, le=60)]) -> go.Figure:
    """A lane for the device, one for copies, one for each worker; bars have the number of their batch.

    Args:
        run: simulated (`run_loop`) or measured (`measure_loop`).
        batches: how many are drawn, from the first on; the sentence and the table are of the whole run.
    """
    drawn = range(min(batches, len(run.batches)))
    lanes = _lanes(run)
    unit = unit_for(run.batches[drawn[-1]].step_end_s, "s")
    figure = go.Figure(layout=base_layout(_title(run), LANE_PIXELS * len(lanes) + PAPER_PIXELS))
    for look, bars in _bars(run, drawn).items():
        if bars:
            figure.add_trace(_trace(look, bars, lanes, unit))
    figure.update_layout(
        barmode="overlay",
        showlegend=True,
        xaxis=axis(axis_title("time", unit), range=[0.0, unit.of(run.batches[drawn[-1]].step_end_s)]),
        yaxis={"range": [len(lanes) - 0.4, -0.6], "tickvals": list(range(len(lanes))), "ticktext": list(lanes)}
        | {"showgrid": False, "zeroline": False, "fixedrange": True, "ticks": "", "automargin": True},
    )
    return attach(figure, _summary(run, drawn), _columns(run))


Bar = tuple[str, float, float, str, str]  # lane, first and last second, text on it, hover


def _lanes(run: LoadedRun) -> list[str]:
    workers = [f"worker {worker}" for worker in range(run.loader.workers)] or ["loop loads"]
    return ["<b>device</b>", *(["copy"] if run.loader.copy_s else []), *workers]


def _bars(run: LoadedRun, drawn: range) -> dict[Look, list[Bar]]:
    """The drawn bars by look, in the order of the legend."""
    bars: dict[Look, list[Bar]] = {look: [] for look in (COMPUTE, _COPY, _LOAD, *_GAPS.values())}
    edge_s = run.batches[drawn[-1]].step_end_s
    for number, batch in enumerate(run.batches[drawn[-1] + 1 :], drawn[-1] + 1):
        if batch.load_start_s < edge_s:  # cut off at the edge: the worker goes on
            lane = f"worker {batch.worker}" if batch.worker >= 0 else "loop loads"
            bars[_LOAD].append(_bar(lane, batch.load_start_s, min(batch.load_end_s, edge_s), number, "load"))
    for number in drawn:
        batch = run.batches[number]
        lane = f"worker {batch.worker}" if batch.worker >= 0 else "loop loads"
        bars[COMPUTE].append(_bar("<b>device</b>", batch.step_start_s, batch.step_end_s, number, "step"))
        bars[_LOAD].append(_bar(lane, batch.load_start_s, batch.load_end_s, number, "load"))
        if run.loader.copy_s:
            bars[_COPY].append(_bar("copy", batch.copy_start_s, batch.copy_end_s, number, "copy"))
    for gap in run.gaps:
        if gap.batch in drawn:
            text = f"before the step of batch {gap.batch}: {gap.cause.value}"
            bars[_GAPS[gap.cause.value]].append(("<b>device</b>", gap.start_s, gap.end_s, "", text))
    for start_s, end_s in run.starts:
        for worker in range(run.loader.workers):
            bars[_GAPS["workers start"]].append((f"worker {worker}", start_s, end_s, "", f"worker {worker} starts"))
    return bars


def _bar(lane: str, start_s: float, end_s: float, number: int, what: str) -> Bar:
    return lane, start_s, end_s, str(number), f"{what} of batch {number}"


def _trace(look: Look, bars: Sequence[Bar], lanes: Sequence[str], unit: Unit) -> go.Bar:
    hover = [
        f"<b>{text}</b><br>from {format_quantity(start_s, 's', 4)}<br>for {format_quantity(end_s - start_s, 's', 4)}"
        for _, start_s, end_s, _, text in bars
    ]
    words: dict[str, Any] = {"text": [bar[3] for bar in bars], "textposition": "inside", "insidetextanchor": "middle"}
    return go.Bar(
        orientation="h",
        name=look.title,
        y=[lanes.index(lane) for lane, *_ in bars],
        x=[unit.of(end_s - start_s) for _, start_s, end_s, *_ in bars],
        base=[unit.of(start_s) for _, start_s, *_ in bars],
        width=0.8,
        marker=look.marker() | {"line": {"width": 0.8, "color": look.edge or "#FFFFFF"}},
        textfont={"size": 11, "color": look.ink},
        textangle=0,
        hovertext=hover,
        hoverinfo="text",
        **words,
    )


def _title(run: LoadedRun) -> str:
    loader = run.loader
    workers = f"{plural(loader.workers, 'workers')}, prefetch {loader.prefetch}" if loader.workers else "No workers"
    return f"{workers}, {loader.copy.value}" if loader.copy_s else workers


def _causes(run: LoadedRun) -> dict[str, float]:
    causes = dict.fromkeys(_GAPS, 0.0)
    for gap in run.gaps:
        causes[gap.cause.value] += gap.end_s - gap.start_s
    return causes


def _summary(run: LoadedRun, drawn: range) -> str:
    told = [f"{format_quantity(seconds, 's')} {cause}" for cause, seconds in _causes(run).items() if seconds]
    why = f": {', '.join(told)}" if told else ""
    part = "" if len(drawn) == len(run.batches) else f" Drawn are batches {drawn[0]} to {drawn[-1]}."
    return (
        f"Over {plural(len(run.batches), 'batches')} in {format_quantity(run.makespan_s, 's')} the device waits "
        f"{run.idle_share:.0%} of the time{why}.{part}"
    )


def _columns(run: LoadedRun) -> dict[str, list[Any]]:
    causes = _causes(run)
    busy_s = sum(batch.step_end_s - batch.step_start_s for batch in run.batches)
    seconds = [busy_s, *causes.values()]
    shares = [100 * one / run.makespan_s if run.makespan_s else 0.0 for one in seconds]
    return {"the device": ["computes", *causes], "time (s)": seconds, "share (%)": shares}
