"""Time of a matrix product against one of its sizes, and the useful share of the peak rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import Axis, Panel, chart, check_lengths, line
from lablib.figures.style import FAINT_INK
from lablib.signature import checked
from lablib.text.units import format_quantity


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
    stairs, shares = [], []
    for index, name in enumerate(seconds):
        words = [
            f"<b>{name}</b><br>{size:,}<br>{format_quantity(time_s, 's', 4)}<br>{share:.0%} useful"
            for size, time_s, share in zip(sizes, seconds[name], useful[name], strict=True)
        ]
        percent = [100 * share for share in useful[name]]
        stairs.append(line(index, name, sizes, seconds[name], words).styled(mode="lines", line_shape="vh"))
        shares.append(line(index, name, sizes, percent, words).styled(mode="lines"))
    across = Axis(size_label, "count")
    upper = Panel(across, Axis("time", "s", from_zero=True), stairs)
    lower = Panel(across, Axis("useful", "%", span=(0, 100)), shares)
    columns: dict[str, Sequence[float]] = {size_label: list(sizes)}
    columns |= {f"{name}, time (s)": list(values) for name, values in seconds.items()}
    columns |= {f"{name}, useful": list(values) for name, values in useful.items()}
    title = title or f"Seconds and useful share against {size_label}"
    figure = chart(title, [upper, lower], _summary(sizes, useful, size_label), columns, pixels=(200, 200))
    for size in marked:  # through both panels
        look = {"color": FAINT_INK, "dash": "dot", "width": 1.5}
        figure.add_shape(type="line", xref="x", yref="paper", x0=size, x1=size, y0=0, y1=1, line=look)
    return figure


def _summary(sizes: Sequence[int], useful: Mapping[str, Sequence[float]], size_label: str) -> str:
    parts = []
    for name, shares in useful.items():
        worst, best = (choose(range(len(sizes)), key=lambda i: shares[i]) for choose in (min, max))
        parts.append(
            f"{name} is useful for {shares[worst]:.0%} at {sizes[worst]:,} and {shares[best]:.0%} at {sizes[best]:,}"
        )
    return f"For {size_label} from {sizes[0]:,} to {sizes[-1]:,}: {'; '.join(parts)}."
