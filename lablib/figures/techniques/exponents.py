"""Distribution of exponents, and the range of each number format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Mark, Panel, bars, chart, line
from lablib.figures.style import Look
from lablib.signature import checked

if TYPE_CHECKING:
    from lablib.precision.exponents import ExponentCounts
    from lablib.precision.formats import Format

PLOT_PIXELS, ROW_PIXELS = 230, 26
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
    ends = window or _window(counts, formats)
    across = Axis("size of a number", "log2", span=ends)
    shares = [_histogram(name, i, one, ends) for i, (name, one) in enumerate(counts.items()) if one.num_nonzero]
    ranges = [
        _ranges(name, [_edges(format)[place] for format in formats], formats, ends, place)
        for name, place in (("normal", 0), ("subnormal: fewer bits", 1))
    ]
    rows = Axis("", look={"autorange": "reversed", "showgrid": False, "ticks": "", "type": "category"})
    panels = [Panel(across, Axis("share of numbers", "%", from_zero=True), shares), Panel(across, rows, ranges)]
    pixels = (PLOT_PIXELS, max(len(formats), 1) * ROW_PIXELS)
    summary, columns = _summary(counts, formats), _columns(counts, formats)
    return chart(title, panels, summary, columns, pixels=pixels, barmode="overlay", bargap=0.25)


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


def _histogram(name: str, index: int, counts: ExponentCounts, ends: tuple[int, int]) -> Mark:
    """Steps: the share of the exponent e from e to e + 1."""
    exponents = list(range(ends[0], ends[1] + 1))
    shares = [100 * counts.by_exponent.get(e, 0) / counts.num_nonzero for e in exponents]
    words = [f"<b>{name}</b><br>2^{e} to 2^{e + 1}: {share:.2f}%" for e, share in zip(exponents, shares, strict=True)]
    return line(index, name, exponents, shares, words).styled(mode="lines", line_shape="hv")


def _ranges(
    name: str, edges: Sequence[tuple[int, int]], formats: Sequence[Format], ends: tuple[int, int], place: int
) -> Mark:
    """One bar for each format, cut at the ends of the axis."""
    cut = [[min(max(edge, ends[0]), ends[1]) for edge in pair] for pair in edges]
    look = Look(name, "", (NORMAL, SUBNORMAL)[place], ("", "/")[place], hatch=NORMAL, edge=NORMAL)
    words = [f"<b>{format}</b><br>{name}<br>2^{a} to 2^{b}" for format, (a, b) in zip(formats, edges, strict=True)]
    lengths, rows = [last - first for first, last in cut], [str(format) for format in formats]
    return bars(look, name, lengths, rows, words, orientation="h", base=[first for first, _ in cut])


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
        return ""
    parts = [f"of {name} " + ", ".join(_fate(one, format) for format in formats) for name, one in named]
    return f"Lost to underflow: {'; '.join(parts)}."


def _fate(counts: ExponentCounts, format: Format) -> str:
    shares = counts.shares(format)
    overflow = f" ({shares.too_large:.2%} too large)" if shares.too_large else ""
    return f"{shares.lost:.2%} in {format}{overflow}"
