"""Optimizers compared: final loss with confidence intervals, loss curves, loss against state size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS, Axis, Panel, Rule, chart, line, points
from lablib.figures.style import FAINT_INK, INK, series_look
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
    names, nats = list(differences), [value for one in differences.values() for value in one.each]
    marks = []
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
    across = Axis(f"loss less {reference}'s", "nats a byte; left is better")
    rows = {
        "categoryorder": "array",
        "categoryarray": names[::-1],
        "range": [-0.6, len(names) - 0.4],
        "showgrid": False,
    }
    rules = [Rule(x=0.0, line={"color": INK, "width": 1, "dash": "solid"})] if names else []
    panel = Panel(across, Axis("optimizer", "name", look=rows if names else {}), marks, rules)
    columns = {
        "optimizer": names,
        "mean difference (nats)": [round(one.mean, 4) for one in differences.values()],
        "95%: +- (nats)": [round(one.half_width, 4) for one in differences.values()],
        "within noise": ["yes" if one.is_noise else "no" for one in differences.values()],
    }
    title = title or f"Final loss less that of {reference}"
    summary = _differences_summary(differences, reference) if names else ""
    return chart(title, panel, summary, columns, pixels=ROW_PIXELS * len(names) + 40)


def _differences_summary(differences: Mapping[str, Difference], reference: str) -> str:
    groups = {"less than": [], "more than": [], "within noise of": []}
    for name, one in differences.items():
        groups["within noise of" if one.is_noise else "less than" if one.mean < 0 else "more than"].append(name)
    parts = [f"{', '.join(names)} {word} {reference}" for word, names in groups.items() if names]
    return f"Final loss: {'; '.join(parts)}."


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
    across = Axis("tokens", "thousands") if against == "tokens" else Axis("time", "thousands of tokens of AdamW's")
    marks = []
    for index, (name, result) in enumerate(results.items()):
        factor = 1e-3 if against == "tokens" else 1e-3 * result.step_ratio
        xs, ys = [factor * tokens for tokens in result.tokens[skip:]], list(result.curve[skip:])
        hover = [f"<b>{name}</b><br>{x:,.0f} thousand<br>{y:.3f} nats" for x, y in zip(xs, ys, strict=True)]
        marks.append(line(index, name, xs, ys, hover))
    ends = "; ".join(f"{name} {result.curve[-1]:.3f}" for name, result in results.items())
    columns: dict[str, Sequence[object]] = {"tokens": list(next(iter(results.values())).tokens)} if results else {}
    columns |= {f"{name} (nats)": [round(loss, 4) for loss in result.curve] for name, result in results.items()}
    panel = Panel(across, Axis("held-out loss", "nats a byte"), marks)
    sentence = f"Held-out loss at the end, in nats a byte: {ends or 'none'}."
    return chart(f"Held-out loss against {against}", panel, sentence, columns)


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
    marks = []
    for index, (name, result) in enumerate(results.items()):
        losses, size = list(result.losses.values()), bytes_per_parameter[name]
        mean = sum(losses) / len(losses)
        words = f"<b>{name}</b><br>{size:.2f} bytes a parameter<br>{mean:.3f} nats"
        marks.append(points(index, name, [size], [mean], [words], ([min(losses)], [max(losses)])))
    sizes = list(bytes_per_parameter.values()) or [1.0]
    is_wide = max(sizes) > 50 * min(sizes)  # less has too few powers of ten to read off
    across = Axis(f"{what} for each parameter", "B", log=is_wide, from_zero=not is_wide)
    ordered = sorted(results, key=lambda name: bytes_per_parameter[name])
    best = min(results, key=lambda name: results[name].loss, default=None)
    summary = (
        ""
        if best is None
        else (
            f"{ordered[0]} takes fewest bytes a parameter, {bytes_per_parameter[ordered[0]]:.2f}; {best} has the "
            f"least loss, {results[best].loss:.3f} nats, with {bytes_per_parameter[best]:.2f}."
        )
    )
    columns: dict[str, Sequence[object]] = {
        "optimizer": ordered,
        f"{what} (B/parameter)": [round(bytes_per_parameter[name], 3) for name in ordered],
        "loss (nats)": [round(results[name].loss, 4) for name in ordered],
    }
    panel = Panel(across, Axis("final loss, least to largest seed", "nats a byte"), marks)
    return chart(f"Final loss against {what}", panel, summary, columns, pixels=PLOT_PIXELS + 60)
