"""Exposed and hidden communication of a predicted step, by mesh axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.chart import ROWS, Axis, Panel, bars, chart, labels
from lablib.figures.style import LOOKS, Look
from lablib.signature import checked
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction

ROW_PIXELS, BAR = 42, 0.62
EXPOSED = LOOKS["communication"]
HIDDEN = Look("hidden behind compute", "", "#F3DFE9", "/", hatch=EXPOSED.color, edge=EXPOSED.color)  # paler


@checked
def figure_communication(prediction: Prediction, title: str = "Communication of a rank in one step") -> go.Figure:
    """Seconds on each used axis: exposed, then hidden. Table: one row per axis."""
    axes = {name: each for name, each in prediction.communication.items() if each[0] > 0}
    names = list(axes)
    totals = [float(total) for total, _ in axes.values()]
    exposed = [float(shown) for _, shown in axes.values()]
    hidden = [max(total - shown, 0.0) for total, shown in zip(totals, exposed, strict=True)]
    marks = []
    for look, name, seconds in ((EXPOSED, "exposed", exposed), (HIDDEN, HIDDEN.name, hidden)):
        shown = zip(names, seconds, strict=True)
        words = [f"<b>{axis} axis</b>, {name}<br>{format_quantity(s, 's', 4)}" for axis, s in shown]
        marks.append(bars(look, name, seconds, names, words, orientation="h", width=BAR))
    texts = [_label(name, *each) for name, each in axes.items()]
    marks.append(labels(totals, names, texts, "middle right"))
    # Room at the right for the label of the longest bar.
    across = Axis("time", "s", span=(0, 1.4 * max(totals)) if names else None)
    rows = [(name, float(total), float(shown)) for name, (total, shown) in prediction.communication.items()]
    columns = {
        "axis": [name for name, _, _ in rows],
        "in all (s)": [total for _, total, _ in rows],
        "exposed (s)": [shown for *_, shown in rows],
        "hidden (s)": [total - shown for _, total, shown in rows],
        "exposed share of the step (%)": [100 * shown / prediction.step_time_s for *_, shown in rows],
    }
    pixels = ROW_PIXELS * max(len(axes), 2)
    return chart(title, Panel(across, ROWS, marks), _summary(prediction), columns, pixels=pixels, barmode="stack")


def _label(name: str, total_s: float, exposed_s: float) -> str:
    hidden = f"{format_quantity(total_s - exposed_s, 's')} hidden"
    if name == "pipeline":
        hidden = "hidden or within the bubble"
    elif exposed_s <= 1e-9 * total_s:
        hidden = "all hidden"
    elif exposed_s >= (1 - 1e-9) * total_s:
        hidden = "none hidden"
    return "\N{NO-BREAK SPACE}" * 2 + f"{format_quantity(total_s, 's')}, {hidden}"


def _summary(prediction: Prediction) -> str:
    total_s = sum(total for total, _ in prediction.communication.values())
    if not total_s:
        return "The ranks of this plan do not communicate."
    exposed_s = prediction.exposed_communication_s
    longest = max(prediction.communication, key=lambda name: prediction.communication[name][1])
    step_s = prediction.step_time_s
    text = f"A rank communicates for {format_quantity(total_s, 's')} of a step of {format_quantity(step_s, 's')}; "
    text += f"{format_quantity(exposed_s, 's')} of it ({exposed_s / step_s:.1%} of the step) are not hidden"
    if exposed_s:
        text += f", most of that on the {longest} axis ({format_quantity(prediction.communication[longest][1], 's')})"
    is_piped = prediction.communication.get("pipeline", (0.0, 0.0))[0] > 0
    return text + (". What a stage waits for messages counts as bubble." if is_piped else ".")
