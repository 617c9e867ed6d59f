"""Blocks filled with documents: each document as a piece of its block, and what is left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lablib.figures.chart import PLOT_PIXELS, TITLE_PIXELS
from lablib.figures.describe import attach
from lablib.figures.style import LOOKS, PAPER_PIXELS, TOP_PIXELS, axis, base_layout, series_look
from lablib.signature import check_type, checked, shown
from lablib.text.units import format_quantity, plural

MOST_BLOCKS = 40  # of a panel in which documents are told apart
_ATTRIBUTES = {"blocks": Sequence[Sequence[int]], "lengths": Sequence[int], "block_size": int, "waste": float}


class Packed(Protocol):
    """`lablib.batches.packing.Packing`."""

    @property
    def blocks(self) -> Sequence[Sequence[int]]: ...
    @property
    def lengths(self) -> Sequence[int]: ...
    @property
    def block_size(self) -> int: ...
    @property
    def waste(self) -> float: ...


@checked
def figure_packing(packings: Mapping[str, Packed], title: str = "Documents in blocks") -> go.Figure:
    """A panel a way of packing, a bar a block: documents from below in turns of two shades, and the padding on top.

    Args:
        packings: name -> packing of the same documents. Of more than 40 blocks 40 are drawn, evenly spaced.

    Raises:
        ValueError: no packing, one without blocks, or other documents than the first has; what is none.
    """
    _check(packings)
    figure = make_subplots(
        rows=1, cols=len(packings), shared_yaxes=True, subplot_titles=list(packings), horizontal_spacing=0.03
    )
    figure.update_layout(base_layout(title, PLOT_PIXELS + PAPER_PIXELS, barmode="stack", bargap=0.15))
    for column, packing in enumerate(packings.values(), 1):
        shown = _shown(packing)
        for trace in _documents(packing, shown):
            is_new = trace.name not in {other.name for other in figure.data}  # pyright: ignore[reportAttributeAccessIssue]
            figure.add_trace(trace.update(showlegend=is_new), row=1, col=column)
        figure.update_xaxes(axis("block (count)", showgrid=False), row=1, col=column)
    figure.update_yaxes(axis(""))
    figure.update_yaxes(title_text="block (tokens)", row=1, col=1)
    figure.update_annotations(font_size=13)
    figure.update_layout(margin_t=TOP_PIXELS + TITLE_PIXELS, height=PLOT_PIXELS + PAPER_PIXELS + TITLE_PIXELS)
    figure.update_layout(showlegend=True)
    max_blocks = max(len(packing.blocks) for packing in packings.values())
    note = (
        f" Of a packing with more, {MOST_BLOCKS} blocks are drawn, evenly spaced." if max_blocks > MOST_BLOCKS else ""
    )
    return attach(figure, _summary(packings) + note, packing_table(packings))


@checked
def figure_block_fill(packings: Mapping[str, Packed], title: str = "How full blocks are") -> go.Figure:
    """A line a way of packing: the tokens of each block, the fullest first; above it, up to the block's size, is waste.

    Args:
        packings: name -> packing of the same documents, of any number.

    Raises:
        ValueError: as `figure_packing`.
    """
    _check(packings)
    figure = go.Figure(layout=base_layout(title, PLOT_PIXELS + PAPER_PIXELS, showlegend=True))
    for index, (name, packing) in enumerate(packings.items()):
        look = series_look(index)
        filled = sorted((_used(packing, block) for block in packing.blocks), reverse=True)
        ends = {"x": [*range(1, len(filled) + 1), len(filled)], "y": [*filled, 0]}  # down to the axis: no more blocks
        line = {"color": look.color, "dash": look.dash, "width": 2}
        words = f"<b>{name}</b><br>{plural(len(filled), 'blocks')}, {packing.waste:.2%} waste"
        figure.add_trace(go.Scatter(**ends, name=name, mode="lines", line=line, hovertext=words, hoverinfo="text"))
    size = next(iter(packings.values())).block_size
    figure.update_layout(
        xaxis=axis("block, the fullest first (count)", rangemode="tozero"),
        yaxis=axis("filled (tokens)", range=[0, 1.05 * size]),
    )
    return attach(figure, _summary(packings), packing_table(packings))


def packing_table(packings: Mapping[str, Packed]) -> dict[str, Sequence[object]]:
    """Blocks, tokens and waste of each way, and the work of attention: pairs of tokens in blocks and in documents."""
    every = list(packings.values())
    pairs = [len(p.blocks) * p.block_size**2 for p in every]
    inside = [sum(length**2 for length in p.lengths) for p in every]
    return {
        "packing": list(packings),
        "documents": [len(p.lengths) for p in every],
        "blocks": [len(p.blocks) for p in every],
        "waste (%)": [100 * p.waste for p in every],
        "attention over blocks (pairs of tokens)": pairs,
        "in documents alone (pairs of tokens)": inside,
        "times fewer": [a / b for a, b in zip(pairs, inside, strict=True)],
    }


def _documents(packing: Packed, shown: Sequence[int]) -> list[go.Bar]:
    """A trace for each place in a block, from below, and one for what is left."""
    traces, places = [], list(range(len(shown)))
    names, colors = ("first, third, ... document", "second, fourth, ..."), (series_look(0).color, series_look(5).color)
    for place in range(max(len(packing.blocks[block]) for block in shown)):
        heights = [
            packing.lengths[packing.blocks[block][place]] if place < len(packing.blocks[block]) else 0
            for block in shown
        ]
        words = [
            f"document {packing.blocks[block][place]}: {plural(height, 'tokens')}" if height else ""
            for block, height in zip(shown, heights, strict=True)
        ]
        pattern = {"shape": "" if place % 2 == 0 else "/", "fillmode": "overlay", "fgcolor": "#FFFFFF"}
        pattern |= {"solidity": 0.2, "size": 6}
        marker = {"color": colors[place % 2], "pattern": pattern, "line": {"width": 0.5, "color": "#FFFFFF"}}
        group = {"name": names[place % 2], "legendgroup": names[place % 2]}
        traces.append(go.Bar(x=places, y=heights, hovertext=words, hoverinfo="text", marker=marker, **group))
    left = [packing.block_size - _used(packing, packing.blocks[block]) for block in shown]
    words = [f"padding: {plural(room, 'tokens')}" for room in left]
    group = {"name": "padding", "legendgroup": "padding", "legendrank": 2000}
    marker = LOOKS["idle"].marker()
    return [*traces, go.Bar(x=places, y=left, hovertext=words, hoverinfo="text", marker=marker, **group)]


def _shown(packing: Packed) -> list[int]:
    number = len(packing.blocks)
    return list(range(number)) if number <= MOST_BLOCKS else [i * number // MOST_BLOCKS for i in range(MOST_BLOCKS)]


def _used(packing: Packed, block: Sequence[int]) -> int:
    return sum(packing.lengths[document] for document in block)


def _check(packings: Mapping[str, Packed]) -> None:
    if not packings:
        raise ValueError("there must be a packing to draw: got none.")
    first = next(iter(packings.values()))
    for name, packing in packings.items():
        for attribute, hint in _ATTRIBUTES.items():
            check_type(f"packings: {attribute} of {shown(name)}", getattr(packing, attribute), hint)
        if not packing.blocks or (packing.lengths, packing.block_size) != (first.lengths, first.block_size):
            raise ValueError(f"every packing must have blocks, and all the same documents: see {name!r}.")


def _summary(packings: Mapping[str, Packed]) -> str:
    first = next(iter(packings.values()))
    parts = [f"{name} {plural(len(p.blocks), 'blocks')}, {p.waste:.2%} of them waste" for name, p in packings.items()]
    tokens = format_quantity(sum(first.lengths), "tokens")
    return (
        f"{plural(len(first.lengths), 'documents')} of {tokens} in blocks of {first.block_size:,}: {'; '.join(parts)}."
    )
