"""Lab 05: effects of an optimizer's update on a gradient, and recorded runs of optimizers compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import plotly.graph_objects as go

from lablib.figures.chart import (
    PLOT_PIXELS,
    Axis,
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
from lablib.signature import NonEmpty, checked
from lablib.studies.optimizers import Difference, OptimizerResult
from lablib.text.units import plural

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
    title = "Error of 8-bit numbers beside one outlier"
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
    across = Axis(f"loss less {reference}'s", "nats a byte; left is better")
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
    title, sentence = f"Final loss less that of {reference}", f"Final loss: {'; '.join(parts)}."
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
    panel = Panel(Axis("time", "thousands of tokens of AdamW's"), Axis("held-out loss", "nats a byte"), marks)
    sentence = f"Held-out loss at the end, in nats a byte: {ends or 'none'}."
    return chart("Held-out loss against time", panel, sentence, columns)


@checked
def figure_loss_and_bytes(results: Mapping[str, OptimizerResult]) -> go.Figure:
    """Final loss, every seed of it, against the bytes per parameter that a step needs: left and down is better."""
    sizes = {name: result.needed_bytes_per_parameter for name, result in results.items()}
    marks = []
    for index, (name, result) in enumerate(results.items()):
        losses = list(result.losses.values())
        mean = sum(losses) / len(losses)
        words = f"<b>{name}</b><br>{sizes[name]:.2f} bytes a parameter<br>{mean:.3f} nats"
        marks.append(points(index, name, [sizes[name]], [mean], [words], ([min(losses)], [max(losses)])))
    ordered = sorted(results, key=sizes.__getitem__)
    # A smaller range has too few powers of ten to read.
    is_wide = bool(ordered) and sizes[ordered[-1]] > 50 * sizes[ordered[0]]
    across = Axis("what a step needs for each parameter", "B", log=is_wide, from_zero=not is_wide)
    sentence = ""
    if ordered:
        best = min(results, key=lambda name: results[name].loss)
        sentence = (
            f"{ordered[0]} takes fewest bytes a parameter, {sizes[ordered[0]]:.2f}; {best} has the "
            f"least loss, {results[best].loss:.3f} nats, with {sizes[best]:.2f}."
        )
    columns: dict[str, Sequence[object]] = {
        "optimizer": ordered,
        "what a step needs (B/parameter)": [round(sizes[name], 3) for name in ordered],
        "loss (nats)": [round(results[name].loss, 4) for name in ordered],
    }
    panel = Panel(across, Axis("final loss, least to largest seed", "nats a byte"), marks)
    return chart("Final loss against what a step needs", panel, sentence, columns, pixels=PLOT_PIXELS + 60)
