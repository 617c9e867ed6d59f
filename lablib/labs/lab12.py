"""Lab 12: matrices side by side as grids of numbers, and where each is cut for the ranks that hold its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lablib.figures.chart import TITLE_PIXELS
from lablib.figures.describe import attach
from lablib.figures.style import INK, TOP_PIXELS, axis, base_layout
from lablib.signature import checked
from lablib.text.markup import plain
from lablib.text.units import plural

MOST = 64  # rows or columns
PLOT_PIXELS, BOTTOM_PIXELS = 190, 56
# From light to dark, so that it reads in grey; the words at the cuts are dark on light everywhere.
_COLORS = ((0.0, "#F7F7F7"), (1.0, "#0B4F8A"))
_EDGE: dict[str, Any] = {"color": "#D55E00", "width": 3}


@checked
def figure_matrices(
    matrices: Mapping[str, Any], cuts: Mapping[str, tuple[int, int]] | None = None, title: str = "", summary: str = ""
) -> go.Figure:
    """A panel a matrix, a square a number: the darker, the larger its size. Lines stand where a matrix is cut.

    Args:
        matrices: name -> rows of numbers, or a tensor with two dimensions; at most 64 of each.
        cuts: name -> (0 for rows or 1 for columns, number of ranks); a matrix without one is whole.
        title: of the figure.
        summary: one sentence; none given: how each is cut.

    Raises:
        ValueError: no matrix, one that has not two dimensions of 1 to 64 finite numbers, or a cut that is none.
    """
    if not matrices:
        raise ValueError("there must be a matrix to draw: got none.")
    grids = {name: _sizes(name, matrix) for name, matrix in matrices.items()}
    cuts = cuts or {}
    for name, (dim, ranks) in cuts.items():
        if name not in grids or dim not in (0, 1) or ranks < 1:
            raise ValueError(f"cuts must name a matrix, 0 or 1, and its ranks: got {name!r}: {(dim, ranks)}.")
    gap: dict[str, Any] = {"horizontal_spacing": 0.09}
    figure = make_subplots(rows=1, cols=len(grids), subplot_titles=[plain(name) for name in grids], **gap)
    margins = {"t": TOP_PIXELS + TITLE_PIXELS, "b": BOTTOM_PIXELS}
    figure.update_layout(base_layout(title or "How matrices are cut", PLOT_PIXELS + sum(margins.values())))
    figure.update_layout(margin=margins, showlegend=False)
    figure.update_annotations(font_size=13)
    largest = max(float(grid.max()) for grid in grids.values()) or 1.0
    for column, (name, grid) in enumerate(grids.items(), 1):
        place: dict[str, Any] = {"row": 1, "col": column}
        scale = [list(stop) for stop in _COLORS]
        squares = go.Heatmap(z=grid, zmin=0, zmax=largest, colorscale=scale, showscale=False, xgap=1, ygap=1)
        figure.add_trace(squares, **place)
        names = (
            {dim: _cut(figure, grid.shape, dim, ranks, place) for dim, ranks in [cuts[name]]} if name in cuts else {}
        )
        figure.update_xaxes(_axis("column", grid.shape[1], names.get(1)), **place)
        figure.update_yaxes(_axis("row", grid.shape[0], names.get(0), down=True), **place)
    columns = {
        "matrix": list(grids),
        "rows": [grid.shape[0] for grid in grids.values()],
        "columns": [grid.shape[1] for grid in grids.values()],
        "cut": [_how(cuts.get(name)) for name in grids],
    }
    told = "; ".join(f"{name}: {how}" for name, how in zip(grids, columns["cut"], strict=True))
    return attach(figure, summary or f"{told}.", columns)


def _sizes(name: str, matrix: Any) -> np.ndarray:
    """The absolute values, once they can be drawn."""
    try:
        grid = np.abs(np.asarray(matrix, dtype=float))
    except (TypeError, ValueError):
        raise ValueError(f"a matrix must be rows of numbers, as many in each: {name!r} is not.") from None
    if grid.ndim != 2 or not all(1 <= side <= MOST for side in grid.shape):
        raise ValueError(f"a matrix must have 1 to {MOST} rows and columns to be drawn: {name!r} is {grid.shape}.")
    if not np.isfinite(grid).all():
        raise ValueError(f"a matrix must have finite numbers to be drawn: {name!r} has inf or NaN.")
    return grid


def _how(cut: tuple[int, int] | None) -> str:
    return "whole" if cut is None else f"{('rows', 'columns')[cut[0]]} on {plural(cut[1], 'ranks')}"


def _cut(figure: go.Figure, shape: tuple[int, ...], dim: int, ranks: int, place: dict[str, Any]) -> tuple[list, list]:
    """Draw the cuts; where each rank's part has its middle, and its name."""
    middles, names, chunk = [], [], -(-shape[dim] // ranks)
    for rank, start in enumerate(range(0, shape[dim], chunk)):
        end = min(start + chunk, shape[dim])
        middles.append((start + end - 1) / 2)
        names.append(str(rank))
        if start and dim:
            figure.add_vline(x=start - 0.5, line=_EDGE, **place)
        elif start:
            figure.add_hline(y=start - 0.5, line=_EDGE, **place)
    return middles, names


def _axis(side: str, size: int, names: tuple[list, list] | None, down: bool = False) -> dict[str, Any]:
    ends = [size - 0.5, -0.5] if down else [-0.5, size - 0.5]
    ticks: dict[str, Any] = (
        {"tickvals": names[0], "ticktext": names[1]} if names else {"showticklabels": False, "ticks": ""}
    )
    return axis(
        f"{side} ({'rank' if names else 'number'})",
        range=ends,
        showgrid=False,
        zeroline=False,
        tickfont={"size": 11, "color": INK},
        **ticks,
    )
