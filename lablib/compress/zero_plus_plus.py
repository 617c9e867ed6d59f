"""ZeRO++: three changes to ZeRO-3 that reduce the bytes between nodes to a quarter.

ZeRO-3 sends the model M (16-bit parameters, 2 bytes per number) three times per step; each change is a function that
lablib/parallel's ZeRO takes instead of a collective:

                              across nodes   with            across nodes
    forward    all-gather     M              qwZ, INT8       M / 2    quantized_all_gather
    backward   all-gather     M              hpZ             0        secondary_shards: a copy of M on each node
    gradients  reduce-scatter M              qgZ, INT4       M / 4    hierarchical_reduce_scatter
    together                  3 M                            0.75 M

        Zero(model, torch.optim.AdamW, stage=3, param_dtype=torch.bfloat16, **zero_plus_plus_options(node_mesh(8)))

Multiply each by (N-1)/N, as a node does not send its own part, and codes by 1 + 32 / (B b), for their scales: with
blocks of 256 the bytes across are 3.92 times fewer.

Cost for N nodes of L ranks, n = N L, P numbers per shard, S8 and S4 the messages of P numbers in INT8 and INT4
(`quantized.py`); bytes that the L ranks of a node send, whole tensors crossing once (hierarchical rings):
                       inside the node                  across
    gather, 16 bits    (L-1) n 2 P                      (N-1) L 2 P
    qwZ                (L-1) n S8                       (N-1) L S8
    hpZ                (L-1) n 2 P                      0             memory: 2 n P / L bytes more on each rank
    reduce-scatter     (L-1) n 2 P                      (N-1) L 2 P
    qgZ                (L-1) n S4                       (N-1) L S4
    speedup            (c + t) / (c + t / 4) for c seconds of compute and t on the wires between nodes in ZeRO-3, if
                       nothing overlaps: up to 4, without compute; 2.16 needs c <= 0.40 t
Shapes: none; sizes are numbers.
Source: Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", 2023, arXiv
2306.10209: section 3 (3 M and 0.75 M), abstract (4 times fewer bytes, up to 2.16 times the throughput on 384 GPUs).
Simplified: the speedup leaves out quantizing (`studies/compression_pays.py`) and links inside nodes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from lablib.compress.hierarchical_reduce_scatter import INT4, hierarchical_reduce_scatter
from lablib.compress.quantized import Quantizer
from lablib.compress.quantized_all_gather import INT8, quantized_all_gather
from lablib.compress.secondary_shards import SecondaryShards
from lablib.parallel.data.overlapped import Handle
from lablib.record.traffic import Traffic
from lablib.signature import Fraction, Range, checked

Size = Annotated[int, Range(ge=1, le=2**40)]
Large = Annotated[float, Range(gt=0, lt=1e30, example=1e9)]
COLLECTIVES = ("forward", "backward", "gradients")


@dataclass(frozen=True, slots=True)
class LevelBytes:
    """Bytes sent on each level of a cluster."""

    inside: float  # to ranks of the same node
    across: float  # to ranks of other nodes

    def __add__(self, other: "LevelBytes") -> "LevelBytes":
        return LevelBytes(self.inside + other.inside, self.across + other.across)


@checked
def zero3_bytes(shard_numel: Size, nodes: Size, local: Size, number_bytes: Size = 2) -> dict[str, LevelBytes]:
    """Bytes that the ranks of one node send in a step of ZeRO-3, for each of `COLLECTIVES`.

    `shard_numel`: P, numbers that each rank owns; N `nodes` with L `local` ranks; `number_bytes` of a parameter.
    """
    return dict.fromkeys(COLLECTIVES, _moved(shard_numel * number_bytes, nodes, local))


@checked
def zero_plus_plus_bytes(
    shard_numel: Size,
    nodes: Size,
    local: Size,
    number_bytes: Size = 2,
    weights: Quantizer = INT8,
    gradients: Quantizer = INT4,
) -> dict[str, LevelBytes]:
    """The same with qwZ, hpZ and qgZ. `weights`, `gradients`: quantizers of qwZ and qgZ."""
    return {
        "forward": _moved(weights.message_bytes(shard_numel), nodes, local),
        "backward": LevelBytes(_moved(shard_numel * number_bytes, nodes, local).inside, 0),
        "gradients": _moved(gradients.message_bytes(shard_numel), nodes, local),
    }


def zero_plus_plus_options(mesh: DeviceMesh, weights: Quantizer = INT8, gradients: Quantizer = INT4) -> dict[str, Any]:
    """The three functions as options of `lablib.parallel.Zero` in stage 3, for one module.

    `mesh`: of `lablib.parallel.node_mesh`, over the ranks that share. `weights`, `gradients`: quantizers of both.
    """
    kept = SecondaryShards(mesh, partial(quantized_all_gather, quantizer=weights))

    def reduce_scatter(full: Tensor, shard: Tensor, _: dist.ProcessGroup | None) -> Handle:
        return hierarchical_reduce_scatter(full, shard, mesh, gradients)

    return {"all_gather": kept.forward, "backward_all_gather": kept.backward, "reduce_scatter": reduce_scatter}


@checked
def level_bytes(traffic: Traffic, local: Size) -> LevelBytes:
    """Bytes sent inside nodes of `local` ranks and across them, by all ranks of a run together."""
    sent = [0.0, 0.0]
    for transfer in traffic.transfers:
        for (source, to), size in transfer.routes.items():
            sent[source // local != to // local] += size
    return LevelBytes(*sent)


@dataclass(frozen=True, slots=True)
class Speedup:
    """Seconds of a step of ZeRO-3 and of ZeRO++; compute takes `compute_s` in both."""

    compute_s: float
    zero3_s: float
    zero_plus_plus_s: float

    @property
    def factor(self) -> float:
        return self.zero3_s / self.zero_plus_plus_s


@checked
def zero_plus_plus_speedup(
    num_params: Large,
    tokens: Large,
    flops_per_s: Large,
    node_bytes_per_s: Large,
    nodes: Annotated[int, Range(ge=2, le=10**9, example=24)],
    overlap: Fraction = 0.0,
) -> Speedup:
    """Speedup from a quarter of the bytes, which is large if communication dominates.

    Arguments:
        num_params: of the model.
        tokens: of one GPU in a step.
        flops_per_s: of a GPU in its products; 8 FLOPs per parameter and token, with recomputed activations.
        node_bytes_per_s: out of a node, all its links together.
        nodes: at least 2.
        overlap: share of compute that communication can overlap with, 0 to 1.
    """
    compute_s = 8 * num_params * tokens / flops_per_s
    wire_s = 3 * 2 * num_params * (nodes - 1) / nodes / node_bytes_per_s
    steps = [compute_s + max(0.0, seconds - overlap * compute_s) for seconds in (wire_s, wire_s / 4)]
    return Speedup(compute_s, *steps)


def _moved(piece_bytes: int, nodes: int, local: int) -> LevelBytes:
    """An all-gather or a reduce-scatter of pieces of this size: inside from all to all, across once per node."""
    return LevelBytes((local - 1) * nodes * local * piece_bytes, (nodes - 1) * local * piece_bytes)
