"""Lab 12: matrices side by side as grids of numbers, with the cuts between the ranks that hold their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor

from lablib.figures.chart import TITLE_PIXELS
from lablib.figures.describe import attach
from lablib.figures.style import INK, TOP_PIXELS, axis, base_layout
from lablib.signature import Count, NonEmpty, Range, checked
from lablib.text.markup import plain
from lablib.text.units import plural

PLOT_PIXELS, BOTTOM_PIXELS, MOST = 190, 56, 64
# From light to dark, so that it is legible in grey.
SHADES = [[0.0, "#F7F7F7"], [1.0, "#0B4F8A"]]
EDGE: dict[str, Any] = {"color": "#D55E00", "width": 3}


@checked
def figure_matrices(
    matrices: Annotated[Mapping[str, Tensor], NonEmpty()],
    cuts: Mapping[str, tuple[Annotated[int, Range(ge=0, le=1)], Count]],
    title: str,
    summary: str,
) -> go.Figure:
    """A panel for each matrix, a square for each number: the darker, the larger its size. Lines mark the cuts.

    `cuts`: name -> (0 for rows or 1 for columns, number of ranks); a matrix without one is whole.
    """
    for name, matrix in matrices.items():
        if matrix.ndim != 2 or not matrix.numel() or max(matrix.shape) > MOST or not matrix.isfinite().all():
            raise ValueError(
                f"a matrix must have 1 to {MOST} rows and columns of finite numbers to be drawn: {name!r} has shape "
                f"{tuple(matrix.shape)}; draw a part of it."
            )
    if unknown := cuts.keys() - matrices.keys():
        raise ValueError(f"cuts must name matrices, {list(matrices)}: got {sorted(unknown)}.")
    grids = {name: matrix.abs().double().numpy() for name, matrix in matrices.items()}
    gap: dict[str, Any] = {"horizontal_spacing": 0.09}
    figure = make_subplots(rows=1, cols=len(grids), subplot_titles=[plain(name) for name in grids], **gap)
    margins = {"t": TOP_PIXELS + TITLE_PIXELS, "b": BOTTOM_PIXELS}
    figure.update_layout(base_layout(title, PLOT_PIXELS + sum(margins.values()), showlegend=False))
    figure.update_layout(margin=margins)
    figure.update_annotations(font_size=13)
    largest = max(float(grid.max()) for grid in grids.values()) or 1.0
    columns: dict[str, list[Any]] = {"matrix": list(grids), "rows": [], "columns": [], "cut": []}
    for column, (name, grid) in enumerate(grids.items(), 1):
        place: dict[str, Any] = {"row": 1, "col": column}
        look: dict[str, Any] = {"zmin": 0, "zmax": largest, "colorscale": SHADES, "showscale": False}
        figure.add_trace(go.Heatmap(z=grid, xgap=1, ygap=1, **look), **place)
        dim, ranks = cuts.get(name, (0, 1))
        for start in range(size := -(-grid.shape[dim] // ranks), grid.shape[dim], size):
            add, side = ((figure.add_hline, "y"), (figure.add_vline, "x"))[dim]
            add(**{side: start - 0.5}, line=EDGE, **place)
        figure.update_xaxes(_axis("column", grid.shape[1], ranks if name in cuts and dim == 1 else 0), **place)
        rows = _axis("row", grid.shape[0], ranks if name in cuts and dim == 0 else 0)
        figure.update_yaxes(rows | {"range": rows["range"][::-1]}, **place)
        columns["rows"].append(grid.shape[0])
        columns["columns"].append(grid.shape[1])
        how = f"{('rows', 'columns')[dim]} on {plural(ranks, 'ranks')}" if name in cuts else "whole"
        columns["cut"].append(how)
    return attach(figure, summary, columns)


def _axis(side: str, size: int, ranks: int) -> dict[str, Any]:
    """The axis along `size` numbers, with each rank at the middle of its part; no marks without a cut."""
    ticks: dict[str, Any] = {"showticklabels": False, "ticks": ""}
    if ranks:
        chunk = -(-size // ranks)
        parts = [(start, min(start + chunk, size)) for start in range(0, size, chunk)]
        ticks = {"tickvals": [(start + end - 1) / 2 for start, end in parts]}
        ticks |= {"ticktext": [str(rank) for rank in range(len(parts))]}
    title, font = f"{side} ({'rank' if ranks else 'number'})", {"size": 11, "color": INK}
    return axis(title, range=[-0.5, size - 0.5], showgrid=False, tickfont=font, **ticks)
