"""Means over several runs against a setting, with bars from the least to the greatest value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp, isfinite, log10
from typing import Any

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, chart, line, points
from lablib.signature import checked
from lablib.text.units import format_quantity

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
        x_unit, y_unit: as for `figure_lines`.
        log_x, log_y: logarithmic axes; on x, ticks stand at the positions themselves.
        mark_minima: a ring round each point of a line that may be its least: see `possible_minima`.
        summary: one sentence; none given: ends of each line.

    Raises:
        ValueError: nothing to draw, a position without a value, or a number that a logarithmic axis has no place for.
    """
    check_lines(panels, log_x, log_y)
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    xs = sorted({x for lines in panels.values() for runs in lines.values() for x in runs})
    across, up = _across(xs, x_label, x_unit, log_x), Axis(y_label, y_unit, look={"type": "log" if log_y else "linear"})
    drawn = []
    for panel, lines in panels.items():
        marks = []
        for name, values in lines.items():
            marks.append(_line(name, names.index(name), values, (x_label, x_unit, y_unit)))
            if mark_minima and (best := possible_minima(values)):
                ring: dict[str, Any] = {"symbol": "circle-open", "size": 17, "line": {"width": 2.5}}
                marks.append(points(names.index(name), "", best, [mean(values[x]) for x in best], (), **ring))
        drawn.append(Panel(across, up, marks, title=panel))
    summary = summary or _summary(panels, y_label, x_label, (y_unit, x_unit))
    return chart(title or f"{_capital(y_label)} against {x_label}", drawn, summary, _columns(panels, x_label))


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


def _line(name: str, index: int, values: Mapping[float, Sequence[float]], labels: tuple[str, str, str]) -> Mark:
    x_label, x_unit, y_unit = labels
    drawn = {x: [v for v in values[x] if isfinite(v)] for x in sorted(values) if isfinite(mean(values[x]))}
    means, ends = (
        [mean(runs) for runs in drawn.values()],
        (list(map(min, drawn.values())), list(map(max, drawn.values()))),
    )
    words = [
        f"<b>{name}</b><br>{x_label} {format_quantity(x, x_unit)}<br>{format_quantity(middle, y_unit, 4)} "
        f"({format_quantity(min(runs), '', 4)} to {format_quantity(max(runs), '', 4)}, {len(runs)} runs)"
        for (x, runs), middle in zip(drawn.items(), means, strict=True)
    ]
    return line(index, name, list(drawn), means, words, ends)


def _across(xs: Sequence[float], label: str, unit: str, is_log: bool) -> Axis:
    """The axis of positions. Powers of two below 1, such as learning rates, are written as powers."""
    if not is_log:
        return Axis(label, unit)
    room = 0.04 * (log10(xs[-1]) - log10(xs[0])) + 0.02
    ticks = {x: f"2<sup>{e}</sup>" if x < 1 and (e := power_of_two(x)) is not None else f"{x:,g}" for x in xs}
    return Axis(label, unit, log=True, ticks=ticks, span=(xs[0] / 10**room, xs[-1] * 10**room))


def power_of_two(x: float) -> int | None:
    """The e of x = 2^e; None for a number that is no such power."""
    mantissa, exponent = frexp(x)
    return exponent - 1 if mantissa == 0.5 else None


def check_lines(panels: Mapping[str, Lines], log_x: bool, log_y: bool) -> None:
    """Raise ValueError where there is nothing to draw, or no place for a number; see `figure_spread`."""
    if not panels or not all(panels.values()):
        raise ValueError("there must be a panel, and a line in each, to draw: got none.")
    for lines in panels.values():
        for name, runs in lines.items():
            if not runs or not all(runs.values()):
                raise ValueError(f"{name!r} must have a position, and at least one value at each: got none.")
            values = [value for some in runs.values() for value in some]
            if (log_x and min(runs) <= 0) or (log_y and min(values) <= 0):
                raise ValueError(f"a logarithmic axis has no place for numbers that are not positive: see {name!r}.")


def _summary(panels: Mapping[str, Lines], y_label: str, x_label: str, units: tuple[str, str]) -> str:
    parts = []
    for panel, lines in panels.items():
        for name, runs in lines.items():
            first, last = (format_quantity(mean(runs[x]), units[0]) for x in (min(runs), max(runs)))
            parts.append(f"{', '.join(filter(None, (panel, name)))} from {first} to {last}")
    return f"{_capital(y_label)} while {x_label} grows, means of the runs: {'; '.join(parts)}."


def _columns(panels: Mapping[str, Lines], x_label: str) -> dict[str, Sequence[Any]]:
    rows = [
        (panel, name, x, [v for v in runs[x] if isfinite(v)], len(runs[x]))
        for panel, lines in panels.items()
        for name, runs in lines.items()
        for x in sorted(runs)
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
