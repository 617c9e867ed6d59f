"""Positions in a static picture: size, axes, hatchings, and the bases of stacked bars and areas."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lablib.figures.svg.axes import SvgAxis, extent
from lablib.figures.svg.parts import each_of, first_of, list_of, paint, title_of

WIDTH = 860
_HATCHES = {
    "/": "M0,7L7,0",
    "\\": "M0,0L7,7",
    "x": "M0,0L7,7M0,7L7,0",
    "-": "M0,3.5H7",
    "|": "M3.5,0V7",
    "+": "M0,3.5H7M3.5,0V7",
    ".": "M3,3h1v1h-1z",
}


class Canvas:
    """One figure while it is drawn."""

    def __init__(self, layout: dict[str, Any], traces: Sequence[dict[str, Any]]):
        self.layout, self.traces = layout, traces
        self.height = float(layout.get("height") or 450)
        self.defs: dict[str, str] = {}
        self.offsets: dict[Any, np.ndarray] = {}  # sums below the next stacked bar or area
        margin = layout.get("margin", {})
        self.top, self.bottom = margin.get("t", 66), self.height - margin.get("b", 88)
        self.left, self.right = 16.0, WIDTH - (90.0 if any(t["type"] == "heatmap" for t in traces) else 30.0)
        self.axes = self._axes()
        names = [axis for name, axis in self.axes.items() if name[0] == "y"]
        titled = any(title_of(axis.layout) and axis.layout.get("visible") is not False for axis in names)
        self.left += max((axis.room() for axis in names), default=0.0) + (26.0 if titled else 8.0)
        self.axes = self._axes()

    def _axes(self) -> dict[str, SvgAxis]:
        used = {(letter, trace.get(f"{letter}axis", letter)) for trace in self.traces for letter in "xy"}
        used |= {(key[0], key[0] + key[5:]) for key in self.layout if key[1:5] == "axis"}
        layouts = {name: self.layout.get(f"{letter}axis{name[1:]}", {}) for letter, name in used}
        following = {name: [n for n, each in layouts.items() if each.get("matches") == name] for name in layouts}
        axes = {name: self._axis(name, layouts[name], following[name]) for name in sorted(layouts)}
        for name, own in layouts.items():  # an axis that follows another has its ends
            other = axes.get(own.get("matches", ""))
            if other is not None and other is not axes[name]:
                axes[name] = SvgAxis(own, other.low, other.high, axes[name].start, axes[name].end, other.names)
        return axes

    def _axis(self, name: str, own: dict[str, Any], following: Sequence[str]) -> SvgAxis:
        """The axis for its values and the values of the axes that follow it (`matches`)."""
        letter, values = name[0], list[Any]()
        for axis in dict.fromkeys([name, *following]):
            traces = [trace for trace in self.traces if trace.get(f"{letter}axis", letter) == axis]
            values += [value for trace in traces for value in values_of(trace, letter)]
            if self.layout.get("barmode") == "stack":
                values += stacked(traces, letter)
        names = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
        probe = SvgAxis(own, 0, 1, 0, 1, names)
        is_bars = any(trace["type"] == "bar" for trace in self.traces)
        low, high = extent(own, [probe.number(value) for value in values], is_bars or own.get("rangemode") == "tozero")
        if names:
            low, high = (high, low) if own.get("autorange") == "reversed" else (low, high)
            ends = (-0.6, len(names) - 0.4)
            low, high = (ends[1], ends[0]) if low > high or own.get("autorange") == "reversed" else ends
        first, last = own.get("domain", (0, 1))
        if letter == "x":
            width = self.right - self.left
            return SvgAxis(own, low, high, self.left + first * width, self.left + last * width, names)
        height = self.bottom - self.top
        return SvgAxis(own, low, high, self.bottom - first * height, self.bottom - last * height, names)

    def axes_of(self, trace: Mapping[str, Any]) -> tuple[SvgAxis, SvgAxis]:
        return self.axes[trace.get("xaxis", "x")], self.axes[trace.get("yaxis", "y")]

    def fill(self, marker: Mapping[str, Any]) -> str:
        """The paint of a bar, with its hatching."""
        color, pattern = first_of(marker.get("color")) or "#999999", marker.get("pattern", {})
        line = marker.get("line", {})
        edge = first_of(line.get("color")) if first_of(line.get("width")) else None
        shape = first_of(pattern.get("shape"))
        if shape not in _HATCHES:
            return paint(color, edge, 0.6)
        ink = pattern.get("fgcolor") or "#FFFFFF"
        name = f"h{sum(map(ord, f'{shape}{color}{ink}'))}-{_HATCHES[shape].count('M')}-{color.strip('#')}"
        stroke = f'<path d="{_HATCHES[shape]}" stroke-width="1.2" {paint("none", ink)}/>'
        ground = f'<rect width="7" height="7" {paint(color)}/>'
        size = 'width="7" height="7" patternUnits="userSpaceOnUse"'
        self.defs[name] = f'<pattern id="{name}" {size}>{ground}{stroke}</pattern>'
        return paint(f"url(#{name})", edge, 0.6)

    def clip(self, x: SvgAxis, y: SvgAxis, points: Sequence[tuple[float, float]]) -> str:
        """An attribute that cuts lines and areas at the ends of their axes; empty if all are between these."""
        if all(is_inside(x, y, point) for point in points if np.isfinite(point).all()):
            return ""
        left, right, top, bottom = *sorted((x.start, x.end)), *sorted((y.start, y.end))
        name = f"c{left:.0f}-{right:.0f}-{top:.0f}-{bottom:.0f}"  # equal names on a page are equal areas
        box = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
        self.defs[name] = f'<clipPath id="{name}"><rect {box}/></clipPath>'
        return f' clip-path="url(#{name})"'

    def shows(self, shape: Mapping[str, Any]) -> bool:
        """Whether a line of the layout has a part between the ends of its axes."""
        for letter in "xy":
            axis = self.axes.get(shape.get(f"{letter}ref") or letter)
            if axis is not None:
                low, high = sorted((axis.start, axis.end))
                first, last = sorted(axis.pixel(shape[f"{letter}{i}"]) for i in "01")
                if last < low - 1 or first > high + 1:
                    return False
        return True

    def where(self, value: Any, ref: str, letter: str) -> float:
        """The pixel of a coordinate of a note or a line."""
        name, _, kind = str(ref or letter).partition(" ")
        if name == "paper":
            share = float(value)
            ends = (self.left, self.right) if letter == "x" else (self.bottom, self.top)
            return ends[0] + share * (ends[1] - ends[0])
        axis = self.axes[name]
        if kind == "domain":
            return axis.start + float(value) * (axis.end - axis.start)
        # On a logarithmic axis, plotly has exponents for notes and numbers for lines.
        return axis.pixel(value)


def is_inside(x: SvgAxis, y: SvgAxis, point: tuple[float, float]) -> bool:
    """Whether a point is between the ends of both axes, to a pixel."""
    ends = ((at, *sorted((axis.start, axis.end))) for at, axis in zip(point, (x, y), strict=True))
    return all(low - 1 <= at <= high + 1 for at, low, high in ends)


def values_of(trace: dict[str, Any], letter: str) -> list[Any]:
    """The values that an axis must hold for a trace."""
    values = list_of(trace.get(letter))
    if trace["type"] != "bar":
        return [*values, *(end for ends in error_ends(trace, letter) for end in ends)]
    if (letter == "x") == (trace.get("orientation") == "h"):
        bases = each_of(trace.get("base"), len(values), 0.0)
        return [*bases, *(base + (value or 0.0) for base, value in zip(bases, values, strict=True))]
    return [end for value in values for end in ((value - 0.5, value + 0.5) if not isinstance(value, str) else (value,))]


def error_ends(trace: Mapping[str, Any], letter: str) -> list[tuple[Any, Any]]:
    """The least and the greatest value of each point's error bar along an axis; none without error bars."""
    bar, values = trace.get(f"error_{letter}", {}), list_of(trace.get(letter))
    if bar.get("array") is None:
        return []
    above = list_of(bar["array"])
    below = above if bar.get("arrayminus") is None else list_of(bar["arrayminus"])
    return [(value - less, value + more) for value, less, more in zip(values, below, above, strict=True)]


def stacked(traces: Sequence[dict[str, Any]], letter: str) -> list[float]:
    """The heights of stacked bars."""
    sums: dict[Any, float] = {}
    for trace in traces:
        along, across = ("x", "y") if trace.get("orientation") == "h" else ("y", "x")
        if trace["type"] == "bar" and letter == along:
            for place, value in zip(list_of(trace.get(across)), list_of(trace.get(along)), strict=True):
                sums[place] = sums.get(place, 0.0) + (value or 0.0)
    return list(sums.values())
