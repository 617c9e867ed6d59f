"""Placement calculator: order of a mesh's axes and network -> step time, waits, bytes between ranks.

The order is typed; the last axis has neighbouring ranks. Decide first, then look. The picture is the traffic matrix in
mesh order; its sentence has the seconds. The device is always an H100, so that only the network differs: networks of
clusters in the catalogue, and RoCE with a message latency of 15 us.
"""

from collections.abc import Mapping
from types import MappingProxyType

import plotly.graph_objects as go

from lablib.figures.run.traffic_matrix import figure_traffic_matrix
from lablib.hardware import Cluster, Link, find_cluster
from lablib.hardware.devices import DEVICES
from lablib.parallel.mesh.mesh import Mesh
from lablib.plan.order import PLACED
from lablib.signature import checked
from lablib.studies.placement import PlacedMesh, place
from lablib.text.units import format_quantity
from lablib.widgets.controls import Choice, Control, IntChoice, Text
from lablib.widgets.explore import Exploration, explore

MODELS = ("gpt3-13b", "llama-3-8b", "mixtral-8x7b")
SEQUENCES, SEQ_LEN = 16, 2048  # per replica and step, each a micro-batch; tokens of each
_SLOW = Link("RoCE v2, 400 Gb/s, 15 us", 15e-6, 50e9, "line rate; the latency is assumed: order of magnitude of EFA's")
NETWORKS: Mapping[str, str] = MappingProxyType(
    {
        "NVLink island of 72": "gb200-nvl72",
        "rails: 8 NICs a node": "dgx-h100",
        "RoCE at 15 us": "dgx-h100",
        "dragonfly": "perlmutter",
        "torus": "tpu-v4",
    }
)
_EXAMPLES = (
    {"order": "tensor, pipeline, data"},
    {"network": "RoCE at 15 us", "order": "pipeline, tensor, data"},
    {"model": "mixtral-8x7b", "data": 2, "expert": 4, "order": "expert, data, pipeline, tensor"},
)


@checked
def placement_calculator(interactive: bool = True) -> Exploration:
    """The calculator, to end a cell with; not interactive: its figure at a few settings. ZeRO-1, 2,048 tokens."""
    controls: list[Control] = [
        Choice("network", "Wires", tuple(NETWORKS), "rails: 8 NICs a node"),
        Choice("model", "Model", MODELS, "gpt3-13b"),
        IntChoice("data", "Data", (1, 2, 4, 8), 4, "ranks"),
        IntChoice("tensor", "Tensor", (1, 2, 4, 8, 16), 8, "ranks"),
        IntChoice("pipeline", "Pipeline", (1, 2, 4), 2, "stages"),
        IntChoice("context", "Context", (1, 2, 4), 1, "ranks"),
        IntChoice("expert", "Expert", (1, 2, 4, 8), 1, "ranks"),
        Text("order", "Order, far to near", "data, pipeline, tensor"),
    ]
    return explore(placed_mesh, _draw, controls, interactive, _EXAMPLES)


def network_of(name: str) -> Cluster:
    """The network of that name, between H100s."""
    cluster = find_cluster(NETWORKS[name]).replace(name=name, device=DEVICES["H100-80GB-SXM"])
    return cluster.replace(inter=_SLOW) if name == "RoCE at 15 us" else cluster


@checked
def placed_mesh(
    network: str, model: str, data: int, tensor: int, pipeline: int, context: int, expert: int, order: str
) -> PlacedMesh:
    """The mesh with its axes in `order`, from far apart to neighbours, on one of `NETWORKS`.

    Axes of one rank may be left out.

    Raises ValueError: an order with an unknown axis, or without one of several ranks; and as `studies.placement.place`.
    """
    sizes = {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
    axes = order.replace(",", " ").split()
    for axis in axes:
        if axis not in PLACED or axes.count(axis) > 1:
            raise ValueError(f"an order has each of {', '.join(PLACED)} once: got {order!r}; the last has neighbours.")
    if missing := [axis for axis, size in sizes.items() if size > 1 and axis not in axes]:
        raise ValueError(f"the order lacks an axis of {sizes[missing[0]]} ranks: put {missing[0]} into {order!r}.")
    mesh = Mesh(**({axis: sizes[axis] for axis in axes if sizes[axis] > 1} or {"data": 1}))
    batch = SEQUENCES * data * expert
    return place(model, mesh, network_of(network), batch, zero_stage=1, seq_len=SEQ_LEN)


def _draw(found: PlacedMesh) -> go.Figure:
    held, limit = found.prediction.peak_memory_bytes, found.prediction.memory_limit_bytes
    fits = "" if held <= limit else f" It does not fit: {format_quantity(held, 'B')} of {format_quantity(limit, 'B')}."
    sentence = found.sentence()
    title = "Bytes between ranks, in mesh order"
    per_node, sizes = found.cluster.devices_per_node, found.mesh.sizes
    return figure_traffic_matrix(
        found.traffic.traffic,
        devices_per_node=per_node,
        title=title,
        mesh=sizes,
        note=f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}.{fits}",
    )
