"""A small cluster as a picture: nodes at given places, links drawn by level (NVLink, NIC, fabric, ...)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import INK, PAPER_PIXELS, base_layout, halo, lay_out, series_look
from lablib.signature import checked

_SYMBOLS = {"gpu": "square", "node": "square", "host": "square-open", "nic": "diamond", "switch": "circle"}
_SYMBOLS |= {"router": "hexagon"}
_COLORS = {"gpu": "#56B4E9", "node": "#B9E3F9", "host": "#FFFFFF", "nic": "#F0E442"}
_COLORS |= {"switch": "#D9D9D9", "router": "#D9D9D9"}
_WHITE = "#FFFFFF"
_BLACK = "#000000"
_THICKEST = 9.0  # pixels of a link
_OTHERS = ("triangle-up", "star", "pentagon")


@dataclass(frozen=True, slots=True)
class Node:
    """A node; x grows to the right, y upwards. `kind`: "gpu", "node", "host", "nic", "switch", "router", or another."""

    name: str
    x: float
    y: float
    kind: str = "gpu"


@dataclass(frozen=True, slots=True)
class DrawnLink:
    """A link between two nodes, by name; `level` groups links in the legend ("NVLink", "InfiniBand 400G").

    A link of several `wires` is drawn thicker; links of one level have the same number.
    """

    a: str
    b: str
    level: str = "link"
    wires: float = 1.0


@checked
def figure_topology(nodes: Sequence[Node], links: Sequence[DrawnLink], title: str, summary: str) -> go.Figure:
    """Nodes by kind (symbol and colour), links by level (colour, dash and width); `summary` is a sentence.

    Table: one row per link. Raises ValueError: if a link names an unknown node, or two nodes share a name.
    """
    by_name = {node.name: node for node in nodes}
    if len(by_name) < len(nodes):
        raise ValueError(f"each node must have a different name: got {[n.name for n in nodes]}.")
    for link in links:
        for end in (link.a, link.b):
            if end not in by_name:
                raise ValueError(f"a link must join two nodes: got {end!r}, which is none of {list(by_name)}.")
    height = 320 + PAPER_PIXELS - 40
    figure = go.Figure(layout=base_layout(title, height, showlegend=True))
    levels, kinds = dict.fromkeys(link.level for link in links), dict.fromkeys(node.kind for node in nodes)
    traces: list[Any] = [_links(links, level, number, by_name) for number, level in enumerate(levels)]
    traces += [_kind(nodes, kind, number) for number, kind in enumerate(kinds)]
    figure.add_traces(traces)
    hidden: dict[str, Any] = {"visible": False}
    axes = {f"{side}axis": hidden | _room([v for trace in traces for v in trace[side]]) for side in "xy"}
    lay_out(figure, axes | {"margin": {"b": 48, "l": 20, "r": 20}})
    ends = {"from": [e.a for e in links], "to": [e.b for e in links], "level": [e.level for e in links]}
    return attach(figure, summary, ends)


def _room(points: Sequence[float | None]) -> dict[str, Any]:
    """The range of the points with a margin on both sides."""
    values = [v for v in points if v is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    air = 0.12 * (high - low) or 1.0
    return {"range": [low - air, high + air]}


def _links(links: Sequence[DrawnLink], level: str, number: int, by_name: Mapping[str, Node]) -> go.Scatter:
    """All links of one level as one trace, broken between links."""
    xs, ys = list[float | None](), list[float | None]()
    for link in links:
        if link.level == level:
            path = _path(by_name[link.a], by_name[link.b], by_name.values())
            xs += [*(x for x, _ in path), None]
            ys += [*(y for _, y in path), None]
    look = series_look(number)
    wires = max(link.wires for link in links if link.level == level)
    line = {"color": look.color, "dash": look.dash, "width": min(2.2 * wires, _THICKEST)}
    return go.Scatter(x=xs, y=ys, mode="lines", line=line, name=level, hoverinfo="skip")


def _path(a: Node, b: Node, nodes: Iterable[Node]) -> list[tuple[float, float]]:
    """A straight line, or an arc if the line would run through another node (the wrap-around of a torus)."""
    dx, dy = b.x - a.x, b.y - a.y
    squared = dx * dx + dy * dy

    def is_between(node: Node) -> bool:
        along = (node.x - a.x) * dx + (node.y - a.y) * dy
        across = (node.x - a.x) * dy - (node.y - a.y) * dx
        return 0.01 * squared < along < 0.99 * squared and abs(across) < 0.02 * squared

    if not any(is_between(node) for node in nodes if node.name not in (a.name, b.name)):
        return [(a.x, a.y), (b.x, b.y)]
    steps = [i / 16 for i in range(17)]
    bows = [0.1 * 4 * t * (1 - t) for t in steps]
    return [(a.x + t * dx - bow * dy, a.y + t * dy + bow * dx) for t, bow in zip(steps, bows, strict=True)]


def _kind(things: Sequence[Node], kind: str, number: int) -> go.Scatter:
    chosen = [node for node in things if node.kind == kind]
    symbol = _SYMBOLS.get(kind, _OTHERS[number % len(_OTHERS)])
    # Short names fit inside the symbol; long ones are next to it, clear of vertical links.
    is_short = max(len(n.name) for n in chosen) <= 3
    fill = _COLORS.get(kind, _WHITE)
    ink = _BLACK if is_short and fill != _WHITE else INK  # a theme changes neither this fill nor its ink
    return go.Scatter(
        x=[n.x for n in chosen],
        y=[n.y for n in chosen],
        mode="markers+text" if len(things) <= 40 else "markers",
        text=[n.name for n in chosen],
        textposition="middle center" if is_short else "bottom right",
        textfont={"size": 11, "color": ink} | ({} if is_short else {"shadow": halo("#FFFFFF")}),
        marker={
            "symbol": symbol,
            "size": 28 if len(things) <= 40 else 15,
            "color": fill,
            "line": {"color": INK, "width": 1.2},
        },
        name=kind,
        hovertext=[f"<b>{n.name}</b><br>{n.kind}" for n in chosen],
        hoverinfo="text",
    )
