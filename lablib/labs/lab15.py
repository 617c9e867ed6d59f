"""Lab 15: attention that ranks share, load of experts, a mixture next to dense models; its notebook's one import."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import ceil
from typing import Annotated, Any

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from lablib.course import checks_for, guess
from lablib.figures import show
from lablib.figures.chart import Axis, Mark, Panel, ReferenceLine, Series, bars, chart, check_lengths, line, points
from lablib.figures.lines import figure_lines
from lablib.figures.style import COMPUTE, FAINT_INK, MEMORY_LOOKS, Look, series_look
from lablib.plan.prediction import Prediction
from lablib.signature import NonEmpty, NonNegative, checked
from lablib.studies.expert_against_dense import AgainstDense
from lablib.studies.expert_runs import recorded_expert_runs
from lablib.text.units import format_quantity, plural

# --- Question ---

LLAMA_3_8B = 32 * 4096 * 2  # bytes of one token's layer inputs, in 16 bits: 32 layers of width 4,096
# Billions of parameters: of the model, used by a token. arXiv 2401.04088, 2409.02060, 2412.19437
ANSWERS = {"experts": [2, 4], "place": "inside", "way": "ulysses"}  # not visible in the notebook before a guess locks
MIXTURES = {"Mixtral 8x7B": (46.7, 12.9), "OLMoE": (6.9, 1.3), "DeepSeek-V3": (671.0, 37.0)}


def figure_question() -> go.Figure:
    """Left the layers' inputs of one text, right the parameters of mixtures of experts."""
    lengths = {"8 thousand": 8192, "128 thousand": 131_072, "a million": 1_048_576}
    sizes = [LLAMA_3_8B * tokens for tokens in lengths.values()]
    kept = bars(MEMORY_LOOKS["activation"], "inputs of the layers", list(lengths), sizes, width=0.5)
    limit = [ReferenceLine(y=80e9, text="memory of an H100", place="top left")]
    left = Panel(Axis("tokens of one text"), Axis("kept for backward", "B", from_zero=True), [kept], limit)
    of_model, used = zip(*MIXTURES.values(), strict=True)
    both = [
        bars(MEMORY_LOOKS["parameter"], "parameters of the model", list(MIXTURES), of_model),
        bars(COMPUTE, "used by a token", list(MIXTURES), used),
    ]
    right = Panel(
        Axis("model"), Axis("parameters, billions", log=True, ticks={10.0**n: f"{10**n:,}" for n in range(4)}), both
    )
    sentence = "One text may be too long for a GPU, and one layer too wide. Which GPU holds what?"
    columns = {
        "tokens": list(lengths.values()),
        "inputs of layers (B)": sizes,
        "model": list(MIXTURES),
        "parameters (10^9)": list(of_model),
        "used by a token (10^9)": list(used),
    }
    return chart(
        "A long text in Llama 3 8B, and models with many experts", [left, right], sentence, columns, pixels=200
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


# --- Small runs ---


def text_batches(sequences: int = 8, seq_len: int = 64) -> Iterator[Tensor]:
    """Batches of the course's text, one token per byte, drawn at random: [sequences, seq_len + 1]."""
    from lablib.data.text import load_corpus

    tokens, drawn = load_corpus().tokens[: 2**20], torch.Generator().manual_seed(0)
    while True:
        first = torch.randint(len(tokens) - seq_len, (sequences, 1), generator=drawn)
        yield tokens[first + torch.arange(seq_len + 1)].long()


def trained(model: nn.Module, steps: int) -> list[float]:
    """Train in place on `text_batches`, with AdamW; the loss of each step, in nats per byte."""
    from lablib.models import next_token_loss

    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for batch in islice(text_batches(), steps):
        optimizer.zero_grad()
        loss = next_token_loss(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
