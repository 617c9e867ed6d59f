"""Learning-rate schedules, and what a run does under each: the rate above, the held-out loss below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lablib.figures.describe import attach
from lablib.figures.lines import MARKERS_UP_TO, PLOT_PIXELS
from lablib.figures.style import PAPER_PIXELS, axis, base_layout, series_look
from lablib.signature import checked
from lablib.text.units import format_quantity

RATE_PIXELS = 150


@checked
def figure_schedules(
    factors: Mapping[str, Sequence[float]],
    losses: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    title: str = "Learning-rate schedules",
) -> go.Figure:
    """One line a schedule.

    Args:
        factors: name -> part of the peak rate at each step, from step 0.
        losses: name -> (step, loss in nats) of a run under it; None: the rates alone.

    Raises:
        ValueError: no schedule, one without steps, or a run under none of them.
    """
    if not factors or not all(factors.values()):
        raise ValueError("there must be a schedule, and a step of each, to draw: got none.")
    if losses is not None and (not losses.keys() <= factors.keys() or not all(losses.values())):
        raise ValueError(f"losses must be of the schedules {list(factors)}, each with a step: got {list(losses)}.")
    rows = 2 if losses else 1
    heights = [RATE_PIXELS, PLOT_PIXELS][:rows]
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=heights)
    figure.update_layout(base_layout(title, sum(heights) + PAPER_PIXELS, showlegend=True))
    for index, (name, values) in enumerate(factors.items()):
        look = series_look(index)
        line = {"color": look.color, "dash": look.dash, "width": 2}
        shared = {"name": name, "legendgroup": name, "line": line, "hoverinfo": "text"}
        words = [f"<b>{name}</b><br>step {step:,}: {value:.3g} of the peak" for step, value in enumerate(values)]
        figure.add_trace(
            go.Scatter(x=list(range(len(values))), y=list(values), mode="lines", hovertext=words, **shared),
            row=1,
            col=1,
        )
        if losses and name in losses:
            steps, run = zip(*losses[name], strict=True)
            words = [f"<b>{name}</b><br>step {step:,}: {loss:.4g} nats" for step, loss in losses[name]]
            marker = {"symbol": look.symbol, "size": 6, "color": look.color}
            mode = "lines+markers" if len(steps) <= MARKERS_UP_TO else "lines"
            points = {"x": steps, "y": run, "mode": mode, "marker": marker, "hovertext": words, "showlegend": False}
            figure.add_trace(go.Scatter(**points, **shared), row=2, col=1)
    figure.update_yaxes(axis("rate (of peak)", range=[0, 1.08]), row=1, col=1)
    figure.update_xaxes(axis("" if losses else "step (count)"), row=1, col=1)
    if losses:
        figure.update_xaxes(axis("step (count)"), row=2, col=1)
        figure.update_yaxes(axis("held-out loss (nats)"), row=2, col=1)
    return attach(figure, _summary(factors, losses), _columns(factors, losses))


def _summary(factors: Mapping[str, Sequence[float]], losses: Mapping[str, Sequence[tuple[int, float]]] | None) -> str:
    if losses:
        ends = sorted((run[-1][1], name, run[-1][0]) for name, run in losses.items())
        return "Held-out loss at the end: " + ", ".join(f"{n} {v:.3f} nats (step {s:,})" for v, n, s in ends) + "."
    means = ", ".join(f"{name} {sum(v) / len(v):.0%}" for name, v in factors.items())
    return f"Mean rate over the {max(map(len, factors.values())):,} steps, of the peak: {means}."


def _columns(
    factors: Mapping[str, Sequence[float]], losses: Mapping[str, Sequence[tuple[int, float]]] | None
) -> dict[str, Sequence[object]]:
    columns: dict[str, Sequence[object]] = {
        "schedule": list(factors),
        "steps": [len(values) for values in factors.values()],
        "mean rate (of peak)": [format_quantity(sum(values) / len(values)) for values in factors.values()],
        "last rate (of peak)": [format_quantity(values[-1]) for values in factors.values()],
    }
    if losses:
        columns["last loss (nats)"] = [losses[name][-1][1] if name in losses else None for name in factors]
    return columns
