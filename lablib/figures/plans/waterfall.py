"""A predicted step as a waterfall: its parts, one bar under the other, each starting at the end of the previous one.

    products             |=========================|
    attention                                      |=|
    tensor axis                                      |===|          hatched: exposed communication
    bubble and messages                                  |-|        pale: idle
    step                 |=================================|        the same, by kind

So the picture shows which parts make the step long. Several plans are side by side on one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.style import (
    COMPUTE,
    FAINT_INK,
    INK,
    LOOKS,
    OTHER,
    PAPER_PIXELS,
    add_room,
    axis,
    base_layout,
    halo,
    heading,
    texts,
)
from lablib.signature import checked
from lablib.text.units import Unit, axis_title, format_quantity, plural, unit_for

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction

ROW_PIXELS, MAX_PLANS, BAR = 29, 4, 0.74
GAP = 0.03  # share of the width, between two plans
LABEL_SHARE, PERCENT_SHARE = 0.16, 0.075  # share of a single plot's width that "41.2 s, 82%" and "82%" take
NOTHING = 1e-9  # share of the step: the rounding of a sum
HEADING_COLUMNS = 100  # characters of one line above the plot, for all plans together

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
    return _figure([p], [""], title or f"Where the step of {p.name} goes", f"{text} {p.evidence_sentence()}".strip())


@checked
def figure_waterfalls(
    predictions: Sequence[Prediction], names: Sequence[str] = (), title: str = "Where the steps go"
) -> go.Figure:
    """Up to four plans side by side, on one scale. Table: one row for each plan and part.

    `names`: of the plans; none given: a letter and the different choices of each.
    """
    if not 1 <= len(predictions) <= MAX_PLANS:
        message = f"1 to {MAX_PLANS} plans fit side by side: got {len(predictions)}; draw many with figure_plans."
        raise ValueError(message)
    if names and len(names) != len(predictions):
        raise ValueError(f"names must have one for each of the {len(predictions)} plans: got {len(names)}.")
    letters = [chr(ord("A") + i) for i in range(len(predictions))]
    lettered = [f"{letter}: {name}" for letter, name in zip(letters, differences(predictions), strict=True)]
    return _figure(predictions, names or lettered, title, _comparison(predictions, names or letters))


def differences(predictions: Sequence[Prediction]) -> list[str]:
    """A name for each plan: the choices in which they differ, otherwise the split."""
    choices = [
        [p.name, p.cluster, str(p.parallel), f"batch {p.batch}", f"micro-batch {p.micro_batch}", p.schedule]
        + [f"{p.seq_len} tokens", f"recompute {p.recompute}", p.precision]
        for p in predictions
    ]
    differ = [i for i in range(len(choices[0])) if len({each[i] for each in choices}) > 1] or [2]
    return [", ".join(each[i] for i in differ) for each in choices]


def _figure(predictions: Sequence[Prediction], names: Sequence[str], title: str, summary: str) -> go.Figure:
    # The parts above zero in some plan, in the order of the step.
    names_of_parts = dict.fromkeys(name for p in predictions for name in p.parts)
    parts = [n for n in names_of_parts if any(abs(p.parts.get(n, 0.0)) > NOTHING * p.step_time_s for p in predictions)]
    rows = {part: row for row, part in enumerate([*parts, "step"])}
    longest_s = max(p.step_time_s for p in predictions)
    unit = unit_for(longest_s, "s")
    pieces = [_pieces(p, rows) for p in predictions]
    headings = ["<br>".join(wrap(name, HEADING_COLUMNS // len(names))) for name in names]
    above = 18 * max((name.count("<br>") + 1 for name in headings if name), default=0)
    height = ROW_PIXELS * len(rows) + PAPER_PIXELS
    figure = go.Figure(layout=base_layout(title, height, barmode="overlay", showlegend=True))
    add_room(figure, above)
    width = (1 - GAP * (len(names) - 1)) / len(names)
    for column, (own, name) in enumerate(zip(pieces, headings, strict=True)):
        x = f"x{column + 1 if column else ''}"
        figure.add_traces(_bars(own, x, unit, seen={piece.kind for before in pieces[:column] for piece in before}))
        figure.add_traces([_steps(own, x, unit), _labels(own, x, unit, longest_s, len(names))])
        left = column * (width + GAP)
        across = axis(axis_title("time", unit), range=[0, 1.02 * unit.of(longest_s)], domain=[left, left + width])
        figure.update_layout({f"xaxis{x[1:]}": across | {"anchor": "y"}})
        if name:
            heading(figure, f"<b>{name}</b>", left, size=12, align="left")
    ticks = {"tickvals": list(rows.values()), "ticktext": [*parts, "<b>step</b>"], "ticks": "", "showgrid": False}
    figure.update_layout(yaxis=axis("", range=[len(rows) - 0.45, -0.55], **ticks))
    return attach(figure, summary, _columns(predictions, names, parts))


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
    text = (
        f"<b>{part}</b><br>{format_quantity(time_s, 's', 4)} of "
        f"{format_quantity(step_s, 's', 4)}, {time_s / step_s:.2%}"
    )
    total_s, exposed_s = prediction.communication.get(part.removesuffix(" axis").removesuffix(" link"), (0.0, 0.0))
    if kind_of_part(part) == "communication" and total_s > exposed_s * (1 + NOTHING):
        text += f"<br>besides, {format_quantity(total_s - exposed_s, 's', 4)} are hidden behind compute"
    return text


def _bars(pieces: Sequence[_Piece], x: str, unit: Unit, seen: set[str]) -> list[go.Bar]:
    """One trace per kind; only the first of the figure is in the legend."""
    traces = []
    for look in _DRAWN:
        own = [piece for piece in pieces if piece.kind == look.name]
        if own:
            traces.append(
                go.Bar(
                    name=look.title,
                    legendgroup=look.name,
                    showlegend=look.name not in seen,
                    orientation="h",
                    base=[unit.of(piece.start_s) for piece in own],
                    x=[unit.of(piece.time_s) for piece in own],
                    y=[piece.row for piece in own],
                    width=BAR,
                    marker=look.marker() | {"line": {"color": FAINT_INK, "width": 0.8}},
                    hovertext=[piece.hover for piece in own],
                    hoverinfo="text",
                    xaxis=x,
                )
            )
    return traces


def _steps(pieces: Sequence[_Piece], x: str, unit: Unit) -> go.Scatter:
    """Thin lines from the end of a part down to the start of the next one."""
    across: list[float | None] = []
    down: list[float | None] = []
    parts = [piece for piece in pieces if piece.name != "step"]
    for piece, after in zip(parts, parts[1:], strict=False):
        end = unit.of(piece.start_s + piece.time_s)
        across += [end, end, None]
        down += [piece.row + BAR / 2, after.row - BAR / 2, None]
    look = {"color": FAINT_INK, "width": 1, "dash": "dot"}
    return go.Scatter(x=across, y=down, mode="lines", line=look, hoverinfo="skip", showlegend=False, xaxis=x)


def _labels(pieces: Sequence[_Piece], x: str, unit: Unit, longest_s: float, plans: int) -> go.Scatter:
    """Seconds and percent of each bar, inside it if there is room, otherwise at its side."""
    is_wide = plans <= 2
    room_s = (LABEL_SHARE if is_wide else PERCENT_SHARE) * plans * longest_s
    looks = {look.name: look for look in _DRAWN}
    labels, places, sides, inks, shadows = [], [], [], [], []
    for piece in pieces:
        is_step = piece.name == "step"
        own_room_s = PERCENT_SHARE * plans * longest_s if is_step else room_s
        is_inside = piece.time_s >= own_room_s
        if is_step and not is_inside:
            continue
        look = looks[piece.kind]
        labels.append(
            _percent(piece) if is_step or not is_wide else f"{format_quantity(piece.time_s, 's')}, {_percent(piece)}"
        )
        if is_inside:
            place_s, side = piece.start_s + piece.time_s / 2, "middle center"
        elif piece.start_s >= room_s:
            place_s, side = piece.start_s, "middle left"
        else:
            place_s, side = piece.start_s + piece.time_s, "middle right"
        places.append((unit.of(place_s), piece.row))
        sides.append(side)
        inks.append(look.ink if is_inside else INK)
        shadows.append(halo(look.color) if is_inside else "none")
    across, down = [place for place, _ in places], [row for _, row in places]
    padded = [f"\N{NO-BREAK SPACE}{text}\N{NO-BREAK SPACE}" for text in labels]
    font = {"size": 12, "color": inks, "shadow": shadows}
    return texts(across, down, padded, font, textposition=sides, cliponaxis=False, xaxis=x)


def _percent(piece: _Piece) -> str:
    """Two significant digits."""
    percent = 100 * piece.share
    return f"{percent:.0f}%" if percent >= 9.95 else f"{percent:.1f}%" if percent >= 0.05 else "<0.1%"


def _comparison(predictions: Sequence[Prediction], names: Sequence[str]) -> str:
    """The fastest plan, and the part in which each other plan loses the most time."""
    speeds = [p.tokens_per_s / p.num_gpus for p in predictions]
    order = sorted(range(len(speeds)), key=lambda i: -speeds[i])
    best = order[0]
    text = f"Most tokens a second and GPU: {names[best]} ({speeds[best]:,.0f}, MFU {predictions[best].mfu:.1%})"
    for i in order[1:]:
        text += f"; {names[i]} ({speeds[i]:,.0f}), {_lost(predictions[i], predictions[best])}"
    over = [names[i] for i in range(len(names)) if not predictions[i].fits]
    text += "." + (f" Too large for a GPU's memory: {', '.join(over)}." if over else "")
    return f"{text} {predictions[best].evidence_sentence()}".strip()


def _lost(prediction: Prediction, best: Prediction) -> str:
    """Slowdown of a plan against the best one, and the part in which it loses the most for the same tokens."""
    same = best.tokens_per_step / best.num_gpus / (prediction.tokens_per_step / prediction.num_gpus)
    gaps = {name: time_s * same - best.parts.get(name, 0.0) for name, time_s in prediction.parts.items()}
    slower = prediction.step_time_s * same / best.step_time_s - 1
    if slower < 0.0005:
        return "as fast"
    return f"{slower:.1%} slower, mostly by {max(gaps, key=lambda name: gaps[name])}"


def _columns(predictions: Sequence[Prediction], names: Sequence[str], parts: Sequence[str]) -> dict[str, list[Any]]:
    """One row for each plan and part, in the order of the picture."""
    rows = [(name, p, part) for name, p in zip(names, predictions, strict=True) for part in parts]
    seconds = [p.parts.get(part, 0.0) for _, p, part in rows]
    columns: dict[str, list[Any]] = {"plan": [name for name, _, _ in rows]} if any(names) else {}
    return columns | {
        "part": [part for *_, part in rows],
        "kind": [kind_of_part(part) for *_, part in rows],
        "seconds (s)": seconds,
        "share of the step (%)": [100 * s / p.step_time_s for s, (_, p, _) in zip(seconds, rows, strict=True)],
    }
