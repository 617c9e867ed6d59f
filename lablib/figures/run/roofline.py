"""The roofline: the speed of each kind of operation, and the roof of the device above it.

A kernel with F FLOPs on B bytes has the intensity I = F / B. A device reaches at most

    min( peak(dtype),  memory bandwidth * I )     FLOP/s

Below the ridge, I = peak / bandwidth, the memory is the roof; above it, the arithmetic units of its dtype. The distance
of a point to its roof is the cost of shapes, launches and other losses.

Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model", CACM 52(4), 2009.
Simplified: one memory, no roofs of caches. Operations without counted FLOPs (element-wise ones) are at the left edge,
side by side, as far below the roof as their bandwidth; operations without counted bytes (real runs) at the right edge.
A device's FLOP/s are for matrix products.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf, isfinite, sqrt
from typing import Any

import plotly.graph_objects as go

from lablib.figures.chart import Axis
from lablib.figures.describe import attach
from lablib.figures.style import FAINT_INK, PAPER_PIXELS, base_layout, halo, lay_out, series_look, texts
from lablib.hardware.device import Device
from lablib.run import Timeline
from lablib.signature import checked
from lablib.text.markup import plain
from lablib.text.units import format_quantity

PLOT_PIXELS = 380
NAMED = 6  # points with a name in the picture: those that took longest
SEEN = 0.001  # of the compute time: shorter operations are listed, and not drawn
LOWEST = 0.001  # of its roof: lower points are drawn there, so that the others stay apart
SIDE_BY_SIDE, STEP = 4, 1.8  # operations without FLOPs: number of places at the left edge, and the ratio of neighbours
MEMORY, UNKNOWN = "memory", "unknown"


@dataclass(frozen=True, slots=True)
class Point:
    """All calls of one operation in one dtype, on all ranks. `roof` is "memory", a dtype, or "unknown"."""

    name: str
    dtype: str
    calls: int
    seconds: float
    flops: float
    size_bytes: float
    roof: str

    @property
    def intensity(self) -> float:
        """FLOP per byte: 0 where no FLOPs were counted, infinite where no bytes were."""
        return self.flops / self.size_bytes if self.size_bytes else inf


@checked
def figure_roofline(timeline: Timeline, device: Device, title: str = "", summary: str = "") -> go.Figure:
    """A point for each operation and dtype, as large as its share of the compute time, under the roofs of the device.

    Args:
        device: `run.device`, with finite rates.
        summary: one sentence; "": the shares of the roofs and the longest operation.

    Table: one row for each operation and dtype.
    """
    points = points_of(timeline, device)
    dtypes = sorted({p.dtype for p in points if p.flops}, key=device.peak, reverse=True) or ["float32"]
    finite = [device.peak(dtype) for dtype in dtypes] + [device.memory_bandwidth_bytes_per_s]
    if not all(isfinite(figure) for figure in finite):
        raise ValueError(f"a roof must be finite: {device.name!r} computes or reads in no time; choose a real device.")
    # The intensities at the left and right edge: all points and ridges, with a margin.
    ridges = [device.peak(dtype) / device.memory_bandwidth_bytes_per_s for dtype in dtypes]
    inner = [p.intensity for p in points if p.flops and p.size_bytes] + ridges
    first, last = min(inner) / 20, max(inner) * 8
    figure = go.Figure(layout=base_layout(title or f"Roofline of {device.name}", PLOT_PIXELS + PAPER_PIXELS))
    edge = first * STEP**SIDE_BY_SIDE  # operations without FLOPs are left of it
    total_s = sum(p.seconds for p in points)
    shown = [p for p in points if p.roof != UNKNOWN and p.seconds > SEEN * total_s]
    places = _places(shown, (first, last), device)
    has_edge = any(not p.flops for p in shown)
    figure.add_traces(_roofs(dtypes, device, first, last, edge if has_edge else None))
    if has_edge:  # the place of points left of it says only how far they are from the roof
        look = {"color": FAINT_INK, "width": 1, "dash": "dash"}
        ends = [device.memory_bandwidth_bytes_per_s * first, device.peak(dtypes[0])]
        line = {"line": look, "mode": "lines", "hoverinfo": "skip", "name": "left of it: no FLOPs"}
        figure.add_scatter(x=[edge, edge], y=ends, **line)
    for index, roof in enumerate(dict.fromkeys([MEMORY, *dtypes])):
        some = [i for i, p in enumerate(shown) if p.roof == roof]
        if some:
            figure.add_trace(_points(shown, some, places, index, total_s, device))
    heights = [y for _, y in places] + [device.peak(dtypes[0]), device.memory_bandwidth_bytes_per_s * first]
    x_axis, y_axis = (
        Axis(label, unit, log=True).drawn(values)
        for label, unit, values in (("intensity", "FLOP/B", [first, last]), ("speed", "FLOP/s", heights))
    )
    x_axis = _without(x_axis, first, edge) if has_edge else x_axis
    lay_out(figure, {"xaxis": x_axis, "yaxis": y_axis, "showlegend": True})
    return attach(figure, summary or _summary(points, device), _columns(points, total_s, device))


def points_of(timeline: Timeline, device: Device) -> list[Point]:
    """The operations of a timeline, in the order of their seconds."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    for s in timeline:
        if s.is_compute:
            own = sums[s.name, s.dtype or ("float32" if s.flops else "")]
            for i, value in enumerate((1, s.duration_s, s.flops, s.size_bytes)):
                own[i] += value
    points = [
        Point(name, dtype, int(calls), seconds, flops, size, _roof(dtype, flops, size, device))
        for (name, dtype), (calls, seconds, flops, size) in sums.items()
    ]
    return sorted(points, key=lambda p: (-p.seconds, p.name, p.dtype))


