"""What a larger batch buys: steps against tokens to the same loss, as measured, and the law through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any, Protocol

import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS
from lablib.figures.describe import attach
from lablib.figures.style import FAINT_INK, PAPER_PIXELS, axis, base_layout, series_look
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity

POINTS = 60  # of the curve


class Law(Protocol):
    """`lablib.batches.noise_scale.StepsLaw`."""

    min_steps: float
    critical_batch: float

    def steps(self, batch_size: float) -> float: ...


@checked
def figure_steps_law(
    steps: Mapping[int, Sequence[float]], law: Law, seq_len: int, title: str = "Steps against tokens to the same loss"
) -> go.Figure:
    """A point a run, a mark a batch size, and the law (S / S_min - 1) (E / E_min - 1) = 1.

    Args:
        steps: batch size in sequences -> steps of each run to the loss.
        law: of steps by batch size.
        seq_len: tokens of a sequence.

    Raises:
        ValueError: no batch size, one without runs, or a number that is not positive.
    """
    if not steps or not all(steps.values()) or min(seq_len, *steps, *map(min, steps.values())) <= 0:
        raise ValueError(f"there must be batch sizes with runs, and all numbers positive: got {dict(steps)}.")
    sizes = sorted(steps)
    means = {size: sum(steps[size]) / len(steps[size]) for size in sizes}
    min_tokens = law.min_steps * law.critical_batch * seq_len
    low, high = sizes[0] / 4, sizes[-1] * 4
    curve = [low * (high / low) ** (i / (POINTS - 1)) for i in range(POINTS)]
    look, other = series_look(0), series_look(1)
    figure = go.Figure(layout=base_layout(title, PLOT_PIXELS + PAPER_PIXELS, showlegend=True))
    figure.add_trace(
        go.Scatter(
            x=[law.steps(size) for size in curve],
            y=[law.steps(size) * size * seq_len for size in curve],
            name="the law",
            mode="lines",
            line={"color": other.color, "dash": other.dash, "width": 2},
            hoverinfo="skip",
        )
    )
    runs = [(size, value) for size in sizes for value in steps[size]]
    figure.add_trace(
        go.Scatter(
            x=[value for _, value in runs],
            y=[value * size * seq_len for size, value in runs],
            name="runs",
            mode="markers",
            marker={"symbol": "circle-open", "size": 7, "color": look.color},
            hovertext=[_words(size, value, seq_len) for size, value in runs],
            hoverinfo="text",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=[means[size] for size in sizes],
            y=[means[size] * size * seq_len for size in sizes],
            name="mean of a batch size, in sequences",
            mode="markers+text",
            text=[f"{size:,}" for size in sizes],
            textposition="top right",
            marker={"symbol": look.symbol, "size": 10, "color": look.color},
            hovertext=[_words(size, means[size], seq_len) for size in sizes],
            hoverinfo="text",
        )
    )
    xs, ys = [law.min_steps, *(v for _, v in runs)], [min_tokens, *(v * s * seq_len for s, v in runs)]
    figure.update_layout(
        xaxis=_axis(xs, "steps to the loss", "count"), yaxis=_axis(ys, "text read to the loss", "tokens")
    )
    line = {"color": FAINT_INK, "dash": "dot", "width": 1.5}
    figure.add_vline(x=law.min_steps, line=line)
    figure.add_hline(y=min_tokens, line=line)
    # On a logarithmic axis a line stands at the number itself and words at its logarithm.
    words = {"showarrow": False, "font": {"size": 12}}
    beside = {"x": log10(law.min_steps), "y": 0, "yref": "paper", "xshift": -9, "textangle": -90, "yanchor": "bottom"}
    figure.add_annotation(text="fewest steps", **beside, **words)
    # Below the line, as the law comes down to it from above.
    below = {"y": log10(min_tokens), "x": 1, "xref": "paper", "xanchor": "right", "yanchor": "top"}
    figure.add_annotation(text="fewest tokens", **below, **words)
    summary = (
        f"From {sizes[0]:,} to {sizes[-1]:,} sequences a step, steps go from {format_quantity(means[sizes[0]])} to "
        f"{format_quantity(means[sizes[-1]])}, tokens from {_tokens(sizes[0], means, seq_len)} to "
        f"{_tokens(sizes[-1], means, seq_len)}; the law: at least {format_quantity(law.min_steps)} steps, twice that "
        f"at the critical batch of {format_quantity(law.critical_batch)} sequences."
    )
    columns = {
        "batch (sequences)": sizes,
        "steps": [means[size] for size in sizes],
        "least": [min(steps[size]) for size in sizes],
        "most": [max(steps[size]) for size in sizes],
        "steps by the law": [law.steps(float(size)) for size in sizes],
        "tokens": [means[size] * size * seq_len for size in sizes],
    }
    return attach(figure, summary, columns)


def _axis(values: Sequence[float], label: str, unit: str) -> dict[str, Any]:
    """Logarithmic, from a little below the least value to a little above the greatest; ticks at 1, 2, 5, 10, 20."""
    ends = log10(min(values)) - 0.12, log10(max(values)) + 0.12
    ticks = [digit * 10.0**e for e in range(floor(ends[0]), ceil(ends[1])) for digit in (1, 2, 5)]
    words = [format_quantity(tick, "count") for tick in ticks]
    return axis(axis_title(label, unit), type="log", tickvals=ticks, ticktext=words, range=list(ends))


def _words(size: int, value: float, seq_len: int) -> str:
    tokens = format_quantity(value * size * seq_len, "tokens")
    return f"<b>{size:,} sequences</b><br>{format_quantity(value, 'steps', 4)}<br>{tokens}"


def _tokens(size: int, means: Mapping[int, float], seq_len: int) -> str:
    return format_quantity(means[size] * size * seq_len)
