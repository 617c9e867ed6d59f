"""Throughput per GPU of a mixture of experts and of dense models, against the number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, chart, line, points
from lablib.figures.style import FAINT_INK
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction
    from lablib.studies.expert_against_dense import AgainstDense

NAMES = {"active": "dense, as many FLOPs", "mixture": "mixture", "total": "dense, as many parameters"}


@checked
def figure_expert_times(compared: Sequence[AgainstDense], title: str = "", summary: str = "") -> go.Figure:
    """Tokens a second and GPU of three models; a cross on the axis where one does not fit.

    Args:
        compared: of `lablib.studies.against_dense`, by ascending number of GPUs.
        title: of the figure.
        summary: one sentence; none given: the mixture's speed over that of as many FLOPs, on each number of GPUs.

    Raises:
        ValueError: nothing to compare, or GPUs that do not ascend.
    """
    gpus = [one.num_gpus for one in compared]
    if not gpus or any(b <= a for a, b in zip(gpus, gpus[1:], strict=False)):
        raise ValueError(f"there must be numbers of GPUs, one or more, that ascend: got {gpus}.")
    found: dict[str, list[Prediction | None]] = {key: [getattr(one, key) for one in compared] for key in NAMES}
    places = [str(n) for n in gpus]
    columns: dict[str, Sequence[Any]] = {"GPUs": gpus}
    marks = []
    for index, (key, name) in enumerate(NAMES.items()):
        row = {place: each for place, each in zip(places, found[key], strict=True) if each}
        rates = [each.tokens_per_s_per_gpu for each in row.values()]
        marks.append(line(index, name, list(row), rates, [_words(name, each) for each in row.values()]))
        columns |= {
            f"{name} (tokens/s a GPU)": [each.tokens_per_s_per_gpu if each else None for each in found[key]],
            f"{name}: MFU": [each.mfu if each else None for each in found[key]],
            f"{name}: memory (B)": [each.peak_memory_bytes if each else None for each in found[key]],
        }
    missing = {p: [NAMES[key] for key in NAMES if not found[key][i]] for i, p in enumerate(places)}
    missing = {place: names for place, names in missing.items() if names}
    if missing:  # a cross on the axis
        hover = [f"<b>{plural(int(n), 'GPUs')}</b><br>{'; '.join(some)}: no plan fits" for n, some in missing.items()]
        cross = {"symbol": "x", "size": 11, "color": FAINT_INK}
        marks.append(points(0, "a model does not fit", list(missing), [0.0] * len(missing), hover, **cross))
    columns["rows of an expert"] = [one.rows for one in compared]
    columns["mixture at least (B)"] = [one.least_bytes for one in compared]
    order = {"type": "category", "categoryorder": "array", "categoryarray": places}
    panel = Panel(Axis("GPUs", "count", look=order), Axis("rate of a GPU", "tokens/s", from_zero=True), marks)
    return chart(title or "A mixture and dense models", panel, summary or _summary(compared), columns)


def _words(name: str, each: Prediction) -> str:
    plan = f"micro-batch {each.micro_batch}, recomputation {each.recompute}"
    return (
        f"<b>{name}</b>, {plural(each.num_gpus, 'GPUs')}<br>{each.tokens_per_s_per_gpu:,.0f} tokens/s a GPU, "
        f"MFU {each.mfu:.0%}<br>{each.parallel}; {plan}<br>{format_quantity(each.peak_memory_bytes, 'B')} a GPU"
    )


def _summary(compared: Sequence[AgainstDense]) -> str:
    parts = []
    for one in compared:
        if one.mixture is None:
            words = f"does not fit, {format_quantity(one.least_bytes, 'B')} a GPU at least"
        elif one.speed is None:
            words = "fits alone"
        else:
            words = f"{one.speed:.2f}"
        parts.append(f"on {plural(one.num_gpus, 'GPUs')} {words}")
    return f"The mixture's rate over that of the dense model of as many FLOPs: {'; '.join(parts)}."
