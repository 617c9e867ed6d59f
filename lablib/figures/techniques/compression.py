"""Final loss of compressed training against bytes sent, and against steps between synchronizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS, Axis, Panel, Rule, chart, line, points
from lablib.signature import checked
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.studies.compression import CompressedRun

LOSS = "final loss, least to largest seed"


@checked
def figure_loss_against_bytes(
    runs: Mapping[str, CompressedRun], reference: str = "none", most_loss: float | None = None
) -> go.Figure:
    """Every method's final loss against the bytes that leave a rank in a step: left and down is better.

    Args:
        runs: name -> its recorded run.
        reference: the method whose loss is drawn as a level, where it is among the runs.
        most_loss: the upper end of the axis; None: so that all are seen.
    """
    shown = {name: run for name, run in runs.items() if run.sent_bytes > 0}
    marks = []
    for index, (name, run) in enumerate(shown.items()):
        words = f"<b>{name}</b><br>{format_quantity(run.sent_bytes, 'B')} a step<br>{run.loss:.3f} nats"
        marks.append(points(index, name, [run.sent_bytes], [run.loss], [words], _ends([run])))
    lowest = min((min(run.losses.values()) for run in shown.values()), default=0.0)
    span = None if most_loss is None else (lowest - 0.05 * (most_loss - lowest), most_loss)
    rules = _level(shown, reference)
    panel = Panel(
        Axis("sent by each rank in a step", "B", log=bool(shown)), Axis(LOSS, "nats a byte", span=span), marks, rules
    )
    sentence = _bytes_summary(shown) if shown else ""
    return chart("Final loss against bytes sent", panel, sentence, _columns(shown), pixels=PLOT_PIXELS + 130)


def _bytes_summary(runs: Mapping[str, CompressedRun]) -> str:
    """All methods, those of equal bytes side by side."""
    order = sorted(runs.items(), key=lambda item: (-item[1].sent_bytes, item[1].loss))
    said = [f"{name}: {format_quantity(run.sent_bytes, 'B')}, {run.loss:.3f} nats" for name, run in order]
    return f"Bytes of a step and final loss. {'; '.join(said)}."


@checked
def figure_loss_over_h(runs: Mapping[str, CompressedRun], reference: str = "none") -> go.Figure:
    """Final loss against the steps H between synchronizations, one line a method, marked at the mean over seeds.

    Args:
        runs: name -> its recorded run; those that end in their H ("DiLoCo 16") make lines, the others are left out.
        reference: the method that synchronizes every step, drawn as a level, where it is among the runs.
    """
    lines: dict[str, list[CompressedRun]] = {}
    for name, run in runs.items():
        method, _, every = name.rpartition(" ")
        if method and every == str(run.every) and method != "stale":
            lines.setdefault(method, []).append(run)
    marks, parts = [], []
    for index, (method, members) in enumerate(lines.items()):
        members.sort(key=lambda run: run.every)
        periods, losses = [run.every for run in members], [run.loss for run in members]
        hover = [f"<b>{method}</b><br>H = {x}<br>{y:.3f} nats" for x, y in zip(periods, losses, strict=True)]
        marks.append(line(index, method, periods, losses, hover, _ends(members)))
        parts.append(f"{method} from {losses[0]:.3f} nats at H = {periods[0]} to {losses[-1]:.3f} at {periods[-1]}")
    shown = {run.name: run for members in lines.values() for run in members}
    ticks = {every: str(every) for every in sorted({run.every for run in shown.values()})}
    across = Axis("H, from one synchronization to the next", "steps", log=bool(shown), ticks=ticks)
    panel = Panel(across, Axis(LOSS, "nats a byte"), marks, _level(runs, reference) if shown else ())
    return chart("Final loss over H", panel, f"Final loss: {'; '.join(parts)}." if parts else "", _columns(shown))


def _ends(runs: Sequence[CompressedRun]) -> tuple[list[float], list[float]]:
    """Least and largest loss over the seeds of each run."""
    return [min(run.losses.values()) for run in runs], [max(run.losses.values()) for run in runs]


def _level(runs: Mapping[str, CompressedRun], name: str) -> list[Rule]:
    return [Rule(y=runs[name].loss, line={"width": 1, "dash": "dot"})] if name in runs else []


def _columns(runs: Mapping[str, CompressedRun]) -> dict[str, Sequence[object]]:
    return {
        "method": list(runs),
        "H": [run.every for run in runs.values()],
        "sent (B/step)": [round(run.sent_bytes) for run in runs.values()],
        "loss (nats)": [round(run.loss, 4) for run in runs.values()],
        "learning rate": [run.lr for run in runs.values()],
    }