def _roof(dtype: str, flops: float, size_bytes: float, device: Device) -> str:
    """The lower of the two roofs."""
    if not flops:
        return MEMORY if size_bytes else UNKNOWN
    memory_s = size_bytes / device.memory_bandwidth_bytes_per_s
    return MEMORY if memory_s > flops / device.peak(dtype) else dtype


def _places(points: Sequence[Point], edges: tuple[float, float], device: Device) -> list[tuple[float, float]]:
    """Position of each point: intensity and FLOP/s, or at an edge where one of them was not counted."""
    places, side_by_side = [], cycle(range(SIDE_BY_SIDE))
    for p in points:
        # Without FLOPs: along the memory's roof, and as far below it as its bandwidth is below the device's.
        x = min(p.intensity, edges[1]) if p.flops else edges[0] * STEP ** next(side_by_side)
        roof = min(device.peak(p.dtype or "float32"), device.memory_bandwidth_bytes_per_s * x)
        y = p.flops / p.seconds if p.flops else x * p.size_bytes / p.seconds
        places.append((x, max(y, LOWEST * roof)))
    return places


def _without(x_axis: dict[str, Any], first: float, edge: float) -> dict[str, Any]:
    """The axis with "no FLOPs" left of the edge, where no intensity is defined."""
    ticks = [(x, word) for x, word in zip(x_axis["tickvals"], x_axis["ticktext"], strict=True) if x > edge]
    values, words = zip(*[(sqrt(first * edge), "no FLOPs"), *ticks], strict=True)
    return x_axis | {"tickvals": values, "ticktext": words}


def _roofs(dtypes: Sequence[str], device: Device, first: float, last: float, edge: float | None) -> list[go.Scatter]:
    """The slope of the memory and a level for each dtype; dotted below it, the rates of large products and streams."""
    bandwidth = device.memory_bandwidth_bytes_per_s
    traces = []
    for index, dtype in enumerate(dtypes):
        peak, reached = device.peak(dtype), device.matmul_rate(dtype)
        slope = bandwidth * device.memory_efficiency
        look = {"color": FAINT_INK, "width": 2 if index == 0 else 1.5}
        roof = {"x": [first, peak / bandwidth, last], "y": [bandwidth * first, peak, peak]}
        placed = {"text": ["", "", f"{dtype} {format_quantity(peak, 'FLOP/s')}"], "textposition": "top left"}
        font = {"textfont": {"size": 12, "color": FAINT_INK}}
        same: dict[str, Any] = {"hoverinfo": "skip", "legendgroup": "roof", "showlegend": index == 0}
        traces.append(go.Scatter(**roof, **placed, **font, **same, mode="lines+text", line=look, name="roof"))
        if (reached, slope) != (peak, bandwidth):
            below = {"x": [first, reached / slope, last], "y": [slope * first, reached, reached]}
            dotted = {"line": look | {"dash": "dot", "width": 1}, "name": "reached by large kernels"}
            traces.append(go.Scatter(**below, **same | {"legendgroup": "reached"}, mode="lines", **dotted))
    middle = edge or sqrt(first * min(device.peak(dtype) for dtype in dtypes) / bandwidth)
    place = "bottom right" if edge else "top left"  # clear of the points below the roof and left of the edge
    name, font = [f" memory {format_quantity(bandwidth, 'B/s')} "], {"size": 12, "color": FAINT_INK}
    return [*traces, texts([middle], [bandwidth * middle], name, font, textposition=place)]


