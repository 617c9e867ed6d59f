"""Metrics of a training run over time, one above the other, with thresholds and the times in which alerts fired."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, ReferenceLine, chart, check_lengths, line
from lablib.figures.style import LOOKS
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

PANEL_PIXELS, ALARM = 110, LOOKS["backward"].color


@checked
def figure_metrics(
    times_s: Sequence[float],
    series: Mapping[str, Sequence[float]],
    thresholds: Sequence[tuple[str, str, float]] = (),
    firing: Sequence[tuple[str, str, float, float]] = (),
    title: str = "Metrics and alerts",
    units: Mapping[str, str] | None = None,
) -> go.Figure:
    """One panel per metric; values are drawn thick while an alert on them fires.

    Args:
        times_s: of the samples, ascending.
        series: metric -> a value at each time; NaN for a missing one.
        thresholds: (metric, "above" or "below", value) of the rules.
        firing: (metric, name of the alert, start, end in seconds); infinity if it still fires.
        units: metric -> unit of its axis, where known; "s" and "B" get a prefix.
    """
    check_lengths(times_s, series)
    panels = []
    for metric, values in series.items():
        known = [v if isfinite(v) else None for v in values]
        hover = [f"{v:.4g}<br>at {format_quantity(t, 's')}" for t, v in zip(times_s, values, strict=True)]
        marks = [line(0, metric, times_s, known, hover)]
        spans = [(start_s, end_s) for name, _, start_s, end_s in firing if name == metric]
        if spans:
            is_loud = [any(start_s <= t < end_s for start_s, end_s in spans) for t in times_s]
            loud = [v if fires else None for v, fires in zip(known, is_loud, strict=True)]
            look = {"mode": "lines+markers", "line": {"color": ALARM, "width": 5}}
            look |= {"marker": {"symbol": "x", "size": 8, "color": ALARM}}
            marks.append(Mark("firing", times_s, loud, (), look=look))
        rules = [
            ReferenceLine(
                y=limit, text=f"alert {when} {limit:g}", place="top right" if when == "above" else "bottom right"
            )
            for name, when, limit in thresholds
            if name == metric
        ]
        panels.append(Panel(Axis("time", "s"), Axis(metric, (units or {}).get(metric, "")), marks, rules))
    columns = {"time (s)": list(times_s)} | {name: list(values) for name, values in series.items()}
    panels = panels or [Panel(Axis("time", "s"), Axis("metric"), [])]
    pixels = [PANEL_PIXELS] * len(panels) if len(panels) > 1 else 2 * PANEL_PIXELS
    return chart(title, panels, _sentence(times_s, series, firing), columns, pixels=pixels)


def _sentence(
    times_s: Sequence[float], series: Mapping[str, Sequence[float]], firing: Sequence[tuple[str, str, float, float]]
) -> str:
    if not len(times_s) or not series:
        return ""
    counts = f"{plural(len(series), 'metrics')} in {plural(len(times_s), 'samples')}"
    ends = [f"to {end_s:.4g} s" if end_s < inf else "on" for *_, end_s in firing]
    fired = [f"{name} from {start_s:.4g} s {end}" for (_, name, start_s, _), end in zip(firing, ends, strict=True)]
    return f"{counts}; {'fired: ' + ', '.join(fired) if fired else 'no alert fired'}."
