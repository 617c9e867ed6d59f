"""Lab 06: operations per number read, programs that touch elements, and the staircase of tile quantization.

The pictures of the Triton Puzzles (S. Rush, https://github.com/srush/Triton-Puzzles) are the model: tensors as grids.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

from lablib.calibration import this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, try_out
from lablib.figures import figure_lines, figure_roofline, show
from lablib.figures.chart import TITLE_PIXELS, Axis, Panel, bars, chart, check_lengths, line
from lablib.figures.describe import attach
from lablib.figures.style import INK, LOOKS, PAPER_PIXELS, TOP_PIXELS, axis, base_layout, series_look, texts
from lablib.hardware import DEVICES
from lablib.kernels import elementwise_chain as chains
from lablib.kernels.accesses import Kind, Launch, Program, distinct_bytes, hbm_bytes, record_accesses
from lablib.kernels.attention_bytes import forward_bytes, paper_flash_numbers, standard_numbers
from lablib.kernels.attention_plan import AttentionTiles, equal_lengths
from lablib.kernels.torch_compiler import NoCppCompiler, find_cpp_compiler
from lablib.launch import launch
from lablib.signature import NonEmpty, Range, checked
from lablib.text.units import format_quantity, plural
from lablib.widgets import IntChoice, explore

MOST = 32  # rows or columns of a grid with legible numbers
PER_ROW, ROW_PIXELS, NUM_COLORS = 3, 250, 8
Width = Annotated[int, Range(ge=1, le=MOST)]
READ, WRITTEN = {"color": "#000000", "width": 3}, {"color": "#B00020", "width": 3, "dash": "dash"}


def figure_question() -> go.Figure:
    """Operations that a GPU can do while it reads one number of 4 bytes, for four generations of GPUs."""
    names = ("V100-32GB-SXM2", "A100-40GB-SXM", "H100-80GB-SXM", "B200-SXM")
    counts = [4 * DEVICES[name].peak("float32") / DEVICES[name].memory_bandwidth_bytes_per_s for name in names]
    bar = bars(LOOKS["forward"], "operations", [name.split("-")[0] for name in names], counts)
    sentence = "A kernel that does one operation for each number that it reads waits for memory nearly all the time."
    panel = Panel(Axis("GPU"), Axis("operations"), [bar])
    return chart("Operations while one number of 4 bytes is read", panel, sentence, pixels=180, showlegend=False)


def simulated(run: Callable[..., Any], chain: Sequence[str], numel: int) -> dict[str, int]:
    """Kernels of a chain on a simulated H100, and the tensors that they move."""

    def program() -> None:
        x, y = torch.empty(numel), torch.empty(numel)  # on a device without values: no kernel
        run(chain, x, [y])

    seen = launch(program, ranks=1, cluster="dgx-h100", fidelity="shapes")
    spans = [one for one in seen.timeline.spans if one.size_bytes]
    return {"kernels": len(spans), "tensors moved": int(sum(one.size_bytes for one in spans)) // (4 * numel)}


def attention_bytes(sizes: Sequence[int], head_dim: int, tile: int) -> dict[str, list[int]]:
    """Bytes that forward of one head moves in 16 bits, by number of tokens; both loops use the same tiles."""
    tiles = AttentionTiles(tile, tile)
    plans = [equal_lengths(1, size, size, is_causal=False, tiles=tiles) for size in sizes]
    return {
        "standard": [2 * standard_numbers(size, head_dim) for size in sizes],
        "the loop": [sum(forward_bytes(plan, 1, head_dim, itemsize=2).values()) for plan in plans],
        "the loop of 2022": [2 * paper_flash_numbers(size, head_dim, 4 * tile * head_dim) for size in sizes],
    }


def compiled(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The function after torch.compile, as "fused"; nothing where inductor has no C++ compiler."""
    try:
        find_cpp_compiler()
    except NoCppCompiler as error:
        print_text(str(error))
        return {}
    return {"fused": torch.compile(function)}


