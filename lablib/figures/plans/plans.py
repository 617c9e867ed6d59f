"""Many plans at once: step time against memory, the limit of a GPU, and the plans that none beats in both.

Left and low is good. A plan is on the Pareto front if no plan that fits is both faster and smaller: to be faster than
one of these costs memory, to be smaller costs time. Plans beyond the limit would run out of memory: they are grey.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Any, Protocol

import numpy as np
import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import GRID, INK, PAPER_PIXELS, axis, base_layout, series_look
from lablib.signature import check_type, checked
from lablib.text.units import axis_title, format_quantity, log_ticks, unit_for

PLOT_PIXELS, MAX_POINTS, MAX_ROWS = 400, 2000, 200
LIMIT, GREY = "#B00020", "#A9A9A9"
WIDE_RANGE = 8.0  # largest through smallest: from here on an axis is logarithmic
AROUND = 1.12  # room beyond the outermost points, on a logarithmic axis as a factor
# The view ends at so many times a GPU's memory, and so many times the fastest plan's time; zooming out shows the rest.
MAX_LIMITS, MAX_TIMES = 4.0, 4.0


@checked
def figure_plans(
    times_s: Sequence[float] | np.ndarray,
    memory_bytes: Sequence[float] | np.ndarray,
    limit_bytes: float,
    names: Sequence[str] | Callable[[int], str],
    front: Sequence[int] | None = None,
    groups: Sequence[str] | None = None,
    title: str = "Plans in time and memory",
) -> go.Figure:
    """One point a plan: step time over the peak memory of its fullest GPU.

    Of more than 2,000 plans as many, evenly spaced in time, are drawn beside the front, and the summary says so.

    Args:
        times_s: of one step (the same batch for all); NaN for a plan that is impossible, which is not drawn.
        memory_bytes: at the peak of the fullest GPU.
        limit_bytes: of a GPU; what is beyond does not fit.
        names: what to say of each plan, or a function that says it of the plan with this index.
        front: which plans no other one beats, as indices; None: found here, among the plans that fit.
        groups: of each plan, such as its recomputation: each group gets its own colour and symbol.

    Returns:
        A figure whose table has the plans of the front first, then the fastest others, at most 200.

    Raises:
        ValueError: lengths that differ, or an index that is none.
    """
    for what, values in (("times_s", times_s), ("memory_bytes", memory_bytes)):
        check_type(what, list(np.ravel(values)) if isinstance(values, np.ndarray) else values, Sequence[float])
    times, sizes = [float(t) for t in times_s], [float(b) for b in memory_bytes]
    for what, values in (("memory_bytes", sizes), ("names", None if callable(names) else names), ("groups", groups)):
        if values is not None and len(values) != len(times):
            raise ValueError(f"{what} must have one value for each of the {len(times)} plans: got {len(values)}.")
    if any(not 0 <= i < len(times) for i in (() if front is None else front)):
        raise ValueError(f"front holds indices of the {len(times)} plans: got {list(front or ())}.")
    fits = [size <= limit_bytes for size in sizes]
    best = set(pareto_front(times, sizes, fits) if front is None else map(int, front))
    name = names if callable(names) else names.__getitem__
    plans = [
        _Plan(time, size, is_in, i in best, groups[i] if groups is not None else "fits", i, name)
        for i, (time, size, is_in) in enumerate(zip(times, sizes, fits, strict=True))
        if isfinite(time) and isfinite(size)
    ]
    plans.sort(key=lambda plan: (plan.time_s, plan.size_bytes))
    figure = go.Figure(layout=base_layout(title, PLOT_PIXELS + PAPER_PIXELS, showlegend=True))
    note = _draw(figure, plans, limit_bytes)
    impossible = len(times) - len(plans)
    note += f" {impossible:,} more are impossible." if impossible else ""
    return attach(figure, _summary(plans, limit_bytes) + note, _columns(plans, groups is not None))


@dataclass(frozen=True, slots=True)
class _Plan:
    time_s: float
    size_bytes: float
    fits: bool
    is_on_front: bool
    group: str
    index: int
    namer: Callable[[int], str]

    @property
    def name(self) -> str:
        """Made when it is asked for: of many thousand plans few are drawn."""
        return self.namer(self.index)

    @property
    def hover(self) -> str:
        return (
            f"<b>{self.name}</b><br>{format_quantity(self.time_s, 's', 4)} a step<br>"
            f"{format_quantity(self.size_bytes, 'B', 4)} a GPU"
        )


def _draw(figure: go.Figure, plans: Sequence[_Plan], limit: float) -> str:
    """Points, front and limit; returns what the reader must know about points that are not seen."""
    sizes, times = [plan.size_bytes for plan in plans], [plan.time_s for plan in plans]
    max_x = MAX_LIMITS * max(limit, min(sizes, default=0.0))
    fastest = next((plan.time_s for plan in plans if plan.fits), min(times, default=0.0))
    max_y = max([MAX_TIMES * fastest, *(plan.time_s for plan in plans if plan.is_on_front)])
    x_axis, x_scale, x_ends = _axis([*sizes, limit], max_x, "memory of the fullest GPU", "B")
    y_axis, y_scale, _ = _axis(times, max_y, "step time", "s")
    figure.update_layout(xaxis=x_axis, yaxis=y_axis)
    shown = _thinned(plans)
    figure.add_traces(_clouds(shown, (x_scale, y_scale)))
    figure.add_traces(_front([plan for plan in plans if plan.is_on_front], (x_scale, y_scale)))
    if plans:
        _limit(figure, limit, x_scale, max([x_ends[1], *sizes]), x_axis.get("type") == "log")
    outside = sum(plan.size_bytes > max_x or plan.time_s > max_y for plan in shown)
    note = f" {len(shown):,} of them are drawn." if len(shown) < len(plans) else ""
    return note + (f" Beyond the edges: {outside:,}; zoom out to see them." if outside else "")


class ManyPlans(Protocol):
    """What `lablib.plan.predict_many` returns, as far as it is drawn: arrays with one entry a plan."""

    @property
    def step_time_s(self) -> Sequence[float] | np.ndarray: ...
    @property
    def peak_memory_bytes(self) -> Sequence[float] | np.ndarray: ...
    @property
    def memory_limit_bytes(self) -> float: ...
    def arguments(self, i: int) -> Mapping[str, Any]:
        """The keyword arguments of `predict` for plan `i`."""
        ...


@checked
def figure_predictions(predictions: ManyPlans, title: str = "Plans in time and memory", **options: Any) -> go.Figure:
    """Many predicted plans, each called by its split, its micro-batch and its recomputation.

    Args:
        predictions: of `predict_many`, all of one batch.
        options: `front` and `groups` of `figure_plans`.
    """
    p = predictions
    options["title"] = title
    return figure_plans(p.step_time_s, p.peak_memory_bytes, p.memory_limit_bytes, lambda i: _called(p, i), **options)


def _called(predictions: ManyPlans, i: int) -> str:
    chosen = predictions.arguments(i)
    return f"{chosen['parallel']}, micro-batch {chosen['micro_batch']}, recompute {chosen['recompute']}"


def pareto_front(times_s: Sequence[float], memory_bytes: Sequence[float], fits: Sequence[bool]) -> list[int]:
    """Indices of the plans that fit and that no such plan beats in time and memory, the fastest first.

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


