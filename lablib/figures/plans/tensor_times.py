"""Compute and exposed communication of one layer against the number of tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, ReferenceLine, bars, chart, points
from lablib.figures.style import COMPUTE, LOOKS
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    from lablib.studies.tensor_time import TensorLayerTime

IDEAL = "#E69F00"  # seen on both bars


@checked
def figure_tensor_times(
    times: Sequence[TensorLayerTime],
    ranks_per_node: int,
    title: str = "A layer on tensor-parallel ranks",
    note: str = "",
) -> go.Figure:
    """Two stacked bars for each number of ranks, a mark at 1/n of the first, and a line at the end of the node.

    Args:
        times: by ascending ranks.
        note: a sentence after the summary.
    """
    ranks = [one.ranks for one in times]
    if not ranks or ranks != sorted(ranks):
        raise ValueError(f"there must be times on one number of ranks or more, ascending: got {ranks}.")
    seconds = {"compute": [one.compute_s for one in times], "exposed communication": [one.exposed_s for one in times]}
    layer_s, names = [one.layer_s for one in times], [f"{n:,}" for n in ranks]
    marks = []
    for (name, parts), look in zip(seconds.items(), (COMPUTE, LOOKS["communication"]), strict=True):
        words = [
            f"<b>{plural(n, 'ranks')}: {name}</b><br>{format_quantity(one, 's')} of {format_quantity(whole, 's')}"
            for n, one, whole in zip(ranks, parts, layer_s, strict=True)
        ]
        marks.append(bars(look, name, names, parts, words))
    ideal = {"symbol": "line-ew-open", "size": 26, "color": IDEAL, "line": {"width": 3}}
    marks.append(points(0, "nothing sent", names, [layer_s[0] * ranks[0] / n for n in ranks], (), **ideal))
    inside = sum(n <= ranks_per_node for n in ranks)
    rules = [ReferenceLine(x=inside - 0.5, text="the node ends", look={"xshift": 4})] if 0 < inside < len(ranks) else []
    across = Axis("tensor-parallel ranks", "count", look={"type": "category", "showgrid": False})
    panel = Panel(across, Axis("layer, forward and backward", "s", span=(0, 1.06 * max(layer_s))), marks, rules)
    shares = [one.exposed_s / one.layer_s if one.layer_s else 0.0 for one in times]
    columns: dict[str, Sequence[object]] = {
        "ranks": ranks,
        "compute (s)": seconds["compute"],
        "exposed (s)": seconds["exposed communication"],
        "exposed (%)": [100 * share for share in shares],
        "speedup": [layer_s[0] / whole if whole else 0.0 for whole in layer_s],
    }
    words = [
        f"{plural(n, 'ranks')} {format_quantity(whole, 's')}, {share:.0%} of it exposed"
        for n, whole, share in zip(ranks, layer_s, shares, strict=True)
    ]
    summary = f"A layer takes: {'; '.join(words)}. A node has {plural(ranks_per_node, 'ranks')}. {note}".strip()
    return chart(title, panel, summary, columns, barmode="stack", bargap=0.35)
