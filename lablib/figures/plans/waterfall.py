"""A predicted step as a waterfall: its parts, one bar under the other, each starting at the end of the previous one.

    products             |=========================|
    attention                                      |=|
    tensor axis                                      |===|          hatched: exposed communication
    bubble and messages                                  |-|        pale: idle
    step                 |=================================|        the same, by kind

So the picture shows which parts make the step long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures import style
from lablib.figures.chart import Axis, Mark, Panel, bars, chart, labels
from lablib.figures.style import COMPUTE, FAINT_INK, INK, LOOKS, OTHER
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction

ROW_PIXELS, BAR = 29, 0.74
LABEL_SHARE, PERCENT_SHARE = 0.16, 0.075  # share of the plot's width that "41.2 s, 82%" and "82%" take
NOTHING = 1e-9  # share of the step: the rounding of a sum

# The kind of each part; names with "axis" at the end are communication, all others compute.
_KINDS = {
    "recomputation": "recompute",
    "bubble and messages": "idle",
    "optimizer": "optimizer",
    "launches": "other",
    "fixed": "other",
}
_DRAWN = (COMPUTE, LOOKS["recompute"], LOOKS["communication"], LOOKS["idle"], LOOKS["optimizer"], OTHER)
_WORDS = {"communication": "exposed communication", "idle": "bubble", "other": "launches and the rest"}


@dataclass(frozen=True, slots=True)
class _Piece:
    """One bar: a part of the step in the row of that part, or all parts of a kind in the last row."""

    name: str
    kind: str
    row: int
    start_s: float
    time_s: float
    share: float
    hover: str


@checked
def figure_waterfall(prediction: Prediction, title: str = "") -> go.Figure:
    """The parts of a predicted step, in seconds and in percent, without parts of zero. Table: one row per part."""
    p, shares = prediction, dict[str, float]()
    for name, time_s in p.parts.items():
        shares[kind_of_part(name)] = shares.get(kind_of_part(name), 0.0) + time_s / p.step_time_s
    ordered = sorted(((share, kind) for kind, share in shares.items() if share >= 0.0005), reverse=True)
    kinds = ", ".join(f"{share:.1%} {_WORDS.get(kind, kind)}" for share, kind in ordered)
    where = f"{plural(p.num_gpus, 'GPUs')} of {p.cluster} ({p.parallel})"
    text = f"A step on {where} takes {format_quantity(p.step_time_s, 's')}: {kinds}; MFU {p.mfu:.1%}"
    text += f" (HFU {p.hfu:.1%} with what is computed again)." if p.hfu > 1.001 * p.mfu else "."
    if not p.fits:
        needed, limit = (format_quantity(size, "B") for size in (p.peak_memory_bytes, p.memory_limit_bytes))
        text += f" It does not fit: it needs {needed} of {limit} a GPU."
    parts = [name for name, time_s in p.parts.items() if abs(time_s) > NOTHING * p.step_time_s]
    pieces = _pieces(p, {part: row for row, part in enumerate([*parts, "step"])})
    last = len(parts)  # the row of the step
    ticks = {**dict(enumerate(parts)), last: "<b>step</b>"}
    down = Axis("", ticks=ticks, span=(last + 0.55, -0.55), look={"ticks": "", "showgrid": False})
    across = Axis("time", "s", span=(0.0, 1.02 * p.step_time_s))
    seconds = [p.parts[part] for part in parts]
    columns = {
        "part": parts,
        "kind": [kind_of_part(part) for part in parts],
        "seconds (s)": seconds,
        "share of the step (%)": [100 * time_s / p.step_time_s for time_s in seconds],
    }
    return chart(
        title or f"Where the step of {p.name} goes",
        Panel(across, down, [*_bars(pieces), _steps(pieces), _labels(pieces, p.step_time_s)]),
        f"{text} {p.evidence_sentence()}".strip(),
        columns,
        pixels=ROW_PIXELS * (last + 1),
        barmode="overlay",
    )


def kind_of_part(part: str) -> str:
    """The kind of work of a part of the step: "compute", or a key of `LOOKS`.

    >>> kind_of_part("products"), kind_of_part("data axis"), kind_of_part("bubble and messages")
    ('compute', 'communication', 'idle')
    """
    return "communication" if part.endswith((" axis", " link")) else _KINDS.get(part, COMPUTE.name)


def _pieces(prediction: Prediction, rows: dict[str, int]) -> list[_Piece]:
    """The bars of one plan: its parts one after the other, then the sum of each kind in the last row."""
    step_s = prediction.step_time_s
    parts = [name for name in prediction.parts if name in rows]
    pieces: list[_Piece] = []
    start_s = 0.0
    for name in parts:
        time_s = max(prediction.parts[name], 0.0)
        if time_s > NOTHING * step_s:
            hover = _hover(prediction, name, time_s)
            pieces.append(_Piece(name, kind_of_part(name), rows[name], start_s, time_s, time_s / step_s, hover))
        start_s += time_s
    start_s = 0.0
    for look in _DRAWN:
        time_s = sum(piece.time_s for piece in pieces if piece.row < rows["step"] and piece.kind == look.name)
        if time_s:
            hover = f"<b>{look.name}</b><br>{format_quantity(time_s, 's', 4)} of {format_quantity(step_s, 's', 4)}"
            pieces.append(_Piece("step", look.name, rows["step"], start_s, time_s, time_s / step_s, hover))
        start_s += time_s
    return pieces


def _hover(prediction: Prediction, part: str, time_s: float) -> str:
    step_s = prediction.step_time_s
    of_step = f"{format_quantity(time_s, 's', 4)} of {format_quantity(step_s, 's', 4)}, {time_s / step_s:.2%}"
    text = f"<b>{part}</b><br>{of_step}"
    total_s, exposed_s = prediction.communication.get(part.removesuffix(" axis").removesuffix(" link"), (0.0, 0.0))
    if kind_of_part(part) == "communication" and total_s > exposed_s * (1 + NOTHING):
        text += f"<br>besides, {format_quantity(total_s - exposed_s, 's', 4)} are hidden behind compute"
    return text


def _bars(pieces: Sequence[_Piece]) -> list[Mark]:
    marks = []
    for look in _DRAWN:
        if own := [piece for piece in pieces if piece.kind == look.name]:
            place = {
                "orientation": "h",
                "base": [piece.start_s for piece in own],
                "width": BAR,
                "legendgroup": look.name,
            }
            marker = look.marker() | {"line": {"color": FAINT_INK, "width": 0.8}}
            rows, hover = [piece.row for piece in own], [piece.hover for piece in own]
            marks.append(bars(look, look.title, [piece.time_s for piece in own], rows, hover, marker=marker, **place))
    return marks


def _steps(pieces: Sequence[_Piece]) -> Mark:
    """Thin lines from the end of a part down to the start of the next one."""
    across: list[float | None] = []
    down: list[float | None] = []
    parts = [piece for piece in pieces if piece.name != "step"]
    for piece, after in zip(parts, parts[1:], strict=False):
        end = piece.start_s + piece.time_s
        across += [end, end, None]
        down += [piece.row + BAR / 2, after.row - BAR / 2, None]
    return Mark("", across, down, (), look={"mode": "lines", "line": {"color": FAINT_INK, "width": 1, "dash": "dot"}})


def _labels(pieces: Sequence[_Piece], step_s: float) -> Mark:
    """Seconds and percent of each bar, inside it if there is room, otherwise at its side."""
    room_s = LABEL_SHARE * step_s
    looks = {look.name: look for look in _DRAWN}
    texts, places, rows, sides, inks, shadows = [], [], [], [], [], []
    for piece in pieces:
        is_step = piece.name == "step"
        is_inside = piece.time_s >= (PERCENT_SHARE * step_s if is_step else room_s)
        if is_step and not is_inside:
            continue
        look = looks[piece.kind]
        texts.append(_percent(piece) if is_step else f"{format_quantity(piece.time_s, 's')}, {_percent(piece)}")
        if is_inside:
            place_s, side = piece.start_s + piece.time_s / 2, "middle center"
        elif piece.start_s >= room_s:
            place_s, side = piece.start_s, "middle left"
        else:
            place_s, side = piece.start_s + piece.time_s, "middle right"
        places.append(place_s)
        rows.append(piece.row)
        sides.append(side)
        inks.append(look.ink if is_inside else INK)
        shadows.append(style.halo(look.color) if is_inside else "none")
    padded = [f"\N{NO-BREAK SPACE}{text}\N{NO-BREAK SPACE}" for text in texts]
    font = {"size": 12, "color": inks, "shadow": shadows}
    return labels(places, rows, padded, "").styled(textposition=sides, textfont=font)


def _percent(piece: _Piece) -> str:
    """Two significant digits."""
    percent = 100 * piece.share
    return f"{percent:.0f}%" if percent >= 9.95 else f"{percent:.1f}%" if percent >= 0.05 else "<0.1%"
