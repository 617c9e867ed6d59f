"""A plain chart as data: axes with units, marks, a sentence and a table.

Data are in base units. Prefixes of units, titles of axes, logarithmic ticks, hover texts, the legend and the table
follow from them:

    chart(
        "Time against message size",
        Panel(Axis("message size", "B", log=True), Axis("time", "s", log=True), [line(0, "ring", sizes, seconds)]),
        "At 1 kB the ring takes 30 us.",
    )

Figures that need more (timelines, matrices, rooflines) draw with plotly directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log10
from numbers import Real
from typing import Annotated, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lablib.figures import style
from lablib.figures.describe import attach
from lablib.signature import NonEmpty
from lablib.text.units import Unit, axis_title, format_quantity, log_ticks, unit_for

PLOT_PIXELS, TITLE_PIXELS = 300, 18  # of a plot, and of the title of a panel
MARKERS_UP_TO = 40
Values = Sequence[Any]
NOTHING = "There is nothing to draw yet."


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis."""

    label: str  # quantity, the first part of the title
    unit: str = ""  # "s", "B", "B/s", "FLOP/s" get a prefix, unless the axis is logarithmic; other units are kept
    log: bool = False
    from_zero: bool = False
    # position -> label; none given: plotly's, or powers of ten on a logarithmic axis
    ticks: Mapping[Any, str] = field(default_factory=dict)
    span: tuple[float, float] | None = None  # first and last value; None: all values
    look: Mapping[str, Any] = field(default_factory=dict)  # further plotly properties

    def words(self, value: Any, digits: int) -> str:
        """The label and a value, for a hover text."""
        return f"{self.label} {value if isinstance(value, str) else format_quantity(value, self.unit, digits)}"

    def scale(self, values: Iterable[Any]) -> Unit:
        """The unit of the axis for `values`."""
        numbers: Any = [v for v in self.span or values if isinstance(v, Real)]
        return Unit(self.unit, 1.0) if self.log or not numbers else unit_for(numbers, self.unit)

    def drawn(self, values: Values) -> dict[str, Any]:
        """The plotly axis for `values`."""
        unit, ticks, properties = self.scale(values), self.ticks, dict(self.look)
        title = axis_title(self.label, unit)
        if self.log:
            properties["type"] = "log"
            ticks = ticks or dict(zip(*log_ticks(self.span or values, self.unit), strict=True))
        elif not len(values) and not self.span:
            return style.empty_axis(title) | properties
        if ticks:
            properties |= {"tickvals": [_scaled(v, unit) for v in ticks], "ticktext": list(ticks.values())}
        if self.span:
            properties["range"] = [log10(end) if self.log else unit.of(end) for end in self.span]
        if self.from_zero:
            properties["rangemode"] = "tozero"
        return style.axis(title, **properties)


@dataclass(frozen=True, slots=True)
class Mark:
    """One plotly trace."""

    name: str
    x: Values  # x, y: numbers in base units, or names of categories; None for a gap
    y: Values
    hover: Sequence[str] | None = None  # a text for each point; None: label, position and value; empty: no hover
    # the least and the greatest y of each point, drawn as a bar
    ends: tuple[Sequence[float], Sequence[float]] | None = None
    look: Mapping[str, Any] = field(default_factory=dict)  # further plotly properties; `base` of bars in base units
    trace: type = go.Scatter

    def styled(self, **look: Any) -> Mark:
        """The same data with further plotly properties."""
        return replace(self, look={**self.look, **look})


@dataclass(frozen=True, slots=True)
class ReferenceLine:
    """A reference line across a panel, at one value of x or of y; `look` has further properties of its label."""

    x: float | None = None
    y: float | None = None
    text: str = ""
    place: str = "top right"
    line: Mapping[str, Any] = field(default_factory=dict)
    look: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes, its marks from back to front, and its reference lines."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    rules: Sequence[ReferenceLine] = ()
    title: str = ""


# The axis of rows with names, from top to bottom.
ROWS = Axis("", look={"autorange": "reversed", "ticks": "", "showgrid": False, "type": "category"})


def line(index: int, name: str, x: Values, y: Values, hover: Any = None, ends: Any = None) -> Mark:
    """The `index`-th line of a chart; its points are marked while they are few."""
    look = style.series_look(index)
    stroke = {"color": look.color, "dash": look.dash, "width": 2}
    marker = {"symbol": look.symbol, "size": 7, "color": look.color}
    mode = "lines+markers" if len(x) <= MARKERS_UP_TO else "lines"
    return Mark(name, x, y, hover, ends, {"mode": mode, "line": stroke, "marker": marker})


