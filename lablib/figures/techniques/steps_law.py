"""Steps against tokens to a target loss: measured runs, and the law of the critical batch size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, log10
from typing import Protocol

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, Rule, chart, line, points
from lablib.signature import checked
from lablib.text.units import format_quantity

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
    runs = [(size, value) for size in sizes for value in steps[size]]
    marks = [
        line(1, "the law", *_places([(size, law.steps(size)) for size in curve], seq_len), ()).styled(mode="lines"),
        points(0, "runs", *_places(runs, seq_len), _words(runs, seq_len), symbol="circle-open", size=7),
        points(
            0, "mean of a batch size, in sequences", *_places(means.items(), seq_len), _words(means.items(), seq_len)
        ).styled(mode="markers+text", text=[f"{size:,}" for size in sizes], textposition="top right"),
    ]
    xs, ys = [law.min_steps, *(v for _, v in runs)], [min_tokens, *(v * s * seq_len for s, v in runs)]
    upright = {"y": 0, "yanchor": "bottom", "xanchor": "right", "textangle": -90, "xshift": -4}
    rules = [
        Rule(x=law.min_steps, text="fewest steps", line={"dash": "dot"}, look=upright),
        # Below the line, as the law comes down to it from above.
        Rule(y=min_tokens, text="fewest tokens", place="bottom right", line={"dash": "dot"}),
    ]
    panel = Panel(_axis(xs, "steps to the loss", "count"), _axis(ys, "text read to the loss", "tokens"), marks, rules)
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
    return chart(title, panel, summary, columns)


def _axis(values: Sequence[float], label: str, unit: str) -> Axis:
    """Logarithmic, from a little below the least value to a little above the greatest; ticks at 1, 2, 5, 10, 20."""
    ends = min(values) / 1.32, max(values) * 1.32
    ticks = [digit * 10.0**e for e in range(floor(log10(ends[0])), ceil(log10(ends[1]))) for digit in (1, 2, 5)]
    return Axis(label, unit, log=True, ticks={tick: format_quantity(tick, "count") for tick in ticks}, span=ends)


def _places(pairs: Iterable[tuple[float, float]], seq_len: int) -> tuple[list[float], list[float]]:
    """Steps, and tokens read in them, of batch sizes and their steps."""
    rows = list(pairs)
    return [n for _, n in rows], [n * size * seq_len for size, n in rows]


def _words(pairs: Iterable[tuple[int, float]], seq_len: int) -> list[str]:
    return [
        f"<b>{size:,} sequences</b><br>{format_quantity(n, 'steps', 4)}<br>"
        f"{format_quantity(n * size * seq_len, 'tokens')}"
        for size, n in pairs
    ]


def _tokens(size: int, means: Mapping[int, float], seq_len: int) -> str:
    return format_quantity(means[size] * size * seq_len)
