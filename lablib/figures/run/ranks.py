"""Bars of each rank: peak memory by category, and bytes sent by operation."""

from dataclasses import replace
from typing import Annotated, Any

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, bars, chart
from lablib.figures.style import LOOKS
from lablib.run import Traffic
from lablib.signature import Range, checked
from lablib.text.units import format_quantity, plural

PLOT_PIXELS = 260
# Shades of the colour of communication, which also differ by pattern.
_SHADES = ("#CC79A7", "#8E4A70", "#E8BFD5", "#A85C86", "#D99BBD", "#6B3353")
_PATTERNS = (".", "/", "", "x", "\\", "-")


@checked
def figure_traffic(
    traffic: Traffic, num_ranks: Annotated[int, Range(ge=1, le=100_000)], title: str = "Bytes sent by each rank"
) -> go.Figure:
    """Stacked bars: one for each rank, one layer for each operation."""
    sent, ranks = dict[str, list[float]](), list(range(num_ranks))
    for transfer in traffic.transfers:
        values = sent.setdefault(transfer.name, [0.0] * num_ranks)
        for rank, size in zip(transfer.ranks, transfer.sent_bytes, strict=True):
            if rank >= num_ranks:
                raise ValueError(f"num_ranks must cover every rank of the traffic: got {num_ranks}, found rank {rank}.")
            values[rank] += size
    totals = [sum(values[rank] for values in sent.values()) for rank in ranks]
    marks = []
    for index, (name, values) in enumerate(sent.items()):
        words = [f"<b>{name}</b><br>rank {r} sends {format_quantity(v, 'B', 4)}" for r, v in enumerate(values)]
        look = replace(LOOKS["communication"], color=_SHADES[index % 6], pattern=_PATTERNS[index % 6])
        marks.append(bars(look, f"{name} ({plural(traffic.count(name), 'calls')})", ranks, values, words))
    columns = {"rank": ranks} | {f"{name} (B)": values for name, values in sent.items()} | {"total (B)": totals}
    ticks: dict[str, Any] = {"tickmode": "linear", "dtick": 1} if num_ranks <= 32 else {}
    across = Axis("rank", "number", look={"showgrid": False, **ticks})
    panel, summary = Panel(across, Axis("bytes sent", "B", from_zero=True), marks), _sent_in_words(traffic, totals)
    return chart(title, panel, summary, columns, traffic.notes, PLOT_PIXELS, barmode="stack", bargap=0.35)


def _sent_in_words(traffic: Traffic, totals: list[float]) -> str:
    if not len(traffic):
        return f"Nothing was sent between {f'the {len(totals)} ranks' if len(totals) > 1 else 'ranks'}."
    calls = plural(len(traffic), "communications")
    text = f"{calls} {'sends' if len(traffic) == 1 else 'send'} {format_quantity(sum(totals), 'B')} in all: "
    low, high = min(totals), max(totals)
    if high - low <= 1e-9 * high:
        return text + f"each rank sends {format_quantity(high, 'B')}."
    ends = [f"{format_quantity(end, 'B')} (rank {totals.index(end)})" for end in (low, high)]
    return f"{text}from {ends[0]} to {ends[1]}."
