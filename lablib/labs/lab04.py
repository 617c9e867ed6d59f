"""Lab 04: cuts of a batch, learning rates, the critical batch size and muP."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, frexp, isfinite, log2, log10
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from lablib.batches.accumulation import IGNORED
from lablib.batches.large_batch import linear_rate, square_root_rate
from lablib.batches.noise_scale import StepsLaw
from lablib.calibration import batch_for, this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, show_source, try_out
from lablib.data import Batch, batches, load_corpus
from lablib.figures import figure_lines, show
from lablib.figures.chart import (
    PLOT_PIXELS,
    ROWS,
    Axis,
    Mark,
    Panel,
    Positions,
    ReferenceLine,
    bars,
    chart,
    line,
    points,
)
from lablib.figures.style import Look
from lablib.hardware.cluster import Cluster
from lablib.memory.measured_peak import measured_peak_bytes
from lablib.models import GPT, GPTConfig, next_token_loss, num_parameters
from lablib.phases import phase
from lablib.signature import NonEmpty, Range, checked
from lablib.text.units import format_quantity
from lablib.widgets import batch_calculator
from lablib.widgets.batch_calculator import split_batch

Runs = Annotated[Sequence[float], NonEmpty()]
Points = Annotated[Mapping[float, Runs], NonEmpty()]  # a setting -> a value of each run
# Panel -> number of a line, such as the width -> rate -> loss in nats of each seed.
Rates = Annotated[Mapping[str, Annotated[Mapping[int, Points], NonEmpty()]], NonEmpty()]
# One `coordinate_check` for each seed: the change of each activation.
Changes = Annotated[Sequence[Annotated[Mapping[str, float], NonEmpty()]], NonEmpty()]
# Name of a line -> position -> one value for each run (or seed).
Lines = Mapping[str, Mapping[float, Sequence[float]]]


# --- Cuts of a batch ---


@checked
def figure_question(sequences: Annotated[int, Range(ge=4, le=16)] = 12) -> go.Figure:
    """Three ways to cut a batch of sequences: in one piece, one piece after another, and on two GPUs."""
    ways = {  # the GPU and the sequences of each piece
        "at once": [(0, sequences)],
        "one after another": [(0, sequences / 3)] * 3,
        "on two GPUs": [(gpu, sequences / 4) for gpu in (0, 0, 1, 1)],
    }
    looks = [Look("GPU 0", "", "#0072B2", "", edge="#FFFFFF"), Look("GPU 1", "", "#E69F00", "/", edge="#FFFFFF")]
    marks = []
    for gpu, look in enumerate(looks):
        for piece in range(4):
            rows = [name for name, pieces in ways.items() if piece < len(pieces) and pieces[piece][0] == gpu]
            sizes = [ways[name][piece][1] for name in rows]
            hover = [
                f"<b>{look.name}</b><br>{name}: {size:g} sequences" for name, size in zip(rows, sizes, strict=True)
            ]
            if rows:
                marks.append(bars(look, look.name, sizes, rows, hover, orientation="h"))
    sentence = (
        f"The same {sequences} sequences, cut in three ways. Is it the same step? And how large should a batch be?"
    )
    columns = {"way": list(ways), "pieces (count)": [len(pieces) for pieces in ways.values()]}
    panel = Panel(Axis("batch", "sequences"), ROWS, marks)
    return chart("One batch, cut into pieces", panel, sentence, columns, pixels=150, barmode="stack")


def padded(index: int, num_sequences: int, seq_len: int) -> Batch:
    """A micro-batch of real text; the end of each sequence is padding."""
    inputs, targets = next(batches(load_corpus(), num_sequences, seq_len, seed=index))
    generator = torch.Generator().manual_seed(index)
    ends = torch.randint(5, seq_len, (num_sequences, 1), generator=generator)
    return Batch(inputs, targets.where(torch.arange(seq_len) < ends, IGNORED))


def gradient(model: nn.Module) -> Tensor:
    """The gradients of all parameters as one vector."""
    return torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None])


def angle(one: Tensor, other: Tensor) -> float:
    """Degrees between two vectors."""
    return float(torch.cosine_similarity(one, other, dim=0).clamp(max=1).arccos().rad2deg())


def law_table(law: StepsLaw, measured: Mapping[int, Sequence[float]]) -> pd.DataFrame:
    """Steps by size of the batch: the least and the most of the runs, and the law."""
    rows = {}
    for size, some in measured.items():
        by_law = law.steps(size)
        place = "within" if min(some) <= by_law <= max(some) else "outside"
        rows[size] = {"runs": f"{min(some):.0f} to {max(some):.0f}", "law": f"{by_law:.0f}", "the law is": place}
    return pd.DataFrame(rows).T.rename_axis("batch")


# --- One batch on this machine, cut in three ways ---

CUTS = {"1 of 16": 16, "4 of 4": 4, "16 of 1": 1}  # micro-batches, and the sequences of each


def config_for(machine: Cluster) -> GPTConfig:
    """A small GPT; its sequences are longer on a GPU."""
    config = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=128)
    return replace(config, max_seq_len=batch_for(machine, 128, 6 * num_parameters(config) * 16 * 128))


def backward_of_16(config: GPTConfig, micro_batch: int) -> None:
    """Backward of 16 sequences, `micro_batch` at a time; the model is part of the phase "setup"."""
    with phase("setup"):
        model, tokens = _make_model(config)
    _backward(model, tokens, micro_batch)


def all_cuts(config: GPTConfig) -> None:
    """Each of CUTS in a phase with its name, after a first, slow call."""
    with phase("setup"):
        model, tokens = _make_model(config)
        _backward(model, tokens, 4)
    for name, micro_batch in CUTS.items():
        with phase(name):
            _backward(model, tokens, micro_batch)


def measured_peaks(config: GPTConfig) -> list[int]:
    """Peak bytes of each of CUTS, measured on this rank's device."""
    return [measured_peak_bytes(backward_of_16, config, size) for size in CUTS.values()]


