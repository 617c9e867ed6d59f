"""Bytes per step on each axis of a mesh, by distance: in a node, along a rail, or across rails.

    axis        payload, of one rank                                                     times per step
    tensor      S each way of every block: a sum, or with sequence parallelism halves    4 in a layer, L/p m times
                S at the embedding, and S at the head, on the first and the last stage   m
    context     keys and values of a ring, and their gradients                           L/p m
    expert      R k D w to the experts and back                                          4 in a layer, L/p m
    pipeline    S (S/t with sequence parallelism) to the next stage, as much back        m v
    data        gradients g P; with ZeRO-1 and 2 parameters w P after the step           1 (gradients of ZeRO-2: m)
                ZeRO-3: w P_layer twice and g P_layer for every layer                    L/p m

The messages of a collective depend on the places of its ranks (lablib/cost/routes.py), and so do its bytes by level: a
sum over eight nodes of eight sends 7/8 of a tensor inside each node, and 7/8 of the rest along rails.

    node     both ranks on one node
    rail     on two nodes, in the same place of each: their NICs are on one switch, in a rail-optimized network
    across   on two nodes, in different places: the message also passes the spine

Cost: for each way in which an axis' groups are placed on nodes, the messages of each of its collectives once.
Legend: S = R D w bytes of R tokens of a micro-batch, D width, w bytes per number, g of a gradient; P parameters of a
rank, L layers, p stages, v pieces of each, m micro-batches, t tensor ranks, k experts per token.
Source: these collectives: bytes.py of parallel/tensor, parallel/context and parallel/zero; lablib/plan/layer.
Rails: NVIDIA, "Doubling all2all Performance with NCCL 2.12", 2022 (PXN and rail-optimized networks; from memory).
Simplified: recomputed attention does not send its ring again; DDP's buckets count as one sum. The topologies of this
project have no rails: a rail is a name for a destination, and costs the same as across.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Annotated

import numpy as np

from lablib.cost import GroupNetwork, collective_cost
from lablib.cost.routes import routes
from lablib.hardware import Cluster
from lablib.parallel.context.bytes import ContextSizes, context_sent_bytes
from lablib.parallel.mesh.mesh import Mesh
from lablib.pipeline.closed_form import V_SHAPED
from lablib.plan.setup import Setup
from lablib.plan.step import StepTimes, step_of
from lablib.record.traffic import Traffic, Transfer
from lablib.signature import OneOf, checked

LEVELS = ("node", "rail", "across")
AXES = ("tensor", "context", "expert", "pipeline", "data")
_WIDEST = {"data": ("data", "expert", "context"), "copies of experts": ("data",)}


@dataclass(frozen=True, slots=True)
class StepCall:
    """A repeated collective of a step, or the messages between stages."""

    axis: str
    what: str
    name: str  # the collective, "ring" (each rank to the next of a circle) or "send" (to the next stage)
    size_bytes: float  # S of the cost model; of "ring" and "send" the bytes sent by one rank
    times: float  # calls per step and group
    over: tuple[str, ...]  # axes of the mesh along its groups
    # the stage of its groups: 0, -1; None: all. "ends": the first and the last stage of each pipeline.
    stage: int | str | None = None


@checked
def step_calls(setup: Setup) -> tuple[StepCall, ...]:
    """Bytes that each group of a split sends per step. Raises ValueError: compressed gradients."""
    if not setup.compression.is_none:
        message = f"a placement counts whole gradients: got compression={setup.compression.name!r}; leave it out."
        raise ValueError(message)
    step = step_of(setup)
    calls = [*_tensor(setup, step), *_context(setup), *_expert(setup), *_pipeline(setup), *_data(setup, step)]
    has_others = {axis for axis in AXES if getattr(setup, axis) > 1}  # of experts, the data axis has them
    return tuple(call for call in calls if has_others & set(call.over) and call.size_bytes * call.times > 0)


def _passes(setup: Setup, step: StepTimes) -> float:
    """How often a step passes a layer, forward and backward, and forward again where it is recomputed."""
    once_s = step.pieces.layer.forward.tensor_s
    each = setup.num_microbatches * setup.model.num_layers / setup.pipeline
    recomputed = step.repeated.tensor_s / (each * once_s) if once_s else 0.0
    return each * (2 + recomputed)


def _tensor(setup: Setup, step: StepTimes) -> Iterator[StepCall]:
    size, passes, over = setup.whole_bytes, _passes(setup, step), ("tensor",)
    mixture, is_split = setup.model.experts, setup.sequence_parallel
    blocks, share = 2.0, 0.0
    if mixture:
        share = setup.model.num_expert_layers / setup.model.num_layers
        blocks -= share * (is_split and not mixture.num_shared)
    for name in ("all_gather", "reduce_scatter") if is_split else ("all_reduce",):
        yield StepCall("tensor", "activations", name, size, blocks * passes, over)
    if mixture and is_split:
        arrived = size * mixture.num_active  # the ranks that share an expert gather each other's tokens
        for name in ("all_gather", "reduce_scatter"):
            yield StepCall("tensor", "tokens of experts", name, arrived, share * passes, over)
    m = setup.num_microbatches
    yield StepCall("tensor", "embedding", "all_reduce", size, m, over, 0)
    yield StepCall("tensor", "head", "all_reduce", size, m, over, 0 if setup.has_both_ends else -1)


def _context(setup: Setup) -> Iterator[StepCall]:
    if setup.context == 1:
        return
    model, times = setup.model, setup.num_microbatches * setup.model.num_layers / setup.pipeline
    heads, kv_heads = max(model.num_heads // setup.tensor, 1), max(model.kv_heads // setup.tensor, 1)
    d_head = round((model.head_size + model.value_size) / 2)
    sizes = ContextSizes(setup.micro_batch, setup.seq_len, heads, kv_heads, d_head, setup.machine.width)
    sent = context_sent_bytes(sizes, setup.context, "ring")
    yield StepCall("context", "keys and values", "ring", sent, times, ("context",))


def _expert(setup: Setup) -> Iterator[StepCall]:
    mixture = setup.model.experts
    if not mixture:
        return
    passes = 2 * setup.num_microbatches * setup.model.num_expert_layers / setup.pipeline
    passes *= 1 + 0.5 * (setup.recompute.kind == "full") * setup.recompute.share(setup.layers)
    size = setup.whole_bytes / (setup.tensor if setup.sequence_parallel else 1)
    yield StepCall("expert", "tokens", "all_to_all", size * mixture.num_active, 2 * passes, ("expert",))


def _pipeline(setup: Setup) -> Iterator[StepCall]:
    stack = setup.machine.stack
    size = setup.whole_bytes / (setup.tensor if stack.splits_messages else 1)
    yield StepCall("pipeline", "activations and their gradients", "send", size, setup.num_microbatches, ("pipeline",))


def _data(setup: Setup, step: StepTimes) -> Iterator[StepCall]:
    machine, parameters, m = setup.machine, step.pieces.parameters, setup.num_microbatches
    layers = setup.layers
    kinds = [("data", parameters.layer)]
    kinds += [("copies of experts", parameters.expert_layer)] if setup.model.experts else []
    for kind, layer in kinds:
        yield from _reduced(setup, layer, layers, m, _WIDEST[kind], None)
    both = setup.has_both_ends
    yield from _reduced(setup, parameters.embedding, 1, m, _WIDEST["data"], 0)
    yield from _reduced(setup, parameters.head, 1, m, _WIDEST["data"], 0 if both else -1)
    if setup.model.tied_head and not both:
        size = parameters.tied * machine.gradient_bytes
        yield StepCall("data", "gradients of the tied table", "all_reduce", size, 1, ("pipeline",), "ends")


def _reduced(
    setup: Setup, each: float, count: float, m: int, over: tuple[str, ...], stage: int | None
) -> Iterator[StepCall]:
    """Gradients of `count` pieces of so many parameters, and with ZeRO the parameters."""
    machine, zero = setup.machine, setup.zero_stage
    gradients, parameters = each * machine.gradient_bytes, each * machine.width
    if zero == 3:
        gathers = 1 + setup.reshard_after_forward
        yield StepCall("data", "parameters", "all_gather", parameters, count * m * gathers, over, stage)
        yield StepCall("data", "gradients", "reduce_scatter", gradients, count * m, over, stage)
        return
    has_halves = zero and machine.stack.has_reduce_scatter and not setup.is_eager
    name, times = ("reduce_scatter" if has_halves else "all_reduce"), (m if zero == 2 else 1)
    yield StepCall("data", "gradients", name, count * gradients, times, over, stage)
    if zero:
        # Eager ZeRO-1 broadcasts each tensor from its owner instead: the mean rank sends as many bytes.
        yield StepCall("data", "parameters", "all_gather", count * parameters, 1, over, stage)


# ---- destinations ----


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Bytes of a step between ranks, axis by axis."""

    mesh: Mesh
    cluster: Cluster
    matrices: Mapping[str, np.ndarray]  # axis -> bytes from each rank (row) to each (column)
    traffic: Traffic  # the same as a record of communications, for `figure_traffic_matrix`

    @checked
    def sent_bytes(self, axis: Annotated[str, OneOf(AXES)]) -> dict[str, float]:
        """Bytes of a mean rank on this axis, by level; 0 for an axis without traffic."""
        if axis not in self.matrices:
            return dict.fromkeys(LEVELS, 0.0)
        sent = self.matrices[axis]
        ranks, per_node = np.arange(len(sent)), self.cluster.devices_per_node
        is_near = (ranks // per_node)[:, None] == ranks // per_node
        is_same_place = (ranks % per_node)[:, None] == ranks % per_node
        masks = {"node": is_near, "rail": ~is_near & is_same_place, "across": ~is_near & ~is_same_place}
        return {level: float(sent[masks[level]].sum()) / len(sent) for level in LEVELS}


@dataclass(frozen=True, slots=True)
class _Repeated:
    pairs: tuple[tuple[int, int, float], ...]
    network: GroupNetwork

    def __call__(self) -> dict[tuple[int, int], float]:
        return {(a, b): sent for a, b, sent in self.pairs}


@checked
def step_traffic(
    calls: tuple[StepCall, ...], mesh: Mesh, cluster: Cluster, chunks: int = 1, schedule: str = "1f1b"
) -> StepTraffic:
    """Bytes between all pairs of ranks, from `step_calls` on a mesh.

    `chunks`, `schedule`: of the pipeline: with several pieces per rank messages go round, in a V there and back.
    """
    matrices: dict[str, np.ndarray] = {}
    transfers = []
    for call in calls:
        matrix = matrices.setdefault(call.axis, np.zeros((mesh.num_ranks, mesh.num_ranks)))
        for number, ranks in enumerate(_groups(call, mesh)):
            pairs = tuple(_pairs(call, ranks, cluster, chunks, schedule))
            for a, b, sent in pairs:
                matrix[a, b] += sent
            net = _net(cluster, ranks)
            sent_by = {rank: 0.0 for rank in ranks}
            for a, _, sent in pairs:
                sent_by[a] += sent
            name = "send" if call.name in ("send", "ring") else call.name
            transfers.append(
                Transfer(
                    *(f"{call.axis} {number}", name, ranks, "", call.size_bytes, tuple(sent_by.values()), 0.0, 0.0),
                    route=_Repeated(pairs, net),
                )
            )
    return StepTraffic(mesh, cluster, matrices, Traffic(tuple(transfers)))


def _groups(call: StepCall, mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """As `Mesh.groups`, of the stages that make the call."""
    over = [place for place, axis in enumerate(mesh.axes) if axis in call.over]
    box = np.arange(mesh.num_ranks).reshape(tuple(mesh.sizes.values()))
    if isinstance(call.stage, int) and "pipeline" in mesh.axes:
        stage = mesh.axes.index("pipeline")
        box = box.take([call.stage], axis=stage)
    groups = np.moveaxis(box, over, range(box.ndim - len(over), box.ndim))
    for ranks in groups.reshape(-1, prod(mesh.sizes[mesh.axes[place]] for place in over)).tolist():
        yield (ranks[0], ranks[-1]) if call.stage == "ends" else tuple(ranks)


def _pairs(
    call: StepCall, ranks: tuple[int, ...], cluster: Cluster, chunks: int, schedule: str
) -> Iterator[tuple[int, int, float]]:
    """(from, to, bytes of a step) in one group."""
    size = call.size_bytes * call.times
    if call.name == "ring":
        yield from ((a, b, size) for a, b in zip(ranks, (*ranks[1:], ranks[0]), strict=True))
    elif call.name == "send":
        there = (2 if schedule in V_SHAPED else chunks) * size
        for a, b in zip(ranks, ranks[1:], strict=False):
            yield a, b, there
            yield b, a, there
        if chunks > 1 and schedule not in V_SHAPED:
            yield ranks[-1], ranks[0], (chunks - 1) * size
            yield ranks[0], ranks[-1], (chunks - 1) * size
    else:
        base = ranks[0] // cluster.devices_per_node * cluster.devices_per_node
        shape = tuple(rank - base for rank in ranks)
        for a, b, sent in _messages(call.name, call.size_bytes, shape, cluster):
            yield base + a, base + b, sent * call.times


@lru_cache(maxsize=4096)
def _messages(
    name: str, size_bytes: float, ranks: tuple[int, ...], cluster: Cluster
) -> tuple[tuple[int, int, float], ...]:
    """The messages of one collective. Groups with the same placement on their nodes are assumed to send the same."""
    net = _net(cluster, ranks)
    algorithm = collective_cost(name, size_bytes, net).algorithm
    return tuple((a, b, sent) for (a, b), sent in routes(name, algorithm, net, size_bytes).items())


@lru_cache(maxsize=4096)
def _net(cluster: Cluster, ranks: tuple[int, ...]) -> GroupNetwork:
    return GroupNetwork(cluster, ranks)
