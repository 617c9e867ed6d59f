"""The traces of a figure as SVG: bars, heat maps, and lines, points, areas and texts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lablib.figures.style import INK
from lablib.figures.svg import parts as svg
from lablib.figures.svg.canvas import Canvas, error_ends, is_inside

# Corners in a square of 8 pixels; a circle has none.
_SYMBOLS = {
    "circle": (),
    "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
    "diamond": ((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
    "cross": ((-1.6, -5), (1.6, -5), (1.6, -1.6), (5, -1.6), (5, 1.6), (1.6, 1.6))
    + ((1.6, 5), (-1.6, 5), (-1.6, 1.6), (-5, 1.6), (-5, -1.6), (-1.6, -1.6)),
    "triangle-up": ((0, -5), (5, 4), (-5, 4)),
    "triangle-down": ((0, 5), (5, -4), (-5, -4)),
    "triangle-right": ((5, 0), (-4, 5), (-4, -5)),
    "star": ((0, -6), (1.6, -1.9), (6, -1.9), (2.4, 0.9), (3.8, 5.2), (0, 2.6), (-3.8, 5.2), (-2.4, 0.9))
    + ((-6, -1.9), (-1.6, -1.9)),
    "hexagon": ((-4, -2.3), (0, -4.6), (4, -2.3), (4, 2.3), (0, 4.6), (-4, 2.3)),
    "hourglass": ((-4, -4), (4, -4), (-4, 4), (4, 4)),
    "bowtie": ((-4, -4), (-4, 4), (4, -4), (4, 4)),
    "arrow": ((0, 0), (2.7, 8), (-2.7, 8)),
}
# Pairs of ends of strokes.
_STROKES = {
    "x": ((-5, -5), (5, 5), (-5, 5), (5, -5)),
    "x-thin": ((-4, -4), (4, 4), (-4, 4), (4, -4)),
    "line-ns": ((0, -4), (0, 4)),
    "line-ew": ((-4, 0), (4, 0)),
}


def trace_svg(canvas: Canvas, trace: dict[str, Any]) -> Iterator[str]:
    draw = {"bar": _bars, "heatmap": _heat, "scatter": _scatter}.get(trace["type"])
    if draw:
        yield from draw(canvas, trace)


def _bars(canvas: Canvas, trace: dict[str, Any]) -> Iterator[str]:
    x, y = canvas.axes_of(trace)
    lies = trace.get("orientation") == "h"
    along, across = (x, y) if lies else (y, x)
    lengths, places = svg.list_of(trace.get("x" if lies else "y")), svg.list_of(trace.get("y" if lies else "x"))
    gap = 1 - canvas.layout.get("bargap", 0.2)
    n = len(lengths)
    bases, widths = svg.each_of(trace.get("base"), n, 0.0), svg.each_of(trace.get("width"), n, gap)
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
    raw_x, raw_y = svg.list_of(trace.get("x")), svg.list_of(trace.get("y"))
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
    outline, floor = svg.steps_of(points, shape), svg.steps_of(floor, shape)
    runs, clip = svg.runs_of(outline), canvas.clip(x, y, outline)
    if trace.get("fill") or floor:
        color = svg.first_of(trace.get("fillcolor")) or line.get("color") or "#999999"
        area = canvas.fill({"color": color, "pattern": trace.get("fillpattern", {})})
        for run in runs if not floor else [[*outline, *reversed(floor)]]:
            yield f'<polygon points="{svg.points_of(run)}"{clip} {area}/>'
    if "lines" in mode and line.get("width", 2) > 0:
        dash = svg.DASHES.get(line.get("dash") or "", "")
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        for run in runs:
            look = svg.paint("none", line.get("color") or "#5A5A5A", line.get("width", 2))
            yield f'<polyline points="{svg.points_of(run)}"{extra}{clip} {look}/>'
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
    bar, others = trace.get(f"error_{letter}", {}), svg.list_of(trace.get("y" if letter == "x" else "x"))
    color = bar.get("color") or svg.first_of(trace.get("marker", {}).get("color")) or INK
    for ends, other in zip(error_ends(trace, letter), others, strict=False):
        points = [(x.pixel(end), y.pixel(other)) if letter == "x" else (x.pixel(other), y.pixel(end)) for end in ends]
        if ends[0] != ends[1] and np.isfinite(points).all():
            clip, width = canvas.clip(x, y, points), bar.get("thickness") or 2
            yield f'<polyline points="{svg.points_of(points)}"{clip} {svg.paint("none", color, width)}/>'


def markers_svg(marker: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Symbols at points, all of one look in one path; an arrow has its tip at its point, away from the previous one."""
    n, line = len(points), marker.get("line", {})
    colors, symbols = svg.each_of(marker.get("color"), n, "#999999"), svg.each_of(marker.get("symbol"), n, "circle")
    sizes, widths = svg.each_of(marker.get("size"), n, 8), svg.each_of(line.get("width"), n, 0)
    edges, outlines = svg.each_of(line.get("color"), n, INK), dict[str, list[str]]()
    for i, (point, symbol, size) in enumerate(zip(points, symbols, sizes, strict=True)):
        if not np.isfinite(point).all() or not size:
            continue
        kind, is_open = symbol.removesuffix("-dot").removesuffix("-open"), "-open" in symbol
        if kind == "x":
            look = svg.paint("none", colors[i], 3)
        elif kind in _STROKES:  # open ones have plotly's marker colour, others its line colour
            look = svg.paint("none", colors[i] if is_open else edges[i], widths[i] or 1)
        elif is_open:
            look = svg.paint("none", colors[i], widths[i] or 1.5)
        else:
            look = svg.paint(colors[i], edges[i] if widths[i] else None, widths[i])
        back = np.subtract(point, points[i - 1]) if kind == "arrow" and i else (0.0, -1.0)
        outlines.setdefault(look, []).append(_outline(kind, point, size / 8, (float(back[0]), float(back[1]))))
        if symbol.endswith("-dot"):
            outlines.setdefault(svg.paint("#FFFFFF"), []).append(_outline("circle", point, size / 32, (0.0, -1.0)))
    for look, parts in outlines.items():
        yield f'<path d="{"".join(parts)}" {look}/>'


