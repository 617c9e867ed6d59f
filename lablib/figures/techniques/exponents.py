"""Where numbers lie among the powers of two, and which of them each format can keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import PAPER_PIXELS, axis, base_layout, empty_axis, series_look
from lablib.signature import checked

if TYPE_CHECKING:
    from lablib.precision.exponents import ExponentCounts
    from lablib.precision.formats import Format

PLOT_PIXELS, ROW_PIXELS, GAP_PIXELS = 230, 26, 14
RARE = 1e-4  # share of the numbers at either end that is counted, and not drawn
NORMAL, SUBNORMAL = "#7A7A7A", "#FFFFFF"  # the paper's colour, hatched: fainter than NORMAL in both themes


@checked
def figure_exponents(
    counts: Mapping[str, ExponentCounts],
    formats: Sequence[Format],
    title: str = "Exponents of gradients",
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """Histograms of exponents over the ranges of formats.

    Args:
        counts: name -> counts of some numbers, such as `{"weights": watch.weights}`.
        formats: whose ranges are drawn below, on the same axis.
        window: the exponents to draw, from and to; None: those that occur.

    Returns:
        A figure whose table has one row for each of `counts` in each format, with shares in percent.
    """
    rows = len(formats) * ROW_PIXELS
    height = PLOT_PIXELS + GAP_PIXELS + rows
    figure = go.Figure(layout=base_layout(title, height + PAPER_PIXELS, barmode="overlay", bargap=0.25))
    ends = window or _window(counts, formats)
    for index, (name, one) in enumerate(counts.items()):
        figure.add_trace(_histogram(name, index, one, ends))
    for name, place in (("normal", 0), ("subnormal: fewer bits", 1)):
        figure.add_trace(_ranges(name, [_edges(format)[place] for format in formats], formats, ends, place))
    across = axis("size of a number (log2)", range=list(ends)) | {"anchor": "y2"}
    up = axis("share of numbers (%)", rangemode="tozero") | {"domain": [1 - PLOT_PIXELS / height, 1]}
    names = {"domain": [0, rows / height], "autorange": "reversed", "showgrid": False, "ticks": ""}
    figure.update_layout(xaxis=across, yaxis=up, yaxis2=axis("", **names), showlegend=True)
    if not any(one.num_nonzero for one in counts.values()):
        figure.update_layout(yaxis=empty_axis("share of numbers (%)") | {"domain": [1 - PLOT_PIXELS / height, 1]})
    return attach(figure, _summary(counts, formats), _columns(counts, formats))


def _edges(format: Format) -> tuple[tuple[int, int], tuple[int, int]]:
    """From where to where numbers are normal, and subnormal or rounded up to the smallest."""
    return (format.min_exponent, format.max_exponent + 1), (format.underflow_exponent, format.min_exponent)


def _window(counts: Mapping[str, ExponentCounts], formats: Sequence[Format]) -> tuple[int, int]:
    """The exponents to draw: of all numbers but the rare ones, with a margin."""
    ends = [end for one in counts.values() if one.num_nonzero for end in _common(one)]
    ends = ends or [end for format in formats for edge in _edges(format) for end in edge] or [0]
    return min(ends) - 2, max(ends) + 3


def _common(counts: ExponentCounts) -> tuple[int, int]:
    """The lowest and the highest exponent without the rare ones at either end."""
    rare = RARE * counts.num_nonzero
    exponents = sorted(counts.by_exponent)
    below = above = 0
    while len(exponents) > 1 and (below := below + counts.by_exponent[exponents[0]]) <= rare:
        del exponents[0]
    while len(exponents) > 1 and (above := above + counts.by_exponent[exponents[-1]]) <= rare:
        del exponents[-1]
    return exponents[0], exponents[-1]


def _histogram(name: str, index: int, counts: ExponentCounts, ends: tuple[int, int]) -> go.Scatter:
    """Steps: the share of the exponent e from e to e + 1."""
    look = series_look(index)
    exponents = list(range(ends[0], ends[1] + 1))
    share = [100 * counts.by_exponent.get(e, 0) / max(counts.num_nonzero, 1) for e in exponents]
    return go.Scatter(
        x=exponents,
        y=share,
        name=name,
        mode="lines",
        line={"shape": "hv", "color": look.color, "dash": look.dash, "width": 2},
        hovertext=[f"<b>{name}</b><br>2^{e} to 2^{e + 1}: {y:.2f}%" for e, y in zip(exponents, share, strict=True)],
        hoverinfo="text",
    )


def _ranges(
    name: str, edges: Sequence[tuple[int, int]], formats: Sequence[Format], ends: tuple[int, int], place: int
) -> go.Bar:
    """One bar for each format, cut at the ends of the axis."""
    cut = [[min(max(edge, ends[0]), ends[1]) for edge in pair] for pair in edges]
    marker: dict[str, Any] = {"color": (NORMAL, SUBNORMAL)[place], "line": {"width": 0.6, "color": NORMAL}}
    if place:
        marker["pattern"] = {"shape": "/", "fillmode": "overlay", "fgcolor": NORMAL, "solidity": 0.22, "size": 7}
    return go.Bar(
        x=[last - first for first, last in cut],
        base=[first for first, _ in cut],
        y=[str(format) for format in formats],
        orientation="h",
        name=name,
        marker=marker,
        yaxis="y2",
        hovertext=[
            f"<b>{format}</b><br>{name}<br>2^{a} to 2^{b}" for format, (a, b) in zip(formats, edges, strict=True)
        ],
        hoverinfo="text",
    )


def _columns(counts: Mapping[str, ExponentCounts], formats: Sequence[Format]) -> dict[str, list[Any]]:
    rows = [(name, one, format, one.shares(format)) for name, one in counts.items() for format in formats]
    return {
        "numbers": [name for name, *_ in rows],
        "format": [str(format) for _, _, format, _ in rows],
        "lost (%)": [100 * shares.lost for *_, shares in rows],
        "subnormal (%)": [100 * shares.subnormal for *_, shares in rows],
        "normal (%)": [100 * shares.normal for *_, shares in rows],
        "too large (%)": [100 * shares.too_large for *_, shares in rows],
        "zeros (count)": [one.zeros for _, one, _, _ in rows],
        "counted without zeros": [one.num_nonzero for _, one, _, _ in rows],
    }


def _summary(counts: Mapping[str, ExponentCounts], formats: Sequence[Format]) -> str:
    named = [(name, one) for name, one in counts.items() if one.num_nonzero]
    if not named or not formats:
        return "There is nothing to draw yet."
    parts = [f"of {name} " + ", ".join(_fate(one, format) for format in formats) for name, one in named]
    return f"Lost to underflow: {'; '.join(parts)}."


def _fate(counts: ExponentCounts, format: Format) -> str:
    shares = counts.shares(format)
    overflow = f" ({shares.too_large:.2%} too large)" if shares.too_large else ""
    return f"{shares.lost:.2%} in {format}{overflow}"
