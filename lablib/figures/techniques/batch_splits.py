"""One global batch in all its ways through a device: peak memory and step time by micro-batch x accumulations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lablib.figures.chart import PLOT_PIXELS
from lablib.figures.describe import attach
from lablib.figures.plans.plan_memory import TOO_MUCH, stage_by_look
from lablib.figures.style import COMPUTE, FAINT_INK, INK, MEMORY_LOOKS, PAPER_PIXELS, axis, base_layout
from lablib.figures.techniques.spread import make_room_for_titles
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity, plural, unit_for

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction


@checked
def figure_batch_splits(predictions: Sequence[Prediction], chosen: int = 0, title: str = "") -> go.Figure:
    """Two panels, a bar a split: bytes at the peak by category, under the GPU's limit; and the time of a step.

    Args:
        predictions: of one model, cluster, number of ranks and global batch; only the micro-batch differs.
        chosen: index of the split that is spoken of; its name is bold.

    Raises:
        ValueError: no prediction, several global batches, or an index that is none.
    """
    if not predictions or len({(one.batch, one.parallel.data) for one in predictions}) > 1:
        raise ValueError("all splits must be of one global batch and number of ranks, and at least one: got others.")
    if not 0 <= chosen < len(predictions):
        raise ValueError(f"chosen must be the index of one of {plural(len(predictions), 'splits')}: got {chosen}.")
    here = predictions[chosen]
    names = [f"{one.micro_batch} x {one.num_microbatches}" for one in predictions]
    names[chosen] = f"<b>{names[chosen]}</b>"
    peaks = [max(one.stage_bytes) for one in predictions]
    titles = ["memory of a GPU at its peak", "time of a step"]
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.1)
    title = title or (
        f"{here.micro_batch} x {here.num_microbatches} x {here.parallel.data} = {plural(here.batch, 'sequences')}"
    )
    figure.update_layout(base_layout(title, PLOT_PIXELS + PAPER_PIXELS, barmode="stack", bargap=0.3, showlegend=True))
    high = min(max(peaks), 3 * here.memory_limit_bytes)  # a split far beyond the limit does not flatten the others
    _memory(figure, predictions, names, peaks, high)
    _time(figure, predictions, names)
    figure.update_xaxes(axis("micro-batch x accumulations (sequences)", type="category", showgrid=False))
    make_room_for_titles(figure)
    return attach(figure, _summary(here), _columns(predictions, peaks))


def _memory(
    figure: go.Figure, predictions: Sequence[Prediction], names: list[str], peaks: list[float], high: float
) -> None:
    unit, limit = unit_for(high, "B"), predictions[0].memory_limit_bytes
    fullest = [stage_by_look(one.memory[one.stage_bytes.index(max(one.stage_bytes))]) for one in predictions]
    for name, look in MEMORY_LOOKS.items():
        sizes = [stage[name] for stage in fullest]
        words = [f"<b>{name}</b><br>{format_quantity(size, 'B')}" for size in sizes]
        bar: dict[str, Any] = {"x": names, "y": [unit.of(size) for size in sizes], "marker": look.marker()}
        figure.add_trace(
            go.Bar(name=name, legendgroup=f"memory: {name}", hovertext=words, hoverinfo="text", **bar), row=1, col=1
        )
    figure.add_trace(
        go.Scatter(
            x=names,
            y=[unit.of(min(peak, 1.08 * high)) for peak in peaks],
            mode="text",
            text=[format_quantity(peak, "B") for peak in peaks],
            textposition="top center",
            textfont={"size": 12, "color": INK, "shadow": ", ".join(["0 0 3px #FFFFFF"] * 4)},
            hoverinfo="skip",
            showlegend=False,
        ),
        row=1,
        col=1,
    )
    figure.add_shape(
        type="line", xref="x domain", x0=0, x1=1, yref="y", y0=unit.of(limit), y1=unit.of(limit)
    ).update_shapes(line={"dash": "dash", "color": TOO_MUCH, "width": 2})
    ceiling = 1.2 * max(high, limit)
    figure.update_yaxes(axis(axis_title("memory", unit), range=[0, unit.of(ceiling)]), row=1, col=1)


def _time(figure: go.Figure, predictions: Sequence[Prediction], names: list[str]) -> None:
    times = [one.step_time_s for one in predictions]
    unit = unit_for(times, "s")
    words = [f"{format_quantity(one.step_time_s, 's')}, MFU {one.mfu:.0%}" for one in predictions]
    fits = [max(one.stage_bytes) <= one.memory_limit_bytes for one in predictions]
    marker = COMPUTE.marker() | {"color": [COMPUTE.color if fit else FAINT_INK for fit in fits]}
    figure.add_trace(
        go.Bar(
            x=names,
            y=[unit.of(time) for time in times],
            text=[f"MFU {one.mfu:.0%}" if fit else "no room" for one, fit in zip(predictions, fits, strict=True)],
            textposition="outside",
            textangle=0,
            constraintext="none",
            textfont={"size": 11},
            marker=marker,
            hovertext=words,
            hoverinfo="text",
            showlegend=False,
            cliponaxis=False,
        ),
        row=1,
        col=2,
    )
    figure.update_yaxes(axis(axis_title("step", unit), range=[0, 1.15 * unit.of(max(times))]), row=1, col=2)


def _summary(here: Prediction) -> str:
    peak, limit = max(here.stage_bytes), here.memory_limit_bytes
    fit = "fits into" if peak <= limit else "does not fit into"
    return (
        f"Micro-batch {here.micro_batch} x {plural(here.num_microbatches, 'accumulations')} x "
        f"{plural(here.parallel.data, 'data ranks')} = {plural(here.batch, 'sequences')}, "
        f"{plural(here.tokens_per_step, 'tokens')} a step: {format_quantity(here.step_time_s, 's')}, "
        f"MFU {here.mfu:.0%}, "
        f"{format_quantity(peak, 'B')} at the peak, which {fit} the {format_quantity(limit, 'B')} of a GPU."
    )


def _columns(predictions: Sequence[Prediction], peaks: Sequence[float]) -> dict[str, Sequence[object]]:
    return {
        "micro-batch (sequences)": [one.micro_batch for one in predictions],
        "accumulations": [one.num_microbatches for one in predictions],
        "memory (B)": list(peaks),
        "fits": [peak <= one.memory_limit_bytes for one, peak in zip(predictions, peaks, strict=True)],
        "step (s)": [one.step_time_s for one in predictions],
        "MFU (%)": [100 * one.mfu for one in predictions],
        "tokens/s": [one.tokens_per_s for one in predictions],
    }
