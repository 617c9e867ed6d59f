"""A line chart with units: a loss curve, a sweep, anything that is one number against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import PAPER_PIXELS, axis, base_layout, series_look
from lablib.signature import checked
from lablib.text.units import Unit, axis_title, format_quantity, log_ticks, unit_for

PLOT_PIXELS = 300
MARKERS_UP_TO = 40
MAX_TICKS = 7  # of an axis of powers of two


@checked
def figure_lines(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    x_unit: str = "count",
    y_unit: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    summary: str = "",
) -> go.Figure:
    """One line a series over common `x`.

    Args:
        x: positions, in `x_unit`.
        series: name -> values in `y_unit`, one for each position.
        x_label, y_label: quantity on the axis.
        x_unit, y_unit: "s", "B", "B/s", "FLOP/s" get a prefix; any other text is kept; "" for a pure ratio.
        log_x, log_y: logarithmic axes.
        summary: one sentence; None given: first and last value of each series.

    Raises:
        ValueError: if a series has not one value for each position.
    """
    check_lengths(x, series)
    x_axis, x_scale = _axis_of(x, x_label, x_unit, log_x)
    is_plain = len(x) and unit_for(x, x_unit).symbol == x_unit  # without a prefix, which is a power of ten
    if log_x and is_plain and all(v > 0 and log2(v).is_integer() for v in x):  # ticks at points, powers of two
        ticks = list(x)[:: -(-len(x) // MAX_TICKS)]
        x_axis |= {"tickvals": ticks, "ticktext": [format_quantity(v, x_unit) for v in ticks]}
    y_axis, y_scale = _axis_of([v for values in series.values() for v in values], y_label, y_unit, log_y)
    figure = go.Figure(
        layout=base_layout(title or f"{y_label[:1].upper()}{y_label[1:]} against {x_label}", PLOT_PIXELS + PAPER_PIXELS)
    )
    for index, (name, values) in enumerate(series.items()):
        points = {"x": [v / x_scale for v in x], "y": [v / y_scale for v in values]}
        hover = [
            f"<b>{name}</b><br>{x_label} {format_quantity(a, x_unit)}<br>{y_label} {format_quantity(b, y_unit, 4)}"
            for a, b in zip(x, values, strict=True)
        ]
        figure.add_trace(line(name, index, points, hover))
    figure.update_layout(xaxis=x_axis, yaxis=y_axis, showlegend=True)
    columns = {axis_title(x_label, x_unit): list(x)}
    columns |= {axis_title(name, y_unit): list(values) for name, values in series.items()}
    return attach(figure, summary or _summary(x, series, (x_label, y_label), (x_unit, y_unit)), columns)


def line(name: str, index: int, points: Mapping[str, Sequence[float]], hover: Sequence[str]) -> go.Scatter:
    """The `index`-th line of a figure; its points are marked while they are few."""
    look = series_look(index)
    return go.Scatter(
        **points,
        name=name,
        mode="lines+markers" if len(points["x"]) <= MARKERS_UP_TO else "lines",
        line={"color": look.color, "dash": look.dash, "width": 2},
        marker={"symbol": look.symbol, "size": 7, "color": look.color},
        hovertext=list(hover),
        hoverinfo="text",
    )


def check_lengths(x: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    """Every series must have one value for each position."""
    for name, values in series.items():
        if len(values) != len(x):
            raise ValueError(f"{name!r} must have one value for each of the {len(x)} positions: got {len(values)}.")


def log_axis(values: Sequence[float], label: str, unit: str) -> dict[str, Any]:
    """A logarithmic axis in the base unit whose ticks say "10 kB"."""
    ticks, words = log_ticks(values, unit)
    return axis(axis_title(label, unit), type="log", tickvals=ticks, ticktext=words)


def _axis_of(values: Sequence[float], label: str, unit: str, is_log: bool) -> tuple[dict[str, Any], float]:
    """The axis and the number by which values in the base unit are divided to stand on it."""
    if is_log:
        return log_axis(values, label, unit), 1.0
    chosen = unit_for(values, unit) if len(values) else Unit(unit, 1.0)
    return axis(axis_title(label, chosen)), chosen.scale


def _summary(
    x: Sequence[float], series: Mapping[str, Sequence[float]], labels: tuple[str, str], units: tuple[str, str]
) -> str:
    if not len(x) or not series:
        return "There is nothing to draw yet."
    parts = [
        f"{name} from {format_quantity(v[0], units[1])} to {format_quantity(v[-1], units[1])}"
        for name, v in series.items()
    ]
    ends = f"{labels[0]} goes from {format_quantity(x[0], units[0])} to {format_quantity(x[-1], units[0])}"
    return f"{labels[1][0].upper()}{labels[1][1:]} while {ends}: {'; '.join(parts)}."
