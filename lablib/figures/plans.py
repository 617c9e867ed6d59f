"""Many plans at once: step time against memory, the limit of a GPU, and the plans that none beats in both.

Left and low is good. A plan is on the Pareto front if no plan that fits is both faster and smaller: to be faster than
one of these costs memory, to be smaller costs time. Plans beyond the limit would run out of memory: they are grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import GRID, INK, PAPER_PIXELS, axis, base_layout, series_look
from lablib.units import axis_title, in_words, log_ticks, unit_for

PLOT_PIXELS, MOST_POINTS, MOST_ROWS = 400, 2000, 200
LIMIT, GREY = "#B00020", "#A9A9A9"
WIDE_RANGE = 8.0  # largest through smallest: from here on an axis is logarithmic
AROUND = 1.12  # room beyond the outermost points, on a logarithmic axis as a factor
# The view ends at so many times a GPU's memory, and so many times the fastest plan's time; zooming out shows the rest.
MOST_LIMITS, MOST_TIMES = 4.0, 4.0


def figure_plans(
    times_s: Sequence[float],
    memory_bytes: Sequence[float],
    limit_bytes: float,
    names: Sequence[str],
    front: Sequence[int] | None = None,
    groups: Sequence[str] | None = None,
    title: str = "Plans in time and memory",
) -> go.Figure:
    """One point a plan: step time over the peak memory of its fullest GPU.

    Of more than 2,000 plans as many, evenly spaced in time, are drawn beside the front, and the summary says so.

    Args:
        times_s: of one step (the same batch for all).
        memory_bytes: at the peak of the fullest GPU.
        limit_bytes: of a GPU; what is beyond does not fit.
        names: what to say of each plan.
        front: which plans no other one beats, as indices; None: found here, among the plans that fit.
        groups: of each plan, such as its recomputation: each group gets its own colour and symbol.

    Returns:
        A figure whose table has the plans of the front first, then the fastest others, at most 200.

    Raises:
        ValueError: lengths that differ, or an index that is none.
    """
    times, sizes = [float(t) for t in times_s], [float(b) for b in memory_bytes]
    for what, values in (("memory_bytes", sizes), ("names", names), ("groups", groups)):
        if values is not None and len(values) != len(times):
            raise ValueError(f"{what} must have one value for each of the {len(times)} plans: got {len(values)}.")
    fits = [size <= limit_bytes for size in sizes]
    if any(not 0 <= i < len(times) for i in front or ()):
        raise ValueError(f"front holds indices of the {len(times)} plans: got {list(front or ())}.")
    best = pareto_front(times, sizes, fits) if front is None else sorted(front, key=lambda i: times[i])
    figure = go.Figure(layout=base_layout(title, PLOT_PIXELS + PAPER_PIXELS, showlegend=True))
    x_most = MOST_LIMITS * max(limit_bytes, min(sizes, default=0.0))
    y_most = MOST_TIMES * min((t for t, is_in in zip(times, fits, strict=True) if is_in), default=min(times, default=0))
    y_most = max([y_most, *(times[i] for i in best)])
    x_axis, x_scale, x_ends = _axis([*sizes, limit_bytes], x_most, "memory of the fullest GPU", "B")
    y_axis, y_scale, _ = _axis(times, y_most, "step time", "s")
    figure.update_layout(xaxis=x_axis, yaxis=y_axis)
    scales, shown = (x_scale, y_scale), _thinned(times, best)
    outside = sum(sizes[i] > x_most or times[i] > y_most for i in shown)
    plans = [(sizes[i], times[i], names[i]) for i in range(len(times))]
    figure.add_traces(_clouds(plans, shown, fits, groups, scales))
    figure.add_traces(_front([plans[i] for i in best], scales))
    if times:
        _limit(figure, limit_bytes, x_scale, (x_ends[0], max([x_ends[1], *sizes])), x_axis.get("type") == "log")
    summary = _summary(plans, fits, best, limit_bytes)
    summary += f" {len(shown):,} of them are drawn." if len(shown) < len(times) else ""
    summary += f" Beyond the edges: {outside:,}; zoom out to see them." if outside else ""
    return attach(figure, summary, _columns(plans, fits, best, groups))


def pareto_front(times_s: Sequence[float], memory_bytes: Sequence[float], fits: Sequence[bool]) -> list[int]:
    """Indices of the plans that fit and that no such plan beats in time and memory, the fastest first.

    >>> pareto_front([3, 1, 2, 1], [1, 4, 4, 9], [True, True, True, False])
    [1, 0]
    """
    order = sorted((i for i in range(len(times_s)) if fits[i]), key=lambda i: (times_s[i], memory_bytes[i]))
    front, least = [], float("inf")
    for i in order:
        if memory_bytes[i] < least:
            front, least = [*front, i], memory_bytes[i]
    return front


def _thinned(times: Sequence[float], front: Sequence[int]) -> list[int]:
    """The plans to draw: all, or so many of them in the order of time, with the front."""
    order = sorted(range(len(times)), key=lambda i: times[i])
    if len(order) <= MOST_POINTS:
        return order
    step = len(order) / MOST_POINTS
    return sorted({order[int(k * step)] for k in range(MOST_POINTS)} | set(front), key=lambda i: times[i])


def _axis(
    values: Sequence[float], most: float, label: str, base: str
) -> tuple[dict[str, Any], float, tuple[float, float]]:
    """The axis up to `most`, what values are divided by to stand on it, and its ends in the base unit."""
    low, high = min(values, default=1.0), min(max(values, default=1.0), most or 1.0)
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
    return ticks, [in_words(tick, base) for tick in ticks]


_Plan = tuple[float, float, str]  # bytes, seconds, what it is called


def _clouds(
    plans: Sequence[_Plan],
    shown: Sequence[int],
    fits: Sequence[bool],
    groups: Sequence[str] | None,
    scales: tuple[float, float],
) -> list[go.Scatter]:
    """The points beside the front: grey crosses for what does not fit, a look for each group of what does."""
    beyond = [i for i in shown if not fits[i]]
    cross = {"symbol": "x-thin", "size": 7, "color": GREY, "line": {"color": GREY, "width": 1.3}}
    traces = [_points("does not fit", [plans[i] for i in beyond], cross, scales)] if beyond else []
    named = list(dict.fromkeys(groups)) if groups else ["fits"]
    # Small groups last, so that large ones do not cover them.
    for index, name in sorted(enumerate(named), key=lambda item: -list(groups or ()).count(item[1])):
        own = [plans[i] for i in shown if fits[i] and (groups is None or groups[i] == name)]
        look = series_look(index)
        marker = {"symbol": look.symbol, "size": 7, "color": look.color, "opacity": 0.65}
        if own:
            traces.append(_points(name, own, marker | {"line": {"color": "#FFFFFF", "width": 0.6}}, scales))
    return traces


def _points(name: str, plans: Sequence[_Plan], marker: dict[str, Any], scales: tuple[float, float]) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=[size / scales[0] for size, _, _ in plans],
        y=[time / scales[1] for _, time, _ in plans],
        mode="markers",
        marker=marker,
        hovertext=[_hover(plan) for plan in plans],
        hoverinfo="text",
    )


def _hover(plan: _Plan) -> str:
    size, time, name = plan
    return f"<b>{name}</b><br>{in_words(time, 's', 4)} a step<br>{in_words(size, 'B', 4)} a GPU"


def _front(plans: Sequence[_Plan], scales: tuple[float, float]) -> list[go.Scatter]:
    """The front as a staircase (what lies above and to the right of it is beaten), its corners ringed."""
    if not plans:
        return []
    across: list[float] = []
    up: list[float] = []
    for (size, time, _), after in zip(plans, [*plans[1:], None], strict=True):
        across.append(size / scales[0])
        up.append(time / scales[1])
        if after:  # slower and smaller
            across.append(size / scales[0])
            up.append(after[1] / scales[1])
    line = go.Scatter(x=across, y=up, mode="lines", line={"color": INK, "width": 1.5}, hoverinfo="skip")
    line.update(showlegend=False)
    ring = {"symbol": "circle-open", "size": 12, "color": INK, "line": {"color": INK, "width": 1.8}}
    return [line, _points("Pareto front", plans, ring, scales)]


def _limit(figure: go.Figure, limit: float, scale: float, ends: tuple[float, float], is_log: bool) -> None:
    """The memory of a GPU as a line, and a shade over what lies beyond it."""
    at = limit / scale
    figure.add_vrect(x0=at, x1=ends[1] / scale, fillcolor=GRID, opacity=0.35, line_width=0, layer="below")
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
        text=f" a GPU has {in_words(limit, 'B')} ",
        font={"size": 12, "color": INK},
        bgcolor="rgba(255,255,255,0.85)",
    )


def _summary(plans: Sequence[_Plan], fits: Sequence[bool], front: Sequence[int], limit: float) -> str:
    if not plans:
        return "There is no plan to draw."
    many = sum(fits)
    text = f"{many:,} of {len(plans):,} plans fit into the {in_words(limit, 'B')} of a GPU"
    if front:
        (size, time, name), (least, slowest, _) = plans[front[0]], plans[front[-1]]
        text += f"; the fastest ({name}) takes {in_words(time, 's')} and {in_words(size, 'B')}"
        if len(front) > 1:
            text += f", the smallest of the {len(front)} of the front {in_words(slowest, 's')} and "
            text += in_words(least, "B")
    elif not many:
        size, time, name = min(plans)
        text += f"; the smallest ({name}) needs {in_words(size, 'B')} and takes {in_words(time, 's')}"
    return text + "."


def _columns(
    plans: Sequence[_Plan], fits: Sequence[bool], front: Sequence[int], groups: Sequence[str] | None
) -> dict[str, list[Any]]:
    others = sorted(set(range(len(plans))) - set(front), key=lambda i: (not fits[i], plans[i][1]))
    rows = [*front, *others][:MOST_ROWS]
    columns: dict[str, list[Any]] = {"plan": [plans[i][2] for i in rows]}
    columns |= {"group": [groups[i] for i in rows]} if groups is not None else {}
    return columns | {
        "step time (s)": [plans[i][1] for i in rows],
        "memory (B)": [plans[i][0] for i in rows],
        "fits": [fits[i] for i in rows],
        "on the front": [i in set(front) for i in rows],
    }
