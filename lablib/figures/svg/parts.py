"""The small parts of a static picture: paints, lines, texts, and lists that plotly may give as one value."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from lablib.figures.style import INK
from lablib.figures.svg.axes import plain_text
from lablib.figures.theme import browser_color
from lablib.text.markup import in_html

DASHES = {"dash": "8 5", "dot": "2 3", "dashdot": "8 4 2 4", "longdash": "12 5", "longdashdot": "12 4 2 4"}


def list_of(values: Any) -> list[Any]:
    """A list of what plotly has as a list, an array, or an array packed for JSON."""
    if isinstance(values, Mapping):
        array = np.frombuffer(b64decode(values["bdata"]), dtype=values["dtype"])
        shape = values.get("shape")
        return array.reshape([int(n) for n in str(shape).split(",")] if shape else -1).tolist()
    return [] if values is None else values.tolist() if isinstance(values, np.ndarray) else list(values)


def each_of(value: Any, count: int, default: Any) -> list[Any]:
    """One value for each of `count`, whether one or a list was given."""
    if value is None:
        return [default] * count
    if isinstance(value, (list, tuple, np.ndarray, Mapping)):
        values = list_of(value)
        return list(islice(cycle(values), count)) if values else [default] * count
    return [value] * count


def first_of(value: Any) -> Any:
    values = each_of(value, 1, None)
    return values[0]


def title_of(layout: Mapping[str, Any]) -> str:
    return (layout.get("title") or {}).get("text") or ""


def runs_of(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Stretches without a gap."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if np.isfinite(point[0]) and np.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def steps_of(points: Sequence[tuple[float, float]], shape: str) -> list[tuple[float, float]]:
    """The points with a corner between neighbours: at the next x ("hv"), at the next y ("vh"), or none."""
    if shape not in ("hv", "vh"):
        return list(points)
    stepped = list(points[:1])
    for (a, b), (c, d) in zip(points, points[1:], strict=False):
        stepped += [(c, b) if shape == "hv" else (a, d), (c, d)]
    return stepped


def points_of(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def color_between(stops: Sequence[Sequence[Any]], share: float) -> str:
    """The colour of a scale at a share of it."""
    share = min(max(share, 0.0), 1.0)
    for (low, dark), (high, light) in zip(stops, stops[1:], strict=False):
        if share <= high:
            part = (share - low) / ((high - low) or 1.0)
            channels = [int(dark[i : i + 2], 16) * (1 - part) + int(light[i : i + 2], 16) * part for i in (1, 3, 5)]
            return "#" + "".join(f"{round(channel):02X}" for channel in channels)
    return stops[-1][1]


def paint(fill: str, stroke: str | None = None, width: float = 1.0) -> str:
    line = f";stroke: {browser_color(stroke)};stroke-width: {width:g}" if stroke else ""
    return f'style="fill: {in_html(browser_color(fill))}{in_html(line)}"'


def draw_line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<path d="M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}" {paint("none", color)}/>'


def text_at(
    x: float, y: float, text: str, size: float = 11, anchor: str = "middle", color: str = INK, extra: str = ""
) -> str:
    """A text, in lines where plotly breaks it; bold where plotly's begins bold."""
    lines = str(text).split("<br>")
    weight = ";font-weight: bold" if str(text).startswith("<b>") else ""
    paint = f"fill: {in_html(browser_color(color))};font-size: {size:g}px{weight}"
    style = f'style="{paint}" text-anchor="{anchor}" {extra}'.strip()
    spans = "".join(
        f'<tspan x="{x:.1f}" dy="{0 if not number else 1.25 * size:g}">{in_html(plain_text(line))}</tspan>'
        for number, line in enumerate(lines)
    )
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{spans}</text>'
