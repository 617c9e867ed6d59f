"""Compute and exposed communication of one layer against the number of tensor-parallel ranks."""

from collections.abc import Sequence

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, ReferenceLine, bars, chart, points
from lablib.figures.style import COMPUTE, LOOKS
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

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
    """Two stacked bars for each number of ranks, a mark at 1/n of the first, and a line at the end of the node.

    Args:
        ranks: ascending.
        compute_s, exposed_s: compute and exposed communication of one layer, on each number of ranks.
        ranks_per_node: 0 draws no line.
        note: a sentence after the summary.
    """
    if not ranks or not len(ranks) == len(compute_s) == len(exposed_s):
        counts = f"{len(ranks)}, {len(compute_s)} and {len(exposed_s)}"
        raise ValueError(f"there must be one time of each kind for each number of ranks, one or more: got {counts}.")
    if min(ranks) < 1 or list(ranks) != sorted(ranks):
        raise ValueError(f"ranks must ascend from 1 or more: got {list(ranks)}.")
    layer_s = [compute + exposed for compute, exposed in zip(compute_s, exposed_s, strict=True)]
    names = [f"{n:,}" for n in ranks]
    marks = []
    for name, look, seconds in (
        ("compute", COMPUTE, compute_s),
        ("exposed communication", LOOKS["communication"], exposed_s),
    ):
        words = [
            f"<b>{plural(n, 'ranks')}: {name}</b><br>{format_quantity(one, 's')} of {format_quantity(whole, 's')}"
            for n, one, whole in zip(ranks, seconds, layer_s, strict=True)
        ]
        marks.append(bars(look, name, names, seconds, words))
    ideal = {"symbol": "line-ew-open", "size": 26, "color": IDEAL, "line": {"width": 3}}
    marks.append(points(0, "nothing sent", names, [layer_s[0] * ranks[0] / n for n in ranks], (), **ideal))
    inside = sum(n <= ranks_per_node for n in ranks)
    rules = [ReferenceLine(x=inside - 0.5, text="the node ends", look={"xshift": 4})] if 0 < inside < len(ranks) else []
    across = Axis("tensor-parallel ranks", "count", look={"type": "category", "showgrid": False})
    panel = Panel(across, Axis("layer, forward and backward", "s", span=(0, 1.06 * max(layer_s))), marks, rules)
    shares = [exposed / whole if whole else 0.0 for exposed, whole in zip(exposed_s, layer_s, strict=True)]
    columns: dict[str, Sequence[object]] = {
        "ranks": list(ranks),
        "compute (s)": list(compute_s),
        "exposed (s)": list(exposed_s),
        "exposed (%)": [100 * share for share in shares],
        "speedup": [layer_s[0] / whole if whole else 0.0 for whole in layer_s],
    }
    parts = [
        f"{plural(n, 'ranks')} {format_quantity(whole, 's')}, {share:.0%} of it exposed"
        for n, whole, share in zip(ranks, layer_s, shares, strict=True)
    ]
    node = f" A node has {plural(ranks_per_node, 'ranks')}." if ranks_per_node else ""
    summary = f"A layer takes: {'; '.join(parts)}.{node} {note}".strip()
    return chart(title or "A layer on tensor-parallel ranks", panel, summary, columns, barmode="stack", bargap=0.35)