def _points(
    shown: Sequence[Point],
    some: Sequence[int],
    places: Sequence[tuple[float, float]],
    index: int,
    total_s: float,
    device: Device,
) -> go.Scatter:
    """The points under one roof; `some` are indices of `shown`, which begins with the longest ones."""
    look = series_look(index)
    return go.Scatter(
        x=[places[i][0] for i in some],
        y=[places[i][1] for i in some],
        mode="markers+text",
        name=f"under the roof of {shown[some[0]].roof}",
        marker={
            "symbol": look.symbol,
            "color": look.color,
            "opacity": 0.8,
            "size": [8 + 30 * sqrt(shown[i].seconds / total_s) for i in some],
            "line": {"color": "#FFFFFF", "width": 1},
        },
        text=[plain(_short(shown[i].name)) if i < NAMED else "" for i in some],
        textposition=_sides(shown, some, places),
        textfont={"size": 12, "shadow": halo("#FFFFFF")},
        hovertext=[_hover(shown[i], total_s, device) for i in some],
        hoverinfo="text",
    )


def _sides(shown: Sequence[Point], some: Sequence[int], places: Sequence[tuple[float, float]]) -> list[str]:
    """Side of each name: right of its point; left for the middle ones among points with FLOPs."""
    heights = sorted(places[i][1] for i in some if i < NAMED and shown[i].flops)
    sides = []
    for i in some:
        y = places[i][1]
        if shown[i].flops and heights and y < heights[-1]:
            sides.append("bottom right" if y <= heights[0] else "middle left")
        else:
            sides.append("middle right")
    return sides


def _hover(point: Point, total_s: float, device: Device) -> str:
    name = f"<b>{plain(point.name)}</b>" + (f", {point.dtype}" if point.dtype else "")
    time = f"{point.calls:,} calls, {format_quantity(point.seconds, 's')}, {point.seconds / total_s:.1%} of compute"
    rate, place = format_quantity(point.size_bytes / point.seconds, "B/s"), "no FLOPs counted: at the left edge"
    if point.flops:
        rate = format_quantity(point.flops / point.seconds, "FLOP/s")
        place = f"{point.intensity:.3g} FLOP/B" if point.size_bytes else "no bytes counted: at the right edge"
    return "<br>".join([name, time, f"{rate}, {_share(point, device)}", place])


def _reached(point: Point, device: Device) -> float:
    if point.flops:
        roof = min(device.peak(point.dtype or "float32"), device.memory_bandwidth_bytes_per_s * point.intensity)
        return point.flops / point.seconds / roof
    return point.size_bytes / point.seconds / device.memory_bandwidth_bytes_per_s


def _share(point: Point, device: Device) -> str:
    return f"{_reached(point, device):.0%} of its roof"


def _summary(points: Sequence[Point], device: Device) -> str:
    total_s = sum(p.seconds for p in points)
    if not total_s:
        return "No compute was recorded, so nothing is under the roofs."
    roofs: dict[str, float] = defaultdict(float)
    for p in points:
        roofs[p.roof] += p.seconds / total_s
    known = sorted(((share, roof) for roof, share in roofs.items() if roof != UNKNOWN), reverse=True)
    parts = [f"{share:.0%} under the roof of {roof}" for share, roof in known]
    text = f"Of {format_quantity(total_s, 's')} of compute on all ranks, {', '.join(parts)}" if parts else ""
    if UNKNOWN in roofs:
        rest = f"{roofs[UNKNOWN]:.0%} of the compute time is in operations without counted FLOPs and bytes"
        text = f"{text}; {rest}" if text else rest
    longest = next((p for p in points if p.roof != UNKNOWN), None)
    if longest is None:
        return text + "."
    name = _short(longest.name) + (f" in {longest.dtype}" if longest.dtype else "")
    text += f". {name} takes longest, {longest.seconds / total_s:.0%}, at {_share(longest, device)}."
    low = [p for p in points if p.seconds > SEEN * total_s and p.roof != UNKNOWN and _reached(p, device) < LOWEST]
    names = ", ".join(_short(p.name) for p in low)
    if any(not p.flops and p.size_bytes for p in points):
        text += " Operations without FLOPs are at the left, and only their distance to the roof says something."
    return text + (f" Drawn at {LOWEST:.1%} of the roof, and still lower: {names}." if low else "")


def _short(name: str) -> str:
    """An operation's name without torch's prefixes and suffixes."""
    for part in ("aten.", "_scaled_dot_product_", "_for_cpu"):
        name = name.replace(part, "")
    return name


def _columns(points: Sequence[Point], total_s: float, device: Device) -> dict[str, list[Any]]:
    known = [p.roof != UNKNOWN and bool(p.seconds) for p in points]
    return {
        "operation": [p.name for p in points],
        "dtype": [p.dtype for p in points],
        "calls": [p.calls for p in points],
        "seconds (s)": [p.seconds for p in points],
        "share of compute (%)": [100 * p.seconds / total_s if total_s else 0.0 for p in points],
        "FLOPs (FLOP)": [p.flops for p in points],
        "bytes (B)": [p.size_bytes for p in points],
        "roof": [p.roof for p in points],
        "of its roof": [
            _share(p, device).split()[0] if is_known else "" for p, is_known in zip(points, known, strict=True)
        ],
    }
