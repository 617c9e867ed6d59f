"""Peak memory of each rank, stacked by category."""

from __future__ import annotations

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, Rule, bars, chart
from lablib.figures.style import MEMORY_LOOKS
from lablib.hardware.device import Device
from lablib.record.memory import Memory
from lablib.record.memory_text import NOT_RECORDED
from lablib.signature import checked
from lablib.text.units import format_quantity

PLOT_PIXELS = 260
ROOM_FOR_CAPACITY = 3.0  # a capacity above so many times the highest peak is in the sentence only


@checked
def figure_peaks(memory: Memory, device: Device | None = None, title: str = "Peak memory of each rank") -> go.Figure:
    """Memory of each rank at its own peak, by category. Table: one row per rank.

    Args:
        device: `run.device`: its capacity is in the sentence, and in the picture if it is near the peak.
    """
    ranks = list(range(memory.num_ranks)) if memory.is_known else []
    at_peak = [memory.at_peak(rank) for rank in ranks]
    peaks = [memory.peak_bytes(rank) for rank in ranks]
    high = float(max(peaks, default=0))
    # An allocator's count has no categories.
    is_unnamed = bool(memory.allocator_peaks)
    parts = {name: [held.get(name, 0) for held in at_peak] for name in MEMORY_LOOKS}
    parts |= {"other": list(memory.allocator_peaks)} if is_unnamed else {}
    marks, rules, ceiling = [], [], high
    for name, sizes in parts.items():
        words = [f"<b>{name}</b><br>rank {rank}: {format_quantity(size, 'B', 4)}" for rank, size in enumerate(sizes)]
        if any(sizes):
            marks.append(bars(MEMORY_LOOKS[name], "not known of what" if is_unnamed else name, ranks, sizes, words))
    if device is not None and 0 < device.memory_bytes <= ROOM_FOR_CAPACITY * high:
        ceiling = max(high, device.memory_bytes)
        words = f"{device.name} has {format_quantity(device.memory_bytes, 'B')}"
        rules.append(Rule(y=device.memory_bytes, text=words, place="top left", line={"dash": "dot"}))
    ticks = {"tickmode": "linear", "dtick": 1} if len(ranks) <= 32 else {}
    across = Axis("rank", "number", look={"showgrid": False, **ticks})
    columns = {} if is_unnamed else {f"{name} (B)": sizes for name, sizes in parts.items()}
    return chart(
        title,
        Panel(across, Axis("memory", "B", span=(0, 1.06 * ceiling) if high else None), marks, rules),
        _summary(memory, peaks, device),
        {"rank": ranks, **columns, "peak (B)": peaks},
        memory.run_notes,
        PLOT_PIXELS,
        barmode="stack",
        bargap=0.3,
    )


def _summary(memory: Memory, peaks: list[int], device: Device | None) -> str:
    if not peaks or not max(peaks):
        return NOT_RECORDED
    low, high = min(peaks), max(peaks)
    first, last = peaks.index(low), peaks.index(high)
    if low == high:
        owner = f"each of the {len(peaks)} ranks" if len(peaks) > 1 else "the only rank"
        text = f"The peak of {owner} is {format_quantity(high, 'B')}"
    else:
        ends = f"{format_quantity(low, 'B')} (rank {first}) to {format_quantity(high, 'B')} (rank {last})"
        text = f"Peaks of {len(peaks)} ranks go from {ends}"
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
