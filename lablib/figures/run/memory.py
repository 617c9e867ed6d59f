"""Memory of a rank over time: bytes stacked by category, under its timeline where one is given.

The memory of a rank changes at every allocation and free. Past `MAX_STEPS` changes, the time is cut into that many
equal steps, and each is drawn at the highest moment of that step: no peak is lost.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures import style
from lablib.figures.describe import attach
from lablib.figures.run.lanes import Lane, lanes_of, pixels
from lablib.figures.run.timeline import drawing_of, lane_axis, lane_traces
from lablib.figures.style import FAINT_INK, GRID, INK, MEMORY_LOOKS, PAPER_PIXELS
from lablib.hardware.device import Device
from lablib.record.memory import Memory
from lablib.record.memory_text import NOT_RECORDED, explain
from lablib.run import Timeline
from lablib.signature import checked
from lablib.text.units import Unit, axis_title, format_quantity, unit_for

PLOT_PIXELS, GAP_PIXELS = 260, 16
MAX_STEPS = 1500
MAX_SOURCE = 120  # characters of a line of the program in the sentence
ROOM_FOR_CAPACITY = 3.0  # a capacity above so many times the peak is in the sentence only
THICK, LONG = 0.09, 0.12  # shares of the peak and of the time from which on a category is labelled in the picture

# The time axis of an upper panel, which follows the one of the lower panel.
HIDDEN_AXIS = {"matches": "x", "anchor": "y2", "showticklabels": False, "ticks": "", "gridcolor": GRID}
HIDDEN_AXIS |= {"zeroline": False}

Curve = tuple[np.ndarray, dict[str, np.ndarray]]  # seconds, and bytes of each category from then on


@checked
def figure_memory(
    memory: Memory,
    timeline: Timeline | None = None,
    rank: int | None = None,
    device: Device | None = None,
    title: str | None = None,
) -> go.Figure:
    """One rank's bytes over time, with its peak marked; time runs as in the timeline above it.

    Args:
        timeline: of the same run, or a part of it (`without`, `between`): both panels show that part.
        rank: None: the one with the highest peak.
        device: `run.device`: its capacity is in the sentence, and in the picture if it is near the peak.

    Table: bytes of each category at the peak of all, at its own peak, and at the end.
    """
    rank = memory.peak_rank() if rank is None else rank
    if memory.num_ranks and not 0 <= rank < memory.num_ranks:
        raise ValueError(f"rank must be between 0 and {memory.num_ranks - 1}: got {rank}.")
    times_s, held = _shown(memory, timeline, rank)
    end_s = timeline.end_s if timeline else float(times_s[-1]) if len(times_s) else 0.0
    window = (timeline.start_s if timeline else 0.0, end_s)
    seconds = unit_for(end_s, "s")
    lanes = lanes_of([timeline], [rank]) if timeline else []
    top = pixels(lanes) + GAP_PIXELS if lanes else 0
    heading = title or f"Memory of rank {rank}"
    figure = go.Figure(layout=style.base_layout(heading, top + PLOT_PIXELS + PAPER_PIXELS, barmode="overlay"))
    style.lay_out(figure, {"showlegend": True, "margin": {"b": figure.layout.margin.b + (22 if lanes else 0)}})  # pyright: ignore
    steps = _steps(times_s, held, window)
    if len(times_s):
        _draw(figure, steps, window, seconds, device)
    else:
        title = axis_title("time since launch", seconds)
        across = style.empty_axis(title)
        if end_s > window[0]:
            across = style.axis(title, range=[seconds.of(edge) for edge in window])
            # plotly leaves out axes without a trace
            figure.add_scatter(x=[seconds.of(window[0])], y=[0], opacity=0, showlegend=False, hoverinfo="skip")
        style.lay_out(figure, {"xaxis": across, "yaxis": style.empty_axis("memory (B)")})
    if timeline and lanes:
        _draw_above(figure, timeline, rank, lanes, seconds, top / (top + PLOT_PIXELS))
    return attach(
        figure,
        _summary(memory, rank, device, (times_s, held), steps, window, timeline),
        _columns(held),
        memory.run_notes,
    )


def _shown(memory: Memory, timeline: Timeline | None, rank: int) -> Curve:
    """The rank's curve in the time of the timeline: the bytes at its start, and every change until its end."""
    if not len(memory):
        return np.zeros(0), {name: np.zeros(0, int) for name in MEMORY_LOOKS}
    times_s, held = memory.curve(rank)
    if timeline is not None:
        times_s = times_s - timeline.origin_s
        first = max(0, int(np.searchsorted(times_s, timeline.start_s, "right")) - 1)
        last = int(np.searchsorted(times_s, timeline.end_s, "right"))
        times_s = np.maximum(times_s[first:last], timeline.start_s)
        held = {name: size_bytes[first:last] for name, size_bytes in held.items()}
    return times_s, {name: held[name] for name in MEMORY_LOOKS}


