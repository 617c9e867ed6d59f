"""Predicted against published step time as plain SVG, without a script, so that a README can show it.

Left: predicted against published step time, both logarithmic, one point per row, with a band of 10% error. Right: the
error of every row, one column per source, with the mean of |error| below. Colour and shape identify the source.
"""

from __future__ import annotations

from math import ceil, cos, floor, log10, pi, sin
from typing import TYPE_CHECKING

from lablib.figures.style import FAINT_INK, FONT, GRID, INK, series_look
from lablib.figures.svg.parts import points_of
from lablib.signature import checked
from lablib.text.markup import in_html
from lablib.text.units import plural

if TYPE_CHECKING:
    from lablib.validation.score import Scored, ScoreReport

BAND = 0.1
WIDTH, HEIGHT = 960, 524
LEFT, TOP, SIDE = 74, 58, 380  # the square of the scatter
STRIP_LEFT, STRIP_WIDTH = 524, 420  # the errors
MAX_ERROR = 40.0  # percent; larger errors are drawn on the edge
_DOT = 3.4
_BAND_COLOR = "#DDE7EE"


@checked
def validation_svg(report: ScoreReport) -> str:
    """The picture as an SVG document; the same report gives the same bytes."""
    families: dict[str, list[Scored]] = {}
    for one in report.timed:  # in the order of the file
        families.setdefault(one.row.family, []).append(one)
    title = "Predicted against published step time: one point a published run"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{in_html(FONT)}" '
        f'role="img" aria-label="{title}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#FFFFFF"/>',
        _text(LEFT - 50, 28, title, 15, "start", weight="bold"),
        *(_scatter(families) if families else []),
        *_strips(families, report),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _times(one: Scored) -> tuple[float, float]:
    """Published and predicted seconds of a row that states a time."""
    assert one.measured.step_time_s is not None
    return one.measured.step_time_s, one.step_time_s


def _scatter(families: dict[str, list[Scored]]) -> list[str]:
    seconds = [time_s for ones in families.values() for one in ones for time_s in _times(one)]
    low, high = floor(2 * log10(min(seconds))) / 2, ceil(2 * log10(max(seconds))) / 2
    scale = SIDE / (high - low)

    def place(published_s: float, predicted_s: float) -> tuple[float, float]:
        return LEFT + (log10(published_s) - low) * scale, TOP + SIDE - (log10(predicted_s) - low) * scale

    parts = []
    for power in range(ceil(low), floor(high) + 1):
        x, y = place(10.0**power, 10.0**power)
        parts += [_line(x, TOP, x, TOP + SIDE, GRID), _line(LEFT, y, LEFT + SIDE, y, GRID)]
        words = f"{10.0**power:g} s"
        parts += [_text(x, TOP + SIDE + 17, words), _text(LEFT - 8, y + 4, words, 11, "end")]
    shift = log10(1 + BAND) * scale
    corners = [(LEFT, TOP + SIDE), (LEFT, TOP + SIDE - shift), (LEFT + SIDE - shift, TOP), (LEFT + SIDE, TOP)]
    corners += [(LEFT + SIDE, TOP + shift), (LEFT + shift, TOP + SIDE)]
    parts.append(f'<polygon points="{points_of(corners)}" fill="{_BAND_COLOR}"/>')
    parts.append(_line(LEFT, TOP + SIDE, LEFT + SIDE, TOP, FAINT_INK))
    for index, ones in enumerate(families.values()):
        parts += [_mark(index, *place(*_times(one)), one) for one in ones]
    middle = LEFT + SIDE / 2
    parts.append(_text(middle, TOP + SIDE + 38, "published step time", 12))
    up = f'transform="rotate(-90 20 {TOP + SIDE / 2})"'
    parts.append(_text(20, TOP + SIDE / 2, "predicted step time", 12, extra=up))
    parts.append(_text(LEFT + SIDE - 6, TOP + SIDE - 8, "band: within 10%", 11, "end", FAINT_INK))
    return parts


