"""A heat map of bytes between ranks, of one run or of several on one scale of colours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import FAINT_INK, INK, PAPER_PIXELS, TOP_PIXELS, axis, base_layout, heading, lay_out
from lablib.record.traffic import Traffic
from lablib.signature import Count, checked
from lablib.text.markup import plain
from lablib.text.units import Unit, format_quantity, log_ticks, unit_for

MAX_RANKS = 128  # more are drawn in blocks of neighbours
NUMBERS_UP_TO = 16  # ranks: the bytes are written into the cells
LOG_FROM = 20.0  # colours are logarithmic where the largest and the smallest number differ by this factor
MOST_GROUPS = 32  # of a mesh's last axis with lines between them; more lines would hide the squares
MAX_PANELS, GAP = 4, 0.05  # side by side, and the share of the width between two
# From light to dark, so that it is legible in grey, in the hue of communication.
_COLORS = ((0.0, "#F2D9E7"), (0.35, "#D998BC"), (0.7, "#A04F7C"), (1.0, "#3D1029"))


@checked
def figure_traffic_matrix(
    traffic: Traffic | Mapping[str, Traffic],
    num_ranks: int | None = None,
    devices_per_node: Count | None = None,
    title: str = "Bytes between ranks",
    mesh: Mapping[str, int] | None = None,
    note: str = "",
) -> go.Figure:
    """A square for each pair of ranks: the row sends to the column. Lines separate nodes.

    Args:
        traffic: of a run, or of up to 4 runs by name, drawn side by side with the same colours, blocks and lines.
        num_ranks: of each run; None: up to the last one that took part in a communication of any.
        devices_per_node: ranks on each node, for the lines; None: of the simulator, or no lines.
        mesh: axes and their sizes, from far apart to neighbours (`Mesh.sizes`): ranks are named by their coordinates,
            and thin lines separate the groups of the last axis.
        note: a sentence before the others.

    Table: one row for each pair with bytes, of each run. More than 128 ranks are drawn and listed as blocks of
    neighbours; of a mesh, as blocks of its last axes. Raises ValueError: if a transfer names a rank beyond `num_ranks`,
    or for a mesh of another number of ranks.
    """
    if mesh is not None:
        if not mesh or any(isinstance(size, bool) or size < 1 for size in mesh.values()):
            got = f"got {dict(mesh)}; try {{'data': 2, 'tensor': 4}}."
            raise ValueError(f"a mesh has axes of one rank or more each: {got}")
        if num_ranks not in (None, prod(mesh.values())):
            got = f"got {dict(mesh)} for {num_ranks}; leave num_ranks out."
            raise ValueError(f"the mesh must have num_ranks ranks: {got}")
        num_ranks = prod(mesh.values())
    traffics = {"": traffic} if isinstance(traffic, Traffic) else traffic
    if not 1 <= len(traffics) <= MAX_PANELS:
        raise ValueError(f"1 to {MAX_PANELS} runs fit side by side: got {len(traffics)}; draw fewer of them")
    if num_ranks is None:
        num_ranks = max(len(one.matrix()) for one in traffics.values())
    per_node = devices_per_node or next((n for n in (one.devices_per_node for one in traffics.values()) if n), None)
    sent = {name: one.matrix(num_ranks) for name, one in traffics.items()}
    size = len(next(iter(sent.values())))
    block = _block(size, per_node) if mesh is None else _block_of(mesh)
    cells = {name: _in_blocks(one, block) for name, one in sent.items()}
    names = _names(size, block) if mesh is None else _coordinates(mesh, block)
    scale = _scale(np.concatenate([one.ravel() for one in cells.values()]))
    num_cells, num_panels = len(names), len(traffics)
    pixels = min(max(180, 40 * num_cells), 460 if num_panels == 1 else 520 // num_panels + 60)
    figure = go.Figure(layout=base_layout(title, PAPER_PIXELS + pixels, showlegend=False))
    room = 24 if any(traffics) else 0
    lay_out(figure, {"margin": {"t": TOP_PIXELS + room, "b": 64}, "height": PAPER_PIXELS + pixels + room})
    width = (1 - GAP * (num_panels - 1)) / num_panels
    shapes: list[dict[str, Any]] = []  # added at once: one by one is slow
    for panel, name in enumerate(traffics):
        x, y = (f"{letter}{panel + 1 if panel else ''}" for letter in "xy")
        left = panel * (width + GAP)
        if scale and cells[name].any():
            has_bar = not figure.data  # one bar explains the colours of all
            figure.add_trace(_heat(cells[name], names, scale, num_panels, showscale=has_bar, xaxis=x, yaxis=y))
        lay_out(figure, _axes(names, size, block, panel, num_panels, [left, left + width], mesh))
        if name:
            heading(figure, f"<b>{plain(name)}</b>", left)
        for edge, line in _lines(size, block, per_node, mesh):
            at = edge - 0.5
            shapes.append({"x0": 0, "x1": 1, "xref": f"{x} domain", "y0": at, "y1": at, "yref": y} | line)
            shapes.append({"y0": 0, "y1": 1, "yref": f"{y} domain", "x0": at, "x1": at, "xref": x} | line)
    lay_out(figure, {"shapes": shapes})
    of_ranks = names if mesh is not None and block == 1 else [str(rank) for rank in range(size)]
    sentences = [_summary(one, sent[name], block, per_node, of_ranks) for name, one in traffics.items()]
    if any(traffics):
        sentences = [f"{name}: {sentence}" for name, sentence in zip(traffics, sentences, strict=True)]
    return attach(
        figure,
        " ".join([note, *sentences]).strip(),
        _columns(cells, names),
        [note for one in traffics.values() for note in one.notes],
    )


def _columns(cells: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, list[Any]]:
    """One row for each pair with bytes, with the name of its run if runs have names."""
    columns: dict[str, list[Any]] = {"run": [], "from": [], "to": [], "bytes (B)": []}
    for run, one in cells.items():
        for row, column in zip(*np.nonzero(one), strict=True):
            for key, value in zip(columns, (run, names[row], names[column], one[row, column]), strict=True):
                columns[key].append(value)
    return columns if any(cells) else {key: values for key, values in columns.items() if key != "run"}


def _block(num_ranks: int, devices_per_node: int | None) -> int:
    """Number of neighbours in a row: whole nodes if these are known, otherwise a power of two."""
    block = 1
    while num_ranks / block > MAX_RANKS:
        block = max(2 * block, devices_per_node or 1)
    return block


def _block_of(mesh: Mapping[str, int]) -> int:
    """Number of neighbours in a row: whole groups of the last axes."""
    left, block = prod(mesh.values()), 1
    for size in reversed(list(mesh.values())):
        if left <= MAX_RANKS:
            break
        left, block = left // size, block * size
    return block


def _coordinates(mesh: Mapping[str, int], block: int) -> list[str]:
    """ "0 1 3" on the axes outside a block."""
    sizes = list(mesh.values())
    while block > 1 and sizes:
        block //= sizes.pop()
    return [" ".join(map(str, at)) for at in product(*map(range, sizes))]


def _lines(
    num_ranks: int, block: int, per_node: int | None, mesh: Mapping[str, int] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Positions of lines, each before a cell, and their looks: between groups of a mesh's last axis, between nodes."""
    if block > 1:  # blocks are whole nodes, or cut them anywhere
        return
    size = [size for size in (mesh or {}).values() if size > 1][-1:]
    nodes = set(range(per_node or num_ranks, num_ranks, per_node or num_ranks or 1))
    if size and num_ranks > MOST_GROUPS * size[0]:
        size = []
    for edge in sorted(set(range(size[0], num_ranks, size[0]) if size else ()) - nodes):
        yield edge, {"type": "line", "line": {"color": FAINT_INK, "width": 0.7, "dash": "dot"}}
    for edge in sorted(nodes):
        yield edge, {"type": "line", "line": {"color": INK, "width": 1.2}}


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


