"""Time against memory: what each way to keep less costs, one panel a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lablib.figures.chart import PLOT_PIXELS
from lablib.figures.describe import attach
from lablib.figures.style import PAPER_PIXELS, axis, base_layout, series_look
from lablib.signature import checked
from lablib.text.units import format_quantity

_SHARES = [0, 118]  # of the axis in per cent: room for a point at 100 and the name of a device above


class Way(Protocol):
    """One way to keep less: its name, bytes at the peak, seconds of a step."""

    @property
    def name(self) -> str: ...

    @property
    def memory_bytes(self) -> float: ...

    @property
    def time_s(self) -> float: ...


@checked
def figure_time_memory(ways: Mapping[str, Sequence[Way]], title: str = "", slowest: float = 2.0) -> go.Figure:
    """Each way as a point: down is less memory, left is less time; the first way of a device is 1 and 100%.

    Args:
        ways: device -> its ways, the plain one first; every device has the same ways.
        slowest: times the plain step, from which on a point is drawn at the edge, with an arrow for its symbol.

    Raises:
        ValueError: no device, or other ways than the first device has.
    """
    names = [way.name for way in next(iter(ways.values()), ())]
    for device, some in ways.items():
        if [way.name for way in some] != names:
            raise ValueError(f"every device must have the same ways: {device} has {[way.name for way in some]}.")
    if not names:
        raise ValueError("there must be a device and a way to draw: got none.")
    figure = make_subplots(
        rows=1, cols=len(ways), shared_yaxes=True, subplot_titles=list(ways), horizontal_spacing=0.03
    )
    figure.update_layout(base_layout(title or "Memory against time, by device", PLOT_PIXELS + PAPER_PIXELS))
    for column, some in enumerate(ways.values(), 1):
        for index in range(len(names)):
            figure.add_trace(_point(some[index], some[0], index, slowest, column == 1), row=1, col=column)
        low, high = 0.94, slowest * 1.03
        figure.update_xaxes(axis("time of a step (1 = keep all)", range=[low, high]), row=1, col=column)
    figure.update_yaxes(axis("", range=_SHARES))
    figure.update_yaxes(axis("activations at the peak (%)", range=_SHARES), row=1, col=1)
    figure.update_annotations(yanchor="top", font_size=13)  # the devices: inside their panels, below the edge
    figure.update_layout(showlegend=True)
    return attach(figure, _summary(ways), _columns(ways))


def _point(way: Way, plain: Way, index: int, slowest: float, in_legend: bool) -> go.Scatter:
    look = series_look(index)
    time, memory = way.time_s / plain.time_s, 100 * way.memory_bytes / plain.memory_bytes
    is_outside = time > slowest
    symbols = (
        "circle",
        "square",
        "diamond",
        "cross",
        "x",
        "triangle-up",
        "star",
        "triangle-down",
        "hourglass",
        "bowtie",
    )
    return go.Scatter(
        x=[min(time, slowest)],
        y=[memory],
        name=way.name,
        legendgroup=way.name,
        showlegend=in_legend,
        mode="markers+text" if is_outside else "markers",
        text=[f"{time:.1f} x"] if is_outside else None,
        textposition="top left",
        marker={"symbol": "triangle-right" if is_outside else symbols[index % len(symbols)], "size": 11}
        | {"color": look.color},
        hovertext=f"<b>{way.name}</b><br>{format_quantity(way.memory_bytes, 'B')}, {memory:.0f}%"
        f"<br>{format_quantity(way.time_s, 's')}, {time:.2f} times",
        hoverinfo="text",
    )


def _summary(ways: Mapping[str, Sequence[Way]]) -> str:
    parts = []
    for device, (plain, *others) in ways.items():
        small = [way for way in others if way.memory_bytes <= plain.memory_bytes / 4]
        if small:
            best = min(small, key=lambda way: way.time_s)
            memory, time = best.memory_bytes / plain.memory_bytes, best.time_s / plain.time_s - 1
            parts.append(f"on {device} {best.name} ({memory:.0%} of the bytes, {time:+.0%} time)")
    return "The quickest way to at most a quarter of the bytes: " + ("; ".join(parts) or "there is none") + "."


def _columns(ways: Mapping[str, Sequence[Way]]) -> dict[str, Sequence[object]]:
    rows = [(device, way, some[0]) for device, some in ways.items() for way in some]
    return {
        "device": [device for device, _, _ in rows],
        "way": [way.name for _, way, _ in rows],
        "memory (GB)": [way.memory_bytes / 1e9 for _, way, _ in rows],
        "memory (%)": [100 * way.memory_bytes / plain.memory_bytes for _, way, plain in rows],
        "time (s)": [way.time_s for _, way, _ in rows],
        "time (1 = keep all)": [way.time_s / plain.time_s for _, way, plain in rows],
    }
