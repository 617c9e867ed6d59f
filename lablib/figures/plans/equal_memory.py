"""Bubble of each pipeline schedule against the memory of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, chart, line
from lablib.pipeline.equal_memory import Afforded
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

MEMORY = "activations a rank can hold"


@checked
def figure_equal_memory(afforded: Mapping[float, Sequence[Afforded]], title: str = "") -> go.Figure:
    """One line a schedule; none where it does not fit.

    Args:
        afforded: memory -> what `lablib.pipeline.equal_memory` found for it.

    Returns:
        A figure whose table has one row for each memory, and the bubble of each schedule.
    """
    memories = sorted(afforded)
    best = {memory: {each.schedule: each for each in afforded[memory]} for memory in memories}
    names = list(dict.fromkeys(name for memory in reversed(memories) for name in best[memory]))
    columns: dict[str, list[float | None]] = {f"{MEMORY} (micro-batches)": list(memories)}
    marks = []
    for index, name in enumerate(names):
        found = {memory: best[memory][name] for memory in memories if name in best[memory]}
        shares = {memory: 100 * each.bubble_fraction for memory, each in found.items()}
        hover = [_hover(memory, each) for memory, each in found.items()]
        marks.append(line(index, name, list(shares), list(shares.values()), hover))
        columns[f"{name}: bubble (%)"] = [shares.get(memory) for memory in memories]
    panel = Panel(Axis(MEMORY, "micro-batches"), Axis("bubble", "%", from_zero=True), marks)
    return chart(title or "Bubble at equal memory", panel, _summary(memories, best), columns)


def _hover(memory: float, each: Afforded) -> str:
    return (
        f"<b>{each.schedule}</b> with memory for {format_quantity(memory, 'micro-batches')}<br>"
        f"bubble {each.bubble_fraction:.1%}, holds {each.in_flight:.3g}<br>"
        f"{plural(each.num_flushes, 'parts')} of {plural(each.num_microbatches, 'micro-batches')}, "
        f"{plural(each.num_chunks, 'pieces')} a rank"
    )


def _summary(memories: Sequence[float], best: Mapping[float, Mapping[str, Afforded]]) -> str:
    parts = []
    for memory in dict.fromkeys((*memories[:1], *memories[-1:])):
        least = min(best[memory].values(), key=lambda each: each.bubble_fraction, default=None)
        words = (
            "nothing fits" if least is None else f"{least.schedule} has the least bubble, {least.bubble_fraction:.1%}"
        )
        parts.append(f"with memory for {format_quantity(memory, 'micro-batches')} {words}")
    return f"{'; '.join(parts)[:1].upper()}{'; '.join(parts)[1:]}." if parts else ""
