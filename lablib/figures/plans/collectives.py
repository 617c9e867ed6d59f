"""What a collective costs against the size of its message, algorithm by algorithm, and where they cross."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.lines import PLOT_PIXELS, check_lengths, line, log_axis
from lablib.figures.style import FAINT_INK, PAPER_PIXELS, axis, base_layout
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity, unit_for

SIZE = "message size"


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

    Raises:
        ValueError: if a curve has not one time for each size; a range that is none.
    """
    check_lengths(sizes_bytes, curves)
    if time_range_s is not None and not 0 < time_range_s[0] < time_range_s[1]:
        raise ValueError(f"time_range_s must be two times above 0, the shorter first: got {time_range_s}.")
    figure = go.Figure(layout=base_layout(title, PLOT_PIXELS + PAPER_PIXELS + 20, showlegend=True))
    for index, (name, seconds) in enumerate(curves.items()):
        figure.add_trace(
            line(name, index, {"x": list(sizes_bytes), "y": list(seconds)}, _hover(name, sizes_bytes, seconds))
        )
    everything = time_range_s or [s for seconds in curves.values() for s in seconds]
    figure.update_layout(xaxis=log_axis(sizes_bytes, SIZE, "B"), yaxis=log_axis(everything, "time", "s"))
    if time_range_s is not None:
        figure.update_yaxes(range=[math.log10(end) for end in time_range_s])
    mark_sizes(figure, crossings or {})
    columns = {f"{SIZE} (B)": list(sizes_bytes)} | {f"{name} (s)": list(s) for name, s in curves.items()}
    return attach(figure, _summary(sizes_bytes, curves, crossings or {}), columns)


@checked
def figure_effective_bandwidth(
    sizes_bytes: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    peaks: Mapping[str, float] | None = None,
    title: str = "Effective bandwidth against message size",
) -> go.Figure:
    """Bytes per second against bytes: small messages pay latency, large ones approach the link.

    Args:
        sizes_bytes: message sizes, ascending.
        curves: algorithm -> bytes per second at each size.
        peaks: what it is -> bytes per second, e.g. {"link": 450e9}; each is a dotted line across.

    Raises:
        ValueError: if a curve has not one value for each size, or there is no size.
    """
    if not len(sizes_bytes):
        raise ValueError("sizes_bytes must have one size or more: got none; try [1e3, 1e6, 1e9]")
    check_lengths(sizes_bytes, curves)
    peaks = peaks or {}
    highest = max([*(v for values in curves.values() for v in values), *peaks.values()], default=0.0)
    unit = unit_for(highest, "B/s")
    figure = go.Figure(layout=base_layout(title, PLOT_PIXELS + PAPER_PIXELS, showlegend=True))
    for index, (name, rates) in enumerate(curves.items()):
        points = {"x": list(sizes_bytes), "y": [unit.of(v) for v in rates]}
        figure.add_trace(line(name, index, points, _hover(name, sizes_bytes, rates, "B/s")))
    figure.update_layout(
        xaxis=log_axis(sizes_bytes, SIZE, "B"),
        yaxis=axis(axis_title("bandwidth", unit), range=[0, 1.06 * unit.of(highest) or 1.0]),
    )
    for name, rate in peaks.items():
        label = {"text": f"{name}: {format_quantity(rate, 'B/s')}", "font": {"size": 12, "color": FAINT_INK}}
        look = {"line": {"dash": "dot", "color": FAINT_INK, "width": 1.5}, "annotation": label}
        figure.add_hline(y=unit.of(rate), annotation_position="bottom left", **look)  # pyright: ignore
    columns = {f"{SIZE} (B)": list(sizes_bytes)} | {f"{name} (B/s)": list(v) for name, v in curves.items()}
    reached = [f"{name} {format_quantity(max(rates), 'B/s')}" for name, rates in curves.items() if len(rates)]
    text = (
        f"Highest bandwidth between {format_quantity(sizes_bytes[0], 'B')} and "
        f"{format_quantity(sizes_bytes[-1], 'B')}: "
    )
    text += ", ".join(reached)
    text += "".join(f"; {name} {format_quantity(rate, 'B/s')}" for name, rate in peaks.items()) + "."
    return attach(figure, text, columns)


def mark_sizes(figure: go.Figure, sizes: Mapping[str, float]) -> None:
    """A labelled dotted line at each size on the logarithmic x axis; labels step down so neighbours do not collide."""
    for index, (name, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        figure.add_vline(x=size, line={"dash": "dot", "color": FAINT_INK, "width": 1.5})  # pyright: ignore
        figure.add_annotation(
            # plotly places annotations of a logarithmic axis by their exponent
            x=math.log10(size),
            y=1 - 0.09 * index,
            yref="paper",
            text=f"{name} at {format_quantity(size, 'B')}",
            showarrow=False,
            xanchor="left",
            yanchor="top",
            xshift=4,
            bgcolor="rgba(255,255,255,0.85)",
            font={"size": 12, "color": FAINT_INK},
        )


def _hover(name: str, sizes: Sequence[float], values: Sequence[float], unit: str = "s") -> list[str]:
    pairs = zip(sizes, values, strict=True)
    return [
        f"<b>{name}</b><br>{format_quantity(size, 'B')}<br>{format_quantity(value, unit, 4)}" for size, value in pairs
    ]


def _summary(sizes: Sequence[float], curves: Mapping[str, Sequence[float]], crossings: Mapping[str, float]) -> str:
    if not len(sizes) or not curves:
        return "There is nothing to draw yet."

    def fastest(index: int) -> str:
        name = min(curves, key=lambda one: curves[one][index])
        return f"{name} ({format_quantity(curves[name][index], 's')})"

    text = (
        f"At {format_quantity(sizes[0], 'B')} the fastest is {fastest(0)}, at "
        f"{format_quantity(sizes[-1], 'B')} {fastest(-1)}"
    )
    crossed = [f"{name} at {format_quantity(size, 'B')}" for name, size in crossings.items()]
    return text + (f"; {', '.join(crossed)}." if crossed else ".")
