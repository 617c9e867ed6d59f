"""The traces of a figure as SVG: bars, heat maps, and lines, points, areas and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lablib.figures.style import INK
from lablib.figures.svg.canvas import Canvas
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

_SYMBOLS = {
    "square": "M-4,-4h8v8h-8z",
    "diamond": "M0,-5.5L5.5,0L0,5.5L-5.5,0z",
    "cross": "M-5,-1.6h3.4v-3.4h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4z",
    "x": "M-5,-5L5,5M-5,5L5,-5",
    "triangle-up": "M0,-5L5,4h-10z",
    "triangle-down": "M0,5L5,-4h-10z",
    "star": "M0,-6L1.6,-1.9L6,-1.9L2.4,.9L3.8,5.2L0,2.6L-3.8,5.2L-2.4,.9L-6,-1.9L-1.6,-1.9z",
}


def trace_svg(canvas: Canvas, trace: dict[str, Any]) -> Iterator[str]:
    kind = trace["type"]
    if kind == "bar":
        yield from _bars(canvas, trace)
    elif kind == "heatmap":
        yield from _heat(canvas, trace)
    elif kind == "scatter":
        yield from _scatter(canvas, trace)


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
    if line.get("shape") == "hv":
        points, floor = steps_of(points), steps_of(floor)
    runs = runs_of(points)
    if trace.get("fill") or floor:
        color = first_of(trace.get("fillcolor")) or line.get("color") or "#999999"
        area = canvas.fill({"color": color, "pattern": trace.get("fillpattern", {})})
        for run in runs if not floor else [[*points, *reversed(floor)]]:
            yield f'<polygon points="{points_of(run)}" {area}/>'
    if "lines" in mode and line.get("width", 2) > 0:
        dash = DASHES.get(line.get("dash") or "", "")
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        for run in runs:
            color = line.get("color") or "#5A5A5A"
            yield f'<polyline points="{points_of(run)}"{extra} {paint("none", color, line.get("width", 2))}/>'
    if "markers" in mode:
        yield from markers_svg(canvas, trace.get("marker", {}), points)
    if "text" in mode:
        yield from _texts(canvas, trace, points)


def markers_svg(canvas: Canvas, marker: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> Iterator[str]:
    n = len(points)
    colors, symbols = each_of(marker.get("color"), n, "#999999"), each_of(marker.get("symbol"), n, "circle")
    sizes = each_of(marker.get("size"), n, 8)
    for (a, b), color, symbol, size in zip(points, colors, symbols, sizes, strict=True):
        if not (np.isfinite(a) and np.isfinite(b)) or not size:
            continue
        if symbol in _SYMBOLS:
            edge = color if symbol == "x" else None
            yield f'<path transform="translate({a:.1f} {b:.1f})" d="{_SYMBOLS[symbol]}" {paint(color, edge, 3)}/>'
        else:
            yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{size / 2:.1f}" {paint(color)}/>'


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