def _thinned(plans: Sequence[_Plan]) -> Sequence[_Plan]:
    """The plans to draw: all, or so many of them in the order of time, and the front."""
    if len(plans) <= MAX_POINTS:
        return plans
    chosen = {int(k * len(plans) / MAX_POINTS) for k in range(MAX_POINTS)}
    return [plan for i, plan in enumerate(plans) if i in chosen or plan.is_on_front]


def _axis(
    values: Sequence[float], maximum: float, label: str, base: str
) -> tuple[dict[str, Any], float, tuple[float, float]]:
    """The axis up to `most`, what values are divided by to stand on it, and its ends in the base unit."""
    low, high = min(values, default=1.0), min(max(values, default=1.0), maximum or 1.0)
    if low <= 0 or high < WIDE_RANGE * low:
        unit, room = unit_for(high, base), 0.05 * (high - low) or 0.1 * high
        ends = (max(low - room, 0.0), high + room)
        return axis(axis_title(label, unit), range=[unit.of(end) for end in ends]), unit.scale, ends
    ends = (low / AROUND, high * AROUND)
    ticks, words = _ticks(*ends, base)
    look = {"type": "log", "range": [log10(end) for end in ends], "tickvals": ticks, "ticktext": words}
    return axis(axis_title(label, base), **look), 1.0, ends


