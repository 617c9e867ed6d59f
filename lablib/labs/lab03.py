"""Lab 03: a chain and its backward, memory and time of its steps, ways to keep fewer activations by device."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from lablib.calibration import batch_for, this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, try_out
from lablib.figures import figure_memory, show
from lablib.figures.chart import Axis, Mark, Panel, chart, points
from lablib.figures.describe import attach
from lablib.figures.style import FAINT_INK, LOOKS
from lablib.hardware import LINKS, Link, find_cluster
from lablib.memory.ways_to_fit import PricedLayer, Way, price_layers, ways_to_fit
from lablib.models.gpt import Block
from lablib.models.sizes import GPTConfig
from lablib.phases import phase
from lablib.record.timeline import Span, Timeline
from lablib.run import Run
from lablib.signature import NonEmpty, Range, checked
from lablib.text.units import format_quantity
from lablib.widgets import Choice, IntChoice, explore

SLOWEST = 2.0  # times the plain step: slower ways are drawn at the edge, as arrows
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "triangle-down", "hourglass", "bowtie")
HOST_LINKS = {"v100": "pcie3", "a100": "pcie4", "h100": "pcie5"}
DTYPES = {"2 bytes": torch.float16, "4 bytes": torch.float32}
TIME = Axis("time of a step", "1 = keep all", span=(0.94, SLOWEST * 1.03))
MEMORY = Axis("activations at the peak", "%", span=(0, 106))


@checked
def figure_question(layers: Annotated[int, Range(ge=2, le=12)] = 6) -> go.Figure:
    """The layers of a chain in forward and in backward, and between them the tensors that backward may need."""
    places, low = list(range(layers)), [0.0] * layers
    high = [1.0] * layers
    gaps = [value for x in places for value in (x, x, None)]
    dashes = {"mode": "lines", "line": {"color": FAINT_INK, "dash": "dot", "width": 1.5}}
    kept = Mark("must it be kept?", gaps, [1.0, 0.0, None] * layers, (), look=dashes)
    path = [*places, layers, *reversed(places)], [*high, 0.5, *low]
    order = Mark("order of the work", *path, (), look={"mode": "lines", "line": {"color": FAINT_INK, "width": 1}})
    marks = [kept, order, points(2, "loss", [layers], [0.5], ["<b>loss</b>"], size=16)]
    for index, (name, height) in enumerate((("forward", high), ("backward", low))):
        words = {"text": [f"{name[0].upper()}{layer}" for layer in places], "mode": "markers+text"}
        marker = {"size": 34, "color": LOOKS[name].color, "symbol": "square"}
        mark = points(index, name, places, height, [f"<b>{name} of layer {layer}</b>" for layer in places])
        marks.append(mark.styled(**words, textfont={"color": LOOKS[name].ink, "size": 13}, marker=marker))
    hidden = {"visible": False}
    across, up = Axis("", span=(-0.6, layers + 0.4), look=hidden), Axis("", span=(-0.4, 1.4), look=hidden)
    sentence = "Backward goes from the last layer to the first. Which numbers of forward must wait in memory for it?"
    columns = {
        "layer": places,
        "place in forward": [1 + x for x in places],
        "in backward": [layers - x for x in places],
    }
    return chart("What must be kept for backward?", Panel(across, up, marks), sentence, columns, pixels=190)


def names_of(saved: Sequence[Tensor], **tensors: Tensor) -> str:
    """Names of the tensors that share memory with a saved one, as "xw"; or "nothing"."""
    places = [tensor.data_ptr() for tensor in saved]
    return "".join(name for name, tensor in tensors.items() if tensor.data_ptr() in places) or "nothing"


# ---- steps of a chain of blocks ----

TINY = GPTConfig(num_layers=6, d_model=256, num_heads=4, max_seq_len=256)


def make_chain(config: GPTConfig, sequences: int, dtype: torch.dtype) -> tuple[list[nn.Module], Tensor]:
    """Blocks of a GPT on the default device, and their input; both are part of the phase "setup"."""
    with phase("setup"):
        device, shape = torch.get_default_device(), (sequences, config.max_seq_len, config.d_model)
        blocks: list[nn.Module] = [Block(config, device, dtype) for _ in range(config.num_layers)]
        return blocks, torch.zeros(shape, device=device, dtype=dtype)


def step_s(run: Run) -> float:
    """Seconds of a run without its setup."""
    return run.timeline.without("setup").makespan_s


def activations(run: Run) -> int:
    """Most bytes of activations on rank 0."""
    return int(run.memory.curve(rank=0)[1]["activation"].max())


def show_memory(run: Run, title: str) -> None:
    """Memory of rank 0 over time, without the setup."""
    figure = figure_memory(run.memory, timeline=run.timeline.without("setup"), title=title)
    some, whole = format_quantity(activations(run), "B"), format_quantity(run.memory.peak_bytes(0), "B")
    show_with(figure, f"Peak of the activations: {some}; of all memory: {whole}.")


def show_with(figure: go.Figure, sentence: str) -> None:
    """The figure with another sentence."""
    show(attach(figure, sentence, figure.layout.meta["table"]))  # pyright: ignore[reportAttributeAccessIssue]


def made_by(run: Run, unit_bytes: float, most: int = 5) -> pd.DataFrame:
    """Activations at the peak by operator, in units of `unit_bytes`; attention is one operator."""
    sizes: dict[str, str] = {}
    for one in run.memory.allocations_at_peak(0):
        if one.category == "activation":
            name = "attention" if "attention" in one.name else one.name.removeprefix("aten.")
            sizes[name] = f"{one.size_bytes / unit_bytes:.2f}"
    return pd.DataFrame({"b in each block": sizes}).head(most).rename_axis("made by")


def row_of(run: Run, plain: Run) -> dict[str, str]:
    """Memory and time of a step in words."""
    held, seconds = format_quantity(activations(run), "B"), format_quantity(step_s(run), "s")
    return {"activations": held, "step": seconds, "longer by": f"{step_s(run) / step_s(plain) - 1:.0%}"}


# ---- side effects of a second run ----


def order_of_runs(run_in_segments: Callable[[list[nn.Module], int, Tensor], Tensor], k: int) -> list[int]:
    """Numbers of five layers in the order in which they run."""
    notes: list[int] = []
    layers: list[nn.Module] = [nn.Tanh() for _ in range(5)]
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, number=number: notes.append(number))
    run_in_segments(layers, k, torch.ones(3, requires_grad=True)).sum().backward()
    return notes


class RunningMean(nn.Module):
    """Subtracts the mean over the batch, and keeps a running mean for later use."""

    mean: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.1)  # a tenth of the way
        return x - x.mean(0)


def one_step(run: Callable[[nn.Module, Tensor], Tensor]) -> dict[str, str]:
    """A step of a small segment by `run`: a gradient, its running mean, and the next random number."""
    torch.manual_seed(0)
    mean = RunningMean(3)
    segment = nn.Sequential(nn.Linear(3, 3), mean, nn.Dropout(0.5))
    x = torch.rand(8, 3, requires_grad=True)
    run(segment, x).square().sum().backward()
    assert x.grad is not None
    values = {"gradient": x.grad[0, 0], "running mean": mean.mean[0], "next random": torch.rand(())}
    return {name: f"{float(value):+.4f}" for name, value in values.items()}


# ---- copies to the host ----


def host_link(cluster: str) -> Link:
    """The link from a GPU of this cluster to its host."""
    return LINKS["pcie4" if "a100" in cluster else "pcie5"]


def show_copies(run: Run, title: str) -> None:
    """The timeline of a step with offloading."""
    show_with(run.timeline.without("setup").figure(title=title), "Lanes: computing, copies back, copies out.")


def pass_seconds(run: Run, number: int) -> list[float]:
    """Seconds of one of `number` blocks in forward and in backward."""
    passes = [run.timeline.without("setup").select(rank=0, phase=name) for name in ("forward", "backward")]
    return [sum(span.duration_s for span in spans) / number for spans in passes]


def most_hidden(forward_s: float, backward_s: float, copy_s: float, number: int = 16) -> int:
    """The most blocks of a chain of equal ones that can be offloaded without delay, by the two rules of the lab."""
    out_s = [forward_s + m * max(forward_s, copy_s) + copy_s for m in range(number)]  # the end of copy m
    back = [all((m + 1 - i) * copy_s <= (number - 1 - i) * backward_s for i in range(m + 1)) for m in range(number)]
    return max((m + 1 for m in range(number) if out_s[m] <= number * forward_s and back[m]), default=0)


def show_offload(m: int, forward_s: float, backward_s: float, copy_s: float, number: int = 16) -> None:
    """Copies of the first m blocks of a chain, by the two rules of the lab."""
    spans, out_s, turn_s = [], 0.0, number * forward_s

    def add(stream: str, name: str, start_s: float, seconds: float) -> None:
        part = "forward" if start_s < turn_s else "backward"
        spans.append(Span(0, stream, name, part, start_s, start_s + seconds))

    for i in range(number):
        add("compute", f"block {i}", i * forward_s, forward_s)
        add("compute", f"block {i}", turn_s + (number - 1 - i) * backward_s, backward_s)
    for i in range(m):
        add("comm:out", f"{i}", max(out_s, (i + 1) * forward_s), copy_s)
        out_s = spans[-1].end_s
    for i in range(m):
        add("comm:in", f"{i}", max(turn_s, out_s) + (m - 1 - i) * copy_s, copy_s)
    ends = [format_quantity(seconds, "s") for seconds in (turn_s, out_s)]
    figure = Timeline.of(spans, num_ranks=1).figure(title=f"Copies (C) of the first {m} blocks")
    show_with(figure, f"Forward ends at {ends[0]}, the last copy is out at {ends[1]}.")


def longer_by(table: Any) -> dict[str, str]:
    """Extra time of the step with checkpoints, and the noise of the seconds."""
    both = table.set_index("name").loc[["checkpoint", "keep all"]]
    pairs = {side: both[f"{side}_s"].tolist() for side in ("predicted", "measured")}
    words = {side: f"{again / plain - 1:.0%}" for side, (again, plain) in pairs.items()}
    return words | {"noise": f"{both['noise_pct'].max():.0f}%"}


# ---- ways on several devices ----


def ways_by_device(width: int, num_layers: int, seq_len: int, number: str) -> dict[str, list[Way]]:
    """The ways for `num_layers` blocks of a GPT, micro-batch 4, on each device; `number` is a key of `DTYPES`."""
    pairs = zip(HOST_LINKS.items(), _priced_blocks(width, seq_len, number), strict=True)
    return {name.upper(): ways_to_fit(priced, num_layers, LINKS[link]) for (name, link), priced in pairs}


@cache
def _priced_blocks(width: int, seq_len: int, number: str) -> list[PricedLayer]:
    """One block on each device of `HOST_LINKS`."""
    config = GPTConfig(num_layers=1, d_model=width, num_heads=width // 64, max_seq_len=seq_len)
    meta, dtype = torch.device("meta"), DTYPES[number]
    x = torch.zeros(4, seq_len, width, device=meta, dtype=dtype)
    return price_layers(Block(config, meta, dtype), x, [find_cluster(f"dgx-{name}").device for name in HOST_LINKS])


@checked
def figure_time_memory(ways: Annotated[Mapping[str, Annotated[Sequence[Way], NonEmpty()]], NonEmpty()]) -> go.Figure:
    """A panel for each device, a point for each way: down is less memory, left is less time.

    `ways`: device -> its ways, the same for all; the first one keeps all activations: 1 and 100%.
    """
    panels = [
        Panel(TIME, MEMORY, [_point(index, way, some[0]) for index, way in enumerate(some)], title=device)
        for device, some in ways.items()
    ]
    best = []
    for device, (plain, *others) in ways.items():
        small = [way for way in others if way.memory_bytes <= plain.memory_bytes / 4]
        if small:
            way = min(small, key=lambda way: way.time_s)
            memory, time = way.memory_bytes / plain.memory_bytes, way.time_s / plain.time_s - 1
            best.append(f"on {device} {way.name} ({memory:.0%} of the bytes, {time:+.0%} time)")
    sentence = f"The quickest way to at most a quarter of the bytes: {'; '.join(best) or 'there is none'}."
    rows = [(device, way, some[0]) for device, some in ways.items() for way in some]
    columns = {
        "device": [device for device, _, _ in rows],
        "way": [way.name for _, way, _ in rows],
        "memory (GB)": [way.memory_bytes / 1e9 for _, way, _ in rows],
        "memory (%)": [100 * way.memory_bytes / plain.memory_bytes for _, way, plain in rows],
        "time (s)": [way.time_s for _, way, _ in rows],
        "time (1 = keep all)": [way.time_s / plain.time_s for _, way, plain in rows],
    }
    return chart("Memory against time, by device", panels, sentence, columns)


def _point(index: int, way: Way, plain: Way) -> Mark:
    time, memory = way.time_s / plain.time_s, 100 * way.memory_bytes / plain.memory_bytes
    words = (
        f"<b>{way.name}</b><br>{format_quantity(way.memory_bytes, 'B')}, {memory:.0f}%"
        f"<br>{format_quantity(way.time_s, 's')}, {time:.2f} times"
    )
    if time <= SLOWEST:
        return points(index, way.name, [time], [memory], [words], symbol=SYMBOLS[index % len(SYMBOLS)], size=11)
    mark = points(index, way.name, [SLOWEST], [memory], [words], symbol="triangle-right", size=11)
    return mark.styled(mode="markers+text", text=[f"{time:.1f} x"], textposition="top left")
