"""Evidence on sending less: final loss against bytes, and against steps between synchronizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.lines import PLOT_PIXELS, line, log_axis
from lablib.figures.style import FAINT_INK, PAPER_PIXELS, axis, base_layout, empty_axis, series_look
from lablib.signature import checked
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.studies.compression import CompressedRun

LOSS = "final loss, least to largest seed (nats a byte)"
SENT = "sent by each rank in a step"
NOTHING = "There is nothing to draw yet."


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
    figure = go.Figure(layout=base_layout("Final loss against bytes sent", PLOT_PIXELS + 130 + PAPER_PIXELS))
    shown = {name: run for name, run in runs.items() if run.sent_bytes > 0}
    for index, (name, run) in enumerate(shown.items()):
        look, losses = series_look(index), list(run.losses.values())
        reach = {"type": "data", "symmetric": False, "array": [max(losses) - run.loss], "color": look.color}
        symbol = (look.symbol, f"{look.symbol}-open", f"{look.symbol}-dot")[index // 8 % 3]
        words = f"<b>{name}</b><br>{format_quantity(run.sent_bytes, 'B')} a step<br>{run.loss:.3f} nats"
        figure.add_trace(
            go.Scatter(
                x=[run.sent_bytes],
                y=[run.loss],
                mode="markers",
                name=name,
                marker={"symbol": symbol, "size": 10, "color": look.color},
                error_y=reach | {"arrayminus": [run.loss - min(losses)]},
                hovertext=[words],
                hoverinfo="text",
            )
        )
    if not shown:
        figure.update_layout(xaxis=empty_axis(SENT), yaxis=empty_axis(LOSS))
        return attach(figure, NOTHING, {})
    if reference in shown:
        figure.add_hline(y=shown[reference].loss, line={"color": FAINT_INK, "width": 1, "dash": "dot"})
    down = axis(LOSS)
    if most_loss is not None:
        lowest = min(min(run.losses.values()) for run in shown.values())
        down["range"] = [lowest - 0.05 * (most_loss - lowest), most_loss]
    figure.update_layout(xaxis=log_axis([run.sent_bytes for run in shown.values()], SENT, "B"), yaxis=down)
    figure.update_layout(showlegend=True)
    return attach(figure, _bytes_summary(shown), _columns(shown))


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
    figure = go.Figure(layout=base_layout("Final loss over H", PLOT_PIXELS + PAPER_PIXELS))
    across = "H, from one synchronization to the next (steps)"
    for index, (method, members) in enumerate(lines.items()):
        members.sort(key=lambda run: run.every)
        xs, ys = [run.every for run in members], [run.loss for run in members]
        hover = [f"<b>{method}</b><br>H = {x}<br>{y:.3f} nats" for x, y in zip(xs, ys, strict=True)]
        reach = {
            "type": "data",
            "symmetric": False,
            "array": [max(run.losses.values()) - run.loss for run in members],
            "arrayminus": [run.loss - min(run.losses.values()) for run in members],
            "color": series_look(index).color,
        }
        figure.add_trace(line(method, index, {"x": xs, "y": ys}, hover).update(error_y=reach))
    if not lines:
        figure.update_layout(xaxis=empty_axis(across), yaxis=empty_axis(LOSS))
        return attach(figure, NOTHING, {})
    if reference in runs:
        figure.add_hline(y=runs[reference].loss, line={"color": FAINT_INK, "width": 1, "dash": "dot"})
    periods = sorted({run.every for members in lines.values() for run in members})
    figure.update_layout(
        xaxis=axis(across, type="log", tickvals=periods, ticktext=[str(period) for period in periods]),
        yaxis=axis(LOSS),
        showlegend=True,
    )
    ends = "; ".join(
        f"{method} from {members[0].loss:.3f} nats at H = {members[0].every} to {members[-1].loss:.3f} at "
        f"{members[-1].every}"
        for method, members in lines.items()
    )
    return attach(figure, f"Final loss: {ends}.", _columns({run.name: run for runs in lines.values() for run in runs}))


def _columns(runs: Mapping[str, CompressedRun]) -> dict[str, Sequence[object]]:
    return {
        "method": list(runs),
        "H": [run.every for run in runs.values()],
        "sent (B/step)": [round(run.sent_bytes) for run in runs.values()],
        "loss (nats)": [round(run.loss, 4) for run in runs.values()],
        "learning rate": [run.lr for run in runs.values()],
    }
