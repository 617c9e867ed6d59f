"""Lines through the means of several runs, with bars from the least to the most: what was measured, and how surely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp, isfinite, log10
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lablib.figures.chart import PLOT_PIXELS
from lablib.figures.describe import attach
from lablib.figures.style import PAPER_PIXELS, TOP_PIXELS, axis, base_layout, series_look
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity

TITLE_PIXELS = 18  # of a panel
# Name of a line -> position -> one value for each run (or seed).
Lines = Mapping[str, Mapping[float, Sequence[float]]]


@checked
def figure_spread(
    panels: Mapping[str, Lines],
    x_label: str,
    y_label: str,
    x_unit: str = "count",
    y_unit: str = "",
    title: str = "",
    log_x: bool = True,
    log_y: bool = False,
    mark_minima: bool = False,
    summary: str = "",
) -> go.Figure:
    """One panel a group of lines, side by side with the same axes.

    Args:
        panels: title of a panel ("" for none) -> its lines. A value that is not finite (a run that diverged) is not
            drawn, and counted in the table.
        x_label, y_label: quantity on the axis.
        x_unit, y_unit: kept as they are, without a prefix.
        log_x, log_y: logarithmic axes; on x, ticks stand at the positions themselves.
        mark_minima: a ring round each point of a line that may be its least: see `possible_minima`.
        summary: one sentence; none given: ends of each line.

    Raises:
        ValueError: nothing to draw, a position without a value, or a number that a logarithmic axis has no place for.
    """
    check_lines(panels, log_x, log_y)
    figure = make_subplots(
        rows=1, cols=len(panels), shared_yaxes=True, subplot_titles=list(panels), horizontal_spacing=0.04
    )
    figure.update_layout(base_layout(title or f"{_capital(y_label)} against {x_label}", PLOT_PIXELS + PAPER_PIXELS))
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    seen: set[str] = set()
    for column, lines in enumerate(panels.values(), 1):
        for name, points in lines.items():
            look = names.index(name)
            figure.add_trace(_line(name, look, points, (x_label, x_unit, y_unit), name not in seen), row=1, col=column)
            if mark_minima and (best := possible_minima(points)):
                figure.add_trace(_rings(look, points, best), row=1, col=column)
            seen.add(name)
    xs = sorted({x for lines in panels.values() for points in lines.values() for x in points})
    figure.update_xaxes(_across(xs, axis_title(x_label, x_unit), log_x))
    figure.update_yaxes(axis("", type="log" if log_y else "linear"))
    figure.update_yaxes(title_text=axis_title(y_label, y_unit), row=1, col=1)
    make_room_for_titles(figure)
    figure.update_layout(showlegend=True)
    return attach(figure, summary or _summary(panels, y_label, x_label, (y_unit, x_unit)), _columns(panels, x_label))


def make_room_for_titles(figure: go.Figure) -> None:
    """Titles of panels stand below the figure's own title, not in it."""
    figure.update_annotations(font_size=13)
    figure.update_layout(margin_t=TOP_PIXELS + TITLE_PIXELS, height=PLOT_PIXELS + PAPER_PIXELS + TITLE_PIXELS)


def mean(values: Sequence[float]) -> float:
    """Of the finite ones; infinite if there is none."""
    finite = [value for value in values if isfinite(value)]
    return sum(finite) / len(finite) if finite else float("inf")


def minimum_at(points: Mapping[float, Sequence[float]]) -> float:
    """The position whose mean is least, of those with the most runs, all of them finite; one run may be luck."""
    max_runs = max(map(len, points.values()))
    return min(points, key=lambda x: mean(points[x]) if _is_whole(points[x], max_runs) else float("inf"))


def possible_minima(points: Mapping[float, Sequence[float]]) -> list[float]:
    """Positions that the runs do not tell from the least, in order: one of their values is within the least's bar.

    Positions at which a run was not finite are left out; none is left where all have such a run.
    """
    top = max(points[minimum_at(points)])
    return [x for x in sorted(points) if all(map(isfinite, points[x])) and isfinite(top) and min(points[x]) <= top]


def _is_whole(values: Sequence[float], number: int) -> bool:
    return len(values) == number and all(map(isfinite, values))


