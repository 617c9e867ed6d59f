"""Lab 05: a narrow valley, effects of an update on a gradient, recorded runs, and steps of optimizers on a machine."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from math import cos, pi, sin, sqrt
from typing import Annotated, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from lablib.calibration import this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, show_source, try_out
from lablib.data import batches, load_corpus, train_val_split
from lablib.figures import show
from lablib.figures.chart import (
    PLOT_PIXELS,
    Axis,
    Mark,
    Panel,
    Positions,
    ReferenceLine,
    Series,
    chart,
    check_lengths,
    line,
    points,
)
from lablib.figures.lines import figure_lines
from lablib.figures.style import FAINT_INK, INK, series_look
from lablib.launch import launch
from lablib.models import next_token_loss
from lablib.optim.adafactor import Adafactor
from lablib.optim.adam8bit import Adam8bit
from lablib.optim.adamw import AdamW
from lablib.optim.effects import block_errors, singular_values
from lablib.optim.lion import Lion
from lablib.optim.memory import OPTIMIZERS, state_bytes
from lablib.optim.muon import Muon
from lablib.optim.newton_schulz import newton_schulz
from lablib.phases import phase
from lablib.signature import NonEmpty, Range, checked
from lablib.studies import optimizer_experiment as experiment
from lablib.studies.optimizer_trial import ADAM, kinds
from lablib.studies.optimizers import Difference, OptimizerResult, about, difference, recorded_results
from lablib.text.units import format_quantity, plural
from lablib.widgets import LogSlider, explore

momentum = partial(torch.optim.SGD, momentum=0.9)
without_decay = partial(AdamW, weight_decay=0.0)


@checked
def figure_question(rate: Annotated[float, Range(gt=0, le=0.09)] = 0.085) -> go.Figure:
    """Gradient descent in a valley of two weights, with curvatures 1 and 20, and lines of equal loss."""
    flat, steep, w = 1.0, 20.0, (-4.0, 0.8)
    turns = [2 * pi * k / 60 for k in range(61)]
    xs: list[float | None] = []
    ys: list[float | None] = []
    for loss in (0.5, 2.0, 5.0, 10.0):
        xs += [sqrt(2 * loss / flat) * cos(turn) for turn in turns] + [None]
        ys += [sqrt(2 * loss / steep) * sin(turn) for turn in turns] + [None]
    equal = Mark("equal loss", xs, ys, (), look={"mode": "lines", "line": {"color": FAINT_INK, "width": 1}})
    path = [w]
    for _ in range(25):
        w = (1 - rate * flat) * w[0], (1 - rate * steep) * w[1]
        path.append(w)
    x, y = [x for x, _ in path], [y for _, y in path]
    steps = line(0, "25 steps without state", x, y, [f"step {k}" for k in range(26)])
    least = points(1, "lowest loss", [0.0], [0.0], ["<b>lowest loss</b>"], size=12)
    sentence = "Steep across, flat along: the steps jump from side to side. What would a memory of past steps buy?"
    across, up = Axis("first weight", span=(-5, 5)), Axis("second weight", span=(-1.2, 1.2))
    columns = {"step": list(range(26)), "first weight": x, "second weight": y}
    panel = Panel(across, up, [equal, steps, least])
    return chart("Gradient descent in a valley", panel, sentence, columns, pixels=200)


def gradient_sizes(model: nn.Module) -> pd.DataFrame:
    """Root mean square of the gradient of three matrices in each of two blocks."""
    sizes: dict[str, dict[str, str]] = {}
    for name in ("attention.out.weight", "mlp.up.weight", "attention.query.weight"):
        for block in (0, 1):
            grad = model.get_parameter(f"blocks.{block}.{name}").grad
            assert grad is not None
            sizes.setdefault(name, {})[f"block {block}"] = f"{grad.square().mean().sqrt():.1e}"
    return pd.DataFrame(sizes).T.rename_axis("rms of the gradient")


def state_per_parameter(size: int, rank: int = 64) -> pd.DataFrame:
    """Bytes of state per number of a square matrix: counted in the tensors, by the simulator, by formula."""

    def step(name: str) -> int:
        weight, kind = nn.Parameter(torch.ones(size, size)), kinds(size)[name]
        weight.grad = torch.eye(size)
        optimizer = kind.make([weight], lr=1e-3, **kind.options)
        optimizer.step()
        return optimizer.state_bytes()

    rows = {}
    for name in OPTIMIZERS:
        run = launch(step, name, ranks=1)
        states = [block.size_bytes for block in run.memory.allocations if block.category == "optimizer state"]
        found = {"counted": run.values[0], "simulator": sum(states)}
        found["formula"] = state_bytes(name, (size, size), rank=rank)
        rows[name] = {way: round(size_bytes / size**2, 3) for way, size_bytes in found.items()}
    return pd.DataFrame(rows).T


def print_trials(results: Mapping[str, OptimizerResult]) -> None:
    """Where and when the trials ran, and how many settings were searched."""
    counts = {one.num_trials: name for name, one in results.items()}
    least, most = min(counts), max(counts)
    print_text(about())
    print(f"settings searched: {least} ({counts[least]}) to {most} ({counts[most]})")
    losses = "  ".join(f"{loss:.3f}" for loss in results["adamw"].losses.values())
    print(f"AdamW at its best rate, {results['adamw'].lr:g}, five seeds: {losses}")


def loss_when_done(result: OptimizerResult, other: OptimizerResult) -> float:
    """The held-out loss of a run at the time at which another one ends."""
    end = other.tokens[-1] * other.step_ratio
    return float(np.interp(end, [result.step_ratio * tokens for tokens in result.tokens], result.curve))


def largest_over_rms(states: Sequence[Mapping[str, Tensor]], keys: Sequence[str] = ("exp_avg", "exp_avg_sq")) -> float:
    """The largest number of all states, in units of its tensor's rms."""
    means = [state[key] for state in states for key in keys]
    return max(float(one.abs().max() / one.double().square().mean().sqrt()) for one in means)


