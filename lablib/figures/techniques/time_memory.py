"""Step time against activation memory of memory-saving methods, one panel per device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, chart, points
from lablib.signature import checked
from lablib.text.units import format_quantity

_SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "triangle-down", "hourglass", "bowtie")


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
    across = Axis("time of a step", "1 = keep all", span=(0.94, slowest * 1.03))
    down = Axis("activations at the peak", "%", span=(0, 106))
    panels = [
        Panel(across, down, [_point(i, way, some[0], slowest) for i, way in enumerate(some)], title=device)
        for device, some in ways.items()
    ]
    return chart(title or "Memory against time, by device", panels, _summary(ways), _columns(ways))


def _point(index: int, way: Way, plain: Way, slowest: float) -> Mark:
    time, memory = way.time_s / plain.time_s, 100 * way.memory_bytes / plain.memory_bytes
    words = (
        f"<b>{way.name}</b><br>{format_quantity(way.memory_bytes, 'B')}, {memory:.0f}%"
        f"<br>{format_quantity(way.time_s, 's')}, {time:.2f} times"
    )
    if time <= slowest:
        return points(index, way.name, [time], [memory], [words], symbol=_SYMBOLS[index % len(_SYMBOLS)], size=11)
    mark = points(index, way.name, [slowest], [memory], [words], symbol="triangle-right", size=11)
    return mark.styled(mode="markers+text", text=[f"{time:.1f} x"], textposition="top left")


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
