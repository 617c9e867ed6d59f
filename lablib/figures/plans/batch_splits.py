"""Peak memory and step time of one global batch, by micro-batch size and gradient accumulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, ReferenceLine, bars, chart, labels
from lablib.figures.plans.plan_memory import TOO_MUCH, stage_by_look
from lablib.figures.style import COMPUTE, FAINT_INK, MEMORY_LOOKS
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction


@checked
def figure_batch_splits(predictions: Sequence[Prediction], chosen: int = 0, title: str = "") -> go.Figure:
    """Two panels, one bar per split: peak bytes by category, under the GPU's limit; and the time of a step.

    Args:
        predictions: of one model, cluster, number of ranks and global batch; only the micro-batch differs.
        chosen: index of the split of the sentence; its name is bold.
    """
    if not predictions or len({(one.batch, one.parallel.data) for one in predictions}) > 1:
        raise ValueError("all splits must be of one global batch and number of ranks, and at least one: got others.")
    if not 0 <= chosen < len(predictions):
        raise ValueError(f"chosen must be the index of one of {plural(len(predictions), 'splits')}: got {chosen}.")
    here = predictions[chosen]
    names = [f"{one.micro_batch} x {one.num_microbatches}" for one in predictions]
    names[chosen] = f"<b>{names[chosen]}</b>"
    peaks = [max(one.stage_bytes) for one in predictions]
    sizes = f"{here.micro_batch} x {here.num_microbatches} x {here.parallel.data}"
    title = title or f"{sizes} = {plural(here.batch, 'sequences')}"
    across = Axis("micro-batch x accumulations", "sequences", look={"type": "category", "showgrid": False})
    panels = [_memory(across, predictions, names, peaks), _time(across, predictions, names)]
    peak, limit = max(here.stage_bytes), here.memory_limit_bytes
    fit = "fits into" if peak <= limit else "does not fit into"
    sentence = (
        f"Micro-batch {here.micro_batch} x {plural(here.num_microbatches, 'accumulations')} x "
        f"{plural(here.parallel.data, 'data ranks')} = {plural(here.batch, 'sequences')}, "
        f"{plural(here.tokens_per_step, 'tokens')} a step: {format_quantity(here.step_time_s, 's')}, "
        f"MFU {here.mfu:.0%}, {format_quantity(peak, 'B')} at the peak, which {fit} the "
        f"{format_quantity(limit, 'B')} of a GPU."
    )
    columns = {
        "micro-batch (sequences)": [one.micro_batch for one in predictions],
        "accumulations": [one.num_microbatches for one in predictions],
        "memory (B)": peaks,
        "fits": [peak <= one.memory_limit_bytes for one, peak in zip(predictions, peaks, strict=True)],
        "step (s)": [one.step_time_s for one in predictions],
        "MFU (%)": [100 * one.mfu for one in predictions],
        "tokens/s": [one.tokens_per_s for one in predictions],
    }
    return chart(title, panels, sentence, columns, barmode="stack", bargap=0.3)


def _memory(across: Axis, predictions: Sequence[Prediction], names: list[str], peaks: list[float]) -> Panel:
    limit = predictions[0].memory_limit_bytes
    high = min(max(peaks), 3 * limit)  # a split far beyond the limit does not flatten the others
    fullest = [stage_by_look(one.memory[one.stage_bytes.index(max(one.stage_bytes))]) for one in predictions]
    marks = []
    for name, look in MEMORY_LOOKS.items():
        sizes = [stage[name] for stage in fullest]
        words = [f"<b>{name}</b><br>{format_quantity(size, 'B')}" for size in sizes]
        marks.append(bars(look, name, names, sizes, words))
    sums = [format_quantity(peak, "B") for peak in peaks]
    marks.append(labels(names, [min(peak, 1.08 * high) for peak in peaks], sums, "top center"))
    memory = Axis("memory", "B", span=(0, 1.2 * max(high, limit)))
    rule = ReferenceLine(y=limit, line={"color": TOO_MUCH, "width": 2})
    return Panel(across, memory, marks, [rule], "memory of a GPU at its peak")


def _time(across: Axis, predictions: Sequence[Prediction], names: list[str]) -> Panel:
    times = [one.step_time_s for one in predictions]
    words = [f"{format_quantity(one.step_time_s, 's')}, MFU {one.mfu:.0%}" for one in predictions]
    fits = [max(one.stage_bytes) <= one.memory_limit_bytes for one in predictions]
    text = [f"MFU {one.mfu:.0%}" if fit else "no room" for one, fit in zip(predictions, fits, strict=True)]
    above = {"textposition": "outside", "textangle": 0, "constraintext": "none", "textfont": {"size": 11}}
    marker = COMPUTE.marker() | {"color": [COMPUTE.color if fit else FAINT_INK for fit in fits]}
    mark = bars(COMPUTE, "", names, times, words, text=text, cliponaxis=False, **above).styled(marker=marker)
    return Panel(across, Axis("step", "s", span=(0, 1.15 * max(times))), [mark], title="time of a step")
