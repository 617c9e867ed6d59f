"""Load of each expert over training, and load of each rank by placement of the experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS, Axis, Panel, Rule, bars, chart
from lablib.figures.describe import attach
from lablib.figures.style import PAPER_PIXELS, Look, axis, base_layout, series_look
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity, plural

MAX_SQUARES = 4096  # of a heat map: steps are averaged in blocks where experts times steps are more
MAX_TICKS, MAX_NAMES = 8, 32
# From light to dark, so that it reads in grey. An even load is in the middle of the first half.
_COLORS = ((0.0, "#FFFFFF"), (0.25, "#CFE3F3"), (0.5, "#6FA8D6"), (0.75, "#1F6AA5"), (1.0, "#062B4A"))


@checked
def figure_expert_load(
    counts: Sequence[Sequence[float]], steps: Sequence[int] | None = None, title: str = "", summary: str = ""
) -> go.Figure:
    """A heat map of steps and experts: each expert's tokens over the mean of all in that step.

    Args:
        counts: for each step, tokens of each expert.
        steps: their numbers, ascending; None: 0, 1, 2, ...
        title: of the figure.
        summary: one sentence; none given: the busiest expert over the mean, at first, at worst and at last.

    Returns:
        A figure whose table has, for each column that is drawn, the busiest and the least expert over the mean.

    Raises:
        ValueError: no step, steps of other numbers of experts, a count that is negative or not finite, steps that do
            not ascend or are not as many.
    """
    load = _checked_counts(counts)
    numbers = list(range(len(load))) if steps is None else list(steps)
    if len(numbers) != len(load) or any(b <= a for a, b in zip(numbers, numbers[1:], strict=False)):
        raise ValueError(f"steps must ascend, one for each of {len(load)} rows of counts: got {len(numbers)}.")
    size, starts, blocks = _in_blocks(load)
    mean = blocks.mean(axis=1, keepdims=True)
    share = np.divide(blocks, mean, out=np.ones_like(blocks), where=mean > 0)
    firsts = [numbers[start] for start in starts]
    figure = go.Figure(layout=base_layout(title or "Load of each expert", PLOT_PIXELS + PAPER_PIXELS, showlegend=False))
    hover = [
        [f"<b>step {step:,}, expert {e}</b><br>{one:.3g} times the mean" for step, one in zip(firsts, row, strict=True)]
        for e, row in enumerate(share.T.tolist())
    ]
    top = max(2, ceil(float(share.max())))
    marks = [*range(0, top, max(1, -(-top // MAX_TICKS))), top]
    bar = {"title": {"text": "over mean", "font": {"size": 13}}, "thickness": 14, "outlinewidth": 0, "len": 1.0}
    bar |= {"tickvals": marks, "ticktext": [str(mark) for mark in marks]}
    places = list(range(len(firsts)))
    figure.add_trace(
        go.Heatmap(
            z=share.T,
            x=places,
            y=list(range(share.shape[1])),
            zmin=0.0,
            zmax=top,
            colorscale=[list(stop) for stop in _COLORS],
            colorbar=bar,
            hovertext=hover,
            hoverinfo="text",
        )
    )
    every, down = -(-len(firsts) // MAX_TICKS), -(-share.shape[1] // MAX_TICKS)
    ticks = {"tickvals": places[::every], "ticktext": [f"{one:,}" for one in firsts[::every]], "showgrid": False}
    figure.update_layout(
        margin_b=64, xaxis=axis(axis_title("step", "number"), range=[-0.5, len(firsts) - 0.5], **ticks)
    )
    experts = list(range(share.shape[1]))[::down]
    labels = {"tickvals": experts, "ticktext": [str(e) for e in experts], "showgrid": False}
    figure.update_layout(yaxis=axis(axis_title("expert", "number"), range=[share.shape[1] - 0.5, -0.5], **labels))
    columns = {
        "step": firsts,
        "busiest (of the mean)": share.max(axis=1).tolist(),
        "least (of the mean)": share.min(axis=1).tolist(),
    }
    return attach(figure, summary or _load_summary(firsts, share, size), columns)


@checked
def figure_rank_loads(loads: Mapping[str, Sequence[float]], title: str = "", summary: str = "") -> go.Figure:
    """A bar for each rank and placement of experts, and a line at the mean, which is the same for all.

    Args:
        loads: placement -> tokens of each rank, as `lablib.parallel.ExpertPlacement.rank_loads` gives them.
        title: of the figure.
        summary: one sentence; none given: the busiest rank over the mean, by placement.

    Raises:
        ValueError: no placement, other numbers of ranks or tokens, a load that is negative or not finite.
    """
    load = _checked_counts(list(loads.values()))
    means = load.mean(axis=1)
    if not np.allclose(means, means[0], rtol=1e-6):
        raise ValueError(f"all placements must be of the same tokens: got sums of {load.sum(axis=1).tolist()}.")
    ranks, width, marks = list(range(load.shape[1])), 0.8 / len(load), []
    for index, (name, row) in enumerate(zip(loads, load.tolist(), strict=True)):
        look, place = series_look(index), (index - (len(load) - 1) / 2) * width
        words = [
            f"<b>rank {rank}: {name}</b><br>{format_quantity(one, 'tokens')}, {_over(one, means[0]):.3g} times the mean"
            for rank, one in enumerate(row)
        ]
        places = [rank + place for rank in ranks]
        marks.append(bars(Look(name, "", look.color, look.pattern), name, places, row, words, width=width))
    named = {rank: str(rank) for rank in ranks[:: -(-len(ranks) // MAX_NAMES)]}
    ends = (-0.5, 1.08 * len(ranks) - 0.5)  # room for "mean"
    across = Axis("rank", "number", ticks=named, span=ends, look={"showgrid": False})
    rules = [Rule(y=float(means[0]), text="mean")]
    panel = Panel(across, Axis("load", "tokens", from_zero=True), marks, rules)
    busiest = [f"{name} {_over(float(row.max()), means[0]):.2f}" for name, row in zip(loads, load, strict=True)]
    sentence = f"The busiest of {plural(load.shape[1], 'ranks')} over the mean: {'; '.join(busiest)}."
    columns: dict[str, list[Any]] = {"rank": ranks}
    columns |= {f"{name} (tokens)": row for name, row in zip(loads, load.tolist(), strict=True)}
    return chart(title or "Load of each rank", panel, summary or sentence, columns, barmode="overlay")


def _checked_counts(counts: Sequence[Sequence[float]]) -> np.ndarray:
    """[rows, numbers]: of equally many numbers, 0 or more."""
    if not counts or not len(counts[0]) or len({len(row) for row in counts}) > 1:
        raise ValueError(f"there must be rows of equally many counts: got lengths {[len(row) for row in counts][:8]}.")
    load = np.array(counts, dtype=float)
    if not (np.isfinite(load).all() and (load >= 0).all()):
        raise ValueError("every count must be 0 or more, and finite: got others; count them again.")
    return load


def _in_blocks(load: np.ndarray) -> tuple[int, list[int], np.ndarray]:
    """Blocks of neighbouring steps: how many steps in each, so that all can be drawn, first rows, and means."""
    size = -(-load.size // MAX_SQUARES)
    starts = list(range(0, len(load), size))
    lengths = np.diff([*starts, len(load)])
    return size, starts, np.add.reduceat(load, starts, axis=0) / lengths[:, None]


def _load_summary(steps: Sequence[int], share: np.ndarray, block: int) -> str:
    busiest = share.max(axis=1)
    worst = int(busiest.argmax())
    ends = f"{busiest[0]:.2f} at step {steps[0]:,}, {busiest[-1]:.2f} at step {steps[-1]:,}"
    joined = f", means of {block} steps" if block > 1 else ""
    return (
        f"The busiest of {plural(share.shape[1], 'experts')} over the mean: {ends}; "
        f"at most {busiest[worst]:.2f}, at step {steps[worst]:,}{joined}."
    )


def _over(load: float, mean: float) -> float:
    return load / mean if mean else 1.0
