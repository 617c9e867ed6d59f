"""Predicted against published step time, with the band of 10% error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, chart, points
from lablib.figures.style import FAINT_INK, GRID
from lablib.signature import checked
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.validation.score import Report, Scored

BAND = 0.1
PLOT_PIXELS = 460


@checked
def figure_validation(report: Report, title: str = "") -> go.Figure:
    """Predicted step time against the published one, both logarithmic; colour and shape tell the source.

    Args:
        report: of `lablib.validation.score`; rows that state only memory are not drawn.
        title: above the figure.
    """
    timed = report.timed
    seconds = list(chain.from_iterable(times(one) for one in timed))
    marks = _band(min(seconds) / 1.3, max(seconds) * 1.3) if seconds else []
    edge = {"color": "#FFFFFF", "width": 0.5}
    for index, (family, ones) in enumerate(by_family(timed).items()):
        name = f"{family} ({report.families()[family]['mape']:.1f}%)"
        published, predicted = zip(*map(times, ones), strict=True)
        hover = [_hover(one) for one in ones]
        marks.append(points(index, name, published, predicted, hover, size=8, opacity=0.8, line=edge))
    across, up = (Axis(label, "s", log=True) for label in ("published step time", "predicted step time"))
    columns = {
        "row": [one.row.id for one in timed],
        "published (s)": [times(one)[0] for one in timed],
        "predicted (s)": [times(one)[1] for one in timed],
        "error (%)": [one.error for one in timed],
    }
    title = title or "Predicted against published step time"
    return chart(title, Panel(across, up, marks), _summary(report), columns, pixels=PLOT_PIXELS)


def by_family(timed: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Rows by source, in the order of the file."""
    families: dict[str, list[Scored]] = {}
    for one in timed:
        families.setdefault(one.row.family, []).append(one)
    return families


def times(one: Scored) -> tuple[float, float]:
    """Published and predicted seconds of a row that states a time."""
    assert one.measured.step_time_s is not None
    return one.measured.step_time_s, one.step_time_s


def _band(low: float, high: float) -> list[Mark]:
    """The area within which a prediction is 10% off, and the line where it is right."""
    ends, edge = [low, high], {"mode": "lines", "line": {"width": 0}}
    area = edge | {"fill": "tonexty", "fillcolor": GRID}
    return [
        Mark("", ends, [(1 - BAND) * end for end in ends], (), look=edge),
        Mark("10% off", ends, [(1 + BAND) * end for end in ends], (), look=area),
        Mark("", ends, ends, (), look=edge | {"line": {"color": FAINT_INK, "width": 1}}),
    ]


def _hover(one: Scored) -> str:
    published, predicted = times(one)
    return (
        f"<b>{one.row.id}</b><br>published {format_quantity(published, 's')}<br>predicted "
        f"{format_quantity(predicted, 's')} "
        f"({one.error:+.1f}%)<br>{one.case.model.name}: {one.case.parallel}"
    )


def _summary(report: Report) -> str:
    figures = report.all()
    if not figures["rows"]:
        return ""
    within = sum(abs(one.error) <= 100 * BAND for one in report.timed) / figures["rows"]
    return (
        f"Of {figures['rows']} published runs {within:.0%} are predicted within 10% and "
        f"{figures['refused']} are refused; the mean error is {figures['mape']:.1f}%, the worst {figures['max']:.0f}%."
    )