def _line(
    name: str, index: int, points: Mapping[float, Sequence[float]], labels: tuple[str, str, str], in_legend: bool
) -> go.Scatter:
    look, (x_label, x_unit, y_unit) = series_look(index), labels
    drawn = {x: [v for v in points[x] if isfinite(v)] for x in sorted(points) if isfinite(mean(points[x]))}
    means = [mean(values) for values in drawn.values()]
    return go.Scatter(
        x=list(drawn),
        y=means,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [max(values) - middle for values, middle in zip(drawn.values(), means, strict=True)],
            "arrayminus": [middle - min(values) for values, middle in zip(drawn.values(), means, strict=True)],
            "thickness": 1.5,
            "width": 4,
            "color": look.color,
        },
        name=name,
        legendgroup=name,
        showlegend=in_legend,
        mode="lines+markers",
        line={"color": look.color, "dash": look.dash, "width": 2},
        marker={"symbol": look.symbol, "size": 7, "color": look.color},
        hovertext=[
            f"<b>{name}</b><br>{x_label} {format_quantity(x, x_unit)}<br>{format_quantity(middle, y_unit, 4)} "
            f"({format_quantity(min(values), '', 4)} to {format_quantity(max(values), '', 4)}, {len(values)} runs)"
            for (x, values), middle in zip(drawn.items(), means, strict=True)
        ],
        hoverinfo="text",
    )


def _rings(index: int, points: Mapping[float, Sequence[float]], best: Sequence[float]) -> go.Scatter:
    ring: dict[str, Any] = {"symbol": "circle-open", "size": 17, "line": {"width": 2.5}}
    ring |= {"color": series_look(index).color}
    heights = [mean(points[x]) for x in best]
    return go.Scatter(x=list(best), y=heights, mode="markers", marker=ring, showlegend=False, hoverinfo="skip")


def _across(xs: Sequence[float], title: str, is_log: bool) -> dict[str, Any]:
    """The axis of positions. Powers of two below 1, such as learning rates, are written as powers."""
    if not is_log:
        return axis(title)
    room = 0.04 * (log10(xs[-1]) - log10(xs[0])) + 0.02
    words = [f"2<sup>{e}</sup>" if x < 1 and (e := power_of_two(x)) is not None else f"{x:,g}" for x in xs]
    ends = [log10(xs[0]) - room, log10(xs[-1]) + room]
    return axis(title, type="log", tickvals=list(xs), ticktext=words, range=ends)


def power_of_two(x: float) -> int | None:
    """The e of x = 2^e; None for a number that is no such power."""
    mantissa, exponent = frexp(x)
    return exponent - 1 if mantissa == 0.5 else None


def check_lines(panels: Mapping[str, Lines], log_x: bool, log_y: bool) -> None:
    """Raise ValueError where there is nothing to draw, or no place for a number; see `figure_spread`."""
    if not panels or not all(panels.values()):
        raise ValueError("there must be a panel, and a line in each, to draw: got none.")
    for lines in panels.values():
        for name, points in lines.items():
            if not points or not all(points.values()):
                raise ValueError(f"{name!r} must have a position, and at least one value at each: got none.")
            values = [value for some in points.values() for value in some]
            if (log_x and min(points) <= 0) or (log_y and min(values) <= 0):
                raise ValueError(f"a logarithmic axis has no place for numbers that are not positive: see {name!r}.")


def _summary(panels: Mapping[str, Lines], y_label: str, x_label: str, units: tuple[str, str]) -> str:
    parts = []
    for panel, lines in panels.items():
        for name, points in lines.items():
            first, last = (format_quantity(mean(points[x]), units[0]) for x in (min(points), max(points)))
            parts.append(f"{', '.join(filter(None, (panel, name)))} from {first} to {last}")
    return f"{_capital(y_label)} while {x_label} grows, means of the runs: {'; '.join(parts)}."


def _columns(panels: Mapping[str, Lines], x_label: str) -> dict[str, Sequence[Any]]:
    rows = [
        (panel, name, x, [v for v in points[x] if isfinite(v)], len(points[x]))
        for panel, lines in panels.items()
        for name, points in lines.items()
        for x in sorted(points)
    ]
    columns: dict[str, Sequence[Any]] = {"panel": [row[0] for row in rows]} if len(panels) > 1 else {}
    return columns | {
        "line": [row[1] for row in rows],
        x_label: [row[2] for row in rows],
        "mean": [mean(row[3]) if row[3] else None for row in rows],
        "least": [min(row[3], default=None) for row in rows],
        "most": [max(row[3], default=None) for row in rows],
        "runs": [row[4] for row in rows],
        "diverged": [row[4] - len(row[3]) for row in rows],
    }


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
