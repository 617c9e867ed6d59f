"""Predicted against published: one point a published run, and the band within which a prediction is 10% off."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.lines import log_axis
from lablib.figures.style import FAINT_INK, GRID, PAPER_PIXELS, base_layout, series_look
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
    figure = go.Figure(layout=base_layout(title or "Predicted against published step time", PLOT_PIXELS + PAPER_PIXELS))
    seconds = list(chain.from_iterable(times(one) for one in timed))
    if seconds:
        _add_band(figure, min(seconds) / 1.3, max(seconds) * 1.3)
    for index, (family, ones) in enumerate(by_family(timed).items()):
        look = series_look(index)
        marker = {"color": look.color, "symbol": look.symbol, "size": 8, "opacity": 0.8}
        marker["line"] = {"color": "#FFFFFF", "width": 0.5}
        name = f"{family} ({report.families()[family]['mape']:.1f}%)"
        points = {"x": [times(one)[0] for one in ones], "y": [times(one)[1] for one in ones]}
        hover = [_hover(one) for one in ones]
        figure.add_trace(
            go.Scatter(**points, name=name, mode="markers", marker=marker, hovertext=hover, hoverinfo="text")
        )
    across, up = (log_axis(seconds or [1.0], label, "s") for label in ("published step time", "predicted step time"))
    figure.update_layout(xaxis=across, yaxis=up, showlegend=True)
    return attach(figure, _summary(report), _columns(timed))


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


def _add_band(figure: go.Figure, low: float, high: float) -> None:
    ends = [low, high]
    edge = {"x": ends, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_trace(go.Scatter(**edge, y=[(1 - BAND) * end for end in ends]))
    band = edge | {"showlegend": True, "fill": "tonexty", "fillcolor": GRID, "name": "10% off"}
    figure.add_trace(go.Scatter(**band, y=[(1 + BAND) * end for end in ends]))
    line = {"color": FAINT_INK, "width": 1}
    figure.add_trace(go.Scatter(**(edge | {"line": line}), y=ends))


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
        return "There is nothing to draw yet."
    within = sum(abs(one.error) <= 100 * BAND for one in report.timed) / figures["rows"]
    return (
        f"Of {figures['rows']} published runs {within:.0%} are predicted within 10% and "
        f"{figures['refused']} are refused; the mean error is {figures['mape']:.1f}%, the worst {figures['max']:.0f}%."
    )


def _columns(timed: Sequence[Scored]) -> dict[str, list[float | str]]:
    return {
        "row": [one.row.id for one in timed],
        "published (s)": [times(one)[0] for one in timed],
        "predicted (s)": [times(one)[1] for one in timed],
        "error (%)": [one.error for one in timed],
    }