# --- Steps of optimizers on this machine ---

STEPPED: dict[str, Callable[..., Any]] = {
    "SGD": partial(torch.optim.SGD, lr=1e-3, foreach=True),
    "Lion": Lion,
    "AdamW": AdamW,
    "Adafactor": Adafactor,
    "Adam8bit": Adam8bit,
    "Muon": Muon,
}
SHOWN = ("token_embedding.weight", "blocks.0.mlp.up.weight", "blocks.0.mlp.up.bias")


def steps(width: int, count: int = 8) -> None:
    """A step of each of STEPPED, in a phase with its name, on `count` square matrices; first steps are in the setup."""
    with phase("setup"):
        device = torch.get_default_device()
        weights = [nn.Parameter(torch.randn(width, width, device=device)) for _ in range(count)]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        made = {name: make(weights) for name, make in STEPPED.items()}
        for optimizer in made.values():
            optimizer.step()
    for name, optimizer in made.items():
        with phase(name):
            optimizer.step()


def this_computer() -> tuple[int, dict[str, Any]]:
    """The width of `steps` for this computer, and options of `reconcile`."""
    real = "nccl" if torch.cuda.device_count() else "gloo"
    fidelity = "shapes" if real == "nccl" else "values"
    options = {"ranks": 1, "backend": real, "cluster": this_machine(2, real), "fidelity": fidelity}
    return (256 if real == "gloo" else 4096), options | {"without": "setup"}


