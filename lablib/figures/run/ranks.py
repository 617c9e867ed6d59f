"""Bars of each rank: peak memory by category, and bytes sent by operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, ReferenceLine, bars, chart
from lablib.figures.style import LOOKS, MEMORY_LOOKS
from lablib.hardware.device import Device
from lablib.record.memory import Memory
from lablib.record.memory_text import NOT_RECORDED
from lablib.run import Traffic
from lablib.signature import Range, checked
from lablib.text.units import format_quantity, plural

PLOT_PIXELS = 260
ROOM_FOR_CAPACITY = 3.0  # a capacity above so many times the highest peak is in the sentence only
# Shades of the colour of communication, which also differ by pattern.
_SHADES = ("#CC79A7", "#8E4A70", "#E8BFD5", "#A85C86", "#D99BBD", "#6B3353")
_PATTERNS = (".", "/", "", "x", "\\", "-")


def _across(num_ranks: int) -> Axis:
    ticks: dict[str, Any] = {"tickmode": "linear", "dtick": 1} if num_ranks <= 32 else {}
    return Axis("rank", "number", look={"showgrid": False, **ticks})


@checked
def figure_peaks(memory: Memory, device: Device | None = None, title: str = "Peak memory of each rank") -> go.Figure:
    """Memory of each rank at its own peak, by category. Table: one row per rank.

    `device`: `run.device`: its capacity is in the sentence, and in the picture if it is near the peak.
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
        rules.append(ReferenceLine(y=device.memory_bytes, text=words, place="top left", line={"dash": "dot"}))
    columns = {} if is_unnamed else {f"{name} (B)": sizes for name, sizes in parts.items()}
    return chart(
        title,
        Panel(_across(len(ranks)), Axis("memory", "B", span=(0, 1.06 * ceiling) if high else None), marks, rules),
        _peaks_in_words(memory, peaks, device),
        {"rank": ranks, **columns, "peak (B)": peaks},
        memory.run_notes,
        PLOT_PIXELS,
        barmode="stack",
        bargap=0.3,
    )


def _peaks_in_words(memory: Memory, peaks: list[int], device: Device | None) -> str:
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
    panel, summary = (
        Panel(_across(num_ranks), Axis("bytes sent", "B", from_zero=True), marks),
        _sent_in_words(traffic, totals),
    )
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
