"""Learning-rate schedules, and the held-out loss of runs under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS, Axis, Panel, chart, line
from lablib.signature import checked
from lablib.text.units import format_quantity

RATE_PIXELS = 150


@checked
def figure_schedules(
    factors: Mapping[str, Sequence[float]],
    losses: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    title: str = "Learning-rate schedules",
) -> go.Figure:
    """One line a schedule.

    Args:
        factors: name -> part of the peak rate at each step, from step 0.
        losses: name -> (step, loss in nats) of a run under it; None: the rates alone.

    Raises:
        ValueError: no schedule, one without steps, or a run under none of them.
    """
    if not factors or not all(factors.values()):
        raise ValueError("there must be a schedule, and a step of each, to draw: got none.")
    if losses is not None and (not losses.keys() <= factors.keys() or not all(losses.values())):
        raise ValueError(f"losses must be of the schedules {list(factors)}, each with a step: got {list(losses)}.")
    rates, runs = [], []
    for index, (name, values) in enumerate(factors.items()):
        words = [f"<b>{name}</b><br>step {step:,}: {value:.3g} of the peak" for step, value in enumerate(values)]
        rates.append(line(index, name, range(len(values)), values, words).styled(mode="lines"))
        if losses and name in losses:
            steps, nats = zip(*losses[name], strict=True)
            words = [f"<b>{name}</b><br>step {step:,}: {loss:.4g} nats" for step, loss in losses[name]]
            runs.append(line(index, name, steps, nats, words))
    steps = Axis("step", "count")
    upper = Panel(steps, Axis("rate", "of peak", span=(0, 1.08)), rates)
    lower = Panel(steps, Axis("held-out loss", "nats"), runs)
    columns: dict[str, Sequence[object]] = {
        "schedule": list(factors),
        "steps": [len(values) for values in factors.values()],
        "mean rate (of peak)": [format_quantity(sum(values) / len(values)) for values in factors.values()],
        "last rate (of peak)": [format_quantity(values[-1]) for values in factors.values()],
    }
    if not losses:
        return chart(title, upper, _summary(factors, losses), columns, pixels=RATE_PIXELS)
    columns["last loss (nats)"] = [losses[name][-1][1] if name in losses else None for name in factors]
    return chart(title, [upper, lower], _summary(factors, losses), columns, pixels=(RATE_PIXELS, PLOT_PIXELS))


def _summary(factors: Mapping[str, Sequence[float]], losses: Mapping[str, Sequence[tuple[int, float]]] | None) -> str:
    if losses:
        ends = sorted((run[-1][1], name, run[-1][0]) for name, run in losses.items())
        return "Held-out loss at the end: " + ", ".join(f"{n} {v:.3f} nats (step {s:,})" for v, n, s in ends) + "."
    means = ", ".join(f"{name} {sum(v) / len(v):.0%}" for name, v in factors.items())
    return f"Mean rate over the {max(map(len, factors.values())):,} steps, of the peak: {means}."