def _make_model(config: GPTConfig) -> tuple[GPT, Tensor]:
    device = torch.get_default_device()
    return GPT(config, device=device), torch.zeros(16, config.max_seq_len, dtype=torch.long, device=device)


def _backward(model: GPT, tokens: Tensor, micro_batch: int) -> None:
    for part in tokens.split(micro_batch):
        (next_token_loss(model(part), part) * (len(part) / 16)).backward()


def seconds_by_cut(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Seconds of each cut, predicted and measured, and the last over the first."""
    rows = {}
    for place, table in tables.items():
        seconds = table.set_index("name")
        for side in ("predicted", "measured"):
            by_cut = seconds[f"{side}_s"].to_dict()
            row = {name: format_quantity(by_cut[name], "s") for name in CUTS}
            rows[f"{place}, {side}"] = row | {"last over first": f"{by_cut['16 of 1'] / by_cut['1 of 16']:.2f}"}
    return pd.DataFrame(rows).T


# --- The critical batch size ---


@checked
def figure_steps_law(steps: Mapping[int, Sequence[float]], law: StepsLaw, seq_len: int) -> go.Figure:
    """Steps against tokens to the same loss: runs, and the law (S / S_min - 1) (E / E_min - 1) = 1.

    `steps`: batch size in sequences -> steps of each run to the loss.
    """
    sizes = sorted(steps)
    means = {size: sum(steps[size]) / len(steps[size]) for size in sizes}
    min_tokens = law.min_steps * law.critical_batch * seq_len
    low, high = sizes[0] / 4, sizes[-1] * 4
    curve = [low * (high / low) ** (i / 59) for i in range(60)]
    runs = [(size, value) for size in sizes for value in steps[size]]
    labelled = {"mode": "markers+text", "text": [f"{size:,}" for size in sizes], "textposition": "top right"}

    def places(pairs: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """Steps, and tokens read in them, of batch sizes and their steps."""
        rows = list(pairs)
        return [n for _, n in rows], [n * size * seq_len for size, n in rows]

    def words(pairs: Iterable[tuple[int, float]]) -> list[str]:
        return [
            f"<b>{size:,} sequences</b><br>{format_quantity(n, 'steps', 4)}<br>"
            f"{format_quantity(n * size * seq_len, 'tokens')}"
            for size, n in pairs
        ]

    mean = points(0, "mean of a batch size, in sequences", *places(means.items()), words(means.items()))
    marks = [
        line(1, "the law", *places((size, law.steps(size)) for size in curve), ()).styled(mode="lines"),
        points(0, "runs", *places(runs), words(runs), symbol="circle-open", size=7),
        mean.styled(**labelled),
    ]
    upright = {"y": 0, "yanchor": "bottom", "xanchor": "right", "textangle": -90, "xshift": -4}
    rules = [
        ReferenceLine(x=law.min_steps, text="fewest steps", line={"dash": "dot"}, look=upright),
        # Below the line, as the law is above it.
        ReferenceLine(y=min_tokens, text="fewest tokens", place="bottom right", line={"dash": "dot"}),
    ]
    xs, ys = [law.min_steps, *(v for _, v in runs)], [min_tokens, *(v * s * seq_len for s, v in runs)]
    panel = Panel(
        _decades(xs, "steps to the loss", "count"), _decades(ys, "text read to the loss", "tokens"), marks, rules
    )
    first, last = sizes[0], sizes[-1]
    tokens = {size: format_quantity(means[size] * size * seq_len) for size in (first, last)}
    sentence = (
        f"From {first:,} to {last:,} sequences a step, steps go from {format_quantity(means[first])} to "
        f"{format_quantity(means[last])}, tokens from {tokens[first]} to {tokens[last]}; the law: at least "
        f"{format_quantity(law.min_steps)} steps, twice that at the critical batch of "
        f"{format_quantity(law.critical_batch)} sequences."
    )
    columns = {
        "batch (sequences)": sizes,
        "steps": [means[size] for size in sizes],
        "least": [min(steps[size]) for size in sizes],
        "most": [max(steps[size]) for size in sizes],
        "steps by the law": [law.steps(float(size)) for size in sizes],
        "tokens": [means[size] * size * seq_len for size in sizes],
    }
    return chart("Steps against tokens to the same loss", panel, sentence, columns)


def _decades(values: Sequence[float], label: str, unit: str) -> Axis:
    """Logarithmic, from a little below the least value to a little above the greatest; ticks at 1, 2, 5, 10, 20."""
    ends = min(values) / 1.32, max(values) * 1.32
    ticks = [digit * 10.0**e for e in range(floor(log10(ends[0])), ceil(log10(ends[1]))) for digit in (1, 2, 5)]
    return Axis(label, unit, log=True, ticks={tick: format_quantity(tick, "count") for tick in ticks}, span=ends)


# --- Learning rates ---


@checked
def figure_schedules(
    factors: Annotated[Mapping[str, Positions], NonEmpty()],
    losses: Mapping[str, Annotated[Sequence[tuple[int, float]], NonEmpty()]],
    title: str,
) -> go.Figure:
    """Above, the rate of each schedule; below, the held-out loss of a run under it.

    Args:
        factors: name -> part of the peak rate at each step, from step 0.
        losses: name -> (step, loss in nats) of a run, for some of the schedules.
    """
    if unknown := losses.keys() - factors.keys():
        raise ValueError(f"losses must be of the schedules {list(factors)}: got {sorted(unknown)}; give their factors.")
    rates, runs = [], []
    for index, (name, values) in enumerate(factors.items()):
        words = [f"<b>{name}</b><br>step {step:,}: {value:.3g} of the peak" for step, value in enumerate(values)]
        rates.append(line(index, name, range(len(values)), values, words).styled(mode="lines"))
        if name in losses:
            words = [f"<b>{name}</b><br>step {step:,}: {loss:.4g} nats" for step, loss in losses[name]]
            at, nats = zip(*losses[name], strict=True)
            runs.append(line(index, name, at, nats, words))
    steps = Axis("step", "count")
    upper, lower = (
        Panel(steps, Axis("rate", "of peak", span=(0, 1.08)), rates),
        Panel(steps, Axis("held-out loss", "nats"), runs),
    )
    columns: dict[str, Sequence[object]] = {
        "schedule": list(factors),
        "steps": [len(values) for values in factors.values()],
        "mean rate (of peak)": [format_quantity(sum(values) / len(values)) for values in factors.values()],
        "last rate (of peak)": [format_quantity(values[-1]) for values in factors.values()],
        "last loss (nats)": [losses[name][-1][1] if name in losses else None for name in factors],
    }
    ends = sorted((run[-1][1], name, run[-1][0]) for name, run in losses.items())
    sentence = f"Held-out loss at the end: {', '.join(f'{n} {v:.3f} nats (step {s:,})' for v, n, s in ends)}."
    return chart(title, [upper, lower], sentence, columns, pixels=(150, PLOT_PIXELS))


@checked
def figure_coordinates(
    changes: Annotated[Mapping[str, Annotated[Mapping[int, Changes], NonEmpty()]], NonEmpty()],
) -> go.Figure:
    """A panel for each parametrization, a line for each activation: flat is right.

    `changes`: parametrization -> width -> one `coordinate_check` for each seed.
    """
    panels, parts = {}, []
    for parametrization, widths in changes.items():
        names = next(iter(widths.values()))[0]
        if other := [width for width, runs in widths.items() if any(one.keys() != names.keys() for one in runs)]:
            raise ValueError(f"every width must have the activations {list(names)}: see {parametrization}, {other[0]}.")
        lines = {name: {float(width): [one[name] for one in runs] for width, runs in widths.items()} for name in names}
        growths = {name: mean(points[max(points)]) / mean(points[min(points)]) for name, points in lines.items()}
        words = [f"{name} {format_quantity(growth, '', 2)}" for name, growth in growths.items()]
        parts.append(f"{parametrization}: {', '.join(words)}")
        panels[parametrization] = lines
    ends = [width for widths in changes.values() for width in widths]
    sentence = f"Change at width {max(ends):,} over that at {min(ends):,}: {'; '.join(parts)}."
    up = Axis("root mean square of the change", "activation", look={"type": "log"})
    return _spread("Coordinate check", panels, ("width D", "units"), up, sentence)


@checked
def figure_rates(losses: Rates, line: str, title: str) -> go.Figure:
    """Loss against learning rate: a panel for each parametrization or optimizer, a line for each width or batch size.

    Each rate that may be the best of its line has a ring: see `possible_minima`. `line` names the number of a line.
    """
    panels = {
        panel: {f"{line} {number:,}": rates for number, rates in lines.items()} for panel, lines in losses.items()
    }
    numbers = sorted({number for lines in losses.values() for number in lines})
    parts = []
    for panel, lines in panels.items():
        best = [" or ".join(map(_rate, possible_minima(rates))) or "none" for rates in lines.values()]
        parts.append(f"{panel} {', '.join(best)}")
    sentence = f"Best rate at {line} {', '.join(f'{n:,}' for n in numbers)}: {'; '.join(parts)}."
    up = Axis("loss", "nats per byte", look={"type": "linear"})
    return _spread(title, panels, ("peak learning rate", "a step"), up, sentence, rings=True)


@checked
def best_rates_by_batch(losses: Rates) -> pd.DataFrame:
    """For each optimizer and batch size: rates that may be best, the lowest loss, and two rules from batch 8."""
    rows: dict[str, dict[str, str]] = {}
    for name, by_batch in losses.items():
        best_of_8 = minimum_at(by_batch[8])
        for size, rates in by_batch.items():
            rings = possible_minima(rates)
            row = {"may be best": ", ".join(map(_rate, rings)), "the lowest": _mean_and_ends(rates[minimum_at(rates)])}
            for rule in (square_root_rate, linear_rate):
                rate = rule(best_of_8, 8, size)
                words = f"2^{log2(rate):.0f}: {_mean_and_ends(rates.get(rate, []))}"
                row[rule.__name__] = f"{words}, a ring" if rate in rings else words
            rows[f"{name}, batch {size}"] = row
    return pd.DataFrame(rows).T


@checked
def adamw_and_lamb(losses: Rates, size: int) -> str:
    """Losses of both at their best rates for a batch size, and whether their runs differ."""
    adamw, lamb = (losses[name][size][minimum_at(losses[name][size])] for name in ("adamw", "lamb"))
    is_apart = (max(adamw) < min(lamb) or max(lamb) < min(adamw)) and len(adamw) > 1 < len(lamb)
    verdict = "apart" if is_apart else "not told apart by these runs"
    return f"AdamW {_mean_and_ends(adamw)}, LAMB {_mean_and_ends(lamb)}: {verdict}"


@checked
def best_rates_by_width(losses: Rates) -> pd.DataFrame:
    """For each parametrization and width: the rates that may be best, the lowest mean loss, and its number of runs."""
    rows = {}
    for name, by_width in losses.items():
        for width, rates in by_width.items():
            lowest = rates[minimum_at(rates)]
            row = {"may be best": ", ".join(map(_rate, possible_minima(rates))), "lowest loss": f"{mean(lowest):.3f}"}
            rows[f"{name}, width {width}"] = row | {"runs": len(lowest)}
    return pd.DataFrame(rows).T


def _mean_and_ends(losses: Sequence[float]) -> str:
    if not losses:
        return "not run"
    runs = f"{min(losses):.2f} to {max(losses):.2f}" if len(losses) > 1 else "one run"
    return f"{sum(losses) / len(losses):.2f} ({runs})"


def _spread(
    title: str, panels: Mapping[str, Lines], across: tuple[str, str], up: Axis, sentence: str, rings: bool = False
) -> go.Figure:
    """Means over runs against a setting, with bars from the least to the greatest value; without diverged runs."""
    for name, by_x in ((name, by_x) for lines in panels.values() for name, by_x in lines.items()):
        heights = [value for runs in by_x.values() for value in runs] if up.look.get("type") == "log" else []
        if not all(value > 0 for value in (*by_x, *heights)):
            raise ValueError(f"a logarithmic axis needs numbers above 0: {name!r} has another; leave it out.")
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    xs = sorted({x for lines in panels.values() for runs in lines.values() for x in runs})
    room = 0.04 * (log10(xs[-1]) - log10(xs[0])) + 0.02
    ticks = {x: f"2<sup>{e}</sup>" if x < 1 and (e := _power_of_two(x)) is not None else f"{x:,g}" for x in xs}
    axis = Axis(*across, log=True, ticks=ticks, span=(xs[0] / 10**room, xs[-1] * 10**room))
    drawn = []
    for panel, lines in panels.items():
        marks = []
        for name, values in lines.items():
            marks.append(_means(name, names.index(name), values, axis, up))
            if rings and (best := possible_minima(values)):
                ring: dict[str, Any] = {"symbol": "circle-open", "size": 17, "line": {"width": 2.5}}
                marks.append(points(names.index(name), "", best, [mean(values[x]) for x in best], (), **ring))
        drawn.append(Panel(axis, up, marks, title=panel))
    rows = [
        (panel, name, x, [v for v in runs[x] if isfinite(v)], len(runs[x]))
        for panel, lines in panels.items()
        for name, runs in lines.items()
        for x in sorted(runs)
    ]
    columns: dict[str, Sequence[Any]] = {"panel": [row[0] for row in rows]} if len(panels) > 1 else {}
    columns |= {
        "line": [row[1] for row in rows],
        axis.label: [row[2] for row in rows],
        "mean": [mean(row[3]) if row[3] else None for row in rows],
        "least": [min(row[3], default=None) for row in rows],
        "most": [max(row[3], default=None) for row in rows],
        "runs": [row[4] for row in rows],
        "diverged": [row[4] - len(row[3]) for row in rows],
    }
    return chart(title, drawn, sentence, columns)


def _means(name: str, index: int, values: Mapping[float, Sequence[float]], across: Axis, up: Axis) -> Mark:
    drawn = {x: [v for v in values[x] if isfinite(v)] for x in sorted(values) if isfinite(mean(values[x]))}
    words = []
    for x, runs in drawn.items():
        ends = f"{format_quantity(min(runs), '', 4)} to {format_quantity(max(runs), '', 4)}, {len(runs)} runs"
        middle = format_quantity(mean(runs), up.unit, 4)
        words.append(f"<b>{name}</b><br>{across.label} {format_quantity(x, across.unit)}<br>{middle} ({ends})")
    bar = list(map(min, drawn.values())), list(map(max, drawn.values()))
    return line(index, name, list(drawn), list(map(mean, drawn.values())), words, bar)


def mean(values: Sequence[float]) -> float:
    """Of the finite ones; infinite if there is none."""
    finite = [value for value in values if isfinite(value)]
    return sum(finite) / len(finite) if finite else float("inf")


def minimum_at(points: Mapping[float, Sequence[float]]) -> float:
    """The position of the least mean, among the positions with the most runs, all finite; one run may be luck."""
    most = max(map(len, points.values()))
    whole = {x: runs for x, runs in points.items() if len(runs) == most and all(map(isfinite, runs))}
    return min(points, key=lambda x: mean(points[x]) if x in whole else float("inf"))


def possible_minima(points: Mapping[float, Sequence[float]]) -> list[float]:
    """Positions with one value, or more, within the bar of the least, in order; without positions of infinite runs."""
    top = max(points[minimum_at(points)])
    return [x for x in sorted(points) if all(map(isfinite, points[x])) and isfinite(top) and min(points[x]) <= top]


def _rate(rate: float) -> str:
    """ "2^-8" for a power of two."""
    power = _power_of_two(rate)
    return format_quantity(rate, "", 2) if power is None else f"2^{power}"


def _power_of_two(x: float) -> int | None:
    """The e of x = 2^e; None for other numbers."""
    mantissa, exponent = frexp(x)
    return exponent - 1 if mantissa == 0.5 else None
