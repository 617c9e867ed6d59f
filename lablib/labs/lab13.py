"""Lab 13: bubble of each pipeline schedule against the memory of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, chart, line
from lablib.pipeline.equal_memory import Afforded
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

MEMORY = Axis("activations a rank can hold", "micro-batches")


@checked
def figure_equal_memory(afforded: Mapping[float, Sequence[Afforded]], title: str) -> go.Figure:
    """One line for each schedule, over the memory in which it fits.

    `afforded`: memory -> result of `lablib.pipeline.equal_memory`, ascending.
    """
    best = {memory: {one.schedule: one for one in found} for memory, found in afforded.items()}
    names = list(dict.fromkeys(name for found in reversed(best.values()) for name in found))
    marks, columns = [], dict[str, list[float | None]]({f"{MEMORY.label} ({MEMORY.unit})": list(best)})
    for index, name in enumerate(names):
        fits = {memory: found[name] for memory, found in best.items() if name in found}
        shares = {memory: 100 * one.bubble_fraction for memory, one in fits.items()}
        hover = [
            f"<b>{one.schedule}</b> with memory for {format_quantity(memory, MEMORY.unit)}<br>"
            f"bubble {one.bubble_fraction:.1%}, holds {one.in_flight:.3g}<br>"
            f"{plural(one.num_flushes, 'parts')} of {plural(one.num_microbatches, 'micro-batches')}, "
            f"{plural(one.num_chunks, 'pieces')} a rank"
            for memory, one in fits.items()
        ]
        marks.append(line(index, name, list(shares), list(shares.values()), hover))
        columns[f"{name}: bubble (%)"] = [shares.get(memory) for memory in best]
    parts = []
    for memory in dict.fromkeys([*list(best)[:1], *list(best)[-1:]]):
        least = min(best[memory].values(), key=lambda one: one.bubble_fraction, default=None)
        words = f"{least.schedule} has the least bubble, {least.bubble_fraction:.1%}" if least else "nothing fits"
        parts.append(f"with memory for {format_quantity(memory, MEMORY.unit)} {words}")
    sentence = "; ".join(parts)
    panel = Panel(MEMORY, Axis("bubble", "%", from_zero=True), marks)
    return chart(title, panel, f"{sentence[:1].upper()}{sentence[1:]}.", columns)
