"""Latency of ZeRO-3 on a thousand ranks: gathers by parameter, layer or model; the smallest batch.

Every gather pays latency before it moves a byte, and a ring pays it n - 1 times. A step of ZeRO-3 gathers each unit in
forward, gathers it again in backward, and reduce-scatters its gradients there. With P parameters of w bytes in M units,
in a ring over n ranks:

    one pass over the model     G = M (n - 1) alpha + (n - 1)/n P w / B            latency + transfer
    a step                      2 G + R, with R the reduce-scatter: G again where gradients have w bytes

    grouping      M for L layers of k tensors      held with the shards (the unit and the one prefetched)
    parameter     L k                              2 matrices
    layer         L + 1                            2 layers
    model         1                                P w: nothing is saved

Compute hides communication while it takes longer. With F FLOPs per second and t tokens on each rank,

    forward    2 P t / F >= G          backward    4 P t / F >= G + R

so below t* tokens per rank the step waits for the network, with any overlap:

    t* = F G / (2 P)  ->  w F / (2 B) + M n alpha F / (2 P)        n large, R = G

The first term does not depend on the model: FLOPs per byte of the network. The second grows with the ranks and shrinks
with the model: small units make ZeRO-3 too slow on many ranks.

Source: Rajbhandari et al., ZeRO, 2019, arXiv 1910.02054, section 7.2.2 (3 P numbers per step); Rajbhandari et al.,
ZeRO-Infinity, 2021, arXiv 2104.07857, section 4 (bandwidth against arithmetic intensity); collectives: lablib/cost.
Simplified: 2 P FLOPs per token, so no attention scores and no recomputation; the kernels that copy in and out are left
out; a gather does not slow compute down; all units are prefetched in time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Annotated, Literal

from lablib.cost import collective_cost
from lablib.cost.network import network_of
from lablib.hardware import Cluster
from lablib.models.transformer import Transformer
from lablib.models.transformer_sizes import layer_matrices, transformer_parameters
from lablib.signature import Count, NonEmpty, NonNegativeInt, OneOf, Positive, Range, checked

Grouping = Literal["parameter", "layer", "model"]
GROUPINGS: tuple[Grouping, ...] = ("parameter", "layer", "model")
Params = Annotated[float, Range(gt=0, lt=inf, example=7e9)]
Rate = Annotated[float, Range(gt=0, lt=inf, example=4e14)]


@dataclass(frozen=True, slots=True)
class Zero3Time:
    """Communication of a step of ZeRO-3."""

    num_gathers: int  # collectives of one pass over the model, M
    gather_s: float  # seconds of these, G
    reduce_s: float  # seconds of the reduce-scatters, R
    latency_s: float  # the part of `step_s` that bandwidth does not shorten
    held_bytes: float  # of the largest unit and the prefetched one

    @property
    def step_s(self) -> float:
        """2 G + R."""
        return 2 * self.gather_s + self.reduce_s


@checked
def unit_params(model: Transformer, grouping: Annotated[str, OneOf(GROUPINGS)]) -> tuple[int, ...]:
    """Parameters of each unit that is gathered at once; they add up to the model's.

    Arguments:
        grouping: "parameter" (each tensor by itself), "layer" (with one unit for embedding, head and last norm), or
            "model".
    """
    counts = transformer_parameters(model)
    if grouping == "model":
        return (counts.total,)
    outside = (counts.embedding, counts.positions, counts.final_norm, counts.head)
    layers = ((counts.dense_layer, counts.num_dense_layers), (counts.expert_layer, counts.num_expert_layers))
    if grouping == "layer":
        return tuple(layer.total for layer, count in layers for _ in range(count)) + (sum(outside),)
    tensors: list[int] = []
    for is_expert_layer, (layer, count) in enumerate(layers):
        if count:
            matrices = layer_matrices(model, is_expert_layer=bool(is_expert_layer))
            for matrix in matrices:
                sizes = (matrix.rows * matrix.columns, matrix.columns) if matrix.has_bias else (matrix.size,)
                tensors += count * matrix.count * sizes
            num_norms = model.num_norms * (2 if model.norm == "layer" else 1)
            tensors += count * num_norms * ((layer.total - sum(m.count * m.size for m in matrices)) // num_norms,)
    return tuple(size for size in (*tensors, *outside) if size)


@checked
def zero3_time(
    units: Annotated[Sequence[NonNegativeInt], NonEmpty(), "try units=[10**9]"],
    cluster: Cluster,
    ranks: Count,
    param_bytes: Count = 2,
    grad_bytes: Count = 2,
    algorithm: str = "auto",
) -> Zero3Time:
    """Seconds of the collectives of one step, one after another.

    Arguments:
        units: parameters of each, from `unit_params`.
        ranks: n, that share the parameters.
        param_bytes, grad_bytes: w, of a gathered parameter and of a reduced gradient.
        algorithm: of both collectives: "auto" or a name of lablib/cost/algorithms.py.

    Raises ValueError: an algorithm that is impossible for these ranks.
    """
    gather_s = reduce_s = latency_s = 0.0
    for size, count in Counter(units).items():
        gather = _cost("all_gather", float(size * param_bytes), cluster, ranks, algorithm)
        reduce = _cost("reduce_scatter", float(size * grad_bytes), cluster, ranks, algorithm)
        gather_s, reduce_s = gather_s + count * gather[0], reduce_s + count * reduce[0]
        latency_s += count * (2 * gather[1] + reduce[1])
    held = sum(sorted(units)[-2:]) * param_bytes
    return Zero3Time(len(units), gather_s, reduce_s, latency_s, held)


@checked
def smallest_batch(time: Zero3Time, params: Params, flops_per_s: Rate) -> float:
    """t*: tokens on each rank below which communication takes longer than compute, forward or backward.

    Arguments:
        params: P, the active parameters of a token.
        flops_per_s: F, the achieved rate of a rank.
    """
    forward = time.gather_s * flops_per_s / (2 * params)
    return max(forward, (time.gather_s + time.reduce_s) * flops_per_s / (4 * params))


@checked
def step_s(time: Zero3Time, params: Params, flops_per_s: Rate, tokens: Positive, *, overlaps: bool = True) -> float:
    """Seconds of forward and backward of a step of one micro-batch, with as much hidden as possible, or nothing.

    Arguments:
        tokens: of the micro-batch on each rank.
        overlaps: whether gathers run during compute.
        Others as `smallest_batch`.
    """
    forward_s = 2 * params * tokens / flops_per_s
    if not overlaps:
        return 3 * forward_s + time.step_s
    return max(forward_s, time.gather_s) + max(2 * forward_s, time.gather_s + time.reduce_s)


@lru_cache(maxsize=1024)
def _cost(name: str, size_bytes: float, cluster: Cluster, ranks: int, algorithm: str) -> tuple[float, float]:
    cost = collective_cost(name, size_bytes, network_of(cluster, ranks), "auto" if ranks == 1 else algorithm)
    return cost.time_s, cost.latency_s
