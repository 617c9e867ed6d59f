"""Lab 11: final loss of compressed training against bytes sent, and against steps between synchronizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS, Axis, Panel, ReferenceLine, chart, line, points
from lablib.signature import checked
from lablib.studies.compression import CompressedRun
from lablib.text.units import format_quantity

LOSS = Axis("final loss, least to largest seed", "nats a byte")
Runs = Mapping[str, CompressedRun]


@checked
def figure_loss_against_bytes(runs: Runs) -> go.Figure:
    """Every method's final loss against the bytes that leave a rank per step: left and down is better."""
    runs = {name: run for name, run in runs.items() if run.sent_bytes > 0}
    marks = []
    for index, (name, run) in enumerate(runs.items()):
        words = f"<b>{name}</b><br>{format_quantity(run.sent_bytes, 'B')} a step<br>{run.loss:.3f} nats"
        marks.append(points(index, name, [run.sent_bytes], [run.loss], [words], _ends([run])))
    panel = Panel(Axis("sent by each rank in a step", "B", log=True), LOSS, marks, _uncompressed(runs))
    order = sorted(runs.items(), key=lambda item: (-item[1].sent_bytes, item[1].loss))
    said = [f"{name}: {format_quantity(run.sent_bytes, 'B')}, {run.loss:.3f} nats" for name, run in order]
    sentence = f"Bytes of a step and final loss. {'; '.join(said)}."
    return chart("Final loss against bytes sent", panel, sentence, _columns(runs), pixels=PLOT_PIXELS + 130)


@checked
def figure_loss_over_h(runs: Runs) -> go.Figure:
    """Final loss against the steps H between synchronizations, one line for each method, at the mean over seeds.

    `runs`: name -> its recorded run; names with their H at the end ("DiLoCo 16") make lines, others are left out.
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
    across = Axis("H, from one synchronization to the next", "steps", log=True, ticks=ticks)
    panel = Panel(across, LOSS, marks, _uncompressed(runs))
    return chart("Final loss over H", panel, f"Final loss: {'; '.join(parts)}.", _columns(shown))


def _ends(runs: Sequence[CompressedRun]) -> tuple[list[float], list[float]]:
    """Least and largest loss over the seeds of each run."""
    return [min(run.losses.values()) for run in runs], [max(run.losses.values()) for run in runs]


def _uncompressed(runs: Runs) -> list[ReferenceLine]:
    return [ReferenceLine(y=runs["none"].loss, line={"width": 1, "dash": "dot"})] if "none" in runs else []


def _columns(runs: Runs) -> dict[str, Sequence[object]]:
    return {
        "method": list(runs),
        "H": [run.every for run in runs.values()],
        "sent (B/step)": [round(run.sent_bytes) for run in runs.values()],
        "loss (nats)": [round(run.loss, 4) for run in runs.values()],
        "learning rate": [run.lr for run in runs.values()],
    }
