"""Scaling efficiency or throughput against the number of ranks, with the ideal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, chart, check_lengths, line
from lablib.figures.style import FAINT_INK
from lablib.signature import checked
from lablib.text.units import format_quantity, plural


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
    """
    check_lengths(ranks, series)
    is_efficiency, unit = throughput_unit is None, throughput_unit or "%"
    quantity = "scaling efficiency" if is_efficiency else "throughput"
    shown = {name: [100 * v if is_efficiency else v for v in values] for name, values in series.items()}
    marks = []
    if ideal and len(ranks) and shown:
        best = max(values[0] for values in shown.values()) / ranks[0]
        perfect = [100.0 if is_efficiency else best * r for r in ranks]
        look = {"mode": "lines", "line": {"color": FAINT_INK, "dash": "dot", "width": 1.5}}
        marks.append(Mark("ideal", ranks, perfect, hover=(), look=look))
    parts = []
    for index, (name, values) in enumerate(shown.items()):
        words = [f"{v:.1f}%" if is_efficiency else format_quantity(v, unit) for v in values]
        hover = [f"<b>{name}</b><br>{plural(r, 'ranks')}<br>{text}" for r, text in zip(ranks, words, strict=True)]
        marks.append(line(index, name, ranks, values, hover))
        growth = f", {values[-1] / (values[0] or float('nan')):.3g} times that on {ranks[0]}" if len(ranks) else ""
        parts.append(f"{name} {words[-1] if words else ''}{'' if is_efficiency else growth}")
    across = Axis("ranks", "count", log=True, ticks={r: f"{r:,}" for r in ranks})
    sentence = f"On {plural(ranks[-1], 'ranks')} the {quantity} is: {'; '.join(parts)}." if len(ranks) and parts else ""
    columns = {"ranks": list(ranks)} | {f"{name} ({unit})": values for name, values in shown.items()}
    panel = Panel(across, Axis(quantity, unit, from_zero=True), marks)
    return chart(title or f"{quantity.capitalize()} against ranks", panel, sentence, columns)
