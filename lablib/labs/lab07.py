"""Lab 07: a GPU that waits, timeline of a loop fed by a loader, the causes of its waits, and packed documents."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go

from lablib.batches.packing import Packing
from lablib.course import checks_for, guess, print_text, recorded_comparison, show_source, try_out
from lablib.course.table import in_rows
from lablib.data.loading.loaded_run import LoadedRun
from lablib.data.loading.loader import Copy, Jitter, Loader, draw_times
from lablib.data.loading.loader_timeline import run_loop, steady_step_s
from lablib.data.loading.measured_loop import measure_loop
from lablib.figures import figure_idle_shares, figure_lines, show
from lablib.figures.chart import Axis, Mark, Panel, bars, chart, line
from lablib.figures.style import COMPUTE, LOOKS, Look, named_rows, series_look
from lablib.signature import NonEmpty, Range, checked
from lablib.text.units import format_quantity, plural
from lablib.widgets import loader_calculator

PREFETCHES = [1, 2, 4, 8, 16, 32]

LANE_PIXELS = 34
MOST_BLOCKS = 40  # of a panel
Packings = Annotated[Mapping[str, Packing], NonEmpty()]
_LOAD = Look("load", "", "#E69F00", "")
_COPY = Look("copy", "", LOOKS["communication"].color, ".")
_GAPS = {  # by cause
    "workers start": Look("waits: workers start", "", "#FFFFFF", "x", hatch="#707070", edge="#C4C4C4"),
    "batch not loaded": Look("waits: batch not loaded", "", "#FFFFFF", "/", hatch="#707070", edge="#C4C4C4"),
    "batch not copied": Look("waits: batch not copied", "", "#FFFFFF", ".", hatch="#707070", edge="#C4C4C4"),
}


def figure_question() -> go.Figure:
    """Share of a GPU that computes, as a monitor shows it: busy, and again and again not."""
    computes_s, waits_s = (0.9, 1.1, 0.8, 1.0, 0.7, 1.2), (0.2, 0.5, 0.1, 0.7, 0.3, 0.4)  # made up
    times_s, shares = [0.0], [100.0]
    for compute_s, wait_s in zip(computes_s, waits_s, strict=True):
        times_s += [times_s[-1] + compute_s, times_s[-1] + compute_s + wait_s]
        shares += [0.0, 100.0]
    busy = line(0, "GPU", times_s, shares).styled(mode="lines", fill="tozeroy")
    busy = busy.styled(line={"shape": "hv", "color": COMPUTE.color, "width": 2})
    sentence = "The GPU computes, and then it does nothing. What is it waiting for?"
    panel = Panel(Axis("time", "s"), Axis("GPU that computes", "%", span=(0, 105)), [busy])
    return chart("A training run, as its monitor shows it", panel, sentence, pixels=120, showlegend=False)


@checked
def figure_loading(run: LoadedRun, batches: Annotated[int, Range(ge=1, le=60)]) -> go.Figure:
    """A lane for the device, one for copies, one for each worker; bars have the number of their batch.

    Args:
        run: simulated (`run_loop`) or measured (`measure_loop`).
        batches: number of drawn batches; the sentence and the table are of the whole run.
    """
    drawn, loader = range(min(batches, len(run.batches))), run.loader
    workers = [f"worker {worker}" for worker in range(loader.workers)] or ["loop loads"]
    lanes = ["<b>device</b>", *(["copy"] if loader.copy_s else []), *workers]
    title = f"{plural(loader.workers, 'workers')}, prefetch {loader.prefetch}" if loader.workers else "No workers"
    title += f", {loader.copy.value}" if loader.copy_s else ""
    marks = [_mark(look, drawn_bars, lanes) for look, drawn_bars in _bars(run, drawn).items() if drawn_bars]
    across = Axis("time", "s", span=(0.0, run.batches[drawn[-1]].step_end_s))
    down = Axis("", look=named_rows([len(lanes) - 0.4, -0.6], range(len(lanes)), lanes))
    causes = dict.fromkeys(_GAPS, 0.0)
    for gap in run.gaps:
        causes[gap.cause.value] += gap.end_s - gap.start_s
    seconds = [sum(batch.step_end_s - batch.step_start_s for batch in run.batches), *causes.values()]
    shares = [100 * one / run.makespan_s if run.makespan_s else 0.0 for one in seconds]
    columns = {"the device": ["computes", *causes], "time (s)": seconds, "share (%)": shares}
    panel, pixels = Panel(across, down, marks), LANE_PIXELS * len(lanes)
    return chart(title, panel, _summary(run, drawn, causes), columns, pixels=pixels, barmode="overlay")


Bar = tuple[str, float, float, str, str]  # lane, first and last second, text on it, hover


def _bars(run: LoadedRun, drawn: range) -> dict[Look, list[Bar]]:
    """The drawn bars by look, in the order of the legend."""
    bars: dict[Look, list[Bar]] = {look: [] for look in (COMPUTE, _COPY, _LOAD, *_GAPS.values())}
    edge_s = run.batches[drawn[-1]].step_end_s
    for number, batch in enumerate(run.batches[drawn[-1] + 1 :], drawn[-1] + 1):
        if batch.load_start_s < edge_s:  # cut off at the edge
            lane = f"worker {batch.worker}" if batch.worker >= 0 else "loop loads"
            bars[_LOAD].append(_bar(lane, batch.load_start_s, min(batch.load_end_s, edge_s), number, "load"))
    for number in drawn:
        batch = run.batches[number]
        lane = f"worker {batch.worker}" if batch.worker >= 0 else "loop loads"
        bars[COMPUTE].append(_bar("<b>device</b>", batch.step_start_s, batch.step_end_s, number, "step"))
        bars[_LOAD].append(_bar(lane, batch.load_start_s, batch.load_end_s, number, "load"))
        if run.loader.copy_s:
            bars[_COPY].append(_bar("copy", batch.copy_start_s, batch.copy_end_s, number, "copy"))
    for gap in run.gaps:
        if gap.batch in drawn:
            text = f"before the step of batch {gap.batch}: {gap.cause.value}"
            bars[_GAPS[gap.cause.value]].append(("<b>device</b>", gap.start_s, gap.end_s, "", text))
    for start_s, end_s in run.starts:
        for worker in range(run.loader.workers):
            bars[_GAPS["workers start"]].append((f"worker {worker}", start_s, end_s, "", f"worker {worker} starts"))
    return bars


def _bar(lane: str, start_s: float, end_s: float, number: int, what: str) -> Bar:
    return lane, start_s, end_s, str(number), f"{what} of batch {number}"


def _mark(look: Look, drawn: Sequence[Bar], lanes: Sequence[str]) -> Mark:
    names, starts_s, ends_s, numbers, texts = zip(*drawn, strict=True)
    times_s = [end_s - start_s for start_s, end_s in zip(starts_s, ends_s, strict=True)]
    hover = [
        f"<b>{text}</b><br>from {format_quantity(start_s, 's', 4)}<br>for {format_quantity(time_s, 's', 4)}"
        for start_s, time_s, text in zip(starts_s, times_s, texts, strict=True)
    ]
    words = {"text": numbers, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    words |= {"textfont": {"size": 11, "color": look.ink}}
    edge = {"line": {"width": 0.8, "color": look.edge or "#FFFFFF"}}
    rows, marker = [lanes.index(name) for name in names], look.marker() | edge
    place: dict[str, Any] = {"orientation": "h", "base": starts_s, "width": 0.8}
    return bars(look, look.title, times_s, rows, hover, marker=marker, **place, **words)


def _summary(run: LoadedRun, drawn: range, causes: Mapping[str, float]) -> str:
    parts = [f"{format_quantity(seconds, 's')} {cause}" for cause, seconds in causes.items() if seconds]
    why = f": {', '.join(parts)}" if parts else ""
    part = "" if len(drawn) == len(run.batches) else f" Drawn are batches {drawn[0]} to {drawn[-1]}."
    return (
        f"Over {plural(len(run.batches), 'batches')} in {format_quantity(run.makespan_s, 's')} the device waits "
        f"{run.idle_share:.0%} of the time{why}.{part}"
    )


def show_waits(settings: Sequence[tuple[float, float]], num: int) -> dict[int, float]:
    """Show the waits of loops with one worker and steps of 100 ms, by prefetch; returns those of the first setting.

    settings: mean seconds of a load, jitter. num: batches.
    """
    shares = {}
    for load_s, jitter in settings:
        loads_s = draw_times(load_s, num, Jitter.LOGNORMAL, jitter)
        runs = [run_loop(Loader(1, prefetch), loads_s, [0.1] * num) for prefetch in PREFETCHES]
        shares[f"load {load_s * 1e3:.0f} ms, jitter {jitter:.0%}"] = [run.idle_share_from(0) for run in runs]
    show(figure_idle_shares(PREFETCHES, shares, title="One worker, steps of 100 ms"))
    return dict(zip(PREFETCHES, next(iter(shares.values())), strict=True))


def show_classes(orders: Mapping[str, Sequence[int]], size: int, per_class: int) -> dict[str, float]:
    """Show the number of classes in each batch of `size` of sorted samples in these orders; returns the means."""
    classes = {}
    for name, order in orders.items():
        parts = [order[first : first + size] for first in range(0, len(order), size)]
        classes[name] = [len({sample // per_class for sample in part}) for part in parts]
    means = {name: sum(counts) / len(counts) for name, counts in classes.items()}
    said = [f"{name} {mean:.1f} ({min(classes[name])} to {max(classes[name])})" for name, mean in means.items()]
    axes: dict[str, Any] = {"x_label": "batch", "y_label": f"classes in a batch of {size}"}
    axes |= {"title": "Through a shuffle buffer", "summary": f"Classes in a batch, mean: {'; '.join(said)}."}
    show(figure_lines(range(len(next(iter(classes.values())))), classes, **axes))
    return means


def loop_settings(num: int) -> dict[str, tuple[Loader, list[float]]]:
    """Loaders of real workers and the seconds of their loads, with and without jitter."""
    constant, jittery = [0.02] * num, draw_times(0.008, num, Jitter.LOGNORMAL, 1.0, seed=1)
    found = {"no workers": (Loader(0), constant), "1 worker": (Loader(1), constant), "2 workers": (Loader(2), constant)}
    return found | {f"jitter, prefetch {prefetch}": (Loader(1, prefetch), jittery) for prefetch in (1, 8)}


def table_of_loops(num: int, repeats: int) -> pd.DataFrame:
    """Time of a step with these loaders in ms: predicted, and measured here and in the recording."""
    rows, recorded = {}, {row["name"]: row for row in recorded_comparison("07").rows}
    for name, (loader, loads_s) in loop_settings(num).items():
        predicted_s = run_loop(loader, loads_s, [0.01] * num).step_time_s
        measured_s = min(measure_loop(loader, loads_s, [0.01] * num).step_time_s for _ in range(repeats))
        rows[name] = {"predicted, ms": predicted_s * 1e3, "measured, ms": measured_s * 1e3}
        rows[name] |= {"off, %": 100 * (predicted_s / measured_s - 1)}
        rows[name] |= {"recorded, ms": recorded[name]["measured_s"] * 1e3}
        rows[name] |= {"recorded off, %": recorded[name]["error_pct"]}
    return in_rows(rows)


# --- Packed documents ---


@checked
def figure_packing(packings: Packings) -> go.Figure:
    """A panel for each packing, a bar for each block: its documents from below in two shades, and the padding on top.

    `packings`: name -> packing of the same documents. Of more than 40 blocks 40 are drawn, evenly spaced.
    """
    blocks = Axis("block", "count", look={"showgrid": False})
    panels = [Panel(blocks, Axis("block", "tokens"), _documents(one), title=name) for name, one in packings.items()]
    first = next(iter(packings.values()))
    parts = [f"{name} {plural(len(p.blocks), 'blocks')}, {p.waste:.2%} of them waste" for name, p in packings.items()]
    tokens = f"{format_quantity(sum(first.lengths), 'tokens')} in blocks of {first.block_size:,}"
    sentence = f"{plural(len(first.lengths), 'documents')} of {tokens}: {'; '.join(parts)}."
    if max(len(packing.blocks) for packing in packings.values()) > MOST_BLOCKS:
        sentence += f" Of a packing with more, {MOST_BLOCKS} blocks are drawn, evenly spaced."
    columns = packing_table(packings)
    return chart("Documents in blocks", panels, sentence, columns, barmode="stack", bargap=0.15)


def packing_table(packings: Mapping[str, Packing]) -> dict[str, Sequence[object]]:
    """Blocks, tokens and waste of each packing, and the work of attention: pairs of tokens in blocks and documents."""
    every = list(packings.values())
    pairs = [len(p.blocks) * p.block_size**2 for p in every]
    inside = [sum(length**2 for length in p.lengths) for p in every]
    return {
        "packing": list(packings),
        "documents": [len(p.lengths) for p in every],
        "blocks": [len(p.blocks) for p in every],
        "waste (%)": [100 * p.waste for p in every],
        "attention over blocks (pairs of tokens)": pairs,
        "in documents alone (pairs of tokens)": inside,
        "times fewer": [a / b for a, b in zip(pairs, inside, strict=True)],
    }


def _documents(packing: Packing) -> list[Mark]:
    """A group of bars for each place in a block, from below, and one for the padding."""
    number = len(packing.blocks)
    blocks = [packing.blocks[i * number // MOST_BLOCKS] for i in range(MOST_BLOCKS)]
    blocks = packing.blocks if number <= MOST_BLOCKS else blocks
    at, marks = range(len(blocks)), []
    for place in range(max(map(len, blocks))):
        heights = [packing.lengths[block[place]] if place < len(block) else 0 for block in blocks]
        words = [
            f"document {block[place]}: {plural(height, 'tokens')}" if height else ""
            for block, height in zip(blocks, heights, strict=True)
        ]
        pattern = {"shape": ("", "/")[place % 2], "fillmode": "overlay", "fgcolor": "#FFFFFF", "solidity": 0.2}
        shade = {"color": series_look((0, 5)[place % 2]).color, "pattern": pattern | {"size": 6}}
        name = ("first, third, ... document", "second, fourth, ...")[place % 2]
        mark = bars(LOOKS["idle"], name, at, heights, words)
        marks.append(mark.styled(marker=shade | {"line": {"width": 0.5, "color": "#FFFFFF"}}))
    left = [packing.block_size - sum(packing.lengths[document] for document in block) for block in blocks]
    words = [f"padding: {plural(room, 'tokens')}" for room in left]
    return [*marks, bars(LOOKS["idle"], "padding", at, left, words, legendrank=2000)]
