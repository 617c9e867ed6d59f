"""Step time and bytes sent, near and far, for each order of the axes of a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, bars, chart
from lablib.figures.style import COMPUTE, LOOKS, Look
from lablib.signature import checked
from lablib.text.units import format_quantity, plural

ROW_PIXELS, BAR = 30, 0.62
MOST_ROWS = 24  # more are the fastest, and the slowest one
# From near to far: darker, and told apart by pattern in grey.
_LEVELS: Mapping[str, Look] = {
    look.name: look
    for look in (
        Look("node", "", "#BFE3D5", ""),
        Look("rail", "", "#56B4E9", "/"),
        Look("across", "", "#40407A", "x", ink="#FFFFFF"),
    )
}
_WORDS = {"node": "inside the node", "rail": "along a rail", "across": "across rails"}
_SENT = dict(zip(_LEVELS, ("inside the node", "to the same place of another node", "elsewhere"), strict=True))


class Placed(Protocol):
    """A placement, as lablib/studies/placement.py has it."""

    @property
    def mesh(self) -> Any: ...

    @property
    def step_time_s(self) -> float: ...

    @property
    def exposed_s(self) -> Mapping[str, float]: ...

    @property
    def sent_bytes(self) -> Mapping[str, Mapping[str, float]]: ...


@checked
def figure_placements(placements: Sequence[Placed], title: str = "") -> go.Figure:
    """A row for each order of the axes, the last of which has neighbours: left the step, right the bytes.

    Args:
        placements: the fastest first, as `lablib.studies.placements` gives them. More than 24 are drawn as the fastest
            and the slowest one; the table has all.

    Returns:
        A figure whose table has one row a placement: seconds, those that ranks wait for each axis, bytes by level.

    Raises:
        ValueError: no placement.
    """
    if not placements:
        raise ValueError("there must be a placement to draw: got none.")
    is_cut = len(placements) > MOST_ROWS
    drawn = [*placements[: MOST_ROWS - 1], placements[-1]] if is_cut else list(placements)
    names = [order_text(one) for one in drawn]
    waits = [min(sum(one.exposed_s.values()), one.step_time_s) for one in drawn]
    rest = [one.step_time_s - wait for one, wait in zip(drawn, waits, strict=True)]
    times = []
    for look, name, seconds in (
        (COMPUTE, "compute, bubble, optimizer", rest),
        (LOOKS["communication"], "waiting for wires", waits),
    ):
        words = [
            f"<b>{row}</b><br>{name}: {format_quantity(s, 's')} of {format_quantity(one.step_time_s, 's')}"
            for row, s, one in zip(names, seconds, drawn, strict=True)
        ]
        times.append(bars(look, name, seconds, names, words, orientation="h", width=BAR))
    sizes = []
    for level, look in _LEVELS.items():
        sent = [_by_level(one)[level] for one in drawn]
        words = [
            f"<b>{row}</b><br>{_WORDS[level]}: {format_quantity(s, 'B')}{_axes_of(one, level)}"
            for row, s, one in zip(names, sent, drawn, strict=True)
        ]
        if any(sent):
            sizes.append(bars(look, _WORDS[level], sent, names, words, orientation="h", width=BAR))
    rows = Axis("", look={"autorange": "reversed", "ticks": "", "showgrid": False, "type": "category"})
    longest_s, most = max(one.step_time_s for one in drawn), max(sum(_by_level(one).values()) for one in drawn)
    left = Panel(Axis("time of a step", "s", span=(0, 1.06 * longest_s)), rows, times)
    right = Panel(Axis("sent by a rank in a step", "B", span=(0, 1.06 * most)), rows, sizes)
    note = [f"Of {len(placements)} orders {len(drawn)} are drawn; the table has all"] if is_cut else []
    title, pixels = title or "Orders of the axes", ROW_PIXELS * len(drawn) + 40
    summary, columns = _summary(placements), _columns(placements)
    return chart(title, [left, right], summary, columns, note, pixels, barmode="stack")


def order_text(placement: Placed) -> str:
    """ "data 2, tensor 8": from far apart to neighbours."""
    return ", ".join(f"{axis} {size}" for axis, size in placement.mesh.sizes.items())


def _by_level(placement: Placed) -> dict[str, float]:
    return {level: sum(sent[level] for sent in placement.sent_bytes.values()) for level in _LEVELS}


def _axes_of(placement: Placed, level: str) -> str:
    parts = [
        f"{axis} {format_quantity(sent[level], 'B')}" for axis, sent in placement.sent_bytes.items() if sent[level]
    ]
    return f"<br>{'<br>'.join(parts)}" if parts else ""


def _summary(placements: Sequence[Placed]) -> str:
    best, worst = placements[0], placements[-1]
    far = {id(one): sum(_by_level(one)[level] for level in ("rail", "across")) for one in (best, worst)}
    if len(placements) == 1:
        return f"{order_text(best)}: a step takes {format_quantity(best.step_time_s, 's')}."
    text = f"Of {plural(len(placements), 'orders')} the fastest, {order_text(best)}, takes "
    text += f"{format_quantity(best.step_time_s, 's')}, the slowest, {order_text(worst)}, "
    text += f"{format_quantity(worst.step_time_s, 's')}, {worst.step_time_s / best.step_time_s:.2f} times as long; "
    text += f"a rank sends {format_quantity(far[id(best)], 'B')} to other nodes in the one, "
    return text + f"{format_quantity(far[id(worst)], 'B')} in the other."


def _columns(placements: Sequence[Placed]) -> dict[str, list[Any]]:
    axes = list(dict.fromkeys(axis for one in placements for axis in one.sent_bytes))
    columns: dict[str, list[Any]] = {
        "order, far apart to neighbours": [order_text(one) for one in placements],
        "step (s)": [one.step_time_s for one in placements],
    }
    columns |= {f"waits for {axis} (s)": [one.exposed_s.get(axis, 0.0) for one in placements] for axis in axes}
    for level in _LEVELS:
        columns[f"sent {_SENT[level]} (B)"] = [_by_level(one)[level] for one in placements]
    return columns
