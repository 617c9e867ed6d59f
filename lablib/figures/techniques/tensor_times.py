"""One layer on more and more tensor-parallel ranks: what is computed, and the communication that nothing hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS
from lablib.figures.describe import attach
from lablib.figures.style import COMPUTE, FAINT_INK, LOOKS, PAPER_PIXELS, axis, base_layout
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity, plural, unit_for

IDEAL = "#E69F00"  # seen on both bars


@checked
def figure_tensor_times(
    ranks: Sequence[int],
    compute_s: Sequence[float],
    exposed_s: Sequence[float],
    ranks_per_node: int = 0,
    title: str = "",
    note: str = "",
) -> go.Figure:
    """Two bars on each other for each number of ranks, a mark at 1/n of the first, and a line where the node ends.

    Args:
        ranks: ascending.
        compute_s: seconds of one layer that are computed, on each number of ranks.
        exposed_s: seconds of communication beside which nothing is computed.
        ranks_per_node: of the machine; 0 draws no line.
        title: of the figure.
        note: a sentence after those that say what is seen.

    Raises:
        ValueError: no number of ranks, one below 1, or not one time of each kind for each.
    """
    if not ranks or not len(ranks) == len(compute_s) == len(exposed_s):
        counts = f"{len(ranks)}, {len(compute_s)} and {len(exposed_s)}"
        raise ValueError(f"there must be one time of each kind for each number of ranks, one or more: got {counts}.")
    if min(ranks) < 1 or list(ranks) != sorted(ranks):
        raise ValueError(f"ranks must ascend from 1 or more: got {list(ranks)}.")
    layer_s = [compute + exposed for compute, exposed in zip(compute_s, exposed_s, strict=True)]
    unit, names = unit_for(layer_s, "s"), [f"{n:,}" for n in ranks]
    figure = go.Figure(layout=base_layout(title or "A layer on tensor-parallel ranks", PLOT_PIXELS + PAPER_PIXELS))
    for name, look, seconds in (
        ("compute", COMPUTE, compute_s),
        ("exposed communication", LOOKS["communication"], exposed_s),
    ):
        words = [
            f"<b>{plural(n, 'ranks')}: {name}</b><br>{format_quantity(one, 's')} of {format_quantity(whole, 's')}"
            for n, one, whole in zip(ranks, seconds, layer_s, strict=True)
        ]
        bar: dict[str, Any] = {"x": names, "y": [unit.of(one) for one in seconds], "marker": look.marker()}
        figure.add_trace(go.Bar(name=name, hovertext=words, hoverinfo="text", **bar))
    ideal_s = [layer_s[0] * ranks[0] / n for n in ranks]
    figure.add_trace(
        go.Scatter(
            x=names,
            y=[unit.of(one) for one in ideal_s],
            name="nothing sent",
            mode="markers",
            marker={"symbol": "line-ew-open", "size": 26, "color": IDEAL, "line": {"width": 3}},
            hoverinfo="skip",
        )
    )
    inside = sum(n <= ranks_per_node for n in ranks)
    if 0 < inside < len(ranks):
        figure.add_vline(
            x=inside - 0.5,  # pyright: ignore[reportArgumentType]
            line={"color": FAINT_INK, "dash": "dash", "width": 1.5},
            annotation_text="the node ends",
        )
    across = axis(axis_title("tensor-parallel ranks", "count"), type="category", showgrid=False)
    figure.update_layout(barmode="stack", bargap=0.35, showlegend=True, xaxis=across)
    figure.update_yaxes(axis(axis_title("layer, forward and backward", unit), rangemode="tozero"))
    shares = [exposed / whole if whole else 0.0 for exposed, whole in zip(exposed_s, layer_s, strict=True)]
    columns: dict[str, Sequence[object]] = {
        "ranks": list(ranks),
        "compute (s)": list(compute_s),
        "exposed (s)": list(exposed_s),
        "exposed (%)": [100 * share for share in shares],
        "speedup": [layer_s[0] / whole if whole else 0.0 for whole in layer_s],
    }
    return attach(figure, " ".join([_summary(ranks, layer_s, shares, ranks_per_node), note]).strip(), columns)


def _summary(ranks: Sequence[int], layer_s: Sequence[float], shares: Sequence[float], ranks_per_node: int) -> str:
    parts = [
        f"{plural(n, 'ranks')} {format_quantity(whole, 's')}, {share:.0%} of it exposed"
        for n, whole, share in zip(ranks, layer_s, shares, strict=True)
    ]
    node = f" A node has {plural(ranks_per_node, 'ranks')}." if ranks_per_node else ""
    return f"A layer takes: {'; '.join(parts)}.{node}"
