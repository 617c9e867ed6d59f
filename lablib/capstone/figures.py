"""Figures of a report: the small run's loss, predictions next to measurements, and the terms of a planned step.

Simplified: errors of losses, in nats, are not on the axis of factors; they are in the table of the report.
"""

from math import log

import plotly.graph_objects as go

from lablib.capstone.large_run import plan_step
from lablib.capstone.quantities import QUANTITIES, measured
from lablib.capstone.report import Report
from lablib.figures.chart import ROWS, Axis, Panel, ReferenceLine, chart, line, points
from lablib.figures.plans.waterfall import figure_waterfall


def figure_loss(report: Report) -> go.Figure | None:
    """The loss of the small run by step, with the predicted end; None before the run."""
    run = report.small_run
    if run is None or not run.losses:
        return None
    steps, window = list(range(1, len(run.losses) + 1)), max(1, len(run.losses) // 10)
    smooth = [sum(part := run.losses[max(0, i - window) : i]) / len(part) for i in steps]
    marks = [line(0, "each step", steps, run.losses), line(1, f"mean of the last {window} steps", steps, smooth)]
    know_nothing = log(report.small.model.vocab_size)
    rules = [ReferenceLine(y=know_nothing, text="ln V: nothing learned")]
    predicted = report.predicted.small_loss
    rules += [ReferenceLine(y=predicted, text="predicted", place="bottom left")] if predicted is not None else []
    where = f"{report.small_ranks} ranks of {run.backend}"
    sentence = f"{len(steps)} steps on {where}: from {run.losses[0]:.3f} to {smooth[-1]:.3f} nats."
    ends = [*run.losses, know_nothing, *([] if predicted is None else [predicted])]
    air = 0.05 * (max(ends) - min(ends)) or 0.1
    upwards = Axis("loss", "nats", span=(min(ends) - air, max(ends) + air))
    panel = Panel(Axis("step"), upwards, marks, rules)
    return chart("The small run", panel, sentence)


def figure_predictions(report: Report) -> go.Figure | None:
    """Predicted / measured of each time and size, with its band; None without both."""
    rows = [
        (QUANTITIES[name], getattr(report.predicted, name) / value)
        for name, value in measured(report).items()
        if not QUANTITIES[name].is_loss and getattr(report.predicted, name) is not None
    ]
    if not rows:
        return None
    names = [quantity.title for quantity, _ in rows]
    factors = [factor for _, factor in rows]
    inside = [quantity.is_within(factor, 1.0) for quantity, factor in rows]
    widest = max(4.0, *(max(factor, 1 / factor) * 1.2 for factor in factors))
    span = (1 / widest, widest)
    shown = (0.01, 0.1, 0.25, 0.5, 0.8, 1, 1.25, 2, 4, 10, 100)
    ticks = {each: f"{each:g}" for each in shown if span[0] <= each <= span[1]}
    across = Axis("predicted / measured", log=True, ticks=ticks, span=span)
    marks = []
    for number, (name, wanted) in enumerate((("within its band", True), ("beyond its band", False))):
        chosen = [i for i, each in enumerate(inside) if each == wanted]
        if chosen:
            marks.append(points(number, name, [factors[i] for i in chosen], [names[i] for i in chosen], size=14))
    pairs = zip(names, factors, strict=True)
    sentence = "; ".join(f"{name}: {factor:.2f} times the measurement" for name, factor in pairs)
    panel = Panel(across, ROWS, marks, [ReferenceLine(x=1.0, text="exact")])
    columns = {"quantity": names, "predicted / measured": factors}
    return chart("Predictions over measurements", panel, f"{sentence}.", columns)


def figure_plan(report: Report) -> go.Figure | None:
    """The planner's terms of a step of the chosen plan; None if it cannot price the plan."""
    try:
        planned = plan_step(report.large, report.brief.cluster, report.brief.gpus)
    except ValueError:
        return None
    return figure_waterfall(planned, "A step of the large run, as the planner has it")