def ratios_to_adamw(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Seconds of each step over AdamW's, and AdamW's in seconds; prints the errors of the predicted ratios."""
    rows = {}
    for place, table in tables.items():
        seconds = table.set_index("name").loc[list(STEPPED), ["predicted_s", "measured_s"]]
        ratios = seconds / seconds.loc["AdamW"]
        off = ratios["predicted_s"] / ratios["measured_s"] - 1
        print(f"{place}: predicted ratios are off by {off.min():+.0%} to {off.max():+.0%}")
        for side in seconds:
            row = {name: f"{ratio:.2f}" for name, ratio in ratios[side].items()}
            row["AdamW"] = format_quantity(seconds[side].to_dict()["AdamW"], "s")
            rows[f"{place}, {str(side).removesuffix('_s')}"] = row
    return pd.DataFrame(rows).T


# --- A learner's step of Muon ---


def train_with(muon_step: Callable[..., Any], num_steps: int = 60, lr: float = 8e-3) -> str:
    """Show the losses of a GPT with a learner's step and with AdamW; print the rms of its first and last step."""
    curves = dict[str, list[float]]()
    steps: dict[str, Callable[..., Any]] = {"your muon_step": muon_step}
    steps["AdamW"] = lambda model, *others: [others[-1](name) for name, _ in model.named_parameters()]
    for label, step in steps.items():
        model = experiment.start("adamw", lr, 0.0, seed=1).model
        params = dict(model.named_parameters())
        each = {name: AdamW([param], lr=lr, betas=ADAM, weight_decay=0.0) for name, param in params.items()}
        means, losses = dict[str, Tensor](), curves.setdefault(label, [])
        text = batches(train_val_split(load_corpus())[0], experiment.BATCH_SIZE, experiment.SEQ_LEN, seed=1)
        for inputs, targets in islice(text, num_steps):
            model.zero_grad()
            loss = next_token_loss(model(inputs), targets)
            loss.backward()
            before = {name: param.detach().clone() for name, param in params.items()}
            step(model, means, lr, 0.95, 0.0, newton_schulz, lambda name, each=each: each[name].step())
            losses.append(loss.item())
            if step is muon_step and len(losses) in (1, num_steps):
                moved = {name: (params[name].detach() - before[name]).square().mean().sqrt() / lr for name in SHOWN}
                print(f"step {len(losses)}: rms over lr", ", ".join(f"{name} {rms:.2f}" for name, rms in moved.items()))
    show(figure_lines(range(num_steps), curves, "step", "loss", "count", "", f"One rate for both, {lr:g}"))
    return ", ".join(f"{label}: last loss {losses[-1]:.2f}" for label, losses in curves.items())


# --- One update: `lablib.optim.effects` gives the arguments, in order ---


@checked
def figure_singular_values(before: Positions, after: Annotated[Mapping[int, Sequence[float]], NonEmpty()]) -> go.Figure:
    """Singular values of a matrix over its norm, largest first, before and after Newton-Schulz steps."""
    series = {f"after {plural(steps, 'steps')}": values for steps, values in after.items()}
    steps, last = list(after.items())[-1]
    near, ratio = sum(0.5 <= value <= 1.5 for value in last), before[0] / max(before[len(before) // 2], 1e-30)
    labels = ("place of a singular value, largest first", "size (an orthogonal matrix has 1)")
    title = "Singular values before and after Newton-Schulz"
    summary = f"Before, the largest of {len(before)} singular values is {ratio:,.0f} times the middle one; "
    summary += f"after {plural(steps, 'steps')} {near} lie between 0.5 and 1.5."
    places = list(range(1, len(before) + 1))
    return figure_lines(places, {"before": before} | series, *labels, title=title, log_y=True, summary=summary)


@checked
def figure_sign_of_noise(
    signals: Positions, mean_signs: Series, mean_steps: Mapping[str, Sequence[float]]
) -> go.Figure:
    """Mean step over lr against the signal in a gradient (its mean over its standard deviation).

    Args:
        mean_signs: name -> mean of Lion's sign at each signal, by formula or measured.
        mean_steps: the same of other optimizers.
    """
    check_lengths(signals, {**mean_signs, **mean_steps})
    name, signs = next(iter(mean_signs.items()))
    half = next((x for x, y in zip(signals, signs, strict=True) if y >= 0.5), None)
    where = "nowhere here" if half is None else f"from a signal of {half:.2g} of the noise on"
    weak = [f"{y / x:.1f}" for x, y in list(zip(signals, signs, strict=True))[:2]]
    labels = ("signal of a gradient (mean over deviation)", "mean step", "", "lr")
    title = "Mean step against the signal in a gradient"
    summary = f"{name}: at least half of a full step {where}; "
    summary += f"at the two weakest its step is {' and '.join(weak)} times the signal."
    return figure_lines(signals, {**mean_signs, **mean_steps}, *labels, title=title, log_x=True, summary=summary)


@checked
def figure_blocks(outliers: Positions, errors: Series) -> go.Figure:
    """Error of 8-bit numbers against the size of one outlier among them, a line for each size of block.

    Args:
        outliers: size of the outlier, in root mean squares of the others.
        errors: name of the block size -> relative error of the others at each, norm over norm.
    """
    check_lengths(outliers, errors)
    middle = len(outliers) // 2
    found = "; ".join(f"{name} {100 * values[middle]:.1f}%" for name, values in errors.items())
    percent = {name: [100 * value for value in values] for name, values in errors.items()}
    labels = ("one outlier (over the root mean square of the others)", "error of the others (norm over norm)", "", "%")
    summary = f"With an outlier of {outliers[middle]:,.0f} root mean squares the others are off by: {found}."
    title = "Error of 8-bit numbers next to one outlier"
    return figure_lines(outliers, percent, *labels, title=title, log_x=True, log_y=True, summary=summary)


@checked
def figure_projection(ranks: Annotated[Sequence[int], NonEmpty()], lost: Series) -> go.Figure:
    """Share of a gradient that a projection loses, against the rank, a line for each gradient or source of directions.

    `lost`: name -> share of the squares that is lost at each rank, 0 to 1.
    """
    check_lengths(ranks, lost)
    third = len(ranks) // 3
    parts = "; ".join(f"{name} {100 * values[third]:.1f}%" for name, values in lost.items())
    percent = {name: [100 * share for share in values] for name, values in lost.items()}
    labels = ("rank of the projection", "share of the gradient's squares that is lost", "count", "%")
    title, summary = "What a projection loses", f"At rank {ranks[third]} of {ranks[-1]} is lost: {parts}."
    return figure_lines([float(rank) for rank in ranks], percent, *labels, title=title, log_x=True, summary=summary)


# --- Recorded runs ---


@checked
def figure_differences(differences: Mapping[str, Difference], reference: str) -> go.Figure:
    """Each optimizer's loss less the reference's: a small mark for each seed, the mean with its 95% interval.

    `differences`: name -> `difference(its losses, losses of the reference)`; the first is drawn on top.
    """
    names, nats = list(differences), [value for one in differences.values() for value in one.each]
    marks, groups = [], {"less than": [], "more than": [], "within noise of": []}
    for place, (is_noise, words) in enumerate(((False, "differs"), (True, "within noise"))):
        chosen = {name: one for name, one in differences.items() if one.is_noise is is_noise}
        hover = [f"<b>{name}</b><br>{one.mean:+.3f} &#177; {one.half_width:.3f} nats" for name, one in chosen.items()]
        means, halves = [one.mean for one in chosen.values()], [one.half_width for one in chosen.values()]
        marker = {"symbol": ("circle", "circle-open")[place], "line": {"width": 2 * place}}
        mark = points(place, f"{words}: mean, 95% interval", means, list(chosen), hover, **marker)
        reach = {"type": "data", "array": halves, "color": series_look(place).color, "thickness": 2, "width": 6}
        marks.append(mark.styled(error_x=reach))
    small = {"symbol": "line-ns", "size": 9, "color": FAINT_INK, "line": {"width": 1.5, "color": FAINT_INK}}
    marks.append(points(0, "a seed", nats, [name for name in names for _ in differences[name].each], (), **small))
    rows = {"categoryorder": "array", "categoryarray": names[::-1], "range": [-0.6, len(names) - 0.4]}
    rule = ReferenceLine(x=0.0, line={"color": INK, "width": 1, "dash": "solid"})
    across = Axis(f"loss less {reference}'s", "nats per byte; left is better")
    panel = Panel(across, Axis("optimizer", "name", look=rows | {"showgrid": False}), marks, [rule])
    for name, one in differences.items():
        groups["within noise of" if one.is_noise else "less than" if one.mean < 0 else "more than"].append(name)
    parts = [f"{', '.join(group)} {word} {reference}" for word, group in groups.items() if group]
    columns = {
        "optimizer": names,
        "mean difference (nats)": [round(one.mean, 4) for one in differences.values()],
        "95%: +- (nats)": [round(one.half_width, 4) for one in differences.values()],
        "within noise": ["yes" if one.is_noise else "no" for one in differences.values()],
    }
    title, sentence = f"Final loss minus the loss of {reference}", f"Final loss: {'; '.join(parts)}."
    return chart(title, panel, sentence, columns, pixels=30 * len(names) + 40)


@checked
def figure_loss_curves(results: Mapping[str, OptimizerResult]) -> go.Figure:
    """Held-out loss against time (tokens times the length of a step over AdamW's), one line for each optimizer.

    The first two looks are left out: the untrained model's loss would flatten the others.
    """
    if len(results) > 8:
        raise ValueError(f"at most 8 lines have different looks: got {len(results)} results; choose some.")
    marks = []
    for index, (name, result) in enumerate(results.items()):
        xs, ys = [1e-3 * result.step_ratio * tokens for tokens in result.tokens[2:]], list(result.curve[2:])
        hover = [f"<b>{name}</b><br>{x:,.0f} thousand<br>{y:.3f} nats" for x, y in zip(xs, ys, strict=True)]
        marks.append(line(index, name, xs, ys, hover))
    ends = "; ".join(f"{name} {result.curve[-1]:.3f}" for name, result in results.items())
    columns: dict[str, Sequence[object]] = {"tokens": list(next(iter(results.values())).tokens)} if results else {}
    columns |= {f"{name} (nats)": [round(loss, 4) for loss in result.curve] for name, result in results.items()}
    panel = Panel(Axis("time", "thousands of tokens of AdamW's"), Axis("held-out loss", "nats per byte"), marks)
    sentence = f"Held-out loss at the end, in nats per byte: {ends or 'none'}."
    return chart("Held-out loss against time", panel, sentence, columns)


@checked
def figure_loss_and_bytes(results: Mapping[str, OptimizerResult]) -> go.Figure:
    """Final loss, every seed of it, against the bytes per parameter that a step needs: left and down is better."""
    sizes = {name: result.needed_bytes_per_parameter for name, result in results.items()}
    marks = []
    for index, (name, result) in enumerate(results.items()):
        losses = list(result.losses.values())
        mean = sum(losses) / len(losses)
        words = f"<b>{name}</b><br>{sizes[name]:.2f} bytes per parameter<br>{mean:.3f} nats"
        marks.append(points(index, name, [sizes[name]], [mean], [words], ([min(losses)], [max(losses)])))
    ordered = sorted(results, key=sizes.__getitem__)
    # A smaller range has too few powers of ten to read.
    is_wide = bool(ordered) and sizes[ordered[-1]] > 50 * sizes[ordered[0]]
    across = Axis("memory of a step per parameter", "B", log=is_wide, from_zero=not is_wide)
    sentence = ""
    if ordered:
        best = min(results, key=lambda name: results[name].loss)
        sentence = (
            f"{ordered[0]} takes fewest bytes per parameter, {sizes[ordered[0]]:.2f}; {best} has the "
            f"least loss, {results[best].loss:.3f} nats, with {sizes[best]:.2f}."
        )
    columns: dict[str, Sequence[object]] = {
        "optimizer": ordered,
        "memory of a step (B/parameter)": [round(sizes[name], 3) for name in ordered],
        "loss (nats)": [round(results[name].loss, 4) for name in ordered],
    }
    panel = Panel(across, Axis("final loss, least to largest seed", "nats per byte"), marks)
    return chart("Final loss against memory of a step", panel, sentence, columns, pixels=PLOT_PIXELS + 60)
