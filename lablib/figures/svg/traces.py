"""The traces of a figure as SVG: bars, heat maps, and lines, points, areas and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lablib.figures.style import INK
from lablib.figures.svg.canvas import Canvas, error_ends, is_inside
from lablib.figures.svg.parts import (
    DASHES,
    color_between,
    each_of,
    first_of,
    list_of,
    paint,
    points_of,
    runs_of,
    steps_of,
    text_at,
)

# In a square of 8 pixels; what has no area is stroked.
_SYMBOLS = {
    "circle": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "square": "M-4,-4h8v8h-8z",
    "diamond": "M0,-5.5L5.5,0L0,5.5L-5.5,0z",
    "cross": "M-5,-1.6h3.4v-3.4h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4z",
    "hexagon": "M-4,-2.3L0,-4.6L4,-2.3V2.3L0,4.6L-4,2.3z",
    "hourglass": "M-4,-4h8l-8,8h8z",
    "bowtie": "M-4,-4v8l8,-8v8z",
    "arrow": "M0,0L2.7,8h-5.4z",
    "triangle-up": "M0,-5L5,4h-10z",
    "triangle-down": "M0,5L5,-4h-10z",
    "triangle-right": "M5,0L-4,5v-10z",
    "star": "M0,-6L1.6,-1.9L6,-1.9L2.4,.9L3.8,5.2L0,2.6L-3.8,5.2L-2.4,.9L-6,-1.9L-1.6,-1.9z",
}
_STROKES = {"x": "M-5,-5L5,5M-5,5L5,-5", "x-thin": "M-4,-4L4,4M-4,4L4,-4", "line-ns": "M0,-4V4", "line-ew": "M-4,0H4"}


def trace_svg(canvas: Canvas, trace: dict[str, Any]) -> Iterator[str]:
    draw = {"bar": _bars, "heatmap": _heat, "scatter": _scatter}.get(trace["type"])
    if draw:
        yield from draw(canvas, trace)


def _bars(canvas: Canvas, trace: dict[str, Any]) -> Iterator[str]:
    x, y = canvas.axes_of(trace)
    lies = trace.get("orientation") == "h"
    along, across = (x, y) if lies else (y, x)
    lengths, places = list_of(trace.get("x" if lies else "y")), list_of(trace.get("y" if lies else "x"))
    gap = 1 - canvas.layout.get("bargap", 0.2)
    bases, widths = each_of(trace.get("base"), len(lengths), 0.0), each_of(trace.get("width"), len(lengths), gap)
    key = (trace.get("xaxis", "x"), trace.get("yaxis", "y"))
    below: dict[Any, float] = canvas.offsets.setdefault(key, {})  # type: ignore[arg-type]
    fill = canvas.fill(trace.get("marker", {}))
    for length, place, base, width in zip(lengths, places, bases, widths, strict=True):
        if canvas.layout.get("barmode") == "stack" and length is not None:
            base, below[place] = below.get(place, 0.0), below.get(place, 0.0) + length
        ends = sorted((along.pixel(base), along.pixel(base + (length or 0.0))))
        middle = across.number(place)
        sides = sorted((across.place(middle - width / 2), across.place(middle + width / 2)))
        first, last = ((ends[0], sides[0]), (ends[1], sides[1])) if lies else ((sides[0], ends[0]), (sides[1], ends[1]))
        a, c = (min(max(value, x.start), x.end) for value in (first[0], last[0]))
        b, d = (min(max(value, y.end), y.start) for value in (first[1], last[1]))
        if all(np.isfinite((a, b, c, d))):
            yield f'<rect x="{a:.1f}" y="{b:.1f}" width="{max(c - a, 0.6):.1f}" height="{d - b:.1f}" {fill}/>'


def _scatter(canvas: Canvas, trace: dict[str, Any]) -> Iterator[str]:
    x, y = canvas.axes_of(trace)
    raw_x, raw_y = list_of(trace.get("x")), list_of(trace.get("y"))
    if trace.get("stackgroup"):
        below = canvas.offsets.get(trace["stackgroup"], np.zeros(len(raw_y)))
        raw_y = (below + np.array(raw_y, dtype=float)).tolist()
        canvas.offsets[trace["stackgroup"]] = np.array(raw_y)
        floor = [(x.pixel(a), y.pixel(b)) for a, b in zip(raw_x, below.tolist(), strict=True)]
    else:
        floor = []
    points = [(x.pixel(a), y.pixel(b)) for a, b in zip(raw_x, raw_y, strict=False)]
    mode, line = trace.get("mode") or "lines", trace.get("line", {})
    shape = line.get("shape") or "linear"
    outline, floor = steps_of(points, shape), steps_of(floor, shape)
    runs, clip = runs_of(outline), canvas.clip(x, y, outline)
    if trace.get("fill") or floor:
        color = first_of(trace.get("fillcolor")) or line.get("color") or "#999999"
        area = canvas.fill({"color": color, "pattern": trace.get("fillpattern", {})})
        for run in runs if not floor else [[*outline, *reversed(floor)]]:
            yield f'<polygon points="{points_of(run)}"{clip} {area}/>'
    if "lines" in mode and line.get("width", 2) > 0:
        dash = DASHES.get(line.get("dash") or "", "")
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        for run in runs:
            color = line.get("color") or "#5A5A5A"
            yield f'<polyline points="{points_of(run)}"{extra}{clip} {paint("none", color, line.get("width", 2))}/>'
    for letter in "xy":
        yield from _error_bars(canvas, trace, letter)
    if trace.get("cliponaxis", True):
        points = [point if is_inside(x, y, point) else (np.nan, np.nan) for point in points]
    if "markers" in mode:
        yield from markers_svg(trace.get("marker", {}), points)
    if "text" in mode:
        yield from _texts(canvas, trace, points)


def _error_bars(canvas: Canvas, trace: Mapping[str, Any], letter: str) -> Iterator[str]:
    x, y = canvas.axes_of(trace)
    bar, others = trace.get(f"error_{letter}", {}), list_of(trace.get("y" if letter == "x" else "x"))
    color = bar.get("color") or first_of(trace.get("marker", {}).get("color")) or INK
    for ends, other in zip(error_ends(trace, letter), others, strict=False):
        points = [(x.pixel(end), y.pixel(other)) if letter == "x" else (x.pixel(other), y.pixel(end)) for end in ends]
        if ends[0] != ends[1] and np.isfinite(points).all():
            clip, width = canvas.clip(x, y, points), bar.get("thickness") or 2
            yield f'<polyline points="{points_of(points)}"{clip} {paint("none", color, width)}/>'


def markers_svg(marker: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Symbols at points; an arrow points away from the point before it, as its tip stands at its own."""
    n, edge = len(points), marker.get("line", {})
    colors, symbols = each_of(marker.get("color"), n, "#999999"), each_of(marker.get("symbol"), n, "circle")
    sizes, widths = each_of(marker.get("size"), n, 8), each_of(edge.get("width"), n, 0)
    edges = each_of(edge.get("color"), n, INK)
    for i, ((a, b), color, symbol, size) in enumerate(zip(points, colors, symbols, sizes, strict=True)):
        if not (np.isfinite(a) and np.isfinite(b)) or not size:
            continue
        kind, scale = symbol.removesuffix("-dot").removesuffix("-open"), size / 8
        place = f"translate({a:.1f} {b:.1f}) scale({scale:g})"
        if kind == "arrow" and i:
            place += f" rotate({np.degrees(np.arctan2(b - points[i - 1][1], a - points[i - 1][0])) + 90:.0f})"
        if kind in _STROKES:  # plotly gives them the colour of the marker where they are open, else that of its line
            own = color if kind == "x" or symbol.endswith("-open") else edges[i]
            look = paint("none", own, (3 if kind == "x" else widths[i] or 1) / (1 if kind == "x" else scale))
        elif symbol.endswith("-open"):
            look = paint("none", color, (widths[i] or 1.5) / scale)
        else:
            look = paint(color, edges[i] if widths[i] else None, widths[i] / scale)
        yield f'<path transform="{place}" d="{_STROKES.get(kind) or _SYMBOLS.get(kind, _SYMBOLS["circle"])}" {look}/>'
        if symbol.endswith("-dot"):
            yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{size / 8:.1f}" {paint("#FFFFFF")}/>'


