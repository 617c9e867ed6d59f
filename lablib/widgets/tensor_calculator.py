"""Tensor-parallel calculator: machine, width, ranks, tokens -> layer time and exposed communication.

The picture has the layer on 1 to so many ranks, compute and exposed communication stacked, and the end of the node. Its
sentence has the number of tokens from which 2D sends less.
"""

from math import isqrt
from typing import NamedTuple

import plotly.graph_objects as go

from lablib.figures.plans.tensor_times import figure_tensor_times
from lablib.hardware import find_cluster
from lablib.parallel.tensor.bytes import LayerSizes, fewest_tokens_for_2d
from lablib.signature import checked
from lablib.studies.tensor_time import WAYS, TensorLayerTime, tensor_times
from lablib.text.units import plural
from lablib.widgets.controls import Choice, Control, IntChoice
from lablib.widgets.explore import Exploration, explore

MACHINES = ("dgx-h100", "dgx-a100", "pcie-a100")
RANKS = (2, 4, 8, 16, 32, 64)
SEQ_LEN, HEAD_WIDTH = 2048, 64
_EXAMPLES = ({"cluster": "pcie-a100"}, {"width": 16384, "ranks": 64})


class LayerByRanks(NamedTuple):
    """A layer on 1, 2, 4, ... ranks; the ranks of a node; and the tokens from which 2D sends less."""

    times: list[TensorLayerTime]
    ranks_per_node: int
    tokens: int
    square: int
    fewest_for_2d: float


@checked
def tensor_calculator(interactive: bool = True) -> Exploration:
    """The calculator, to end a cell with; not interactive: its figure at a few settings. Sequences of 2,048 tokens."""
    controls: list[Control] = [
        Choice("cluster", "Machine", MACHINES, "dgx-h100"),
        IntChoice("width", "Width", (4096, 8192, 16384), 8192),
        IntChoice("ranks", "Ranks", RANKS, 16, "at most"),
        IntChoice("sequences", "Micro-batch", (1, 2, 4, 8, 16), 2, f"x {SEQ_LEN} tokens"),
        Choice("way", "Way", WAYS, "f and g"),
    ]
    return explore(tensor_layer, _draw, controls, interactive, _EXAMPLES)


@checked
def tensor_layer(cluster: str, width: int, ranks: int, sequences: int, way: str) -> LayerByRanks:
    """The layer on 1, 2, 4, ... ranks; the width is a multiple of 64 and of the ranks."""
    layer = LayerSizes(sequences, SEQ_LEN, width, width // HEAD_WIDTH)
    counts = [2**k for k in range(ranks.bit_length())]
    machine = find_cluster(cluster)
    square = isqrt(max(ranks, 4)) ** 2
    times = tensor_times(layer, machine, counts, way)
    return LayerByRanks(times, machine.devices_per_node, layer.tokens, square, fewest_tokens_for_2d(width, square))


def _draw(found: LayerByRanks) -> go.Figure:
    times, per_node, tokens, square, fewest = found
    verb = "more" if tokens <= fewest else "less"
    note = (
        f"On {plural(square, 'ranks')} 2D would send less from {fewest:,.0f} tokens on: here, with {tokens:,}, {verb}."
    )
    return figure_tensor_times(times, per_node, note=note)
