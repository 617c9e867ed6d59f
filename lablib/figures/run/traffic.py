"""Who sends how much: bytes that leave each rank, by operation."""

from __future__ import annotations

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import PAPER_PIXELS, axis, base_layout
from lablib.run import Traffic
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity, plural, unit_for

# Shades of the colour of communication, told apart by pattern too: all of this is communication.
_SHADES = ("#CC79A7", "#8E4A70", "#E8BFD5", "#A85C86", "#D99BBD", "#6B3353")
_PATTERNS = (".", "/", "", "x", "\\", "-")

_MAX_RANKS = 100_000


@checked
def figure_traffic(traffic: Traffic, num_ranks: int, title: str = "Bytes sent by each rank") -> go.Figure:
    """Stacked bars: one a rank, one layer an operation.

    Args:
        traffic: of one run.
        num_ranks: how many ranks the run had; a rank that sent nothing has an empty bar.

    Raises:
        ValueError: if a transfer names a rank beyond `num_ranks`, or a number that cannot be drawn.
    """
    if not 1 <= num_ranks <= _MAX_RANKS:
        raise ValueError(f"num_ranks must be 1 to {_MAX_RANKS:,}, a bar for each: got {num_ranks}; try 8")
    sent = _sent_bytes(traffic, num_ranks)
    totals = [sum(values[rank] for values in sent.values()) for rank in range(num_ranks)]
    unit = unit_for(totals, "B")
    figure = go.Figure(layout=base_layout(title, 260 + PAPER_PIXELS, barmode="stack", showlegend=True, bargap=0.35))
    for index, (name, values) in enumerate(sent.items()):
        calls = traffic.count(name)
        pattern = {
            "shape": _PATTERNS[index % len(_PATTERNS)],
            "fillmode": "overlay",
            "fgcolor": "rgba(255,255,255,0.6)",
        }
        figure.add_trace(
            go.Bar(
                name=f"{name} ({plural(calls, 'calls')})",
                x=list(range(num_ranks)),
                y=[unit.of(v) for v in values],
                marker={"color": _SHADES[index % len(_SHADES)], "pattern": pattern | {"size": 7, "solidity": 0.25}},
                hovertext=[
                    f"<b>{name}</b><br>rank {r} sends {format_quantity(v, 'B', 4)}" for r, v in enumerate(values)
                ],
                hoverinfo="text",
            )
        )
    ticks = {"tickmode": "linear", "dtick": 1} if num_ranks <= 32 else {}
    figure.update_layout(
        xaxis=axis("rank (number)", showgrid=False, **ticks),
        yaxis=axis(axis_title("bytes sent", unit), rangemode="tozero"),
    )
    columns = {"rank": list(range(num_ranks))} | {f"{name} (B)": values for name, values in sent.items()}
    return attach(figure, _summary(traffic, totals), columns | {"total (B)": totals}, traffic.notes)


def _sent_bytes(traffic: Traffic, num_ranks: int) -> dict[str, list[float]]:
    """Operation -> bytes that left each rank, operations in order of first use."""
    sent: dict[str, list[float]] = {}
    for transfer in traffic.transfers:
        values = sent.setdefault(transfer.name, [0.0] * num_ranks)
        for rank, size in zip(transfer.ranks, transfer.sent_bytes, strict=True):
            if rank >= num_ranks:
                raise ValueError(f"num_ranks must cover every rank of the traffic: got {num_ranks}, found rank {rank}.")
            values[rank] += size
    return sent


def _summary(traffic: Traffic, totals: list[float]) -> str:
    if not len(traffic):
        return (
            f"Nothing was sent between the {len(totals)} ranks."
            if len(totals) > 1
            else "Nothing was sent between ranks."
        )
    calls = plural(len(traffic), "communications")
    text = f"{calls} {'sends' if len(traffic) == 1 else 'send'} {format_quantity(sum(totals), 'B')} in all: "
    low, high = min(totals), max(totals)
    if high - low <= 1e-9 * high:
        return text + f"each rank sends {format_quantity(high, 'B')}."
    return (
        text + f"from {format_quantity(low, 'B')} (rank {totals.index(low)}) to "
        f"{format_quantity(high, 'B')} (rank {totals.index(high)})."
    )
