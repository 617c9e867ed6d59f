"""Who sends how much to whom: a heat map of bytes between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import INK, PAPER_PIXELS, axis, base_layout
from lablib.record.traffic import Traffic
from lablib.signature import checked
from lablib.units import format_quantity, log_ticks, unit_for

MOST_RANKS = 128  # more are drawn in blocks of neighbours
NUMBERS_UP_TO = 16  # ranks: the bytes are written into the cells
LOG_FROM = 20.0  # colours are logarithmic where the largest and the smallest number differ by this factor
# From light to dark, so that it reads in grey; the hue is that of communication.
_COLORS = ((0.0, "#F2D9E7"), (0.35, "#D998BC"), (0.7, "#A04F7C"), (1.0, "#3D1029"))


@checked
def figure_traffic_matrix(
    traffic: Traffic,
    num_ranks: int | None = None,
    devices_per_node: int | None = None,
    title: str = "Bytes between ranks",
) -> go.Figure:
    """A square for each pair of ranks: the row sends to the column. Lines stand between nodes.

    Args:
        traffic: of one run.
        num_ranks: how many ranks the run had; None: up to the last one that took part in a communication.
        devices_per_node: ranks on each node, for the lines; None: as the simulator tells, else no lines.

    Returns:
        A figure whose table has one row for each pair that exchanged something. More than 128 ranks are drawn, and
        listed, as blocks of neighbours.

    Raises:
        ValueError: if a transfer names a rank beyond `num_ranks`, or for less than one rank a node.
    """
    if devices_per_node is not None and devices_per_node < 1:
        raise ValueError(f"devices_per_node must be at least 1: got {devices_per_node}.")
    devices_per_node = devices_per_node or traffic.devices_per_node
    sent = traffic.matrix(num_ranks)
    block = _block(len(sent), devices_per_node)
    cells = _in_blocks(sent, block)
    names = _names(len(sent), block)
    figure = go.Figure(layout=base_layout(title, _height(len(cells)), showlegend=False))
    if cells.any():
        figure.add_trace(_heat(cells, names))
    figure.update_layout(margin_b=64, **_axes(len(cells), len(sent), block))
    for edge in range(devices_per_node or len(sent), len(sent), devices_per_node or len(sent) or 1):
        if block == 1:  # larger blocks are whole nodes, or cut them anywhere
            line: dict[str, Any] = {"line": {"color": INK, "width": 1.2}}
            figure.add_hline(y=edge - 0.5, **line)
            figure.add_vline(x=edge - 0.5, **line)
    rows, columns = np.nonzero(cells)
    table = {"from": [names[i] for i in rows], "to": [names[i] for i in columns], "bytes (B)": cells[rows, columns]}
    return attach(figure, _summary(traffic, sent, block, devices_per_node), table)


def _block(num_ranks: int, devices_per_node: int | None) -> int:
    """How many neighbours share a row: whole nodes where these are known, else a power of two."""
    block = 1
    while num_ranks / block > MOST_RANKS:
        block = max(2 * block, devices_per_node or 1)
    return block


def _in_blocks(sent: np.ndarray, block: int) -> np.ndarray:
    """Sums over blocks of ranks; the last one may be smaller."""
    if block == 1 or not len(sent):
        return sent
    starts = np.arange(0, len(sent), block)
    return np.add.reduceat(np.add.reduceat(sent, starts, axis=0), starts, axis=1)


def _names(num_ranks: int, block: int) -> list[str]:
    """ "3", or "8-15" for a block."""
    firsts = range(0, num_ranks, block)
    return [str(a) if block == 1 else f"{a}-{min(a + block, num_ranks) - 1}" for a in firsts]


def _heat(cells: np.ndarray, names: Sequence[str]) -> go.Heatmap:
    """Pairs that exchange nothing stay empty."""
    some = cells[cells > 0]
    is_log = some.max() / some.min() >= LOG_FROM
    shown = np.where(cells > 0, cells, np.nan)
    unit = unit_for(float(some.max()), "B")
    low, high = float(some.min()), float(some.max())
    if is_log:
        ticks, labels = log_ticks([low, high], "B", 8)
        bar = {
            "title": {"text": "bytes (B)", "font": {"size": 13}},
            "tickvals": np.log10(ticks).tolist(),
            "ticktext": labels,
        }
        scale = {"z": np.log10(shown), "zmin": np.log10(low), "zmax": np.log10(high)}
    else:
        bar = {"title": {"text": f"bytes ({unit.symbol})", "font": {"size": 13}}}
        scale = {"z": shown / unit.scale, "zmin": 0.0, "zmax": unit.of(high)}
    places = list(range(len(cells)))
    words = [[format_quantity(v, "B") if v else "" for v in row] for row in cells.tolist()]
    hover = [
        [f"<b>rank {a} to rank {b}</b><br>{word}" for b, word in zip(names, row, strict=True)]
        for a, row in zip(names, words, strict=True)
    ]
    in_cells = {"texttemplate": "%{text}", "textfont": {"size": 11}} if len(cells) <= NUMBERS_UP_TO else {}
    colors = [list(stop) for stop in _COLORS]
    return go.Heatmap(
        **scale,
        x=places,
        y=places,
        text=words,
        hovertext=hover,
        hoverinfo="text",
        hoverongaps=False,
        colorscale=colors,
        colorbar=bar | {"thickness": 14, "outlinewidth": 0, "len": 1.0},
        xgap=1 if len(cells) <= 32 else 0,
        ygap=1 if len(cells) <= 32 else 0,
        **in_cells,
    )


def _axes(num_cells: int, num_ranks: int, block: int) -> dict[str, Any]:
    """Both axes name ranks; rows from top to bottom."""
    step = max(1, -(-num_cells // 16))
    what, unit = ("rank", "number") if block == 1 else ("ranks", f"first of {block}")
    firsts = [str(first) for first in range(0, num_ranks, block)][::step]
    ticks = {"tickvals": list(range(0, num_cells, step)), "ticktext": firsts, "showgrid": False}
    edges = [-0.5, max(num_cells, 1) - 0.5]
    return {
        "xaxis": axis(f"to {what} ({unit})", range=edges, **ticks),
        "yaxis": axis(f"from {what} ({unit})", range=edges[::-1], **ticks),
    }


def _height(num_cells: int) -> int:
    return PAPER_PIXELS + min(max(180, 40 * num_cells), 460)


def _summary(traffic: Traffic, sent: np.ndarray, block: int, devices_per_node: int | None) -> str:
    total = float(sent.sum())
    if not total:
        return f"Nothing was sent between the {len(sent)} ranks." if len(sent) else "Nothing was sent between ranks."
    a, b = (int(i) for i in np.unravel_index(np.argmax(sent), sent.shape))
    text = f"{len(sent)} ranks send {format_quantity(total, 'B')} to each other over {np.count_nonzero(sent):,} pairs; "
    text += f"the most between two, {format_quantity(float(sent[a, b]), 'B')}, goes from rank {a} to {b}"
    if devices_per_node and len(sent) > devices_per_node:
        node = np.arange(len(sent)) // devices_per_node
        across = float(sent[node[:, None] != node[None, :]].sum())
        text += f"; {across / total:.0%} of the bytes leave their node"
    text += "."
    unknown = [transfer for transfer in traffic.transfers if not transfer.is_routed]
    if unknown:
        share = sum(sum(transfer.sent_bytes) for transfer in unknown) / total
        text += (
            f" {len(unknown):,} of {len(traffic):,} communications ({share:.0%} of the bytes) do not tell who sent to "
            "whom: they are drawn as a ring, each rank to the next of its group."
        )
    return text + (f" A square stands for {block} x {block} ranks." if block > 1 else "")
