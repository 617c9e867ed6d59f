"""Lab 14: orders of a mesh's axes, attention that ranks share, load of experts, a mixture next to dense models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated, Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.chart import (
    ROWS,
    Axis,
    Mark,
    Panel,
    ReferenceLine,
    Series,
    bars,
    chart,
    check_lengths,
    line,
    points,
)
from lablib.figures.lines import figure_lines
from lablib.figures.style import COMPUTE, FAINT_INK, LOOKS, Look, series_look
from lablib.plan.prediction import Prediction
from lablib.signature import NonEmpty, NonNegative, checked
from lablib.studies.expert_against_dense import AgainstDense
from lablib.studies.placement import PlacedMesh
from lablib.text.units import format_quantity, plural

# --- Orders of a mesh's axes ---

MOST_ROWS = 24  # more orders are drawn as the fastest, and the slowest one
# From near to far: darker, with different patterns; the look, and the words of the table.
LEVELS = {
    "node": (Look("inside the node", "", "#BFE3D5", ""), "inside the node"),
    "rail": (Look("along a rail", "", "#56B4E9", "/"), "to the same place of another node"),
    "across": (Look("across rails", "", "#40407A", "x", ink="#FFFFFF"), "elsewhere"),
}


@checked
def figure_placements(placements: Annotated[Sequence[PlacedMesh], NonEmpty()], title: str) -> go.Figure:
    """A row for each order of the axes (far apart to neighbours): left the step, right the bytes sent.

    Args:
        placements: of `lablib.studies.placements`, the fastest first. Of more than 24 the fastest and the slowest are
            drawn; the table has all.
    """
    is_cut = len(placements) > MOST_ROWS
    drawn = [*placements[: MOST_ROWS - 1], placements[-1]] if is_cut else list(placements)
    names = [_order(one) for one in drawn]
    sideways: dict[str, Any] = {"orientation": "h", "width": 0.62}
    waits = [min(sum(one.exposed_s.values()), one.step_time_s) for one in drawn]
    rest = [one.step_time_s - wait for one, wait in zip(drawn, waits, strict=True)]
    times, sizes = [], []
    kinds = ((COMPUTE, "compute, bubble, optimizer", rest), (LOOKS["communication"], "waiting for wires", waits))
    for look, name, seconds in kinds:
        words = [
            f"<b>{row}</b><br>{name}: {format_quantity(s, 's')} of {format_quantity(one.step_time_s, 's')}"
            for row, s, one in zip(names, seconds, drawn, strict=True)
        ]
        times.append(bars(look, name, seconds, names, words, **sideways))
    for level, (look, _) in LEVELS.items():
        sent = [_sent(one, level) for one in drawn]
        words = []
        for row, size, one in zip(names, sent, drawn, strict=True):
            axes = [f"{a} {format_quantity(by[level], 'B')}" for a, by in one.sent_bytes.items() if by[level]]
            words.append("<br>".join([f"<b>{row}</b>", f"{look.name}: {format_quantity(size, 'B')}", *axes]))
        if any(sent):
            sizes.append(bars(look, look.name, sent, names, words, **sideways))
    longest_s, most = max(one.step_time_s for one in drawn), max(_sent(one, *LEVELS) for one in drawn)
    left = Panel(Axis("time of a step", "s", span=(0, 1.06 * longest_s)), ROWS, times)
    right = Panel(Axis("sent by a rank in a step", "B", span=(0, 1.06 * most)), ROWS, sizes)
    columns: dict[str, list[Any]] = {
        "order, far apart to neighbours": list(map(_order, placements)),
        "step (s)": [one.step_time_s for one in placements],
    }
    for axis in dict.fromkeys(axis for one in placements for axis in one.sent_bytes):
        columns[f"waits for {axis} (s)"] = [one.exposed_s.get(axis, 0.0) for one in placements]
    for level, (_, words) in LEVELS.items():
        columns[f"sent {words} (B)"] = [_sent(one, level) for one in placements]
    note = [f"Of {len(placements)} orders {len(drawn)} are drawn; the table has all"] if is_cut else []
    return chart(title, [left, right], _comparison(placements), columns, note, 30 * len(drawn) + 40, barmode="stack")


def _order(placement: PlacedMesh) -> str:
    """ "data 2, tensor 8": from far apart to neighbours."""
    return ", ".join(f"{axis} {size}" for axis, size in placement.mesh.sizes.items())


def _sent(placement: PlacedMesh, *levels: str) -> float:
    return sum(sum(sent[level] for sent in placement.sent_bytes.values()) for level in levels)


def _comparison(placements: Sequence[PlacedMesh]) -> str:
    best, worst = placements[0], placements[-1]
    time_s = format_quantity(best.step_time_s, "s")
    if len(placements) == 1:
        return f"{_order(best)}: a step takes {time_s}."
    far = [format_quantity(_sent(one, "rail", "across"), "B") for one in (best, worst)]
    return (
        f"Of {plural(len(placements), 'orders')} the fastest, {_order(best)}, takes {time_s}, the slowest, "
        f"{_order(worst)}, {format_quantity(worst.step_time_s, 's')}, {worst.step_time_s / best.step_time_s:.2f} times "
        f"as long; a rank sends {far[0]} to other nodes in the one, {far[1]} in the other."
    )


# --- Long sequences ---


@checked
def figure_context_times(seq_lens: Annotated[Sequence[int], NonEmpty()], efficiencies: Series, title: str) -> go.Figure:
    """Lines of `lablib.studies.context_efficiencies`: at 1, n ranks take 1/n of one device's time.

    Args:
        seq_lens: tokens of the whole sequence.
        efficiencies: way -> 1/n of one device's attention over the time it takes, at each length.
    """
    check_lengths(seq_lens, efficiencies)
    parts = []
    for index, length in enumerate(seq_lens):
        best = max(efficiencies, key=lambda way: efficiencies[way][index])
        parts.append(f"{length:,} tokens {best}, {efficiencies[best][index]:.0%}")
    sentence = f"Nearest to a fair share: {'; '.join(parts)}."
    labels = ("sequence length", "efficiency", "tokens", "of a fair share")
    options = {
        "log_x": True,
        "summary": sentence,
        "rules": [ReferenceLine(y=1.0, text="fair share", place="bottom right")],
    }
    return figure_lines(seq_lens, efficiencies, *labels, title=title, **options).update_yaxes(rangemode="tozero")


# --- Load of experts ---

MAX_SQUARES, MAX_TICKS = 4096, 8  # of a heat map; steps of a larger one are averaged in blocks
# From light to dark, so that it is legible in grey. An even load is in the middle of the first half.
SHADES = ((0.0, "#FFFFFF"), (0.25, "#CFE3F3"), (0.5, "#6FA8D6"), (0.75, "#1F6AA5"), (1.0, "#062B4A"))


@checked
def figure_expert_load(
    counts: Annotated[Sequence[Annotated[Sequence[NonNegative], NonEmpty()]], NonEmpty()],
    steps: Sequence[int],
    title: str,
) -> go.Figure:
    """A heat map of steps and experts: each expert's tokens over the mean of all in that step.

    Args:
        counts: for each step, tokens of each expert.
        steps: their numbers, ascending.
    """
    if len({len(row) for row in counts}) > 1:
        message = f"each step must have a count for each expert: got lengths {[len(row) for row in counts][:8]}."
        raise ValueError(message)
    if len(steps) != len(counts) or list(steps) != sorted(set(steps)):
        raise ValueError(f"steps must ascend, one for each of {len(counts)} rows of counts: got {len(steps)}.")
    load = np.array(counts, dtype=float)
    block = -(-load.size // MAX_SQUARES)
    starts = list(range(0, len(load), block))
    blocks = np.add.reduceat(load, starts, axis=0) / np.diff([*starts, len(load)])[:, None]
    mean = blocks.mean(axis=1, keepdims=True)
    share = np.divide(blocks, mean, out=np.ones_like(blocks), where=mean > 0)
    firsts, experts, top = [steps[start] for start in starts], share.shape[1], max(2, ceil(float(share.max())))
    hover = [
        [f"<b>step {step:,}, expert {e}</b><br>{one:.3g} times the mean" for step, one in zip(firsts, row, strict=True)]
        for e, row in enumerate(share.T.tolist())
    ]
    marks = [*range(0, top, max(1, -(-top // MAX_TICKS))), top]
    bar = {"title": {"text": "over mean", "font": {"size": 13}}, "thickness": 14, "outlinewidth": 0, "len": 1.0}
    bar |= {"tickvals": marks, "ticktext": list(map(str, marks))}
    look = {"z": share.T, "zmin": 0.0, "zmax": top, "colorscale": list(map(list, SHADES)), "colorbar": bar}
    squares = Mark("", list(range(len(firsts))), list(range(experts)), hover, look=look, trace=go.Heatmap)  # pyright: ignore
    every, down = -(-len(firsts) // MAX_TICKS), -(-experts // MAX_TICKS)
    named = {place: f"{step:,}" for place, step in list(enumerate(firsts))[::every]}
    across = Axis("step", "number", ticks=named, span=(-0.5, len(firsts) - 0.5), look={"showgrid": False})
    rows = {expert: str(expert) for expert in range(0, experts, down)}
    up = Axis("expert", "number", ticks=rows, span=(experts - 0.5, -0.5), look={"showgrid": False})
    busiest = share.max(axis=1)
    worst, joined = int(busiest.argmax()), f", means of {block} steps" if block > 1 else ""
    sentence = (
        f"The busiest of {plural(experts, 'experts')} over the mean: {busiest[0]:.2f} at step {firsts[0]:,}, "
        f"{busiest[-1]:.2f} at step {firsts[-1]:,}; at most {busiest[worst]:.2f}, at step {firsts[worst]:,}{joined}."
    )
    columns = {
        "step": firsts,
        "busiest (of the mean)": busiest.tolist(),
        "least (of the mean)": share.min(axis=1).tolist(),
    }
    figure = chart(title, Panel(across, up, [squares]), sentence, columns, showlegend=False)
    return figure.update_layout(margin_b=64)  # without a legend


@checked
def figure_rank_loads(
    loads: Annotated[Mapping[str, Annotated[Sequence[NonNegative], NonEmpty()]], NonEmpty()], title: str
) -> go.Figure:
    """A bar for each rank and placement of experts, and a line at the mean, which is the same for all.

    `loads`: placement -> tokens of each rank (`lablib.parallel.ExpertPlacement.rank_loads`).
    """
    first = next(iter(loads.values()))
    num_ranks, width, mean = len(first), 0.8 / len(loads), sum(first) / len(first)
    check_lengths(first, loads)
    if not mean or any(abs(sum(row) / num_ranks - mean) > 1e-6 * mean for row in loads.values()):
        message = f"placements must be of the same tokens: got sums of {[sum(row) for row in loads.values()][:8]}."
        raise ValueError(message)
    marks, busiest = [], []
    for index, (name, row) in enumerate(loads.items()):
        look, place = series_look(index), (index - (len(loads) - 1) / 2) * width
        words = [
            f"<b>rank {rank}: {name}</b><br>{format_quantity(one, 'tokens')}, {one / mean:.3g} times the mean"
            for rank, one in enumerate(row)
        ]
        places = [rank + place for rank in range(num_ranks)]
        marks.append(bars(Look(name, "", look.color, look.pattern), name, places, row, words, width=width))
        busiest.append(f"{name} {max(row) / mean:.2f}")
    named = {rank: str(rank) for rank in range(num_ranks)}
    ends = (-0.5, 1.08 * num_ranks - 0.5)  # room for "mean"
    across = Axis("rank", "number", ticks=named, span=ends, look={"showgrid": False})
    panel = Panel(across, Axis("load", "tokens", from_zero=True), marks, [ReferenceLine(y=mean, text="mean")])
    sentence = f"The busiest of {plural(num_ranks, 'ranks')} over the mean: {'; '.join(busiest)}."
    columns = {"rank": list(range(num_ranks))} | {f"{name} (tokens)": list(row) for name, row in loads.items()}
    return chart(title, panel, sentence, columns, barmode="overlay")


# --- A mixture and dense models ---

MODELS = {"active": "dense, as many FLOPs", "mixture": "mixture", "total": "dense, as many parameters"}


@checked
def figure_expert_times(compared: Annotated[Sequence[AgainstDense], NonEmpty()], title: str) -> go.Figure:
    """Tokens per second and GPU of three models; a cross on the axis for a model that does not fit.

    `compared`: of `lablib.studies.against_dense`, by ascending number of GPUs.
    """
    places = [str(one.num_gpus) for one in compared]
    columns: dict[str, Sequence[Any]] = {"GPUs": [one.num_gpus for one in compared]}
    marks, missing = [], {}
    for index, (key, name) in enumerate(MODELS.items()):
        found: dict[str, Prediction | None] = {
            place: getattr(one, key) for place, one in zip(places, compared, strict=True)
        }
        fits = {place: each for place, each in found.items() if each}
        rates = [each.tokens_per_s_per_gpu for each in fits.values()]
        marks.append(line(index, name, list(fits), rates, [_words(name, each) for each in fits.values()]))
        for place in found.keys() - fits.keys():
            missing.setdefault(place, []).append(name)
        columns |= {
            f"{name} (tokens/s a GPU)": [each and each.tokens_per_s_per_gpu for each in found.values()],
            f"{name}: MFU": [each and each.mfu for each in found.values()],
            f"{name}: memory (B)": [each and each.peak_memory_bytes for each in found.values()],
        }
    if missing:  # a cross on the axis
        crosses = [place for place in places if place in missing]
        hover = [f"<b>{plural(int(n), 'GPUs')}</b><br>{'; '.join(missing[n])}: no plan fits" for n in crosses]
        cross = {"symbol": "x", "size": 11, "color": FAINT_INK}
        marks.append(points(0, "a model does not fit", crosses, [0.0] * len(crosses), hover, **cross))
    columns["rows of an expert"] = [one.rows for one in compared]
    columns["mixture at least (B)"] = [one.least_bytes for one in compared]
    order = {"type": "category", "categoryorder": "array", "categoryarray": places}
    panel = Panel(Axis("GPUs", "count", look=order), Axis("rate of a GPU", "tokens/s", from_zero=True), marks)
    parts = []
    for one in compared:
        speed = "fits alone" if one.speed is None else f"{one.speed:.2f}"
        if one.mixture is None:
            speed = f"does not fit, {format_quantity(one.least_bytes, 'B')} a GPU at least"
        parts.append(f"on {plural(one.num_gpus, 'GPUs')} {speed}")
    sentence = f"The mixture's rate over that of the dense model of as many FLOPs: {'; '.join(parts)}."
    return chart(title, panel, sentence, columns)


def _words(name: str, each: Prediction) -> str:
    plan = f"micro-batch {each.micro_batch}, recomputation {each.recompute}"
    return (
        f"<b>{name}</b>, {plural(each.num_gpus, 'GPUs')}<br>{each.tokens_per_s_per_gpu:,.0f} tokens/s a GPU, "
        f"MFU {each.mfu:.0%}<br>{each.parallel}; {plan}<br>{format_quantity(each.peak_memory_bytes, 'B')} a GPU"
    )