def points(index: int, name: str, x: Values, y: Values, hover: Any = None, ends: Any = None, **marker: Any) -> Mark:
    """The `index`-th group of points; past eight, groups differ by open and dotted symbols."""
    look = style.series_look(index)
    symbol = look.symbol + ("", "-open", "-dot")[index // 8 % 3]
    marker = {"symbol": symbol, "size": 10, "color": look.color} | marker
    return Mark(name, x, y, hover, ends, {"mode": "markers", "marker": marker})


def bars(look: style.Look, name: str, x: Values, y: Values, hover: Any = None, **more: Any) -> Mark:
    """A group of bars; `more` are plotly properties, such as `orientation="h"`."""
    return Mark(name, x, y, hover, look={"marker": look.marker(), **more}, trace=go.Bar)


def labels(x: Values, y: Values, text: Sequence[str], place: str, color: Any = style.INK) -> Mark:
    """Text next to points, in front of bars and lines."""
    font = {"size": 12, "color": color, "shadow": style.halo("#FFFFFF")}
    look = {"mode": "text", "text": text, "textposition": place, "textfont": font}
    return Mark("", x, y, (), look=look | {"cliponaxis": False})


def chart(
    title: str,
    panels: Panel | Sequence[Panel],
    sentence: str,
    columns: Mapping[str, Values] | None = None,
    notes: Sequence[str] = (),
    pixels: int | Sequence[int] = PLOT_PIXELS,
    **layout: Any,
) -> go.Figure:
    """Draw a chart.

    Args:
        panels: side by side, with one y axis if they have the same.
        sentence: the numbers that matter; "": there is nothing to draw.
        columns: the table; None: x of the first panel's first mark, and the y of its marks.
        notes: sentences after the first one.
        pixels: height of the plot; several: of each of the panels, which then lie above one another over one x axis.
        layout: further plotly properties of the layout.
    """
    panels = [panels] if isinstance(panels, Panel) else list(panels)
    heights = [pixels] if isinstance(pixels, int) else list(pixels)
    is_column = len(heights) > 1
    figure, places = _grid(panels, heights)
    room = TITLE_PIXELS if any(panel.title for panel in panels) else 0
    height = sum(heights) + style.PAPER_PIXELS + room
    whole = style.base_layout(title, height, **{"showlegend": True} | layout)
    whole["margin"] = {**whole["margin"], "t": style.TOP_PIXELS + room}
    units = []
    names, seen = [mark.name for panel in panels for mark in panel.marks if mark.name], set()
    is_repeated = len(panels) > 1 or len(names) > len(set(names))
    for number, (panel, where) in enumerate(zip(panels, places, strict=True)):
        values = {side: _values(panels, panel, side) for side in "xy"}
        units.append({"x": panel.x.scale(values["x"]), "y": panel.y.scale(values["y"])})
        for mark in panel.marks:
            group = {"legendgroup": f"series: {mark.name}", "showlegend": mark.name not in seen} if mark.name else {}
            figure.add_trace(_trace(mark, panel, units[-1]).update(group if is_repeated else {}), **where)
            seen.add(mark.name)
        x, y = panel.x.drawn(values["x"]), panel.y.drawn(values["y"])
        if is_column and panel is not panels[-1]:
            x["title"] = {**x["title"], "text": ""}
        if not is_column and number and panel.y == panels[0].y:
            y["title"] = {**y["title"], "text": ""}
        suffix = str(number + 1) if number else ""
        for name, drawn in ((f"xaxis{suffix}", x), (f"yaxis{suffix}", y)):
            whole[name] = whole.get(name, {}) | drawn
    style.lay_out(figure, whole)
    for panel, unit, where in zip(panels, units, places, strict=True):
        for rule in panel.rules:
            _add_rule(figure, rule, panel, unit, where)
    return attach(figure, sentence or NOTHING, _table(panels[0]) if columns is None else columns, notes)


Positions = Annotated[Sequence[float], NonEmpty()]
Series = Annotated[Mapping[str, Sequence[float]], NonEmpty()]  # name of a line -> a value at each position


def check_lengths(x: Values, series: Mapping[str, Values]) -> None:
    """Every series must have one value for each position."""
    for name, values in series.items():
        if len(values) != len(x):
            raise ValueError(f"{name!r} must have one value for each of the {len(x)} positions: got {len(values)}.")


def _grid(panels: Sequence[Panel], heights: Sequence[int]) -> tuple[go.Figure, list[dict[str, Any]]]:
    """A figure with a pair of axes for each panel, and where each is: arguments of plotly's `add_trace`."""
    if len(heights) > 1:
        grid = make_subplots(rows=len(panels), shared_xaxes=True, vertical_spacing=0.06, row_heights=list(heights))
        return grid, [{"row": 1 + number, "col": 1} for number in range(len(panels))]
    if len(panels) == 1 and not panels[0].title:  # the same axes as a grid of one, without its work
        axes = {"xaxis": {"anchor": "y", "domain": [0.0, 1.0]}, "yaxis": {"anchor": "x", "domain": [0.0, 1.0]}}
        return go.Figure(layout=axes), [{}]
    is_shared = all(panel.y == panels[0].y for panel in panels)
    titles, gap = [panel.title for panel in panels], 0.04 if is_shared else 0.1
    grid = make_subplots(cols=len(panels), shared_yaxes=is_shared, subplot_titles=titles, horizontal_spacing=gap)
    grid.update_annotations(font_size=13)
    return grid, [{"row": 1, "col": 1 + number} for number in range(len(panels))]


def _values(panels: Sequence[Panel], panel: Panel, side: str) -> list[Any]:
    """The values on one axis of a panel, from all panels with the same axis."""
    same = [other for other in panels if getattr(other, side) == getattr(panel, side)]
    return [value for other in same for mark in other.marks for value in getattr(mark, side)]


def _trace(mark: Mark, panel: Panel, units: Mapping[str, Unit]) -> Any:
    look: dict[str, Any] = {"xaxis": "x", "yaxis": "y"}  # of a figure without a grid
    look |= {"name": mark.name} if mark.name else {"showlegend": False}
    hover = mark.hover
    if hover is None:
        pairs = [(panel.x.words(x, 3), panel.y.words(y, 4)) for x, y in zip(mark.x, mark.y, strict=True)]
        hover = [f"<b>{mark.name}</b><br>{x}<br>{y}" for x, y in pairs]
    look |= {"hovertext": list(hover), "hoverinfo": "text"} if len(hover) else {"hoverinfo": "skip"}
    if mark.ends:
        low, high = ([units["y"].of(abs(v - y)) for v, y in zip(ends, mark.y, strict=True)] for ends in mark.ends)
        size = {"thickness": 1.5, "width": 4, "color": mark.look["marker"]["color"]}
        look["error_y"] = {"type": "data", "symmetric": False, "array": high, "arrayminus": low} | size
    x, y = [_scaled(v, units["x"]) for v in mark.x], [_scaled(v, units["y"]) for v in mark.y]
    if "base" in mark.look:
        along = units["x" if mark.look.get("orientation") == "h" else "y"]
        look["base"] = [_scaled(v, along) for v in mark.look["base"]]
    return mark.trace(x=x, y=y, **{**mark.look, **look})


def _scaled(value: Any, unit: Unit) -> Any:
    return value / unit.scale if isinstance(value, Real) and unit.scale != 1.0 else value


def _add_rule(
    figure: go.Figure, rule: ReferenceLine, panel: Panel, units: Mapping[str, Unit], where: dict[str, Any]
) -> None:
    look: dict[str, Any] = {"line": {"color": style.FAINT_INK, "dash": "dash", "width": 1.5} | dict(rule.line), **where}
    label: dict[str, Any] = {"text": rule.text, "font": {"size": 12, "color": style.FAINT_INK}}
    label |= {"bgcolor": "rgba(255,255,255,0.85)", **rule.look}
    for side, value, add in (("x", rule.x, figure.add_vline), ("y", rule.y, figure.add_hline)):
        if value is not None:
            # Plotly places annotations of a logarithmic axis by exponent.
            label |= {side: log10(value)} if getattr(panel, side).log else {}
            words = {"annotation": label, "annotation_position": rule.place} if rule.text else {}
            add(**{side: units[side].of(value)}, **look, **words)


def _table(panel: Panel) -> Mapping[str, Values]:
    """x, and y of each mark that has a hover text."""
    shown = [mark for mark in panel.marks if mark.hover is None or len(mark.hover)]
    columns = {axis_title(panel.x.label, panel.x.unit): list(shown[0].x)} if shown else {}
    return columns | {axis_title(mark.name, panel.y.unit): list(mark.y) for mark in shown}
