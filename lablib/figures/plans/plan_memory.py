"""What each stage of a predicted pipeline keeps at its peak: one bar a stage, by category, under the GPU's limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import INK, MEMORY_LOOKS, PAPER_PIXELS, axis, base_layout
from lablib.signature import checked
from lablib.text.units import Unit, axis_title, format_quantity, unit_for

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction

PLOT_PIXELS, TOO_MUCH = 300, "#B00020"
MAX_SUMS, MAX_NAMED = 16, 8  # bars that say their sum above them, and the size of each category inside
THICK = 0.055  # share of the height: room for a line of text
ROOM_FOR_LIMIT = 5.0  # the limit is drawn where it is at most so many times the highest peak; else it is only said
FEWEST = 4  # bars for which there is room: one alone is not as wide as the figure
_SAME = {"communication buffer": "communication"}  # categories of the planner that the memory tracker calls otherwise


@checked
def figure_plan_memory(prediction: Prediction, title: str = "") -> go.Figure:
    """Bytes of every stage at its peak, stacked by category, and the memory of a GPU as a line.

    Returns:
        A figure whose table has one row a stage.
    """
    stages = [stage_by_look(stage) for stage in prediction.memory]
    peaks = list(prediction.stage_bytes)
    limit = prediction.memory_limit_bytes
    high = max(peaks)
    ceiling = 1.12 * max(high, limit if limit <= ROOM_FOR_LIMIT * high else 0.0)
    unit = unit_for(high, "B")
    figure = go.Figure(layout=base_layout(title or f"Memory of {_stages(len(peaks))}", PLOT_PIXELS + PAPER_PIXELS))
    figure.update_layout(barmode="stack", bargap=0.3 if len(stages) <= MAX_SUMS else 0.12, showlegend=True)
    figure.add_traces([_bars(name, stages, unit, ceiling) for name in MEMORY_LOOKS if any(s[name] for s in stages)])
    beside = max(FEWEST - len(stages), 0) / 2 + 0.6
    ticks = list(range(0, len(stages), 1 if len(stages) <= 32 else 8))
    across = axis("stage (number)", showgrid=False, range=[-beside, len(stages) - 1 + beside], tickvals=ticks)
    figure.update_layout(xaxis=across, yaxis=axis(axis_title("memory", unit), range=[0, unit.of(ceiling)]))
    if limit <= ROOM_FOR_LIMIT * high:
        _limit(figure, limit, unit, len(stages) - 1 + beside)
    if len(stages) <= MAX_SUMS:  # after the limit: where they meet, the words are in front
        figure.add_trace(_sums(peaks, limit, unit))
    columns: dict[str, list[Any]] = {"stage": list(range(len(stages)))}
    columns |= {f"{name} (B)": [stage[name] for stage in stages] for name in MEMORY_LOOKS}
    return attach(figure, _summary(prediction, stages, peaks), columns | {"peak (B)": peaks})


def stage_by_look(stage: Mapping[str, float]) -> dict[str, float]:
    """Bytes by the categories of `MEMORY_LOOKS`; what these do not know is "other"."""
    sums = dict.fromkeys(MEMORY_LOOKS, 0.0)
    for category, size_bytes in stage.items():
        name = _SAME.get(category, category)
        sums[name if name in sums else "other"] += float(size_bytes)
    return sums


def _bars(name: str, stages: Sequence[Mapping[str, float]], unit: Unit, ceiling: float) -> go.Bar:
    look = MEMORY_LOOKS[name]
    sizes = [stage[name] for stage in stages]
    is_named = [len(stages) <= MAX_NAMED and size >= THICK * ceiling for size in sizes]
    return go.Bar(
        name=name,
        legendgroup=f"memory: {name}",
        x=list(range(len(stages))),
        y=[unit.of(size) for size in sizes],
        text=[format_quantity(size, "B") if is_seen else "" for size, is_seen in zip(sizes, is_named, strict=True)],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="none",
        textfont={"size": 12, "color": look.ink, "shadow": ", ".join([f"0 0 3px {look.color}"] * 4)},
        marker=look.marker(),
        hovertext=[f"<b>{name}</b><br>stage {i}: {format_quantity(size, 'B', 4)}" for i, size in enumerate(sizes)],
        hoverinfo="text",
    )


def _limit(figure: go.Figure, limit: float, unit: Unit, right: float) -> None:
    """The memory of a GPU as a line across the whole figure."""
    look = {"dash": "dash", "color": TOO_MUCH, "width": 2}
    ends = {"x": list(figure.layout.xaxis.range), "y": [unit.of(limit)] * 2}  # pyright: ignore[reportAttributeAccessIssue]
    figure.add_trace(go.Scatter(**ends, mode="lines", line=look, name="limit", hoverinfo="skip", showlegend=False))
    place = {"x": right, "y": unit.of(limit), "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    figure.add_annotation(text=f"a GPU has {format_quantity(limit, 'B')}", font={"size": 12}, yshift=2, **place)


def _sums(peaks: Sequence[float], limit: float, unit: Unit) -> go.Scatter:
    """Each stage's sum above its bar."""
    return go.Scatter(
        x=list(range(len(peaks))),
        y=[unit.of(peak) for peak in peaks],
        mode="text",
        text=[f"<b>{format_quantity(peak, 'B')}</b>" for peak in peaks],
        textposition="top center",
        textfont={"size": 12, "shadow": ", ".join(["0 0 3px #FFFFFF"] * 4)}
        | {"color": [TOO_MUCH if peak > limit else INK for peak in peaks]},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )


def _stages(number: int) -> str:
    return f"each of {number} stages" if number > 1 else "a GPU"


def _summary(prediction: Prediction, stages: Sequence[Mapping[str, float]], peaks: Sequence[float]) -> str:
    limit, high = prediction.memory_limit_bytes, max(peaks)
    fullest = peaks.index(high)
    sizes = sorted(stages[fullest].items(), key=lambda item: -item[1])
    parts = ", ".join(f"{size / high:.0%} {name}" for name, size in sizes if size >= 0.005 * high)
    who = f"Stage {fullest}, the fullest of {len(peaks)}," if len(peaks) > 1 else f"A GPU ({prediction.parallel})"
    text = f"{who} keeps {format_quantity(high, 'B')} at its peak: {parts}; "
    if high <= limit:
        return (
            text + f"that fits into the {format_quantity(limit, 'B')} of a GPU, with "
            f"{format_quantity(limit - high, 'B')} to spare."
        )
    over = sum(peak > limit for peak in peaks)
    which = f"; {over} of {len(peaks)} stages do not fit" if len(peaks) > 1 else ""
    return text + f"that is {high / limit:.3g} times the {format_quantity(limit, 'B')} of a GPU{which}."
