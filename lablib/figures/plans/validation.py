"""Predicted against published step time: one point per row, and the error of every row by source.

Left: predicted against published step time, both logarithmic, with a band of 10% error. Right: the error of every row,
one column per source, with the mean of |error| below. Colour and shape identify the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, ReferenceLine, chart, points
from lablib.figures.style import FAINT_INK
from lablib.figures.svg.picture import figure_svg
from lablib.signature import checked
from lablib.text.markup import plain
from lablib.text.units import plural

if TYPE_CHECKING:
    from lablib.validation.score import Scored, ScoreReport

BAND = 0.1
MAX_ERROR = 40.0  # percent; larger errors are drawn on the edge
SPREAD = 0.7  # share of a column in which the points of a source lie side by side


@checked
def validation_svg(report: ScoreReport) -> str:
    """`figure_validation` without a script, so that a README can show it; the same report gives the same bytes."""
    return figure_svg(figure_validation(report))


@checked
def figure_validation(report: ScoreReport) -> go.Figure:
    """Both panels. Table: one row per published row with a time."""
    families: dict[str, list[Scored]] = {}
    for one in report.timed:  # in the order of the file
        families.setdefault(one.row.family, []).append(one)
    refused, rows = len(report.refused()), [one for ones in families.values() for one in ones]
    mean = f"The mean of |error| is {report.all()['mape']:.1f}%." if rows or refused else ""
    return chart(
        "Predicted against published step time: one point per published run",
        [*([_times(families)] if families else []), _errors(families, report)],
        f"{plural(len(rows), 'published runs')}, {refused} refused. {mean}".strip(),
        {
            "run": [one.row.id for one in rows],
            "published (s)": [_published_s(one) for one in rows],
            "predicted (s)": [one.step_time_s for one in rows],
            "error (%)": [one.error for one in rows],
        },
        pixels=380,
        showlegend=False,
    )


def _published_s(one: Scored) -> float:
    assert one.measured.step_time_s is not None
    return one.measured.step_time_s


def _times(families: dict[str, list[Scored]]) -> Panel:
    times_s = [time_s for ones in families.values() for one in ones for time_s in (_published_s(one), one.step_time_s)]
    # Whole and half powers of ten.
    low, high = 10 ** (floor(2 * log10(min(times_s))) / 2), 10 ** (ceil(2 * log10(max(times_s))) / 2)
    below, above = 1 - BAND, 1 + BAND
    band = _band([low, high, high, low], [low * below, high * below, high * above, low * above])
    diagonal = Mark("", [low, high], [low, high], (), look={"mode": "lines", "line": {"color": FAINT_INK, "width": 1}})
    marks = [
        _points(index, name, [_published_s(one) for one in ones], [one.step_time_s for one in ones], ones)
        for index, (name, ones) in enumerate(families.items())
    ]
    across, up = (Axis(f"{word} step time", "s", log=True, span=(low, high)) for word in ("published", "predicted"))
    return Panel(across, up, [band, diagonal, *marks], title="the band: within 10%")


def _errors(families: dict[str, list[Scored]], report: ScoreReport) -> Panel:
    """The error of every row, one column per source."""
    percent, last = 100 * BAND, max(len(families), 1) - 0.5
    marks = [_band([-0.5, last, last, -0.5], [-percent, -percent, percent, percent])]
    names = {}
    for index, (name, ones) in enumerate(families.items()):
        # Spread sideways, so that the rows of a source do not hide each other.
        places = [index + ((number * 0.618034) % 1 - 0.5) * SPREAD for number in range(len(ones))]
        errors = [max(-MAX_ERROR, min(MAX_ERROR, one.error)) for one in ones]
        marks.append(_points(index, name, places, errors, ones))
        # Names are wider than a column, so neighbours have two heights.
        first, second = (plain(name), "\N{NO-BREAK SPACE}")[:: 1 if index % 2 else -1]
        names[index] = f"{first}<br>{second}<br>{report.families()[name]['mape']:.1f}%"
    words = "error of each row, by source; the mean below"
    if refused := len(report.refused()):
        words = f"error by source; {plural(refused, 'refused rows')} as -100%"
    ticks = {error: f"{error:+d}%" if error else "0" for error in range(-int(MAX_ERROR), int(MAX_ERROR) + 1, 20)}
    if any(abs(one.error) > MAX_ERROR for one in report.timed):
        less, more = "\N{LESS-THAN OR EQUAL TO}", "\N{GREATER-THAN OR EQUAL TO}"
        ticks |= {-MAX_ERROR: f"{less} {-MAX_ERROR:.0f}%", MAX_ERROR: f"{more} +{MAX_ERROR:.0f}%"}
    across = Axis("", ticks=names, span=(-0.5, last), look={"showgrid": False})
    return Panel(across, Axis("", ticks=ticks, span=(-MAX_ERROR, MAX_ERROR)), marks, [ReferenceLine(y=0.0)], words)


def _band(x: Sequence[float], y: Sequence[float]) -> Mark:
    return Mark("", x, y, (), look={"mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": "#DDE7EE"})


def _points(index: int, name: str, x: Sequence[float], y: Sequence[float], ones: Sequence[Scored]) -> Mark:
    hover = [f"<b>{plain(one.row.id)}</b><br>{one.error:+.1f}%" for one in ones]
    return points(index, plain(name), x, y, hover, size=6, opacity=0.75)
