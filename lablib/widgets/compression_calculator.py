"""Compression calculator: compute, bandwidth, bits, packing and overlap -> the speedup of a step.

The picture has the speedup against the bandwidth for several batches: compression saves no time that compute hides.
"""

from dataclasses import replace
from typing import NamedTuple

import plotly.graph_objects as go

from lablib.figures.chart import ReferenceLine
from lablib.figures.lines import figure_lines
from lablib.plan.gradient_compression import find_compression
from lablib.signature import checked
from lablib.studies.compression_pays import break_even_bandwidth, speedup_curves, speedup_of_compression
from lablib.text.units import format_quantity
from lablib.widgets.controls import Control, IntChoice, LogSlider
from lablib.widgets.explore import Exploration, explore

NUM_GRADIENTS = 1e9
BATCHES = (1, 4, 16, 64)
BANDWIDTHS = tuple(1e8 * 10 ** (i / 5) for i in range(21))  # 100 MB/s to 1 TB/s
_EXAMPLES = ({"bits": 4}, {"overlap": 100})


class CompressionSpeedups(NamedTuple):
    """Speedups by bandwidth for each batch; the speedup at the chosen bandwidth; the break-even bandwidth."""

    curves: dict[str, list[float]]
    bandwidth: float
    here: list[float]
    break_even: list[float]


@checked
def compression_calculator(interactive: bool = True) -> Exploration:
    """The calculator, to end a cell with; not interactive: its figure at a few settings. 10^9 gradients, 64 ranks."""
    controls: list[Control] = [
        LogSlider("compute_s", "Compute", 1e-3, 10.0, 0.1, "s"),
        LogSlider("bandwidth", "Bandwidth", 1e8, 1e12, 1e10, "B/s"),
        IntChoice("bits", "Bits", (1, 2, 4, 8, 16), 8, "a gradient"),
        IntChoice("overhead", "Packing", (1, 2, 3, 5, 10, 20), 1, "x a fused kernel's"),
        IntChoice("overlap", "Overlap", (0, 25, 50, 75, 100), 50, "% of compute"),
    ]
    return explore(compression_pays, _draw, controls, interactive, _EXAMPLES)


@checked
def compression_pays(compute_s: float, bandwidth: float, bits: int, overhead: int, overlap: int) -> CompressionSpeedups:
    """The speedups for each of `BATCHES` at each of `BANDWIDTHS`, in blocks of 256 and two phases.

    Arguments: compute seconds of a sequence, bytes per second out of a rank, bits of a gradient, passes over the bytes
    to pack them (1 is a fused kernel's), percent of compute that can hide communication.
    """
    method = replace(find_compression("int8"), name=f"{bits} bits", bits=bits)
    options = {"overlap": overlap / 100, "overhead": float(overhead)}
    curves = speedup_curves(method, NUM_GRADIENTS, compute_s, BATCHES, BANDWIDTHS, **options)
    times_s = [batch * compute_s for batch in BATCHES]
    here = [speedup_of_compression(method, NUM_GRADIENTS, time_s, bandwidth, **options) for time_s in times_s]
    even = [break_even_bandwidth(method, NUM_GRADIENTS, time_s, **options) for time_s in times_s]
    return CompressionSpeedups(curves, bandwidth, here, even)


def _draw(found: CompressionSpeedups) -> go.Figure:
    parts = [
        f"{name} {speedup:.2f} times as fast (it pays below {format_quantity(even, 'B/s')})"
        for name, speedup, even in zip(found.curves, found.here, found.break_even, strict=True)
    ]
    summary = f"At {format_quantity(found.bandwidth, 'B/s')}: {'; '.join(parts)}."
    rules = [ReferenceLine(y=1.0, text="no gain"), ReferenceLine(x=found.bandwidth, line={"dash": "dot"})]
    look = {"title": "When compression pays", "log_x": True, "summary": summary, "rules": rules}
    return figure_lines(BANDWIDTHS, found.curves, "bandwidth", "speedup", "B/s", "times", **look)