def _texts(canvas: Canvas, trace: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> Iterator[str]:
    font = trace.get("textfont", {})
    colors, texts = each_of(font.get("color"), len(points), INK), each_of(trace.get("text"), len(points), "")
    positions = each_of(trace.get("textposition"), len(points), "middle center")
    for (a, b), color, text, position in zip(points, colors, texts, positions, strict=True):
        if text and np.isfinite(a) and np.isfinite(b):
            anchor = "start" if "right" in position else "end" if "left" in position else "middle"
            shift = 10 if anchor == "start" else -10 if anchor == "end" else 0
            down = -8 if "top" in position else 16 if "bottom" in position else 4
            yield text_at(a + shift, b + down, text, size=font.get("size") or 12, anchor=anchor, color=color)


def _heat(canvas: Canvas, trace: dict[str, Any]) -> Iterator[str]:
    x, y = canvas.axes_of(trace)
    z = np.array([[np.nan if v is None else v for v in row] for row in list_of(trace["z"])], dtype=float)
    low, high = trace.get("zmin", np.nanmin(z)), trace.get("zmax", np.nanmax(z))
    stops = trace["colorscale"]
    for (i, j), value in np.ndenumerate(z):
        if np.isfinite(value):
            share = (value - low) / ((high - low) or 1.0)
            a, b = sorted((x.place(j - 0.5), x.place(j + 0.5))), sorted((y.place(i - 0.5), y.place(i + 0.5)))
            place = f'x="{a[0]:.1f}" y="{b[0]:.1f}" width="{a[1] - a[0]:.1f}" height="{b[1] - b[0]:.1f}"'
            yield f'<rect class="lablib-heat" {place} {paint(color_between(stops, share))}/>'
    if trace.get("showscale", True):
        bar = trace.get("colorbar", {})
        marks = bar.get("ticktext") or [f"{low:g}", f"{high:g}"]
        at = canvas.right + 12
        for step in range(40):
            top = canvas.bottom - (step + 1) / 40 * (canvas.bottom - canvas.top - 20)
            place = f'x="{at}" y="{top:.1f}" width="14" height="{(canvas.bottom - canvas.top) / 40 + 0.5:.1f}"'
            yield f"<rect {place} {paint(color_between(stops, step / 39))}/>"
        yield text_at(at + 18, canvas.bottom, marks[0], anchor="start")
        yield text_at(at + 18, canvas.top + 28, marks[-1], anchor="start")
        yield text_at(at - 4, canvas.top + 8, bar.get("title", {}).get("text") or "", anchor="start")
