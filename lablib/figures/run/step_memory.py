"""The memory of one training step: the peak as one stacked bar, and at its right the step from start to end.

Both share the axis of bytes, on which the device's memory is a line. A step of thousands of operators is drawn in at
most `MAX_STEPS` columns, each at its highest moment: no peak is lost.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.run.memory import memory_band
from lablib.figures.style import INK, MEMORY_LOOKS, PAPER_PIXELS, axis, base_layout, lay_out, shares_in_words
from lablib.signature import checked
from lablib.text.units import Unit, axis_title, format_quantity, unit_for

if TYPE_CHECKING:
    from lablib.studies.step_memory import StepMemory

PLOT_PIXELS, TOO_MUCH = 300, "#B00020"
MAX_STEPS = 400
BAR_SHARE, GAP_SHARE = 0.17, 0.03  # of the width: the bar, and the gap at its right
THICK = 0.055  # share of the height: room for a line of text
ROOM_FOR_LIMIT = 4.0  # a limit above so many times the peak is in the sentence only


@checked
def figure_step_memory(step: StepMemory, title: str = "") -> go.Figure:
    """A bar of the peak by category, and bytes over the step's time under the device's limit.

    Table: bytes of each category at the peak, at its own peak, and before the step.
    """
    peak, limit = step.peak_bytes, step.limit_bytes
    is_near = limit <= ROOM_FOR_LIMIT * peak
    ceiling = 1.14 * max(peak, limit if is_near else 0)
    unit, seconds = unit_for(peak, "B"), unit_for(step.end_s, "s")
    verdict = "fits" if step.fits else "does not fit"
    title = title or f"{step.name}, {step.micro_batch} x {step.seq_len:,} tokens: {verdict} into {step.device.name}"
    figure = go.Figure(layout=base_layout(title, PLOT_PIXELS + PAPER_PIXELS, barmode="stack"))
    shown, names = _columns(step), [name for name in MEMORY_LOOKS if step.held[name].any()]
    for name in names:
        figure.add_trace(_bar(name, step.at_peak[name], unit, ceiling))
        times, held = _course(step, shown, step.held[name], seconds)
        figure.add_trace(memory_band(name, times, held / unit.scale, xaxis="x2", hoverinfo="skip"))
    figure.add_traces([_outline(step, shown, unit, seconds), _peak_mark(step, unit, seconds)])
    _lay_out(figure, step, unit, seconds, ceiling)
    if is_near:
        _limit(figure, step, unit)
    columns = {
        "category": names,
        "at the peak (B)": [step.at_peak[name] for name in names],
        "own peak (B)": [int(step.held[name].max()) for name in names],
        "before the step (B)": [int(step.held[name][0]) for name in names],
    }
    return attach(figure, _summary(step), columns)


def _columns(step: StepMemory) -> np.ndarray:
    """The operators to draw: the one with most bytes in each column of time, the first and the last."""
    count = len(step.ops)
    if count <= MAX_STEPS:
        return np.arange(count)
    cell = np.minimum((step.start_s / step.end_s * MAX_STEPS).astype(int), MAX_STEPS - 1)
    order = np.lexsort((-step.total, cell))  # in each cell the highest comes first
    firsts = order[np.flatnonzero(np.diff(cell[order], prepend=-1))]
    return np.unique(np.concatenate(([0], firsts, [count - 1])))


def _course(step: StepMemory, shown: np.ndarray, values: np.ndarray, seconds: Unit) -> tuple[np.ndarray, np.ndarray]:
    """Steps: each value holds from its operator's start to the next one's."""
    times = np.append(step.start_s[shown], step.end_s) / seconds.scale
    return times, np.append(values[shown], values[shown[-1]])


def _bar(name: str, size_bytes: int, unit: Unit, ceiling: float) -> go.Bar:
    look = MEMORY_LOOKS[name]
    return go.Bar(
        name=name,
        legendgroup=f"memory: {name}",
        showlegend=False,
        x=["at the peak"],
        y=[unit.of(size_bytes)],
        width=0.9,
        text=[format_quantity(size_bytes, "B") if size_bytes >= THICK * ceiling else ""],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="none",
        textfont=look.font(),
        marker=look.marker(),
        hovertext=[f"<b>{name}</b><br>at the peak: {format_quantity(size_bytes, 'B', 4)}"],
        hoverinfo="text",
    )


def _outline(step: StepMemory, shown: np.ndarray, unit: Unit, seconds: Unit) -> go.Scatter:
    """The sum of all categories; its hover text names the operator of each moment."""
    times, total = _course(step, shown, step.total, seconds)
    texts = []
    for index in map(int, shown):
        op = step.ops[index]
        where = f"{op.phase}, layer {op.layer}" if op.layer >= 0 else op.phase
        texts.append(f"<b>{op.name}</b><br>{where}<br>{format_quantity(int(step.total[index]), 'B', 4)} held")
    return go.Scatter(
        name="operators",
        x=times,
        y=total / unit.scale,
        mode="lines",
        xaxis="x2",
        line={"shape": "hv", "width": 1, "color": INK},
        hovertext=[*texts, texts[-1]],
        hoverinfo="text",
        showlegend=False,
    )


def _peak_mark(step: StepMemory, unit: Unit, seconds: Unit) -> go.Scatter:
    index = step.peak_index
    return go.Scatter(
        name="peak",
        x=[seconds.of(float(step.start_s[index]))],
        y=[unit.of(step.peak_bytes)],
        xaxis="x2",
        mode="markers",
        marker={"symbol": "diamond", "size": 11, "color": INK, "line": {"width": 2, "color": "#FFFFFF"}},
        hoverinfo="none",  # the sum has the hover text; "skip" would receive no click
        showlegend=False,
    )


def _lay_out(figure: go.Figure, step: StepMemory, unit: Unit, seconds: Unit, ceiling: float) -> None:
    end = seconds.of(step.end_s)
    title = axis_title("time of one step, by rooflines", seconds)
    axes = {
        "xaxis": axis("", domain=[0, BAR_SHARE], showgrid=False),
        "xaxis2": axis(title, range=[0, end], domain=[BAR_SHARE + GAP_SHARE, 1], anchor="y"),
        "yaxis": axis(axis_title("memory", unit), range=[0, unit.of(ceiling)]),
    }
    lay_out(figure, {"showlegend": True, "hovermode": "x"} | axes)
    is_late = step.start_s[step.peak_index] > step.end_s / 2
    figure.add_annotation(
        x=seconds.of(float(step.start_s[step.peak_index])),
        xref="x2",
        y=unit.of(step.peak_bytes),
        text=f"<b>peak {format_quantity(step.peak_bytes, 'B')}</b>",
        ax=-56 if is_late else 56,
        ay=-22,
        arrowcolor=INK,
        font={"size": 12, "color": INK},
    )
    # Forward, backward (with recomputation) and optimizer.
    names = np.array(["backward" if op.phase == "recompute" else op.phase for op in step.ops])
    firsts = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
    for first, (begin_s, end_s) in zip(firsts, pairwise([*step.start_s[firsts].tolist(), step.end_s]), strict=True):
        if end_s - begin_s > 0.07 * step.end_s:
            place = {"x": seconds.of((begin_s + end_s) / 2), "xref": "x2", "y": 1, "yref": "paper", "yanchor": "bottom"}
            figure.add_annotation(text=str(names[first]), font={"size": 11, "color": INK}, showarrow=False, **place)


def _limit(figure: go.Figure, step: StepMemory, unit: Unit) -> None:
    """The device's memory, as a line across both panels."""
    at = unit.of(step.limit_bytes)
    place = {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": at, "y1": at}
    for line in ({"color": "#FFFFFF", "width": 4}, {"dash": "dash", "color": TOO_MUCH, "width": 2}):
        figure.add_shape(line=line, **place)
    text = f"{step.device.name} leaves {format_quantity(step.limit_bytes, 'B')}"
    place = {"x": 1, "xref": "paper", "y": at, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    figure.add_annotation(text=text, font={"size": 12, "color": INK}, bgcolor="rgba(255,255,255,0.85)", **place)


def _summary(step: StepMemory) -> str:
    peak = step.peak_bytes
    limit, margin = (format_quantity(abs(size), "B") for size in (step.limit_bytes, step.margin_bytes))
    if step.fits:
        verdict = f"it fits into the {limit} that {step.device.name} leaves, with {margin} to spare"
    else:
        verdict = f"it does not fit into the {limit} that {step.device.name} leaves: {margin} are missing"
    largest = f"the largest micro-batch that fits is {step.largest_micro_batch:,}"
    if not step.largest_micro_batch:
        largest = "not even one sequence fits"
    parts = shares_in_words(step.at_peak, peak)
    return (
        f"{step.name} holds {format_quantity(peak, 'B')} at its peak: {parts}; {verdict}, and {largest}. "
        f"The peak is made by {step.where(step.peak_index)}"
    )
