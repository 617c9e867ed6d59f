"""Memory of a caching allocator over time: reserved, allocated and requested bytes."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, ReferenceLine, chart, line
from lablib.figures.style import LOOKS
from lablib.record.allocator_replay import AllocatorReplay
from lablib.signature import checked
from lablib.text.units import format_quantity

MAX_STEPS = 1500
ROOM_FOR_CAPACITY = 3.0  # a capacity above so many times the peak is not drawn


@checked
def figure_allocator(replay: AllocatorReplay, title: str = "Memory of the caching allocator") -> go.Figure:
    """Bytes against time; fragmentation is the gap between reserved and allocated. Table: each at its peak and end.

    Past `MAX_STEPS` events, each step is drawn at its event with the most reserved and then the most allocated bytes.
    """
    parts = np.array_split(np.arange(len(replay.times_s)), min(MAX_STEPS, max(1, len(replay.times_s))))
    shown = [
        int(part[np.lexsort((replay.allocated_bytes[part], replay.reserved_bytes[part]))[-1]])
        for part in parts
        if len(part)
    ]
    series = {
        "reserved": replay.reserved_bytes,
        "allocated": replay.allocated_bytes,
        "requested": replay.requested_bytes,
    }
    marks = [
        line(number, name, replay.times_s[shown].tolist(), values[shown].tolist()).styled(mode="lines")
        for number, (name, values) in enumerate(series.items())
    ]
    marks = [mark.styled(line=mark.look["line"] | {"shape": "hv"}) for mark in marks]
    rules, failed, top = [], replay.out_of_memory, max(1, replay.peak_reserved_bytes)
    if replay.capacity_bytes <= ROOM_FOR_CAPACITY * top:
        top = max(top, replay.capacity_bytes)
        rules.append(ReferenceLine(y=float(replay.capacity_bytes), text="capacity", place="top left"))
    if failed is not None:
        text = f"{format_quantity(failed.size_bytes, 'B')} do not fit"
        look = {"color": LOOKS["backward"].color}
        rules.append(ReferenceLine(x=failed.time_s, text=text, place="top left", line=look))
    sentence = f"The allocator has {replay}." if failed is None else f"{str(failed)[0].upper()}{str(failed)[1:]}."
    panel = Panel(Axis("time", "s"), Axis("memory", "B", span=(0, 1.1 * top)), marks, rules)
    columns = {
        "bytes": list(series),
        "at the peak (B)": [int(values.max(initial=0)) for values in series.values()],
        "at the end (B)": [int(values[-1]) if len(values) else 0 for values in series.values()],
    }
    return chart(title, panel, sentence if len(shown) or failed else "", columns)
