"""Update rules of four optimizers: singular values, signs, 8-bit blocks, projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import check_lengths
from lablib.figures.lines import figure_lines
from lablib.signature import checked
from lablib.text.units import plural


@checked
def figure_singular_values(before: Sequence[float], after: Mapping[int, Sequence[float]]) -> go.Figure:
    """Singular values of a matrix, largest first, over its norm, and after so many steps of Newton-Schulz.

    Args:
        before: each over the norm of all, descending.
        after: number of steps -> what has become of each, in the same order.

    Raises:
        ValueError: nothing to draw, or not one value for each singular value.
    """
    series = {f"after {plural(steps, 'steps')}": list(values) for steps, values in after.items()}
    _check(before, series, "singular value")
    series = {"before": list(before)} | series
    steps, last = list(after.items())[-1]
    near, ratio = sum(0.5 <= value <= 1.5 for value in last), before[0] / max(before[len(before) // 2], 1e-30)
    summary = (
        f"Before, the largest of {len(before)} singular values is {ratio:,.0f} times the middle "
        f"one; after {plural(steps, 'steps')} {near} lie between 0.5 and 1.5."
    )
    return figure_lines(
        list(range(1, len(before) + 1)),
        series,
        "place of a singular value, largest first",
        "size (an orthogonal matrix has 1)",
        "count",
        "",
        "Singular values before and after Newton-Schulz",
        log_y=True,
        summary=summary,
    )


@checked
def figure_sign_of_noise(
    signal_to_noise: Sequence[float],
    mean_signs: Mapping[str, Sequence[float]],
    mean_steps: Mapping[str, Sequence[float]],
) -> go.Figure:
    """Mean step over lr against the signal in a gradient: of the sign of a mean, and of other steps beside it.

    Args:
        signal_to_noise: mean over standard deviation of one gradient.
        mean_signs: name -> mean sign at each, by formula or measured.
        mean_steps: name -> mean step over lr at each, of other optimizers.

    Raises:
        ValueError: nothing to draw, or not one value for each signal.
    """
    _check(signal_to_noise, mean_signs, "signal")
    series = {**mean_signs, **mean_steps}
    first = next(iter(mean_signs))
    half = next((x for x, y in zip(signal_to_noise, mean_signs[first], strict=True) if y >= 0.5), None)
    where = "nowhere here" if half is None else f"from a signal of {half:.2g} of the noise on"
    weak = [f"{y / x:.1f}" for x, y in list(zip(signal_to_noise, mean_signs[first], strict=True))[:2]]
    return figure_lines(
        list(signal_to_noise),
        series,
        "signal of a gradient (mean over deviation)",
        "mean step",
        "",
        "lr",
        "Mean step against the signal in a gradient",
        log_x=True,
        summary=f"{first}: at least half of a full step {where}; "
        f"at the two weakest its step is {' and '.join(weak)} times the signal.",
    )


@checked
def figure_blocks(outliers: Sequence[float], errors: Mapping[str, Sequence[float]]) -> go.Figure:
    """Error of 8-bit numbers against the size of one outlier among them, a line for each size of block.

    Args:
        outliers: size of the outlier, in root mean squares of the others.
        errors: name of the block size -> relative error of the others at each, norm over norm.

    Raises:
        ValueError: nothing to draw, or not one error for each outlier.
    """
    _check(outliers, errors, "outlier")
    middle = len(outliers) // 2
    found = "; ".join(f"{name} {100 * values[middle]:.1f}%" for name, values in errors.items())
    return figure_lines(
        list(outliers),
        {name: [100 * value for value in values] for name, values in errors.items()},
        "one outlier (over the root mean square of the others)",
        "error of the others (norm over norm)",
        "",
        "%",
        "Error of 8-bit numbers beside one outlier",
        log_x=True,
        log_y=True,
        summary=f"With an outlier of {outliers[middle]:,.0f} root mean squares the others are off by: {found}.",
    )


@checked
def figure_projection(ranks: Sequence[int], lost: Mapping[str, Sequence[float]]) -> go.Figure:
    """Share of a gradient that a projection loses, against the rank, a line for each gradient or source of directions.

    Args:
        ranks: of the projection, ascending.
        lost: name -> share of the squares that is lost at each rank, 0 to 1.

    Raises:
        ValueError: nothing to draw, or not one share for each rank.
    """
    _check(ranks, lost, "rank")
    middle = len(ranks) // 3
    parts = "; ".join(f"{name} {100 * values[middle]:.1f}%" for name, values in lost.items())
    return figure_lines(
        [float(rank) for rank in ranks],
        {name: [100 * share for share in values] for name, values in lost.items()},
        "rank of the projection",
        "share of the gradient's squares that is lost",
        "count",
        "%",
        "What a projection loses",
        log_x=True,
        summary=f"At rank {ranks[middle]} of {ranks[-1]} is lost: {parts}.",
    )


def _check(x: Sequence[float], lines: Mapping[str, Sequence[float]], what: str) -> None:
    if not len(x) or not lines:
        raise ValueError(f"there must be at least one {what}, and one line: got {len(x)} and {len(lines)}.")
    check_lengths(x, lines)
