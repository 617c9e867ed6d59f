"""Lab 02: bits of number formats, exponents of gradients, and the range of each number format."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log2

import plotly.graph_objects as go
import torch

from lablib.calibration import batch_for, this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, show_source, try_out
from lablib.figures import figure_lines, show
from lablib.figures.chart import ROWS, Axis, Mark, Panel, bars, chart, line
from lablib.figures.style import Look
from lablib.models import model_config
from lablib.precision.exponents import ExponentCounts
from lablib.precision.formats import BF16, FORMATS, FP16, FP32, Format
from lablib.precision.loss_scaling import LossScaler, ScaleRule
from lablib.precision.mixed_precision import TextRun, train_on_text
from lablib.precision.running_sum import running_sum, stalls_at
from lablib.precision.savings import training_steps
from lablib.run import Run
from lablib.signature import checked
from lablib.text.units import format_quantity
from lablib.widgets import Choice, IntChoice, LogSlider, explore
from lablib.widgets.explore import Exploration

GREY, PAPER = "#7A7A7A", "#FFFFFF"  # the paper's colour, hatched: fainter than grey in both themes


def figure_question() -> go.Figure:
    """Bits of sign, exponent and mantissa in FP32, BF16 and FP16."""
    formats = (FP32, BF16, FP16)
    names = [each.name.upper() for each in formats]
    parts = {
        Look("sign", "s", "#999999", ""): [1 for _ in formats],
        Look("exponent", "e", "#0072B2", "/", ink="#FFFFFF"): [each.exponent_bits for each in formats],
        Look("mantissa", "m", "#E69F00", ""): [each.mantissa_bits for each in formats],
    }
    marks = [
        bars(look, look.name, bits, names, orientation="h", text=bits, textposition="inside")
        for look, bits in parts.items()
    ]
    sentence = "BF16 and FP16 have 16 bits each. Why does only FP16 need a loss scale?"
    columns = {"format": names} | {look.name: bits for look, bits in parts.items()}
    return chart("Bits of a number", Panel(Axis("bits"), ROWS, marks), sentence, columns, pixels=130, barmode="stack")


def bits_of(x: float, format: Format) -> str:
    """Sign, exponent and mantissa of a number in a format of torch."""
    whole = {16: torch.int16, 32: torch.int32}[format.num_bits]
    pattern = int(torch.tensor(x, dtype=format.dtype).view(whole)) % 2**format.num_bits
    text, end = f"{pattern:0{format.num_bits}b}", 1 + format.exponent_bits
    return f"{text[0]} {text[1:end]} {text[end:]}"


def show_losses(runs: Mapping[str, TextRun], title: str) -> None:
    """Loss of each step, and in the figure's sentence the mean of the last ten."""
    last = ", ".join(f"{name} {sum(run.losses[-10:]) / 10:.2f}" for name, run in runs.items())
    losses = {name: run.losses for name, run in runs.items()}
    steps, summary = range(len(next(iter(losses.values())))), f"Mean of the last 10 steps: {last}."
    show(figure_lines(steps, losses, "step", "loss", y_unit="nats per byte", title=title, summary=summary))


def show_scales(scales: Sequence[float]) -> None:
    """The loss scale of each step."""
    powers = {"loss scale S": [log2(scale) for scale in scales]}
    falls = sum(later < scale for scale, later in pairwise(scales))
    said = f"S falls {falls} times in {len(scales)} steps: a gradient overflowed, the step was skipped."
    labels = ("step", "S = 2 to the power of")
    figure = figure_lines(range(len(scales)), powers, *labels, title="Loss scale", summary=said)
    show(figure.update_traces(line_shape="hv"))


def explore_scales(counts: Mapping[str, ExponentCounts], window: tuple[int, int], interactive: bool) -> Exploration:
    """Exponents of the scaled loss's gradients, over the range of one format."""

    def scaled(power: int, name: str) -> tuple[dict[str, ExponentCounts], Format]:
        return {which: one.scaled(power) for which, one in counts.items()}, FORMATS[name]

    def figure(found: tuple[dict[str, ExponentCounts], Format]) -> go.Figure:
        return figure_exponents(found[0], (found[1],), window, "Gradients of the scaled loss")

    powers = IntChoice("power", "S = 2 to the power of", tuple(range(0, 41, 4)), 0)
    controls = [powers, Choice("name", "Format", ("fp16", "bf16", "e5m2", "e4m3"), "fp16")]
    return explore(scaled, figure, controls, interactive, [{"power": 20}, {"power": 20, "name": "e4m3"}])