def _total(held: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.sum(list(held.values()), axis=0)


def _steps(times_s: np.ndarray, held: dict[str, np.ndarray], window: tuple[float, float]) -> Curve:
    """The curve in at most `MAX_STEPS` steps, each at its highest moment; then the memory at the end."""
    if len(times_s) <= MAX_STEPS:
        steps, chosen = times_s, np.arange(len(times_s))
    else:
        edges = np.linspace(window[0], window[1], MAX_STEPS + 1)
        # A step begins with the memory before it: the last change until its start is one of its moments.
        firsts = np.maximum(np.searchsorted(times_s, edges[:-1], "right") - 1, 0)
        lasts = np.maximum(np.searchsorted(times_s, edges[1:], "right"), firsts + 1)
        total = _total(held)
        chosen = np.array([a + int(np.argmax(total[a:b])) for a, b in zip(firsts, lasts, strict=True)])
        steps = edges[:-1]
    if len(steps):
        steps, chosen = np.append(steps, max(window[1], float(steps[-1]))), np.append(chosen, len(times_s) - 1)
    return steps, {name: size_bytes[chosen] for name, size_bytes in held.items()}


def _draw(figure: go.Figure, steps: Curve, window: tuple[float, float], seconds: Unit, device: Device | None) -> None:
    """The stack, the names in it, its peak, and the capacity of the device."""
    times_s, held = steps
    total = _total(held)
    peak = int(np.argmax(total))
    high = float(total[peak])
    is_near = device is not None and high * ROOM_FOR_CAPACITY >= device.memory_bytes
    unit = unit_for(high, "B")
    below = np.zeros(len(times_s))
    for name, look in MEMORY_LOOKS.items():
        size_bytes = held[name]
        if not size_bytes.any():
            continue
        moments = zip(size_bytes.tolist(), total.tolist(), times_s.tolist(), strict=True)
        hover = [
            f"<b>{name}</b> {format_quantity(own, 'B', 4)}<br>of "
            f"{format_quantity(every, 'B', 4)}<br>from {format_quantity(time_s, 's', 4)}"
            for own, every, time_s in moments
        ]
        shown = {"hovertext": hover, "hoverinfo": "text", "legendrank": 3000}
        figure.add_trace(memory_band(name, times_s / seconds.scale, size_bytes / unit.scale, **shown))
        if (where := _longest(times_s, size_bytes > THICK * high, LONG * (window[1] - window[0]))) is not None:
            i = int(np.searchsorted(times_s, where, "right")) - 1
            place = {"x": seconds.of(where), "y": unit.of(float(below[i] + size_bytes[i] / 2))}
            figure.add_annotation(text=f"<b>{name}</b>", showarrow=False, font=look.font(), **place)
        below = below + size_bytes
    is_late = times_s[peak] > (window[0] + window[1]) / 2
    figure.add_annotation(
        x=seconds.of(float(times_s[peak])),
        y=unit.of(high),
        text=f"peak {format_quantity(high, 'B')}",
        ax=-46 if is_late else 46,
        ay=-20,
        arrowhead=2,
        arrowcolor=INK,
        font={"size": 12, "color": INK},
    )
    ceiling = 1.18 * high
    if device is not None and is_near:
        ceiling = max(ceiling, 1.1 * device.memory_bytes)
        label = {"text": f"{device.name} has {format_quantity(device.memory_bytes, 'B')}", "font": {"size": 12}}
        label |= {"bgcolor": "rgba(255,255,255,0.85)"}
        line: dict[str, Any] = {"line": {"dash": "dot", "color": FAINT_INK, "width": 1.5}, "annotation": label}
        figure.add_hline(y=unit.of(device.memory_bytes), annotation_position="top left", **line)
    ends = [seconds.of(window[0]), seconds.of(window[1]) or 1.0]
    across = style.axis(axis_title("time since launch", seconds), range=ends)
    up = style.axis(axis_title("memory", unit), range=[0, unit.of(ceiling) or 1.0])
    style.lay_out(figure, {"xaxis": across, "yaxis": up})


def _longest(times_s: np.ndarray, is_thick: np.ndarray, at_least_s: float) -> float | None:
    """The middle of the longest time in which `is_thick` holds; None if it is shorter than `at_least_s`."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_thick[:-1], [False])).astype(int)))
    starts_s, ends_s = times_s[edges[::2]], times_s[edges[1::2]]
    if not len(starts_s):
        return None
    i = int(np.argmax(ends_s - starts_s))
    return float(starts_s[i] + ends_s[i]) / 2 if ends_s[i] - starts_s[i] >= at_least_s else None


def memory_band(name: str, x: np.ndarray, y: np.ndarray, **more: Any) -> go.Scatter:
    """One category of a stack of memory over time."""
    look = MEMORY_LOOKS[name]
    return go.Scatter(
        name=name,
        x=x,
        y=y,
        stackgroup="memory",
        mode="lines",
        line={"shape": "hv", "width": 0.5, "color": INK},  # the edge of a layer, visible in grey too
        fillcolor=look.color,
        fillpattern=look.marker()["pattern"] | {"bgcolor": look.color},
        legendgroup=f"memory: {name}",
        **more,
    )


def _draw_above(
    figure: go.Figure, timeline: Timeline, rank: int, lanes: list[Lane], seconds: Unit, share: float
) -> None:
    """The rank's timeline on top, with a linked time axis."""
    window = (timeline.start_s, timeline.end_s)
    spans = [span for span in timeline.select(rank) if not span.is_waiting]
    figure.add_traces(lane_traces(timeline, drawing_of(spans, lanes, seconds, window), xaxis="x2", yaxis="y2"))
    lowest = 1 - share
    axes = {
        "xaxis": {"range": [seconds.of(window[0]), seconds.of(window[1]) or 1.0]},
        "xaxis2": HIDDEN_AXIS,
        "yaxis": {"domain": [0, lowest]},
        "yaxis2": lane_axis(lanes) | {"domain": [lowest + share * GAP_PIXELS / (pixels(lanes) + GAP_PIXELS), 1]},
    }
    style.lay_out(figure, axes)


def _summary(
    memory: Memory,
    rank: int,
    device: Device | None,
    curve: Curve,
    steps: Curve,
    window: tuple[float, float],
    timeline: Timeline | None,
) -> str:
    if not len(memory):
        return explain(memory, rank) if memory.allocator_peaks else NOT_RECORDED
    text = _peak(memory, rank, timeline.origin_s if timeline else 0.0)
    if device is not None and device.memory_bytes < float("inf"):
        share = memory.peak_bytes(rank) / device.memory_bytes
        text += f" That is {share:.1%} of the {format_quantity(device.memory_bytes, 'B')} of {device.name}."
    if timeline is not None and timeline.window:
        high = float(_total(curve[1]).max(initial=0))
        first, last = (format_quantity(edge, "s") for edge in window)
        text += f" Shown: {first} to {last}, in which it held at most {format_quantity(high, 'B')}."
    if len(curve[0]) > MAX_STEPS:
        text += f" {len(curve[0]):,} changes are drawn as {len(steps[0]) - 1:,} steps, each at its highest moment."
    return text


def _peak(memory: Memory, rank: int, origin_s: float) -> str:
    """Time of the peak, its categories, and the line that made most of it. (`memory.explain` says more.)"""
    peak_bytes = memory.peak_bytes(rank)
    if not peak_bytes:
        return f"Rank {rank} held nothing."
    parts = style.shares_in_words(memory.at_peak(rank), peak_bytes)
    phase = memory.peak_phase(rank)
    when = format_quantity(memory.peak_at_s(rank) - origin_s, "s") + (f", in {phase}" if phase else "")
    text = f"At its peak ({when}) rank {rank} held {format_quantity(peak_bytes, 'B')}: {parts}"
    largest = next((h for h in memory.allocations_at_peak(rank) if h.source), None)
    if largest is None:
        return text + "."
    # Of a long line only its place.
    place = largest.source if len(largest.source) <= MAX_SOURCE else largest.source.partition(": ")[0]
    return (
        f"{text}. The most from one place, {format_quantity(largest.size_bytes, 'B')} of {largest.category}: {place}."
    )


def _columns(held: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    names = [name for name, size_bytes in held.items() if size_bytes.any()]
    total = _total(held)
    peak = int(np.argmax(total)) if len(total) else 0
    return {
        "category": names,
        "at the peak (B)": [int(held[name][peak]) for name in names],
        "own peak (B)": [int(held[name].max()) for name in names],
        "at the end (B)": [int(held[name][-1]) for name in names],
    }
