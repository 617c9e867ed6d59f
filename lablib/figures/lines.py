"""Line charts: any number against another, the cost of collectives, scaling, idle shares."""

from collections.abc import Mapping, Sequence
from math import log2

import plotly.graph_objects as go

from lablib.figures.chart import PLOT_PIXELS, Axis, Mark, Panel, ReferenceLine, chart, check_lengths, line
from lablib.figures.style import FAINT_INK
from lablib.signature import checked
from lablib.text.units import format_quantity, plural, unit_for

MAX_TICKS = 7  # of an axis of powers of two


@checked
def figure_lines(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    x_unit: str = "count",
    y_unit: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    summary: str = "",
    rules: Sequence[ReferenceLine] = (),
) -> go.Figure:
    """One line per series over common `x`.

    Args:
        series: name -> a value at each position.
        x_unit, y_unit: "s", "B", "B/s", "FLOP/s" get a prefix; any other text is kept; "" for a pure ratio.
        summary: one sentence; "": first and last value of each series.
    """
    check_lengths(x, series)
    is_plain = len(x) and unit_for(x, x_unit).symbol == x_unit  # without a prefix, which is a power of ten
    ticks: dict[float, str] = {}
    if log_x and is_plain and all(v > 0 and log2(v).is_integer() for v in x):  # ticks at points, powers of two
        ticks = {v: format_quantity(v, x_unit) for v in list(x)[:: -(-len(x) // MAX_TICKS)]}
    across, up = Axis(x_label, x_unit, log=log_x, ticks=ticks), Axis(y_label, y_unit, log=log_y)
    if not summary and len(x) and series:
        parts = [
            f"{name} from {format_quantity(values[0], y_unit)} to {format_quantity(values[-1], y_unit)}"
            for name, values in series.items()
        ]
        ends = f"{x_label} goes from {format_quantity(x[0], x_unit)} to {format_quantity(x[-1], x_unit)}"
        summary = f"{y_label[0].upper()}{y_label[1:]} while {ends}: {'; '.join(parts)}."
    marks = [line(index, name, x, values) for index, (name, values) in enumerate(series.items())]
    title = title or f"{y_label[:1].upper()}{y_label[1:]} against {x_label}"
    return chart(title, Panel(across, up, marks, rules), summary)


@checked
def figure_collective_cost(
    sizes_bytes: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    crossings: Mapping[str, float] | None = None,
    title: str = "Time of a collective against message size",
    time_range_s: tuple[float, float] | None = None,
) -> go.Figure:
    """Seconds against bytes, both logarithmic, one line per algorithm.

    Args:
        sizes_bytes: message sizes, ascending.
        curves: algorithm -> seconds at each size.
        crossings: name -> size in bytes, e.g. {"tree = ring": 1.3e6}; each is marked.
        time_range_s: ends of the time axis, so that figures can be compared; None: of the curves.
    """
    check_lengths(sizes_bytes, curves)
    if time_range_s is not None and not 0 < time_range_s[0] < time_range_s[1]:
        raise ValueError(f"time_range_s must be two times above 0, the shorter first: got {time_range_s}.")
    marks = [line(index, name, sizes_bytes, seconds) for index, (name, seconds) in enumerate(curves.items())]
    # Labels step down, so that neighbours do not collide.
    rules = [
        ReferenceLine(
            x=size,
            text=f"{name} at {format_quantity(size, 'B')}",
            line={"dash": "dot"},
            look={"y": 1 - 0.09 * step, "xshift": 4},
        )
        for step, (name, size) in enumerate(sorted((crossings or {}).items(), key=lambda item: item[1]))
    ]
    panel = Panel(Axis("message size", "B", log=True), Axis("time", "s", log=True, span=time_range_s), marks, rules)
    return chart(title, panel, _fastest(sizes_bytes, curves, crossings or {}), pixels=PLOT_PIXELS + 20)


def _fastest(sizes: Sequence[float], curves: Mapping[str, Sequence[float]], crossings: Mapping[str, float]) -> str:
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


@checked
def figure_scaling(
    ranks: Sequence[int], series: Mapping[str, Sequence[float]], title: str = "Scaling efficiency against ranks"
) -> go.Figure:
    """Scaling efficiency against the number of ranks (logarithmic), with the ideal of 100%.

    Args:
        ranks: numbers of ranks, ascending.
        series: name -> efficiency (1.0 is perfect) at each number of ranks.
    """
    check_lengths(ranks, series)
    percent = {name: [100 * value for value in values] for name, values in series.items()}
    look = {"mode": "lines", "line": {"color": FAINT_INK, "dash": "dot", "width": 1.5}}
    marks = [Mark("ideal", ranks, [100.0 for _ in ranks], hover=(), look=look)] if len(ranks) and percent else []
    for index, (name, values) in enumerate(percent.items()):
        pairs = zip(ranks, values, strict=True)
        hover = [f"<b>{name}</b><br>{plural(r, 'ranks')}<br>{value:.1f}%" for r, value in pairs]
        marks.append(line(index, name, ranks, values, hover))
    across = Axis("ranks", "count", log=True, ticks={r: f"{r:,}" for r in ranks})
    parts = [f"{name} {values[-1]:.1f}%" for name, values in percent.items() if len(ranks)]
    sentence = f"On {plural(ranks[-1], 'ranks')} the scaling efficiency is: {'; '.join(parts)}." if parts else ""
    columns = {"ranks": list(ranks)} | {f"{name} (%)": values for name, values in percent.items()}
    return chart(title, Panel(across, Axis("scaling efficiency", "%", from_zero=True), marks), sentence, columns)


@checked
def figure_idle_shares(
    prefetches: Sequence[int],
    shares: Mapping[str, Sequence[float]],
    title: str = "How long the device waits, by prefetch",
    summary: str = "",
) -> go.Figure:
    """Idle share of a device that a loader feeds, against the orders per worker: one line per method.

    Args:
        shares: name of the line -> idle share of the device in [0, 1] at each prefetch.
        summary: one sentence; "": the ends of each line.
    """
    percent = {name: [100 * share for share in line] for name, line in shares.items()}
    look = {"y_unit": "%", "title": title, "log_x": True, "summary": summary}
    return figure_lines(prefetches, percent, "prefetch", "idle share of the device", **look)