def held_at_peak(run: Run) -> dict[str, str]:
    """Bytes by category at the peak, and their sum."""
    held, kinds = run.memory.at_peak(0), ("parameter", "optimizer state", "activation", "other")
    sizes = {kind: held[kind] for kind in kinds} | {"in all": run.memory.peak_bytes(0)}
    return {kind: format_quantity(size, "B") for kind, size in sizes.items()}


@checked
def figure_exponents(
    counts: Mapping[str, ExponentCounts], formats: Sequence[Format], window: tuple[int, int], title: str
) -> go.Figure:
    """Histograms of exponents over the ranges of formats.

    Args:
        counts: name -> counts of some numbers, such as `{"weights": watch.weights}`.
        formats: their ranges are drawn below, on the same axis.
        window: first and last exponent.
    """
    exponents, shares = range(window[0], window[1] + 1), []
    for index, (name, one) in enumerate(counts.items()):
        if one.num_nonzero:
            percent = [100 * one.by_exponent.get(e, 0) / one.num_nonzero for e in exponents]
            words = [f"<b>{name}</b><br>2^{e} to 2^{e + 1}: {p:.2f}%" for e, p in zip(exponents, percent, strict=True)]
            shares.append(line(index, name, exponents, percent, words).styled(mode="lines", line_shape="hv"))
    normal = [(one.min_exponent, one.max_exponent + 1) for one in formats]
    subnormal = [(one.underflow_exponent, one.min_exponent) for one in formats]  # or rounded up to the smallest
    ranges = [
        _ranges(Look("normal", "", GREY, "", hatch=GREY, edge=GREY), normal, formats, window),
        _ranges(Look("subnormal: fewer bits", "", PAPER, "/", hatch=GREY, edge=GREY), subnormal, formats, window),
    ]
    across = Axis("size of a number", "log2", span=window)
    panels = [Panel(across, Axis("share of numbers", "%", from_zero=True), shares), Panel(across, ROWS, ranges)]
    rows = [(name, one, format, one.shares(format)) for name, one in counts.items() for format in formats]
    columns = {
        "numbers": [name for name, *_ in rows],
        "format": [str(format) for _, _, format, _ in rows],
        "lost (%)": [100 * shares.lost for *_, shares in rows],
        "subnormal (%)": [100 * shares.subnormal for *_, shares in rows],
        "normal (%)": [100 * shares.normal for *_, shares in rows],
        "too large (%)": [100 * shares.too_large for *_, shares in rows],
        "zeros (count)": [one.zeros for _, one, _, _ in rows],
        "counted without zeros": [one.num_nonzero for _, one, _, _ in rows],
    }
    lost = [
        f"of {name} {', '.join(_lost(one, format) for format in formats)}"
        for name, one in counts.items()
        if one.num_nonzero and formats
    ]
    sentence = f"Lost to underflow: {'; '.join(lost)}." if lost else ""
    pixels = (230, max(len(formats), 1) * 26)
    return chart(title, panels, sentence, columns, pixels=pixels, barmode="overlay", bargap=0.25)


def _ranges(look: Look, edges: list[tuple[int, int]], formats: Sequence[Format], window: tuple[int, int]) -> Mark:
    """One bar for each format, cut at the ends of the axis."""
    firsts, lasts = ([min(max(pair[i], window[0]), window[1]) for pair in edges] for i in (0, 1))
    words = [f"<b>{one}</b><br>{look.name}<br>2^{a} to 2^{b}" for one, (a, b) in zip(formats, edges, strict=True)]
    lengths = [last - first for first, last in zip(firsts, lasts, strict=True)]
    return bars(look, look.name, lengths, [str(one) for one in formats], words, orientation="h", base=firsts)


def _lost(counts: ExponentCounts, format: Format) -> str:
    shares = counts.shares(format)
    overflow = f" ({shares.too_large:.2%} too large)" if shares.too_large else ""
    return f"{shares.lost:.2%} in {format}{overflow}"
