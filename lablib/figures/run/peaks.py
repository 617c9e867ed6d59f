"""The peak of every rank: one bar each, stacked by what it held then."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import FAINT_INK, MEMORY_LOOKS, PAPER_PIXELS, axis, base_layout, empty_axis
from lablib.hardware.device import Device
from lablib.record.memory import Memory
from lablib.record.memory_text import NOT_RECORDED
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity, unit_for

PLOT_PIXELS = 260
ROOM_FOR_CAPACITY = 3.0  # the capacity is drawn where it is at most so many times the highest peak


@checked
def figure_peaks(memory: Memory, device: Device | None = None, title: str = "Peak memory of each rank") -> go.Figure:
    """What each rank held at its own peak, by category.

    Args:
        memory: of a run, `run.memory`.
        device: what it ran on, `run.device`: its capacity is drawn where it is near, and said in any case.

    Returns:
        A figure whose table has one row a rank.
    """
    ranks = list(range(memory.num_ranks)) if memory.is_known else []
    at_peak = [memory.at_peak(rank) for rank in ranks]
    peaks = [memory.peak_bytes(rank) for rank in ranks]
    high = float(max(peaks, default=0))
    unit = unit_for(high, "B")
    figure = go.Figure(layout=base_layout(title, PLOT_PIXELS + PAPER_PIXELS, barmode="stack", bargap=0.3))
    # An allocator that counted alone does not say what it held.
    parts = {name: [held.get(name, 0) for held in at_peak] for name in MEMORY_LOOKS}
    parts |= {"other": list(memory.allocator_peaks)} if memory.allocator_peaks else {}
    for name, sizes in parts.items():
        look = MEMORY_LOOKS[name]
        if any(sizes):
            hover = [
                f"<b>{name}</b><br>rank {rank}: {format_quantity(size, 'B', 4)}" for rank, size in enumerate(sizes)
            ]
            bar = {"x": ranks, "y": [unit.of(size) for size in sizes], "hovertext": hover, "hoverinfo": "text"}
            name = "not known of what" if memory.allocator_peaks else name
            figure.add_trace(go.Bar(name=name, marker=look.marker(), legendgroup=f"memory: {name}", **bar))
    if device is not None and 0 < device.memory_bytes <= ROOM_FOR_CAPACITY * high:
        label = {"text": f"{device.name} has {format_quantity(device.memory_bytes, 'B')}", "font": {"size": 12}}
        label |= {"bgcolor": "rgba(255,255,255,0.85)"}
        line: dict[str, Any] = {"line": {"dash": "dot", "color": FAINT_INK, "width": 1.5}, "annotation": label}
        figure.add_hline(y=unit.of(device.memory_bytes), annotation_position="top left", **line)
    ticks = {"tickmode": "linear", "dtick": 1} if len(ranks) <= 32 else {}
    across = axis("rank (number)", showgrid=False, **ticks)
    figure.update_layout(xaxis=across, yaxis=axis(axis_title("memory", unit), rangemode="tozero"), showlegend=True)
    if not high:
        figure.update_layout(xaxis=empty_axis("rank (number)"), yaxis=empty_axis("memory (B)"))
    columns = {} if memory.allocator_peaks else {f"{name} (B)": sizes for name, sizes in parts.items()}
    return attach(
        figure, _summary(memory, peaks, device), {"rank": ranks, **columns, "peak (B)": peaks}, memory.run_notes
    )


def _summary(memory: Memory, peaks: list[int], device: Device | None) -> str:
    if not peaks or not max(peaks):
        return NOT_RECORDED
    low, high = min(peaks), max(peaks)
    first, last = peaks.index(low), peaks.index(high)
    if low == high:
        whose = f"each of the {len(peaks)} ranks" if len(peaks) > 1 else "the only rank"
        text = f"The peak of {whose} is {format_quantity(high, 'B')}"
    else:
        text = (
            f"Peaks of {len(peaks)} ranks go from "
            f"{format_quantity(low, 'B')} (rank {first}) to {format_quantity(high, 'B')} "
        )
        text += f"(rank {last})"
    if held := memory.at_peak(last):
        largest = max(held, key=lambda name: held[name])
        text += f"; {held[largest] / high:.0%} of the highest is {largest}"
    else:
        text += ", by the count of the GPUs' allocators, which do not say of what"
    if device is not None and device.memory_bytes < float("inf"):
        over = sum(peak > device.memory_bytes for peak in peaks)
        text += f"; {device.name} has {format_quantity(device.memory_bytes, 'B')}"
        text += f", too little for {over} of them" if over else f", {high / device.memory_bytes:.1%} of it is needed"
    return text + "."
