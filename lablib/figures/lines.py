"""A line chart with units: a loss curve, a sweep, any number against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, Rule, chart, check_lengths, line
from lablib.signature import checked
from lablib.text.units import format_quantity, unit_for

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
    rules: Sequence[Rule] = (),
) -> go.Figure:
    """One line a series over common `x`.

    Args:
        x: positions, in `x_unit`.
        series: name -> values in `y_unit`, one for each position.
        x_label, y_label: quantity on the axis.
        x_unit, y_unit: "s", "B", "B/s", "FLOP/s" get a prefix; any other text is kept; "" for a pure ratio.
        log_x, log_y: logarithmic axes.
        summary: one sentence; None given: first and last value of each series.
        rules: reference lines.
    """
    check_lengths(x, series)
    is_plain = len(x) and unit_for(x, x_unit).symbol == x_unit  # without a prefix, which is a power of ten
    ticks: dict[float, str] = {}
    if log_x and is_plain and all(v > 0 and log2(v).is_integer() for v in x):  # ticks at points, powers of two
        ticks = {v: format_quantity(v, x_unit) for v in list(x)[:: -(-len(x) // MAX_TICKS)]}
    across, up = Axis(x_label, x_unit, log=log_x, ticks=ticks), Axis(y_label, y_unit, log=log_y)
    if not summary and len(x) and series:
        parts = [
            f"{name} from {format_quantity(values[0], y_unit)} to {format_quantity(values[-1], y_unit)}"
            for name, values in series.items()
        ]
        ends = f"{x_label} goes from {format_quantity(x[0], x_unit)} to {format_quantity(x[-1], x_unit)}"
        summary = f"{y_label[0].upper()}{y_label[1:]} while {ends}: {'; '.join(parts)}."
    marks = [line(index, name, x, values) for index, (name, values) in enumerate(series.items())]
    title = title or f"{y_label[:1].upper()}{y_label[1:]} against {x_label}"
    return chart(title, Panel(across, up, marks, rules), summary)