def _outline(kind: str, point: tuple[float, float], scale: float, up: tuple[float, float]) -> str:
    """A symbol at a point, turned so that its upper side lies in the direction `up`."""
    a, b = point
    corners = _STROKES.get(kind) or _SYMBOLS.get(kind, ())
    if not corners:
        r = 4 * scale
        half = f"a{r:.1f},{r:.1f} 0 1,0 "
        return f"M{a - r:.1f},{b:.1f}{half}{2 * r:.1f},0{half}{-2 * r:.1f},0z"
    length = float(np.hypot(*up)) or 1.0
    east, south = (-up[1] / length, up[0] / length), (-up[0] / length, -up[1] / length)
    placed = [
        f"{a + scale * (x * east[0] + y * south[0]):.1f},{b + scale * (x * east[1] + y * south[1]):.1f}"
        for x, y in corners
    ]
    if kind in _STROKES:
        return "".join(f"M{first}L{last}" for first, last in zip(placed[::2], placed[1::2], strict=True))
    return f"M{'L'.join(placed)}z"


def _texts(canvas: Canvas, trace: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> Iterator[str]:
    font = trace.get("textfont", {})
    colors, texts = svg.each_of(font.get("color"), len(points), INK), svg.each_of(trace.get("text"), len(points), "")
    positions = svg.each_of(trace.get("textposition"), len(points), "middle center")
    for (a, b), color, text, position in zip(points, colors, texts, positions, strict=True):
        if text and np.isfinite(a) and np.isfinite(b):
            anchor = "start" if "right" in position else "end" if "left" in position else "middle"
            shift = 10 if anchor == "start" else -10 if anchor == "end" else 0
            down = -8 if "top" in position else 16 if "bottom" in position else 4
            yield svg.text_at(a + shift, b + down, text, size=font.get("size") or 12, anchor=anchor, color=color)


def _heat(canvas: Canvas, trace: dict[str, Any]) -> Iterator[str]:
    x, y = canvas.axes_of(trace)
    z = np.array([[np.nan if v is None else v for v in row] for row in svg.list_of(trace["z"])], dtype=float)
    low, high = trace.get("zmin", np.nanmin(z)), trace.get("zmax", np.nanmax(z))
    stops = trace["colorscale"]
    for (i, j), value in np.ndenumerate(z):
        if np.isfinite(value):
            share = (value - low) / ((high - low) or 1.0)
            a, b = sorted((x.place(j - 0.5), x.place(j + 0.5))), sorted((y.place(i - 0.5), y.place(i + 0.5)))
            place = f'x="{a[0]:.1f}" y="{b[0]:.1f}" width="{a[1] - a[0]:.1f}" height="{b[1] - b[0]:.1f}"'
            yield f'<rect class="lablib-heat" {place} {svg.paint(svg.color_between(stops, share))}/>'
    if trace.get("showscale", True):
        bar = trace.get("colorbar", {})
        marks = bar.get("ticktext") or [f"{low:g}", f"{high:g}"]
        at = canvas.right + 12
        for step in range(40):
            top = canvas.bottom - (step + 1) / 40 * (canvas.bottom - canvas.top - 20)
            place = f'x="{at}" y="{top:.1f}" width="14" height="{(canvas.bottom - canvas.top) / 40 + 0.5:.1f}"'
            yield f"<rect {place} {svg.paint(svg.color_between(stops, step / 39))}/>"
        yield svg.text_at(at + 18, canvas.bottom, marks[0], anchor="start")
        yield svg.text_at(at + 18, canvas.top + 28, marks[-1], anchor="start")
        yield svg.text_at(at - 4, canvas.top + 8, bar.get("title", {}).get("text") or "", anchor="start")
