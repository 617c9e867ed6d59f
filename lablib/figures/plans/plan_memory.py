"""Peak memory of each pipeline stage of a plan, by category, and the limit of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, ReferenceLine, bars, chart, labels
from lablib.figures.style import INK, MEMORY_LOOKS, shares_in_words
from lablib.signature import checked
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction

TOO_MUCH = "#B00020"
MAX_SUMS, MAX_NAMED = 16, 8  # bars with their sum above them, and with the size of each category inside
THICK = 0.055  # share of the height: room for a line of text
ROOM_FOR_LIMIT = 5.0  # a limit above so many times the highest peak is in the sentence only
FEWEST = 4  # bars for which there is room: a single bar is narrower than the figure
_SAME = {"communication buffer": "communication"}  # the planner's name -> the memory tracker's


@checked
def figure_plan_memory(prediction: Prediction, title: str = "") -> go.Figure:
    """Bytes of every stage at its peak, stacked by category, and the memory of a GPU as a line. Table: stages."""
    stages = [stage_by_look(stage) for stage in prediction.memory]
    peaks = list(prediction.stage_bytes)
    limit = prediction.memory_limit_bytes
    high = max(peaks)
    is_near = limit <= ROOM_FOR_LIMIT * high
    ceiling = 1.12 * max(high, limit if is_near else 0.0)
    held = {name: [stage[name] for stage in stages] for name in MEMORY_LOOKS}
    marks = [_bars(name, sizes, ceiling) for name, sizes in held.items() if any(sizes)]
    rules, numbers = [], list(range(len(stages)))
    margin = max(FEWEST - len(stages), 0) / 2 + 0.6
    ends = (-margin, len(stages) - 1 + margin)
    if is_near:
        look = {"mode": "lines", "line": {"dash": "dash", "color": TOO_MUCH, "width": 2}, "showlegend": False}
        marks.append(Mark("limit", ends, [limit] * 2, (), look=look))
        text = f"a GPU has {format_quantity(limit, 'B')}"
        rules.append(ReferenceLine(y=limit, text=text, line={"width": 0}, look={"yshift": 2}))
    if len(stages) <= MAX_SUMS:  # after the limit, so that the text is in front
        colors = [TOO_MUCH if peak > limit else INK for peak in peaks]
        sums = [f"<b>{format_quantity(peak, 'B')}</b>" for peak in peaks]
        marks.append(labels(numbers, peaks, sums, "top center", colors))
    ticks = {i: str(i) for i in range(0, len(stages), 1 if len(stages) <= 32 else 8)}
    across = Axis("stage", "number", ticks=ticks, span=ends, look={"showgrid": False})
    return chart(
        title or f"Memory of {f'each of {len(peaks)} stages' if len(peaks) > 1 else 'a GPU'}",
        Panel(across, Axis("memory", "B", span=(0, ceiling)), marks, rules),
        _summary(prediction, stages, peaks),
        {"stage": numbers, **{f"{name} (B)": sizes for name, sizes in held.items()}, "peak (B)": peaks},
        barmode="stack",
        bargap=0.3 if len(stages) <= MAX_SUMS else 0.12,
    )


def stage_by_look(stage: Mapping[str, float]) -> dict[str, float]:
    """Bytes by the categories of `MEMORY_LOOKS`; unknown ones are "other"."""
    sums = dict.fromkeys(MEMORY_LOOKS, 0.0)
    for category, size_bytes in stage.items():
        name = _SAME.get(category, category)
        sums[name if name in sums else "other"] += float(size_bytes)
    return sums


def _bars(name: str, sizes: Sequence[float], ceiling: float) -> Mark:
    """One category of all stages, with sizes written inside if there is room."""
    look = MEMORY_LOOKS[name]
    has_room = [len(sizes) <= MAX_NAMED and size >= THICK * ceiling for size in sizes]
    text = [format_quantity(size, "B") if room else "" for size, room in zip(sizes, has_room, strict=True)]
    inside = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "constraintext": "none"}
    words = [f"<b>{name}</b><br>stage {i}: {format_quantity(size, 'B', 4)}" for i, size in enumerate(sizes)]
    return bars(look, name, list(range(len(sizes))), sizes, words, text=text, textfont=look.font(), **inside)


def _summary(prediction: Prediction, stages: Sequence[Mapping[str, float]], peaks: Sequence[float]) -> str:
    limit, high = prediction.memory_limit_bytes, max(peaks)
    fullest = peaks.index(high)
    who = f"Stage {fullest}, the fullest of {len(peaks)}," if len(peaks) > 1 else f"A GPU ({prediction.parallel})"
    text = f"{who} keeps {format_quantity(high, 'B')} at its peak: {shares_in_words(stages[fullest], high)}; "
    if high <= limit:
        return (
            text + f"that fits into the {format_quantity(limit, 'B')} of a GPU, with "
            f"{format_quantity(limit - high, 'B')} to spare."
        )
    over = sum(peak > limit for peak in peaks)
    which = f"; {over} of {len(peaks)} stages do not fit" if len(peaks) > 1 else ""
    return text + f"that is {high / limit:.3g} times the {format_quantity(limit, 'B')} of a GPU{which}."
