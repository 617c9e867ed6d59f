"""Step time against memory of many plans, with the limit of a GPU and the Pareto front.

Left and low is good. A plan is on the Pareto front if no plan that fits is both faster and smaller. Plans beyond the
limit would run out of memory: they are grey.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, ReferenceLine, chart, points
from lablib.figures.style import GRID, INK
from lablib.signature import check_type, checked
from lablib.text.units import format_quantity, log_ticks

if TYPE_CHECKING:
    from lablib.plan.predictions import Predictions

PLOT_PIXELS, MAX_POINTS, MAX_ROWS = 400, 2000, 200
LIMIT, GREY = "#B00020", "#A9A9A9"
WIDE_RANGE = 8.0  # ratio of largest to smallest from which on an axis is logarithmic
AROUND = 1.12  # room beyond the outermost points, on a logarithmic axis as a factor
# The view ends at so many times a GPU's memory, and so many times the fastest plan's time; zooming out shows the rest.
MAX_LIMITS, MAX_TIMES = 4.0, 4.0


@checked
def figure_plans(
    times_s: Sequence[float] | np.ndarray,
    memory_bytes: Sequence[float] | np.ndarray,
    limit_bytes: float,
    names: Sequence[str] | Callable[[int], str],
    title: str = "Plans in time and memory",
    note: str = "",
) -> go.Figure:
    """One point per plan: step time over the peak memory of its fullest GPU.

    Of more than 2,000 plans, 2,000 evenly spaced in time and the front are drawn.

    Args:
        times_s: of one step (the same batch for all), one per plan; NaN for an impossible plan, which is not drawn.
        memory_bytes: at the peak of the fullest GPU.
        limit_bytes: of a GPU.
        names: of the plans, or a function from the index of a plan to its name.
        note: a sentence after the summary.

    Table: the plans of the front, then the fastest others, at most 200.
    """
    for what, values in (("times_s", times_s), ("memory_bytes", memory_bytes)):
        check_type(what, list(np.ravel(values)) if isinstance(values, np.ndarray) else values, Sequence[float])
    times, sizes = [float(t) for t in times_s], [float(b) for b in memory_bytes]
    for what, values in (("memory_bytes", sizes), ("names", None if callable(names) else names)):
        if values is not None and len(values) != len(times):
            raise ValueError(f"{what} must have one value for each of the {len(times)} plans: got {len(values)}.")
    fits = [size <= limit_bytes for size in sizes]
    best = set(pareto_front(times, sizes, fits))
    name = names if callable(names) else names.__getitem__
    plans = [
        _Plan(time, size, is_in, i in best, i, name)
        for i, (time, size, is_in) in enumerate(zip(times, sizes, fits, strict=True))
        if isfinite(time) and isfinite(size)
    ]
    plans.sort(key=lambda plan: (plan.time_s, plan.size_bytes))
    note = f" {note}" if note else ""
    shown = plans
    if len(plans) > MAX_POINTS:
        chosen = {int(k * len(plans) / MAX_POINTS) for k in range(MAX_POINTS)}
        shown = [plan for i, plan in enumerate(plans) if i in chosen or plan.is_on_front]
    if len(shown) < len(plans):
        note += f" {len(shown):,} of them are drawn."
    panel, max_x, max_y = _panel(plans, shown, limit_bytes)
    if outside := sum(plan.size_bytes > max_x or plan.time_s > max_y for plan in shown):
        note += f" Beyond the edges: {outside:,}; zoom out to see them."
    if impossible := len(times) - len(plans):
        note += f" {impossible:,} more are impossible."
    figure = chart(title, panel, _summary(plans, limit_bytes) + note, _columns(plans), pixels=PLOT_PIXELS)
    if plans:
        unit, end = panel.x.scale(()), max([*(panel.x.span or ()), *(plan.size_bytes for plan in plans)])
        beyond = {"fillcolor": GRID, "opacity": 0.35, "line_width": 0, "layer": "below"}
        figure.add_vrect(x0=unit.of(limit_bytes), x1=unit.of(end), **beyond)
    return figure


@dataclass(frozen=True, slots=True)
class _Plan:
    time_s: float
    size_bytes: float
    fits: bool
    is_on_front: bool
    index: int
    namer: Callable[[int], str]

    @property
    def name(self) -> str:
        """Made on demand: of many thousand plans few are drawn."""
        return self.namer(self.index)

    @property
    def hover(self) -> str:
        return (
            f"<b>{self.name}</b><br>{format_quantity(self.time_s, 's', 4)} a step<br>"
            f"{format_quantity(self.size_bytes, 'B', 4)} a GPU"
        )


def _panel(plans: Sequence[_Plan], shown: Sequence[_Plan], limit: float) -> tuple[Panel, float, float]:
    """Points, front and limit, and the most bytes and seconds in view."""
    sizes, times = [plan.size_bytes for plan in plans], [plan.time_s for plan in plans]
    max_x = MAX_LIMITS * max(limit, min(sizes, default=0.0))
    fastest = next((plan.time_s for plan in plans if plan.fits), min(times, default=0.0))
    max_y = max([MAX_TIMES * fastest, *(plan.time_s for plan in plans if plan.is_on_front)])
    across = _axis([*sizes, limit], max_x, "memory of the fullest GPU", "B")
    low, high, at = (log10(v) if across.log else v for v in (*(across.span or ()), limit))
    is_left = at - low < 0.25 * (high - low)  # no room for words at the left of the line
    text, place = f" a GPU has {format_quantity(limit, 'B')} ", "top right" if is_left else "top left"
    rule = ReferenceLine(
        x=limit, text=text, place=place, line={"color": LIMIT, "width": 2}, look={"font": {"size": 12, "color": INK}}
    )
    marks = [*_clouds(shown), *_front([plan for plan in plans if plan.is_on_front])]
    return Panel(across, _axis(times, max_y, "step time", "s"), marks, [rule] if plans else ()), max_x, max_y


@checked
def figure_predictions(predictions: Predictions, title: str = "Plans in time and memory") -> go.Figure:
    """Plans of `predict_many` for one batch, named by split, micro-batch and recomputation; evidence of the fastest."""

    def name(i: int) -> str:
        chosen = p.arguments(i)
        return f"{chosen['parallel']}, micro-batch {chosen['micro_batch']}, recompute {chosen['recompute']}"

    p = predictions
    fitting = np.flatnonzero(p.fits)
    note = p[int(fitting[p.step_time_s[fitting].argmin()])].evidence_sentence() if len(fitting) else ""
    return figure_plans(p.step_time_s, p.peak_memory_bytes, p.memory_limit_bytes, name, title, note)


def pareto_front(times_s: Sequence[float], memory_bytes: Sequence[float], fits: Sequence[bool]) -> list[int]:
    """Indices of the plans that fit and that no other one beats in time and memory, the fastest first.

    >>> pareto_front([3, 1, 2, 1], [1, 4, 4, 9], [True, True, True, False])
    [1, 0]
    """
    order = sorted((i for i in range(len(times_s)) if fits[i]), key=lambda i: (times_s[i], memory_bytes[i]))
    front: list[int] = []
    smallest_bytes = float("inf")
    for i in order:
        if memory_bytes[i] < smallest_bytes:
            front.append(i)
            smallest_bytes = memory_bytes[i]
    return front


def _axis(values: Sequence[float], maximum: float, label: str, base: str) -> Axis:
    """The axis up to `maximum`, logarithmic over a wide range."""
    low, high = min(values, default=1.0), min(max(values, default=1.0), maximum or 1.0)
    if low <= 0 or high < WIDE_RANGE * low:
        room = 0.05 * (high - low) or 0.1 * high
        return Axis(label, base, span=(max(low - room, 0.0), high + room))
    low, high = low / AROUND, high * AROUND
    # Powers of ten over two decades and a half, otherwise 1, 2, 5, 10, 20 ...; more steps on a short axis.
    digits = (1, 2, 5) if high / low > 40 else (1, 1.5, 2, 3, 4, 5, 7)
    exponents = range(floor(log10(low)), floor(log10(high)) + 1)
    ticks = [t for t in (float(f"{digit}e{e}") for e in exponents for digit in digits) if low <= t <= high]
    words = [format_quantity(tick, base) for tick in ticks]
    ticks, words = log_ticks([low, high], base) if high / low > 300 else (ticks, words)
    return Axis(label, base, log=True, ticks=dict(zip(ticks, words, strict=True)), span=(low, high))


def _clouds(plans: Sequence[_Plan]) -> list[Mark]:
    """The points: grey crosses for plans that do not fit, dots for the others."""
    cross = {"symbol": "x-thin", "size": 7, "color": GREY, "line": {"color": GREY, "width": 1.3}}
    dot = {"size": 7, "opacity": 0.65, "line": {"color": "#FFFFFF", "width": 0.6}}
    beyond, inside = ([plan for plan in plans if plan.fits == fits] for fits in (False, True))
    groups = (("does not fit", beyond, cross), ("fits", inside, dot))
    return [_points(name, own, **marker) for name, own, marker in groups if own]


def _points(name: str, plans: Sequence[_Plan], **marker: Any) -> Mark:
    sizes, times = [plan.size_bytes for plan in plans], [plan.time_s for plan in plans]
    return points(0, name, sizes, times, [plan.hover for plan in plans], **marker)


def _front(plans: Sequence[_Plan]) -> list[Mark]:
    """The front as a staircase with rings at its corners."""
    if not plans:
        return []
    corners = [(plan, corner) for plan, after in pairwise(plans) for corner in (plan, after)] + [(plans[-1],) * 2]
    across, up = [plan.size_bytes for plan, _ in corners], [corner.time_s for _, corner in corners]
    staircase = Mark("", across, up, (), look={"mode": "lines", "line": {"color": INK, "width": 1.5}})
    ring = {"symbol": "circle-open", "size": 12, "color": INK, "line": {"color": INK, "width": 1.8}}
    return [staircase, _points("Pareto front", plans, **ring)]


def _summary(plans: Sequence[_Plan], limit: float) -> str:
    if not plans:
        return "There is no plan to draw."
    front, many = [plan for plan in plans if plan.is_on_front], sum(plan.fits for plan in plans)
    text = f"{many:,} of {len(plans):,} plans fit into the {format_quantity(limit, 'B')} of a GPU"
    if front:
        best, smallest = front[0], front[-1]
        text += (
            f"; the fastest ({best.name}) takes {format_quantity(best.time_s, 's')} and "
            f"{format_quantity(best.size_bytes, 'B')}"
        )
        if len(front) > 1:
            text += f", the smallest of the {len(front)} of the front {format_quantity(smallest.time_s, 's')} and "
            text += format_quantity(smallest.size_bytes, "B")
    elif not many:
        smallest = min(plans, key=lambda plan: plan.size_bytes)
        text += f"; the smallest ({smallest.name}) needs {format_quantity(smallest.size_bytes, 'B')} and takes "
        text += format_quantity(smallest.time_s, "s")
    return text + "."


def _columns(plans: Sequence[_Plan]) -> dict[str, list[Any]]:
    """The front, then the plans that fit, then the rest; each the fastest first."""
    rows = sorted(plans, key=lambda plan: (not plan.is_on_front, not plan.fits))[:MAX_ROWS]
    return {
        "plan": [plan.name for plan in rows],
        "step time (s)": [plan.time_s for plan in rows],
        "memory (B)": [plan.size_bytes for plan in rows],
        "fits": [plan.fits for plan in rows],
        "on the front": [plan.is_on_front for plan in rows],
    }
