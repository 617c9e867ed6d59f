"""How well more ranks help: efficiency or throughput against the number of ranks, beside the ideal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.lines import PLOT_PIXELS, check_lengths, line
from lablib.figures.style import FAINT_INK, PAPER_PIXELS, axis, base_layout
from lablib.signature import checked
from lablib.text.units import Unit, axis_title, format_quantity, plural, unit_for


@checked
def figure_scaling(
    ranks: Sequence[int],
    series: Mapping[str, Sequence[float]],
    ideal: bool = True,
    throughput_unit: str | None = None,
    title: str = "",
) -> go.Figure:
    """One line a series against the number of ranks (logarithmic, as ranks double).

    Args:
        ranks: numbers of ranks, ascending.
        series: name -> efficiency (1.0 is perfect) or, with `throughput_unit`, throughput at each number of ranks.
        ideal: True draws perfect scaling: 100%, or the first throughput of the best series times the ranks.
        throughput_unit: None for efficiency, otherwise e.g. "samples/s".

    Raises:
        ValueError: if a series has not one value for each number of ranks.
    """
    check_lengths(ranks, series)
    everything = [v for values in series.values() for v in values]
    is_efficiency = throughput_unit is None
    unit = Unit("%", 0.01) if throughput_unit is None else unit_for(everything, throughput_unit)
    quantity = "scaling efficiency" if is_efficiency else "throughput"

    figure = go.Figure(
        layout=base_layout(title or f"{quantity.capitalize()} against ranks", PLOT_PIXELS + PAPER_PIXELS)
    )
    if ideal and everything:
        best = max(values[0] for values in series.values()) / ranks[0]
        perfect = [1.0 if is_efficiency else best * r for r in ranks]
        look = {"color": FAINT_INK, "dash": "dot", "width": 1.5}
        points = {"x": list(ranks), "y": [unit.of(v) for v in perfect]}
        figure.add_trace(go.Scatter(**points, name="ideal", mode="lines", line=look, hoverinfo="skip"))
    for index, (name, values) in enumerate(series.items()):
        words = [f"{v:.1%}" if throughput_unit is None else format_quantity(v, throughput_unit) for v in values]
        hover = [f"<b>{name}</b><br>{plural(r, 'ranks')}<br>{text}" for r, text in zip(ranks, words, strict=True)]
        figure.add_trace(line(name, index, {"x": list(ranks), "y": [unit.of(v) for v in values]}, hover))
    across = axis(axis_title("ranks", "count"), type="log", tickvals=list(ranks), ticktext=[f"{r:,}" for r in ranks])
    figure.update_layout(xaxis=across, yaxis=axis(axis_title(quantity, unit), rangemode="tozero"), showlegend=True)
    return attach(figure, _summary(ranks, series, throughput_unit), _columns(ranks, series, throughput_unit))


def _columns(
    ranks: Sequence[int], series: Mapping[str, Sequence[float]], unit: str | None
) -> dict[str, Sequence[float]]:
    columns: dict[str, Sequence[float]] = {"ranks": list(ranks)}
    for name, values in series.items():
        columns[f"{name} (%)" if unit is None else f"{name} ({unit})"] = [
            100 * v if unit is None else v for v in values
        ]
    return columns


def _summary(ranks: Sequence[int], series: Mapping[str, Sequence[float]], unit: str | None) -> str:
    if not len(ranks) or not series:
        return "There is nothing to draw yet."
    parts = []
    for name, values in series.items():
        if unit is None:
            parts.append(f"{name} {values[-1]:.1%}")
        else:
            growth = values[-1] / values[0] if values[0] else float("nan")
            parts.append(f"{name} {format_quantity(values[-1], unit)}, {growth:.3g} times that on {ranks[0]}")
    quantity = "scaling efficiency" if unit is None else "throughput"
    return f"On {plural(ranks[-1], 'ranks')} the {quantity} is: {'; '.join(parts)}."
