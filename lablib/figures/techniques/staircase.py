"""Seconds of a matrix product against one of its sizes, and the share of the device's rate that is useful."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import check_lengths
from lablib.figures.describe import attach
from lablib.figures.style import FAINT_INK, PAPER_PIXELS, axis, base_layout, series_look
from lablib.signature import checked
from lablib.text.units import axis_title, format_quantity, unit_for

PLOT_PIXELS = 400
_UPPER, _LOWER = [0.56, 1.0], [0.0, 0.44]


@checked
def figure_staircase(
    sizes: Sequence[int],
    seconds: Mapping[str, Sequence[float]],
    useful: Mapping[str, Sequence[float]],
    size_label: str = "columns N",
    marked: Sequence[int] = (),
    title: str = "",
) -> go.Figure:
    """Above, seconds climb in steps; below, the useful share falls at each step and recovers to the next.

    Args:
        sizes: in ascending order.
        seconds: name -> seconds at each size, as a model or a measurement says.
        useful: the same names -> shares of the device's rate, in [0, 1].
        size_label: which size it is, a count.
        marked: sizes that get a line from top to bottom.

    Raises:
        ValueError: no size, other names below than above, or a series that has not one value for each size.
    """
    if not sizes or not seconds or list(seconds) != list(useful):
        raise ValueError(f"there must be sizes, and the same names twice: got {list(seconds)} and {list(useful)}.")
    check_lengths(sizes, seconds)
    check_lengths(sizes, useful)
    figure = go.Figure(
        layout=base_layout(title or f"Seconds and useful share against {size_label}", PLOT_PIXELS + PAPER_PIXELS)
    )
    unit = unit_for([value for values in seconds.values() for value in values], "s")
    for index, name in enumerate(seconds):
        for values, scale, y_axis in ((seconds[name], unit.scale, "y"), (useful[name], 0.01, "y2")):
            figure.add_trace(_line(name, index, sizes, [value / scale for value in values], y_axis, seconds, useful))
    figure.update_layout(
        xaxis=axis(f"{size_label} (count)", anchor="y2"),
        yaxis=axis(axis_title("time", unit), domain=_UPPER, rangemode="tozero"),
        yaxis2=axis("useful (%)", domain=_LOWER, range=[0, 100]),
        showlegend=True,
    )
    for size in marked:
        figure.add_vline(x=size, line={"color": FAINT_INK, "dash": "dot", "width": 1.5})
    columns = {size_label: list(sizes)}
    columns |= {f"{name}, time (s)": list(values) for name, values in seconds.items()}
    columns |= {f"{name}, useful": list(values) for name, values in useful.items()}
    return attach(figure, _summary(sizes, useful, size_label), columns)


def _line(
    name: str,
    index: int,
    sizes: Sequence[int],
    values: Sequence[float],
    y_axis: str,
    seconds: Mapping[str, Sequence[float]],
    useful: Mapping[str, Sequence[float]],
) -> go.Scatter:
    look = series_look(index)
    return go.Scatter(
        x=list(sizes),
        y=list(values),
        xaxis="x",
        yaxis=y_axis,
        name=name,
        legendgroup=name,
        showlegend=y_axis == "y",
        mode="lines",
        line={"color": look.color, "dash": look.dash, "width": 2, "shape": "vh" if y_axis == "y" else "linear"},
        hovertext=[
            f"<b>{name}</b><br>{size:,}<br>{format_quantity(time_s, 's', 4)}<br>{share:.0%} useful"
            for size, time_s, share in zip(sizes, seconds[name], useful[name], strict=True)
        ],
        hoverinfo="text",
    )


def _summary(sizes: Sequence[int], useful: Mapping[str, Sequence[float]], size_label: str) -> str:
    parts = []
    for name, shares in useful.items():
        worst, best = (choose(range(len(sizes)), key=lambda i: shares[i]) for choose in (min, max))
        parts.append(
            f"{name} is useful for {shares[worst]:.0%} at {sizes[worst]:,} and {shares[best]:.0%} at {sizes[best]:,}"
        )
    return f"For {size_label} from {sizes[0]:,} to {sizes[-1]:,}: {'; '.join(parts)}."
