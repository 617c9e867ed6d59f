"""Time and effective bandwidth of collectives against message size, by algorithm, with crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS, Axis, Panel, Rule, chart, check_lengths, line
from lablib.signature import checked
from lablib.text.units import format_quantity

SIZE = "message size"
DOTTED = {"dash": "dot"}


@checked
def figure_collective_cost(
    sizes_bytes: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    crossings: Mapping[str, float] | None = None,
    title: str = "Time of a collective against message size",
    time_range_s: tuple[float, float] | None = None,
) -> go.Figure:
    """Seconds against bytes, both logarithmic, one line an algorithm.

    Args:
        sizes_bytes: message sizes, ascending.
        curves: algorithm -> seconds at each size.
        crossings: what crosses -> size in bytes, e.g. {"tree = ring": 1.3e6}; each is marked.
        time_range_s: what the time axis shows, so that figures can be compared; None: what the curves need.
    """
    check_lengths(sizes_bytes, curves)
    if time_range_s is not None and not 0 < time_range_s[0] < time_range_s[1]:
        raise ValueError(f"time_range_s must be two times above 0, the shorter first: got {time_range_s}.")
    marks = [line(index, name, sizes_bytes, seconds) for index, (name, seconds) in enumerate(curves.items())]
    # Labels step down, so that neighbours do not collide.
    rules = [
        Rule(
            x=size,
            text=f"{name} at {format_quantity(size, 'B')}",
            line=DOTTED,
            look={"y": 1 - 0.09 * step, "xshift": 4},
        )
        for step, (name, size) in enumerate(sorted((crossings or {}).items(), key=lambda item: item[1]))
    ]
    panel = Panel(Axis(SIZE, "B", log=True), Axis("time", "s", log=True, span=time_range_s), marks, rules)
    return chart(title, panel, _summary(sizes_bytes, curves, crossings or {}), pixels=PLOT_PIXELS + 20)


@checked
def figure_effective_bandwidth(
    sizes_bytes: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    peaks: Mapping[str, float] | None = None,
    title: str = "Effective bandwidth against message size",
) -> go.Figure:
    """Bytes per second against bytes: small messages pay latency, large ones approach the link.

    Args:
        sizes_bytes: message sizes, one or more, ascending.
        curves: algorithm -> bytes per second at each size.
        peaks: what it is -> bytes per second, e.g. {"link": 450e9}; each is a dotted line across.
    """
    if not len(sizes_bytes):
        raise ValueError("sizes_bytes must have one size or more: got none; try [1e3, 1e6, 1e9]")
    check_lengths(sizes_bytes, curves)
    peaks = peaks or {}
    highest = max([*(v for values in curves.values() for v in values), *peaks.values()], default=0.0)
    marks = [line(index, name, sizes_bytes, rates) for index, (name, rates) in enumerate(curves.items())]
    rules = [
        Rule(y=rate, text=f"{name}: {format_quantity(rate, 'B/s')}", place="bottom left", line=DOTTED)
        for name, rate in peaks.items()
    ]
    panel = Panel(Axis(SIZE, "B", log=True), Axis("bandwidth", "B/s", span=(0, 1.06 * highest or 1.0)), marks, rules)
    ends = f"{format_quantity(sizes_bytes[0], 'B')} and {format_quantity(sizes_bytes[-1], 'B')}"
    reached = [f"{name} {format_quantity(max(rates), 'B/s')}" for name, rates in curves.items() if len(rates)]
    links = "".join(f"; {name} {format_quantity(rate, 'B/s')}" for name, rate in peaks.items())
    return chart(title, panel, f"Highest bandwidth between {ends}: {', '.join(reached)}{links}.")


def _summary(sizes: Sequence[float], curves: Mapping[str, Sequence[float]], crossings: Mapping[str, float]) -> str:
    if not len(sizes) or not curves:
        return ""

    def fastest(index: int) -> str:
        name = min(curves, key=lambda one: curves[one][index])
        return f"{name} ({format_quantity(curves[name][index], 's')})"

    text = (
        f"At {format_quantity(sizes[0], 'B')} the fastest is {fastest(0)}, at "
        f"{format_quantity(sizes[-1], 'B')} {fastest(-1)}"
    )
    crossed = [f"{name} at {format_quantity(size, 'B')}" for name, size in crossings.items()]
    return text + (f"; {', '.join(crossed)}." if crossed else ".")