def seconds(name: str, function: Callable[..., Any], arguments: Sequence[Tensor], repeats: int) -> float:
    """The quickest of many calls after a first one, which compiles."""
    function(*arguments)
    all_s = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function(*arguments)
        all_s.append(time.perf_counter() - begin)
    quickest, median = min(all_s), sorted(all_s)[len(all_s) // 2]
    print(f"{name}: quickest {quickest * 1e3:.1f} ms, median {median * 1e3:.1f} ms")
    return quickest


def print_recorded() -> None:
    """The recorded seconds of the lab's chain, and the machine."""
    recorded = recorded_comparison("06")
    for row in recorded.rows:
        both = f"{row['predicted_s'] * 1e3:.1f} ms predicted, {row['measured_s'] * 1e3:.1f} measured"
        print(f"{row['name']}: {both}, repeats within {row['noise_pct']:.0f}%")
    print_text(f"{recorded}")


@dataclass(frozen=True)
class _Grid:
    """A tensor as rows and columns, and the programs that touch each element."""

    name: str
    shape: tuple[int, ...]
    sides: tuple[int, int]
    programs: list[list[int]]  # of each element, by number, ascending

    def places(self, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(elements, self.sides[1])


@checked
def figure_tiles(launch: Launch, program: Sequence[int] = (0,), vector_width: Width = MOST) -> go.Figure:
    """A grid for each tensor, one square per element with the colour and number of the program that touches it.

    Several programs: the first of them and a +. Reads of the chosen program have a black frame, its writes a dashed
    red one.

    Args:
        launch: of `record_accesses`, at most 32 rows and columns; all dimensions but the last are rows.
        program: its program ids; missing ones are 0.
        vector_width: a longer vector is broken into rows of so many elements.

    Raises ValueError: a tensor that is too large to draw, no such program, or nothing accessed.
    """
    x, y, z = [*program, 0, 0, 0][:3]
    if not program or len(program) > 3 or any(not 0 <= a < n for a, n in zip((x, y, z), launch.grid, strict=True)):
        raise ValueError(f"program must be one of the grid {launch.grid}: got {tuple(program)}.")
    chosen: Program = x, y, z
    numbers: dict[Any, int] = {one: index for index, one in enumerate(product(*map(range, launch.grid)))}
    if not (touched := {one.tensor for one in launch.accesses}):
        raise ValueError(f"a launch must access something to be drawn: got none of {launch.kernel}.")
    grids = [_grid(launch, name, numbers, vector_width) for name in launch.tensors if name in touched]
    columns, rows = min(PER_ROW, len(grids)), -(-len(grids) // PER_ROW)
    specs = [[{} if row * PER_ROW + col < len(grids) else None for col in range(columns)] for row in range(rows)]
    titles = [f"{grid.name} ({' x '.join(map(str, grid.shape)) or '1'})" for grid in grids]
    gaps: dict[str, Any] = {"horizontal_spacing": 0.08, "vertical_spacing": 0.3 / rows if rows > 1 else 0.0}
    figure = make_subplots(rows=rows, cols=columns, specs=specs, subplot_titles=titles, **gaps)
    size = {"height": rows * ROW_PIXELS + PAPER_PIXELS + TITLE_PIXELS, "showlegend": True}
    figure.update_layout(base_layout(f"{launch.kernel}: tiles of its programs", **size))
    figure.update_layout(margin_t=TOP_PIXELS + TITLE_PIXELS)
    figure.update_annotations(font_size=13)
    for index, grid in enumerate(grids):
        place: dict[str, Any] = {"row": index // PER_ROW + 1, "col": index % PER_ROW + 1}
        for trace in (_squares(grid), _numbers(grid, columns)):
            figure.add_trace(trace, **place)
        for trace in _frames(grid, launch, chosen, is_first=index == 0):
            figure.add_trace(trace, **place)
        figure.update_xaxes(_axis("column (number)", grid.sides[1]), **place)
        figure.update_yaxes(_axis("row (number)", grid.sides[0], down=True), **place)
    return attach(figure, _summary(launch, chosen), _columns(launch, chosen, grids))


def _grid(launch: Launch, name: str, numbers: dict[Program, int], vector_width: int) -> _Grid:
    shape = launch.tensors[name].shape
    size = int(np.prod(shape))
    width = shape[-1] if len(shape) > 1 else min(size, vector_width)
    sides = -(-size // width), width
    if max(sides) > MOST:
        raise ValueError(f"{name} must have at most {MOST} rows and columns to be drawn: got shape {shape}.")
    programs: list[set[int]] = [set() for _ in range(size)]
    for access in launch.accesses:
        if access.tensor == name:
            for element in access.elements.tolist():
                programs[element].add(numbers[access.program])
    return _Grid(name, shape, sides, [sorted(one) for one in programs])


def _squares(grid: _Grid) -> go.Heatmap:
    """Colours by the first program; 0 is for untouched elements."""
    z, words = np.zeros(grid.sides), np.full(grid.sides, "", dtype=object)
    for element, found in enumerate(grid.programs):
        place = divmod(element, grid.sides[1])
        z[place] = found[0] % NUM_COLORS + 1 if found else 0
        who = ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")
        index = [int(one) for one in np.unravel_index(element, grid.shape)] if grid.shape else []
        words[place] = f"<b>{grid.name}{index}</b><br>{f'program {who}' if who else 'no program'}"
    colors = ["#FFFFFF"] + [_tint(series_look(index).color) for index in range(NUM_COLORS)]
    scale = [[index / NUM_COLORS, color] for index, color in enumerate(colors)]
    return go.Heatmap(
        z=z, zmin=0, zmax=NUM_COLORS, colorscale=scale, showscale=False, xgap=1, ygap=1,
        hovertext=words, hoverinfo="text",
    )  # fmt: skip


def _numbers(grid: _Grid, num_panels: int) -> go.Scatter:
    """The number of the first program in each square, with a + for more programs."""
    found = [(divmod(element, grid.sides[1]), who) for element, who in enumerate(grid.programs) if who]
    is_wide = grid.sides[1] * num_panels > 33 or grid.sides[0] > 16
    words = [f"{who[0]}{'+' if len(who) > 1 else ''}" for _, who in found]
    x, y = [column for (_, column), _ in found], [row for (row, _), _ in found]
    return texts(x, y, words, {"size": 8 if is_wide else 11, "color": INK})


def _frames(grid: _Grid, launch: Launch, chosen: Program, is_first: bool) -> list[go.Scatter]:
    """Lines around the reads of the chosen program, and around its writes."""
    traces = []
    ways: list[tuple[str, Kind, dict[str, Any]]] = [("read", "load", READ), ("written", "store", WRITTEN)]
    for name, kind, frame in ways:
        x, y = [], []
        for x0, x1, y0, y1 in _rectangles(*grid.places(launch.elements(grid.name, chosen, kind, "atomic"))):
            x += [x0, x1, x1, x0, x0, None]
            y += [y0, y0, y1, y1, y0, None]
        if x or is_first:  # both are in the legend
            name = f"{name} by {_word(launch, chosen)}"
            look = {"mode": "lines", "line": frame, "hoverinfo": "skip", "cliponaxis": False}
            traces.append(go.Scatter(x=x or [None], y=y or [None], name=name, showlegend=is_first, **look))
    return traces


def _rectangles(rows: np.ndarray, columns: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Frames (x0, x1, y0, y1) around places: runs of each row, joined with equal runs of the rows above."""
    found: list[list[int]] = []  # first column, end, first row, end
    for row in np.unique(rows).tolist():
        here = np.sort(columns[rows == row])
        for run in np.split(here, np.flatnonzero(np.diff(here) > 1) + 1):
            start, end = int(run[0]), int(run[-1]) + 1
            above = next((one for one in found if one[:2] == [start, end] and one[3] == row), None)
            if above:
                above[3] = row + 1
            else:
                found.append([start, end, row, row + 1])
    return [(a - 0.5, b - 0.5, c - 0.5, d - 0.5) for a, b, c, d in found]


def _tint(color: str) -> str:
    """Lighter, so that black numbers are legible."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.45 * (255 - part)):02X}" for part in parts)


def _axis(title: str, size: int, down: bool = False) -> dict[str, object]:
    step = max(1, -(-size // 8))
    edge = 0.5 + size / 60  # room for a frame at the end
    places, ends = list(range(0, size, step)), [-edge, size - 1 + edge]
    return axis(
        title, range=ends[::-1] if down else ends, tickvals=places, ticktext=list(map(str, places)), showgrid=False
    )


def _word(launch: Launch, program: Program) -> str:
    """Its number, and its ids if the grid has more than one dimension."""
    number = int(np.ravel_multi_index(program, launch.grid))
    num_ids = max(place for place, size in enumerate((2, *launch.grid[1:]), 1) if size > 1)
    return f"program {number}" + (f" ({', '.join(map(str, program[:num_ids]))})" if num_ids > 1 else "")


def _summary(launch: Launch, chosen: Program) -> str:
    own = [one for one in launch.accesses if one.program == chosen]
    read = sum(one.num_bytes for one in own if one.kind == "load")
    written = sum(one.num_bytes for one in own) - read
    total, once = sum(hbm_bytes([launch]).values()), sum(distinct_bytes([launch]).values())
    return (
        f"{plural(int(np.prod(launch.grid)), 'programs')} of {launch.kernel}: {_word(launch, chosen)} reads "
        f"{format_quantity(read, 'B')} and writes {format_quantity(written, 'B')}; all together "
        f"move {format_quantity(total, 'B')}, {format_quantity(once, 'B')} if each element came once."
    )


def _columns(launch: Launch, chosen: Program, grids: Sequence[_Grid]) -> dict[str, Sequence[object]]:
    moved, once, names = hbm_bytes([launch]), distinct_bytes([launch]), [grid.name for grid in grids]
    return {
        "tensor": names,
        "shape": [" x ".join(map(str, grid.shape)) for grid in grids],
        f"read by {_word(launch, chosen)} (elements)": [launch.elements(n, chosen, "load").size for n in names],
        f"written by {_word(launch, chosen)} (elements)": [
            launch.elements(n, chosen, "store", "atomic").size for n in names
        ],
        "most programs of an element": [max(map(len, grid.programs), default=0) for grid in grids],
        "moved by all (B)": [moved[name] for name in names],
        "each element once (B)": [once[name] for name in names],
    }


@checked
def figure_staircase(
    sizes: Annotated[Sequence[int], NonEmpty()],
    name: str,
    seconds: Sequence[float],
    useful: Sequence[float],
    title: str,
) -> go.Figure:
    """Above, seconds climb in steps; below, the useful share falls at each step and recovers to the next.

    Args:
        sizes: columns N of a product, in ascending order.
        name: of the device.
        seconds: at each size, by a model or a measurement.
        useful: shares of the device's rate, 0 to 1.
    """
    check_lengths(sizes, {"seconds": seconds, "useful": useful})
    words = [
        f"<b>{name}</b><br>{size:,}<br>{format_quantity(time_s, 's', 4)}<br>{share:.0%} useful"
        for size, time_s, share in zip(sizes, seconds, useful, strict=True)
    ]
    stairs = line(0, name, sizes, seconds, words).styled(mode="lines", line_shape="vh")
    shares = line(0, name, sizes, [100 * share for share in useful], words).styled(mode="lines")
    across = Axis("columns N", "count")
    upper = Panel(across, Axis("time", "s", from_zero=True), [stairs])
    lower = Panel(across, Axis("useful", "%", span=(0, 100)), [shares])
    columns: dict[str, Sequence[float]] = {across.label: sizes, f"{name}, time (s)": seconds, f"{name}, useful": useful}
    worst, best = (choose(range(len(sizes)), key=useful.__getitem__) for choose in (min, max))
    sentence = (
        f"For {across.label} from {sizes[0]:,} to {sizes[-1]:,}: {name} is useful for {useful[worst]:.0%} at "
        f"{sizes[worst]:,} and {useful[best]:.0%} at {sizes[best]:,}."
    )
    return chart(title, [upper, lower], sentence, columns, pixels=(200, 200))
