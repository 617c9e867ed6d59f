"""Evidence on optimizers: differences with their noise, loss on the way, and loss against bytes of state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.lines import PLOT_PIXELS, line, log_axis
from lablib.figures.style import FAINT_INK, INK, PAPER_PIXELS, axis, base_layout, empty_axis, series_look
from lablib.signature import checked

if TYPE_CHECKING:
    from lablib.studies.optimizers import Difference, Result

ROW_PIXELS = 30


@checked
def figure_differences(differences: Mapping[str, Difference], reference: str, title: str = "") -> go.Figure:
    """Each optimizer's loss less the reference's: a small mark a seed, the mean with its 95% interval, and a line at 0.

    Args:
        differences: name -> `difference(losses of it, losses of the reference)`; the first is drawn on top.
        reference: its name.
    """
    names = list(differences)
    figure = go.Figure(
        layout=base_layout(title or f"Final loss less that of {reference}", ROW_PIXELS * len(names) + 40 + PAPER_PIXELS)
    )
    for place, (is_noise, words) in enumerate(((False, "differs"), (True, "within noise"))):
        chosen = [name for name in names if differences[name].is_noise is is_noise]
        figure.add_trace(_intervals(chosen, differences, f"{words}: mean, 95% interval", place))
    points = [(value, name) for name in names for value in differences[name].each]
    small = {"symbol": "line-ns", "size": 9, "line": {"width": 1.5, "color": FAINT_INK}}
    seeds = go.Scatter(x=[p[0] for p in points], y=[p[1] for p in points], mode="markers", marker=small, name="a seed")
    figure.add_trace(seeds.update(hoverinfo="skip"))
    label = f"loss less {reference}'s (nats a byte; left is better)"
    if not names:
        figure.update_layout(xaxis=empty_axis(label), yaxis=empty_axis("optimizer (name)"))
        return attach(figure, "There is nothing to draw yet.", {})
    rows = {"categoryorder": "array", "categoryarray": names[::-1], "range": [-0.6, len(names) - 0.4]}
    figure.update_layout(xaxis=axis(label), yaxis=axis("optimizer (name)", showgrid=False, **rows), showlegend=True)
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    return attach(figure, _differences_summary(differences, reference), _differences_table(differences))


def _intervals(names: list[str], differences: Mapping[str, Difference], words: str, place: int) -> go.Scatter:
    look = series_look(place)
    means, halves = [differences[name].mean for name in names], [differences[name].half_width for name in names]
    hover = [f"<b>{name}</b><br>{m:+.3f} &#177; {h:.3f} nats" for name, m, h in zip(names, means, halves, strict=True)]
    bars = {"type": "data", "array": halves, "color": look.color, "thickness": 2, "width": 6}
    marker = {"symbol": "circle" if place == 0 else "circle-open", "size": 10, "color": look.color}
    if place:
        marker["line"] = {"width": 2}
    return go.Scatter(
        x=means, y=names, mode="markers", name=words, error_x=bars, marker=marker, hovertext=hover, hoverinfo="text"
    )


def _differences_summary(differences: Mapping[str, Difference], reference: str) -> str:
    groups = {"less than": [], "more than": [], "within noise of": []}
    for name, one in differences.items():
        groups["within noise of" if one.is_noise else "less than" if one.mean < 0 else "more than"].append(name)
    parts = [f"{', '.join(names)} {word} {reference}" for word, names in groups.items() if names]
    return f"Final loss: {'; '.join(parts)}."


def _differences_table(differences: Mapping[str, Difference]) -> dict[str, Sequence[object]]:
    return {
        "optimizer": list(differences),
        "mean difference (nats)": [round(one.mean, 4) for one in differences.values()],
        "95%: +- (nats)": [round(one.half_width, 4) for one in differences.values()],
        "within noise": ["yes" if one.is_noise else "no" for one in differences.values()],
    }


@checked
def figure_loss_curves(results: Mapping[str, Result], against: str = "tokens", skip: int = 2) -> go.Figure:
    """Held-out loss on the way, one line an optimizer, mean over seeds; at most eight can be told apart.

    Args:
        results: name -> its recorded trials.
        against: "tokens", or "time": tokens times the length of a step over AdamW's.
        skip: looks at the beginning that are left out of the picture; the first is the untrained model's.

    Raises:
        ValueError: another `against`, or more than eight results.
    """
    if against not in ("tokens", "time"):
        raise ValueError(f'against must be "tokens" or "time": got {against!r}.')
    if len(results) > 8:
        raise ValueError(f"at most 8 lines can be told apart: got {len(results)} results; choose some.")
    label = "tokens (thousands)" if against == "tokens" else "time (thousands of tokens of AdamW's)"
    figure = go.Figure(layout=base_layout(f"Held-out loss against {against}", PLOT_PIXELS + PAPER_PIXELS))
    for index, (name, result) in enumerate(results.items()):
        factor = 1.0 if against == "tokens" else result.step_ratio
        xs, ys = [factor * tokens / 1e3 for tokens in result.tokens[skip:]], list(result.curve[skip:])
        hover = [f"<b>{name}</b><br>{x:,.0f} thousand<br>{y:.3f} nats" for x, y in zip(xs, ys, strict=True)]
        figure.add_trace(line(name, index, {"x": xs, "y": ys}, hover))
    across = axis(label)
    figure.update_layout(xaxis=across, yaxis=axis("held-out loss (nats a byte)"), showlegend=True)
    ends = "; ".join(f"{name} {result.curve[-1]:.3f}" for name, result in results.items())
    columns: dict[str, Sequence[object]] = {"tokens": list(next(iter(results.values())).tokens)} if results else {}
    columns |= {f"{name} (nats)": [round(loss, 4) for loss in result.curve] for name, result in results.items()}
    return attach(figure, f"Held-out loss at the end, in nats a byte: {ends or 'none'}.", columns)


@checked
def figure_loss_and_bytes(
    results: Mapping[str, Result], bytes_per_parameter: Mapping[str, float], what: str = "optimizer state"
) -> go.Figure:
    """Final loss, every seed of it, against bytes a parameter: left and down is better.

    Args:
        results: name -> its recorded trials.
        bytes_per_parameter: name -> bytes of it; as recorded, or of a model of the reader's.
        what: the bytes are, in words.
    """
    figure = go.Figure(layout=base_layout(f"Final loss against {what}", PLOT_PIXELS + 60 + PAPER_PIXELS))
    for index, (name, result) in enumerate(results.items()):
        losses, look = list(result.losses.values()), series_look(index)
        kept = bytes_per_parameter[name]
        middle = sum(losses) / len(losses)
        reach = {"type": "data", "symmetric": False, "array": [max(losses) - middle]}
        reach |= {"arrayminus": [middle - min(losses)], "color": look.color}
        words = f"<b>{name}</b><br>{kept:.2f} bytes a parameter<br>{middle:.3f} nats"
        figure.add_trace(
            go.Scatter(
                x=[kept],
                y=[middle],
                mode="markers",
                name=name,
                marker={"symbol": look.symbol if index < 8 else f"{look.symbol}-open", "size": 10, "color": look.color},
                error_y=reach,
                hovertext=[words],
                hoverinfo="text",
            )
        )
    sizes, label = list(bytes_per_parameter.values()) or [1.0], f"{what} for each parameter"
    is_wide = max(sizes) > 50 * min(sizes)  # less has too few powers of ten to read off
    across = log_axis(sizes, label, "B") if is_wide else axis(f"{label} (B)", rangemode="tozero")
    figure.update_layout(xaxis=across, yaxis=axis("final loss, least to largest seed (nats a byte)"), showlegend=True)
    ordered = sorted(results, key=lambda name: bytes_per_parameter[name])
    best = min(results, key=lambda name: results[name].loss, default=None)
    summary = "There is nothing to draw yet."
    if best is not None:
        summary = (
            f"{ordered[0]} takes fewest bytes a parameter, {bytes_per_parameter[ordered[0]]:.2f}; {best} has the "
            f"least loss, {results[best].loss:.3f} nats, with {bytes_per_parameter[best]:.2f}."
        )
    columns: dict[str, Sequence[object]] = {
        "optimizer": ordered,
        f"{what} (B/parameter)": [round(bytes_per_parameter[name], 3) for name in ordered],
        "loss (nats)": [round(results[name].loss, 4) for name in ordered],
    }
    return attach(figure, summary, columns)