def _ticks(low: float, high: float, base: str) -> tuple[list[float], list[str]]:
    """1, 2, 5, 10, 20 ... over two decades and a half, powers of ten over more, steps between over less."""
    digits = (1, 2, 5) if high / low > 40 else (1, 1.5, 2, 3, 4, 5, 7)
    if high / low > 300:
        return log_ticks([low, high], base)
    exponents = range(floor(log10(low)), floor(log10(high)) + 1)
    ticks = [t for t in (float(f"{digit}e{e}") for e in exponents for digit in digits) if low <= t <= high]
    return ticks, [format_quantity(tick, base) for tick in ticks]


def _clouds(plans: Sequence[_Plan], scales: tuple[float, float]) -> list[go.Scatter]:
    """The points: grey crosses for what does not fit, a look for each group of what does."""
    beyond = [plan for plan in plans if not plan.fits]
    cross = {"symbol": "x-thin", "size": 7, "color": GREY, "line": {"color": GREY, "width": 1.3}}
    traces = [_points("does not fit", beyond, cross, scales)] if beyond else []
    groups: dict[str, list[_Plan]] = {group: [] for group in sorted({plan.group for plan in plans})}
    for plan in plans:
        groups[plan.group] += [plan] if plan.fits else []
    # Small groups last, so that large ones do not cover them.
    for index, (name, own) in sorted(enumerate(groups.items()), key=lambda item: -len(item[1][1])):
        look = series_look(index)
        marker = {"symbol": look.symbol, "size": 7, "color": look.color, "opacity": 0.65}
        if own:
            traces.append(_points(name, own, marker | {"line": {"color": "#FFFFFF", "width": 0.6}}, scales))
    return traces


def _points(name: str, plans: Sequence[_Plan], marker: dict[str, Any], scales: tuple[float, float]) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=[plan.size_bytes / scales[0] for plan in plans],
        y=[plan.time_s / scales[1] for plan in plans],
        mode="markers",
        marker=marker,
        hovertext=[plan.hover for plan in plans],
        hoverinfo="text",
    )


def _front(plans: Sequence[_Plan], scales: tuple[float, float]) -> list[go.Scatter]:
    """The front as a staircase (what lies above and to the right of it is beaten), its corners ringed."""
    if not plans:
        return []
    across: list[float] = []
    up: list[float] = []
    for plan, after in zip(plans, [*plans[1:], None], strict=True):
        for corner in (plan, after) if after else (plan,):  # to be smaller is to be slower
            across.append(plan.size_bytes / scales[0])
            up.append(corner.time_s / scales[1])
    line = {"color": INK, "width": 1.5}
    staircase = go.Scatter(x=across, y=up, mode="lines", line=line, hoverinfo="skip", showlegend=False)
    ring = {"symbol": "circle-open", "size": 12, "color": INK, "line": {"color": INK, "width": 1.8}}
    return [staircase, _points("Pareto front", plans, ring, scales)]


def _limit(figure: go.Figure, limit: float, scale: float, end: float, is_log: bool) -> None:
    """The memory of a GPU as a line, and a shade over what lies beyond it."""
    at = limit / scale
    figure.add_vrect(x0=at, x1=end / scale, fillcolor=GRID, opacity=0.35, line_width=0, layer="below")
    figure.add_vline(x=at, line={"dash": "dash", "color": LIMIT, "width": 2})
    view = figure.layout.xaxis.range  # pyright: ignore[reportAttributeAccessIssue]
    place = log10(at) if is_log else at
    is_left = place - view[0] < 0.25 * (view[1] - view[0])  # no room for words at the left of the line
    figure.add_annotation(
        x=place,
        y=1,
        yref="paper",
        yanchor="top",
        xanchor="left" if is_left else "right",
        showarrow=False,
        text=f" a GPU has {format_quantity(limit, 'B')} ",
        font={"size": 12, "color": INK},
        bgcolor="rgba(255,255,255,0.85)",
    )


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


def _columns(plans: Sequence[_Plan], has_groups: bool) -> dict[str, list[Any]]:
    """The front, then what fits, then the rest; each the fastest first."""
    rows = sorted(plans, key=lambda plan: (not plan.is_on_front, not plan.fits))[:MAX_ROWS]
    columns: dict[str, list[Any]] = {"plan": [plan.name for plan in rows]}
    columns |= {"group": [plan.group for plan in rows]} if has_groups else {}
    return columns | {
        "step time (s)": [plan.time_s for plan in rows],
        "memory (B)": [plan.size_bytes for plan in rows],
        "fits": [plan.fits for plan in rows],
        "on the front": [plan.is_on_front for plan in rows],
    }
