"""Lab 03: step time against activation memory of each way to keep fewer activations, by device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated

import plotly.graph_objects as go
import torch

from lablib.figures.chart import Axis, Mark, Panel, chart, points
from lablib.hardware import LINKS, find_cluster
from lablib.memory.ways_to_fit import PricedLayer, Way, price_layers, ways_to_fit
from lablib.models.gpt import Block
from lablib.models.sizes import GPTConfig
from lablib.signature import NonEmpty, checked
from lablib.text.units import format_quantity

SLOWEST = 2.0  # times the plain step: slower ways are drawn at the edge, as arrows
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "triangle-down", "hourglass", "bowtie")
HOST_LINKS = {"v100": "pcie3", "a100": "pcie4", "h100": "pcie5"}
DTYPES = {"2 bytes": torch.float16, "4 bytes": torch.float32}
TIME = Axis("time of a step", "1 = keep all", span=(0.94, SLOWEST * 1.03))
MEMORY = Axis("activations at the peak", "%", span=(0, 106))


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