@dataclass(frozen=True, slots=True)
class _Scale:
    """From bytes to colours, the same for every panel."""

    low: float
    high: float
    is_log: bool
    unit: Unit

    def of(self, cells: np.ndarray) -> np.ndarray:
        """The numbers for plotly's colours; pairs without bytes stay empty."""
        shown = np.where(cells > 0, cells, np.nan)
        return np.log10(shown) if self.is_log else shown / self.unit.scale

    def heatmap(self) -> dict[str, Any]:
        """The ends of the colours, and the colour bar."""
        if self.is_log:
            ticks, labels = log_ticks([self.low, self.high], "B", 8)
            bar: dict[str, Any] = {"title": {"text": "bytes (B)", "font": {"size": 13}}}
            bar |= {"tickvals": np.log10(ticks).tolist(), "ticktext": labels}
            ends = (np.log10(self.low), np.log10(self.high))
        else:
            bar = {"title": {"text": f"bytes ({self.unit.symbol})", "font": {"size": 13}}}
            ends = (0.0, self.unit.of(self.high))
        return {"zmin": ends[0], "zmax": ends[1], "colorbar": bar | {"thickness": 14, "outlinewidth": 0, "len": 1.0}}


def _scale(cells: np.ndarray) -> _Scale | None:
    """The scale for all of these numbers; None if all are 0."""
    some = cells[cells > 0]
    if not len(some):
        return None
    low, high = float(some.min()), float(some.max())
    return _Scale(low, high, high / low >= LOG_FROM, unit_for(high, "B"))


