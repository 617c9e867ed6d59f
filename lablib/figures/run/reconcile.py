"""Predicted and measured on one figure: two timelines with the same lanes, and the error in numbers.

The upper panel is the prediction, the lower one the measurement. The error is (predicted - measured) / measured: +10%
means that the prediction was too slow by a tenth.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from lablib.figures.describe import attach
from lablib.figures.run.bars import KINDS, picture_of
from lablib.figures.run.lanes import lanes_of, pixels, ranks_to_show
from lablib.figures.run.timeline import drawing_of, lane_axis, lane_index, lane_traces
from lablib.figures.style import PAPER_PIXELS, add_room, axis, base_layout, heading, lay_out
from lablib.record.timeline import length
from lablib.run import Timeline
from lablib.signature import checked
from lablib.text.units import Unit, axis_title, format_quantity, unit_for

PANEL_GAP_PIXELS = 74


@checked
def figure_reconcile(
    predicted: Timeline,
    measured: Timeline,
    labels: tuple[str, str] = ("simulated", "measured"),
    normalize: bool = False,
    ranks: Iterable[int] | None = None,
    title: str | None = None,
    summary: str | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> go.Figure:
    """Two timelines of one program, one above the other with the same lanes.

    Args:
        predicted, measured: timelines with the same number of ranks.
        labels: their names, predicted first.
        normalize: draw each as a share of its makespan, to compare shapes at different speeds.
        ranks: None: all up to 16, otherwise the first 4 and the last 4.
        title: None: the two makespans and the error.
        summary, columns: the figure's sentence and table; None: computed here.

    Table: seconds per rank (mean over ranks) of each kind of work, of exposed communication, waiting and idle time, and
    the makespan, with ratio and error.
    """
    if predicted.num_ranks != measured.num_ranks:
        raise ValueError(
            f"both timelines must have the same number of ranks: got {predicted.num_ranks} ({labels[0]}) and "
            f"{measured.num_ranks} ({labels[1]}); launch both with the same `ranks`."
        )
    both = (predicted, measured)
    lanes = lanes_of(both, ranks_to_show(predicted.ranks, ranks))
    longest_s = max(timeline.makespan_s for timeline in both)
    units = [unit_for(longest_s, "s")] * 2
    if normalize:
        units = [Unit("%", timeline.makespan_s / 100 or 1.0) for timeline in both]
    end = 100.0 if normalize else units[0].of(longest_s) or 1.0
    panel = pixels(lanes)
    figure = go.Figure(layout=base_layout("", 2 * panel + PANEL_GAP_PIXELS + PAPER_PIXELS, barmode="overlay"))
    shown_kinds: set[str] = set()
    drawn = lane_index(lanes)
    for number, timeline in enumerate(both):
        spans = [s for s in timeline if (s.rank, s.stream) in drawn]
        where: dict[str, Any] = {"xaxis": f"x{number + 1}", "yaxis": f"y{number + 1}"}
        drawing = drawing_of(spans, lanes, units[number], (timeline.start_s, timeline.end_s))
        figure.add_traces(lane_traces(timeline, drawing, end * units[number].scale, **where))
    traces: Any = figure.data  # plotly makes their properties at run time
    for trace in traces:  # one legend for both panels
        trace.showlegend = bool(trace.legendgroup) and trace.legendgroup not in shown_kinds
        shown_kinds.add(trace.legendgroup)

    share = panel / (2 * panel + PANEL_GAP_PIXELS)
    for number, domain in enumerate(([1 - share, 1], [0, share])):
        lay_out(figure, {f"yaxis{number + 1}": lane_axis(lanes) | {"domain": domain, "anchor": f"x{number + 1}"}})
        quantity = "share of the makespan" if normalize else "time since launch"
        across = axis(axis_title(quantity, units[number]), range=[-0.003 * end, 1.015 * end])
        linked = {"matches": "x"} if number else {}
        lay_out(figure, {f"xaxis{number + 1}": across | {"anchor": f"y{number + 1}"} | linked})
        heading(figure, f"<b>{labels[number]}</b>  {format_quantity(both[number].makespan_s, 's')}", y=domain[1])
    own = _columns(predicted, measured, labels)
    summary = _summary(both, labels, own, normalize) if summary is None else summary
    figure.update_layout(title_text=title or _title(both, labels))
    add_room(figure, 18)
    return attach(figure, summary, own if columns is None else columns, (*predicted.notes, *measured.notes))


def _columns(predicted: Timeline, measured: Timeline, labels: tuple[str, str]) -> dict[str, list[Any]]:
    """The seconds of both; ratio and error are empty if the measurement is zero."""
    seconds = [_seconds(t) for t in (predicted, measured)]
    rows = [name for name in seconds[0] if seconds[0][name] or seconds[1][name] or name == "makespan"]
    first, second = ([one[name] for name in rows] for one in seconds)
    ratio = [a / b if b else None for a, b in zip(first, second, strict=True)]
    error = [None if r is None else 100 * (r - 1) for r in ratio]
    names = (f"{labels[0]} (s)", f"{labels[1]} (s)")
    return {"part": rows, names[0]: first, names[1]: second, "ratio": ratio, "error (%)": error}


def _seconds(timeline: Timeline) -> dict[str, float]:
    """Mean seconds per rank in each kind of work, exposed, waiting and idle; and the makespan."""
    num_ranks = max(timeline.num_ranks, 1)
    spans = [span for span in timeline if not span.is_waiting]
    lanes = {key: index for index, key in enumerate(sorted({(s.rank, s.stream) for s in spans}))}
    bars = picture_of(spans, lanes, 0.0).bars
    busy_s = {kind: float(bars.busy_s[bars.kind == i].sum()) for i, kind in enumerate(KINDS)}
    parts = {kind: seconds / num_ranks for kind, seconds in busy_s.items() if kind != "idle"}
    states = [timeline.states(rank) for rank in range(timeline.num_ranks)]
    for name, state in (("exposed communication", "exposed"), ("waiting", "waiting"), ("idle", "idle")):
        parts[name] = sum(length(of_rank[state]) for of_rank in states) / num_ranks
    return parts | {"makespan": timeline.makespan_s}


def _title(both: Sequence[Timeline], labels: tuple[str, str]) -> str:
    first, second = (t.makespan_s for t in both)
    text = f"Makespan: {labels[0]} {format_quantity(first, 's')}, {labels[1]} {format_quantity(second, 's')}"
    return text + (f", error {_percent(first / second - 1)}" if second else "")


def _percent(share: float) -> str:
    """Signed percent; beyond a factor of ten, the factor."""
    return f"{share:+.1%}" if abs(share) < 9 else f"{share + 1:.3g} times"


def _summary(both: Sequence[Timeline], labels: tuple[str, str], columns: dict[str, list[Any]], normalize: bool) -> str:
    first, second = (t.makespan_s for t in both)
    if not first or not second:
        empty = labels[0] if not first else labels[1]
        return f"The {empty} timeline has no spans, so there is nothing to compare."
    text = f"{labels[0].capitalize()} takes {format_quantity(first, 's')} and {labels[1]} "
    text += f"{format_quantity(second, 's')} (ratio {first / second:.3g}, error {_percent(first / second - 1)})"
    gaps = [
        (abs(a - b), part, a - b)
        for part, a, b in list(zip(*list(columns.values())[:3], strict=True))
        if part not in ("idle", "waiting", "makespan", "exposed communication")
    ]
    widest, part, difference = max(gaps, default=(0.0, "", 0.0))
    if widest > 0:
        more = "more" if difference > 0 else "less"
        text += f"; the largest difference is in {part}: {format_quantity(widest, 's')} a rank {more} than {labels[1]}"
    return text + (". Each panel is scaled to its own makespan." if normalize else ".")