def _strips(families: dict[str, list[Scored]], report: ScoreReport) -> list[str]:
    """The error of every row, one column per source."""

    def height(error: float) -> float:
        return TOP + SIDE / 2 - max(-MAX_ERROR, min(MAX_ERROR, error)) / MAX_ERROR * SIDE / 2

    right, top = STRIP_LEFT + STRIP_WIDTH, height(100 * BAND)
    place = f'x="{STRIP_LEFT}" y="{top:.1f}" width="{STRIP_WIDTH}" height="{height(-100 * BAND) - top:.1f}"'
    parts = [f'<rect {place} fill="{_BAND_COLOR}"/>']
    for error in range(-int(MAX_ERROR), int(MAX_ERROR) + 1, 20):
        parts.append(_line(STRIP_LEFT, height(error), right, height(error), GRID if error else FAINT_INK))
        parts.append(_text(STRIP_LEFT - 8, height(error) + 4, f"{error:+d}%" if error else "0", 11, "end"))
    words = "error of each row, by source; the mean below"
    if refused := len(report.refused()):
        words = f"error of each row, by source; {plural(refused, 'refused rows')} as -100%"
    parts.append(_text(STRIP_LEFT, TOP - 10, words, 12, "start"))
    if any(abs(one.error) > MAX_ERROR for ones in families.values() for one in ones):
        parts.append(_text(right - 6, TOP + 16, f"beyond {MAX_ERROR:.0f}%: on the edge", 11, "end", FAINT_INK))
    column = STRIP_WIDTH / max(1, len(families))
    for index, (name, ones) in enumerate(families.items()):
        x = STRIP_LEFT + (index + 0.5) * column
        for number, one in enumerate(ones):
            # Spread sideways, so that the rows of a source do not hide each other.
            aside = ((number * 0.618034) % 1 - 0.5) * 0.7 * column
            parts.append(_mark(index, x + aside, height(one.error), one))
        # Names are wider than a column, so neighbours have two heights.
        parts.append(_text(x, TOP + SIDE + (20 if index % 2 else 32), name, 10))
        parts.append(_text(x, TOP + SIDE + 50, f"{report.families()[name]['mape']:.1f}%", 11, weight="bold"))
        parts.append(_mark(index, x, TOP + SIDE + 63, None))
    return parts


def _mark(index: int, x: float, y: float, one: Scored | None) -> str:
    """A point in the colour and shape of its source, with its row as a tooltip."""
    look = series_look(index)
    style = f'fill="{look.color}" fill-opacity="0.75"'
    tip = f"<title>{in_html(one.row.id)}: {one.error:+.1f}%</title>" if one else ""
    if look.symbol == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_DOT}" {style}>{tip}</circle>'
    return f'<polygon points="{points_of(_corners(look.symbol, x, y))}" {style}>{tip}</polygon>'


def _corners(symbol: str, x: float, y: float) -> list[tuple[float, float]]:
    r = _DOT
    if symbol in ("cross", "x"):
        third = r / 2.4
        outline = [(-third, -r), (third, -r), (third, -third), (r, -third), (r, third), (third, third)]
        outline += [(-a, -b) for a, b in outline]
        turn = pi / 4 if symbol == "x" else 0.0
        return [(x + a * cos(turn) - b * sin(turn), y + a * sin(turn) + b * cos(turn)) for a, b in outline]
    radii, start = {
        "square": ([1.25] * 4, pi / 4),
        "diamond": ([1.3] * 4, 0.0),
        "triangle-up": ([1.3] * 3, -pi / 2),
        "triangle-down": ([1.3] * 3, pi / 2),
        "star": ([1.5, 0.6] * 5, -pi / 2),
    }[symbol]
    angles = [start + 2 * pi * corner / len(radii) for corner in range(len(radii))]
    return [(x + r * size * cos(angle), y + r * size * sin(angle)) for size, angle in zip(radii, angles, strict=True)]


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    size: int = 11,
    anchor: str = "middle",
    color: str = INK,
    weight: str = "normal",
    extra: str = "",
) -> str:
    look = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{color}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look} {extra}>{in_html(text)}</text>'.replace(" >", ">")