def _heat(cells: np.ndarray, names: Sequence[str], scale: _Scale, num_panels: int, **where: Any) -> go.Heatmap:
    """The squares of one run, with their numbers in the unit of the colour bar if these fit."""
    places = list(range(len(cells)))
    words = [[format_quantity(v, "B") if v else "" for v in row] for row in cells.tolist()]
    hover = [
        [f"<b>rank {a} to rank {b}</b><br>{word}" if word else "" for b, word in zip(names, row, strict=True)]
        for a, row in zip(names, words, strict=True)
    ]
    # The unit is at the colour bar: "1.6 MB" is wider than one of 16 squares.
    numbers = words if scale.is_log else [[f"{scale.unit.of(v):.3g}" if v else "" for v in r] for r in cells.tolist()]
    fits = len(cells) * num_panels <= NUMBERS_UP_TO
    in_cells = {"text": numbers, "texttemplate": "%{text}", "textfont": {"size": 11}} if fits else {}
    gap = 1 if len(cells) <= 32 else 0
    values = scale.of(cells).astype(object)
    values[cells <= 0] = None  # Jupyter's messages are JSON, which has no NaN
    return go.Heatmap(
        z=values,
        x=places,
        y=places,
        hovertext=np.array(hover, dtype=object),  # a list of lists plotly copies text by text
        hoverinfo="text",
        hoverongaps=False,
        colorscale=[list(stop) for stop in _COLORS],
        xgap=gap,
        ygap=gap,
        **scale.heatmap(),
        **in_cells,
        **where,
    )


def _axes(
    names: Sequence[str],
    num_ranks: int,
    block: int,
    panel: int,
    num_panels: int,
    domain: Sequence[float],
    mesh: Mapping[str, int] | None,
) -> dict[str, Any]:
    """Both axes of a panel name ranks; rows from top to bottom, named at the first panel alone."""
    num_cells = len(names)
    step = max(1, -(-num_cells * num_panels // 16))
    what, unit = ("rank", "number") if block == 1 else ("ranks", f"first of {block}")
    firsts = [str(first) for first in range(0, num_ranks, block)][::step]
    if mesh is not None:
        step = next((s for s in (1, *_inner_sizes(mesh, block)) if num_cells <= 16 * s), num_cells)
        firsts, unit = list(names)[::step], ", ".join(list(mesh)[: len(names[0].split())])
        what = "rank" if block == 1 else f"{block} ranks"
    ticks = {"tickvals": list(range(0, num_cells, step)), "ticktext": firsts, "showgrid": False}
    edges = [-0.5, max(num_cells, 1) - 0.5]
    number = panel + 1 if panel else ""
    down = axis(f"from {what} ({unit})", range=edges[::-1], **ticks) | {"anchor": f"x{number}"}
    if panel:
        down |= {"showticklabels": False, "title": {"text": ""}, "matches": "y"}
    across = axis(f"to {what} ({unit})", range=edges, **ticks) | {"anchor": f"y{number}", "domain": list(domain)}
    return {f"xaxis{number}": across, f"yaxis{number}": down}


def _inner_sizes(mesh: Mapping[str, int], block: int) -> Iterator[int]:
    """Number of cells in the groups of the last axis, of the last two, and so on."""
    size = 1
    for each in reversed(list(mesh.values())):
        size *= each
        if size > block:
            yield size // block


def _summary(traffic: Traffic, sent: np.ndarray, block: int, devices_per_node: int | None, names: Sequence[str]) -> str:
    total = float(sent.sum())
    if not total:
        return f"Nothing was sent between {f'the {len(sent)} ranks' if len(sent) > 1 else 'ranks'}."
    a, b = (int(i) for i in np.unravel_index(np.argmax(sent), sent.shape))
    text = f"{len(sent)} ranks send {format_quantity(total, 'B')} to each other over {np.count_nonzero(sent):,} pairs; "
    text += f"the most between two, {format_quantity(float(sent[a, b]), 'B')}, goes from rank {names[a]} to {names[b]}"
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
