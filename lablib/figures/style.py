"""The common look of all figures: one look per kind of work, one order of colours for other series, one layout.

A kind of work differs in colour (the palette of Okabe and Ito, made for colour-blind readers), in hatch pattern (for
print in grey) and in a letter (for both). Pipeline schedules use the same letters: F, B, I, W. Recompute, the forward
that activation checkpointing repeats during backward, is a lighter shade of forward's blue.

Source: M. Okabe and K. Ito, Color Universal Design (2008), https://jfly.uni-koeln.de/color/.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go

from lablib.run import Span
from lablib.signature import checked
from lablib.text.language import language

FONT = "Open Sans, Helvetica, Arial, sans-serif"
_CJK_FONTS = "Noto Sans CJK SC, Source Han Sans SC, PingFang SC, Microsoft YaHei, WenQuanYi Micro Hei"
_CJK = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")
INK, FAINT_INK, GRID = "#222222", "#5A5A5A", "#E3E3E3"
TOP_PIXELS, BOTTOM_PIXELS = 66, 88  # above the plot: title and one line of summary; below: axis title and legend
PAPER_PIXELS = TOP_PIXELS + BOTTOM_PIXELS


def font_for(text: str) -> str:
    """The fonts of a figure with this text: for Chinese text, or a reader in Chinese, fonts that have its characters.

    A browser takes the first font of the list that the machine has and that has the character.
    """
    with_cjk = language() == "zh" or _CJK.search(text)
    return f"{FONT.removesuffix('sans-serif')}{_CJK_FONTS}, sans-serif" if with_cjk else FONT


@dataclass(frozen=True, slots=True)
class Look:
    """The look of one kind of work."""

    name: str
    letter: str
    color: str
    pattern: str
    ink: str = "#000000"  # of text on top of `color` (contrast at least 4.5 to 1); INK if the theme changes `color`
    hatch: str = "rgba(255,255,255,0.55)"  # the colour of the pattern
    edge: str = ""  # the colour of the line around it; "" for none

    @property
    def title(self) -> str:
        """The name in the legend: letter first."""
        return f"{self.letter}  {self.name}".strip()

    def marker(self) -> dict[str, Any]:
        """The plotly marker of a bar of this kind."""
        pattern = {"shape": self.pattern, "fillmode": "overlay", "fgcolor": self.hatch, "solidity": 0.22}
        line = {"line": {"width": 0.6, "color": self.edge}} if self.edge else {}
        return {"color": self.color, "pattern": {**pattern, "size": 7}} | line

    def font(self) -> dict[str, Any]:
        """The plotly font of a text on this colour, with a halo that keeps it readable on the pattern."""
        return {"size": 12, "color": self.ink, "shadow": halo(self.color)}


def halo(color: str) -> str:
    """A shadow around a text, in the colour of its background."""
    return ", ".join([f"0 0 3px {color}"] * 4)


def _by_name(*looks: Look) -> Mapping[str, Look]:
    return MappingProxyType({look.name: look for look in looks})


LOOKS = _by_name(
    Look("forward", "F", "#0072B2", "", ink="#FFFFFF"),
    Look("backward", "B", "#D55E00", "/"),
    Look("recompute", "R", "#56B4E9", "+"),
    Look("input gradient", "I", "#F0E442", "|"),
    Look("weight gradient", "W", "#009E73", "\\"),
    Look("optimizer", "O", "#E69F00", "x"),
    Look("communication", "C", "#CC79A7", "."),
    Look("other compute", "X", "#999999", "-"),
    Look("idle", "-", "#EBEBEB", "", ink=INK, edge="#C4C4C4"),
)

# States of a rank that does not compute (lablib/record/timeline.py). Work differs by colour; waiting has the one
# hatching on white.
STATES = _by_name(
    Look("exposed", "", "#FFFFFF", "", ink=INK, edge="#C4C4C4"),
    Look("waiting", "...", "#FFFFFF", "/", ink=INK, hatch="#707070", edge="#C4C4C4"),
    LOOKS["idle"],
)
# A pipeline's idle time is its bubble; communication is not drawn there.
BUBBLE = Look("bubble", "-", LOOKS["idle"].color, "", ink=INK, edge="#C4C4C4")
# Other parts of a plan.
OTHER = Look("other", "X", "#999999", "-")

# All compute, in figures that do not separate forward from backward.
COMPUTE = Look("compute", "F+B", "#3B5B92", "", ink="#FFFFFF")

# Categories of memory (lablib/record/allocations.py), from the bottom of a stack to its top: lasting ones below
# temporary ones. They share a legend with phases, so they have other colours, which get lighter to differ in grey
# (three muted colours of P. Tol, Colour Schemes, SRON/EPS/TN/09-002, 2021). Communication and other are the same.
MEMORY_LOOKS = _by_name(
    Look("parameter", "P", "#40407A", "", ink="#FFFFFF"),
    Look("optimizer state", "O", "#AA4499", "x", ink="#FFFFFF"),
    Look("gradient", "G", "#999933", "/"),
    Look("activation", "A", "#DDCC77", "\\"),
    Look("communication", "C", "#CC79A7", "."),
    Look("other", "X", "#999999", "-"),
)

# Words of phases, in this order: "backward: weight gradient" is a weight gradient. They also match torch's own names,
# such as "Optimizer.step#AdamW.step" and "DistributedDataParallel.forward".
_WORDS = (
    ("recompute", "recompute"),
    ("weight gradient", "weight gradient"),
    ("weight_grad", "weight gradient"),
    ("input gradient", "input gradient"),
    ("input_grad", "input gradient"),
    ("backward", "backward"),
    ("forward", "forward"),
    ("optim", "optimizer"),
)
_LETTERS = {look.letter: look.name for look in LOOKS.values() if look.letter.isalpha()}


@checked
def kind_of_phase(phase: str) -> str:
    """The kind of work of a phase, a key of `LOOKS`; "other compute" if the name does not contain one.

    >>> [kind_of_phase(p) for p in ("forward", "Optimizer.step#SGD.step", "W", "load the batch")]
    ['forward', 'optimizer', 'weight gradient', 'other compute']
    """
    if phase in LOOKS:
        return phase
    if phase in _LETTERS:
        return _LETTERS[phase]
    lowered = phase.lower()
    return next((kind for word, kind in _WORDS if word in lowered), "other compute")


def kind_of_span(span: Span) -> str:
    """The kind of work of a span: communication in any phase, recompute, or the kind of its phase."""
    if span.is_communication:
        return "communication"
    return "recompute" if span.is_recompute else kind_of_phase(span.phase)


@dataclass(frozen=True, slots=True)
class Series:
    """The look of a line or a group of bars other than a kind of work."""

    color: str
    dash: str
    symbol: str
    pattern: str


_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6BB1")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
_PATTERNS = ("", "/", "\\", ".", "x", "-", "|", "+")


def series_look(index: int) -> Series:
    """The look of the `index`-th series: colour, dash, symbol and pattern all differ, so it survives grey print."""
    i = index % len(_COLORS)
    return Series(_COLORS[i], _DASHES[i], _SYMBOLS[i], _PATTERNS[i])


def base_layout(title: str, height: int, **more: Any) -> dict[str, Any]:
    """The layout every figure starts from, with the title at the left and the legend below the plot."""
    layout: dict[str, Any] = {
        # No template: the built-in ones are large, and checking one takes longer than drawing a small figure.
        "template": "none",
        "paper_bgcolor": "#FFFFFF",
        "plot_bgcolor": "#FFFFFF",
        "height": height,
        "font": {"family": font_for(title), "size": 13, "color": INK},
        "title": {"text": title, "x": 0.0, "xref": "paper", "xanchor": "left", "y": 1, "yref": "container"}
        | {"yanchor": "top", "pad": {"t": 14}, "font": {"size": 16}},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
        | {"traceorder": "normal"},
        "margin": {"l": 80, "r": 30, "t": TOP_PIXELS, "b": BOTTOM_PIXELS},
        # Few buttons, so that they stay clear of the title: zoom, pan, reset, save as an image.
        "modebar": {"remove": ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"]},
        "hoverlabel": {"align": "left", "font": {"family": font_for(title)}},
    }
    return layout | more


def lay_out(figure: go.Figure, layout: Mapping[str, Any]) -> None:
    """`figure.update_layout(layout)` for groups of properties, in a third of the time.

    Plotly updates property by property, and looks up the path of each several times. Lists are replaced.
    """
    figure.layout = merged(figure.layout.to_plotly_json(), layout)  # pyright: ignore[reportAttributeAccessIssue]


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested properties of both; where both have one, that of `above`."""
    both = [name for name in above if isinstance(below.get(name), Mapping) and isinstance(above[name], Mapping)]
    return {**below, **above, **{name: merged(below[name], above[name]) for name in both}}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title (with the unit), outside ticks and a faint grid."""
    look = {"ticks": "outside", "ticklen": 4, "tickcolor": FAINT_INK, "linecolor": FAINT_INK, "gridcolor": GRID}
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 13}},
        "zeroline": False,
        "automargin": True,
        **look,
        **more,
    }


def empty_axis(title: str) -> dict[str, Any]:
    """The axis of a figure without data: its title, without numbers."""
    return axis(title, range=[0, 1], showticklabels=False, ticks="", showgrid=False)


def named_rows(ends: Sequence[float], positions: Sequence[float], names: Sequence[str]) -> dict[str, Any]:
    """A y axis that names its rows and cannot be zoomed."""
    look = {"range": list(ends), "showgrid": False, "zeroline": False, "fixedrange": True, "ticks": ""}
    return look | {"automargin": True, "tickvals": list(positions), "ticktext": list(names)}


def heading(figure: go.Figure, text: str, x: float = 0, y: float = 1, size: int = 13, **more: Any) -> None:
    """Write a line above a panel with its top left corner at (x, y) of the paper."""
    place = {"xref": "paper", "yref": "paper", "x": x, "y": y, "xanchor": "left", "yanchor": "bottom"}
    figure.add_annotation(text=text, showarrow=False, **place | {"font": {"size": size}} | more)


def add_room(figure: go.Figure, pixels: int) -> None:
    """More room between title and plot, in a figure that is higher by as much."""
    top, height = figure.layout.margin.t, figure.layout.height  # pyright: ignore[reportAttributeAccessIssue]
    lay_out(figure, {"margin": {"t": top + pixels}, "height": height + pixels})


def texts(x: Sequence[Any], y: Sequence[Any], text: Sequence[str], font: Mapping[str, Any], **more: Any) -> go.Scatter:
    """Texts at points, without hover and legend."""
    look = {"mode": "text", "hoverinfo": "skip", "showlegend": False}
    return go.Scatter(x=x, y=y, text=text, textfont=font, **look | more)


def shares_in_words(sizes: Mapping[str, float], total: float) -> str:
    """ "67% parameter, 33% activation", the largest first; less than half a percent is left out."""
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{size / total:.0%} {name}" for name, size in ordered if size >= 0.005 * total)
