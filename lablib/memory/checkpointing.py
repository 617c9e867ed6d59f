"""Activation checkpointing: keep the inputs of some layers, and recompute the rest in backward.

Backward needs results of forward, so forward keeps them: a bytes for each of n layers. A checkpointed segment keeps
only its input, b bytes, and runs forward again when backward reaches it. A plan is data: the chain cut into segments,
each kept or checkpointed.

    plan            segments                          kept + recomputed at once (peak)      forwards run again
    none            all kept                          n a                                   0
    full            each layer its own                n b + a                               n
    every k         of k layers each                  ceil(n / k) b + k a                   n
    sqrt            every k, k = sqrt(n b / a)        about 2 sqrt(n a b)                   n
    partial m       the first m layers, each its own  m b + (n - m) a                       m

During backward of a segment all its activations are in memory: longer segments keep fewer inputs and need more for
themselves. Twice the square root is the minimum for equal layers. FLOPs of a layer's step: forward 1, backward 2,
checkpointed 1 more: a step takes 4/3.

Selective: within a layer, results that are cheap to compute and large are recomputed, the rest is kept. By module
(attention's scores, softmax and dropout), or by operator: keep every product of matrices, recompute the rest.

Cost: above. Shapes: a layer maps x to x of the same shape; a, b as above, in bytes.
Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv 1604.06174, section 4; Korthikanti et
al., 2022, arXiv 2205.05198, section 4 (selective); torch.utils.checkpoint (torch 2.13), which executes it.
Simplified: a chain of equal layers; for different layers see optimal_checkpointing.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lablib.signature import Count, OneOf, Positive, checked
from lablib.torch_compat import efficient_attention, flash_attention, flash_attention_for_cpu

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers `start` to `stop` - 1 of a chain, with all results kept or only their input."""

    start: int
    stop: int
    is_checkpointed: bool


Plan = tuple[Segment, ...]


@checked
def keep_all(num_layers: Count) -> Plan:
    """No checkpoints."""
    return (Segment(0, num_layers, False),)


@checked
def checkpoint_every(num_layers: Count, k: Count = 1) -> Plan:
    """Segments of `k` layers, the last perhaps shorter; 1 is full recomputation."""
    return tuple(Segment(start, min(start + k, num_layers), True) for start in range(0, num_layers, k))


@checked
def checkpoint_sqrt(num_layers: Count, layer_bytes: Positive = 1.0, input_bytes: Positive = 1.0) -> Plan:
    """Segments of the length that minimizes ceil(n / k) b + k a: near sqrt(n b / a)."""
    nearest = sqrt(num_layers * input_bytes / layer_bytes)
    lengths = {min(max(1, length), num_layers) for length in range(int(nearest) - 1, ceil(nearest) + 2)}
    # ceil(n / k) jumps, so neighbours of the root may be better.
    lengths |= {ceil(num_layers / ceil(num_layers / length)) for length in lengths}
    best = min(lengths, key=lambda k: (ceil(num_layers / k) * input_bytes + k * layer_bytes, k))
    return checkpoint_every(num_layers, best)


@checked
def checkpoint_first(num_layers: int, num_checkpointed: int) -> Plan:
    """Checkpoint the first `num_checkpointed` layers, each separately, and keep the rest. ValueError: fewer layers."""
    if not 0 <= num_checkpointed <= num_layers:
        raise ValueError(f"num_checkpointed must be 0 to {num_layers}, the layers: got {num_checkpointed}.")
    first = tuple(Segment(i, i + 1, True) for i in range(num_checkpointed))
    return first + ((Segment(num_checkpointed, num_layers, False),) if num_checkpointed < num_layers else ())


def run(plan: Plan, layers: Sequence[Layer], x: Tensor) -> Tensor:
    """The chain's output by a plan, gradients bit-identical to the plain chain's. ValueError: not all layers once."""
    require_plan(plan, len(layers))
    for segment in plan:
        chain = partial(_chain, layers[segment.start : segment.stop])
        # Dropout in a segment draws the same numbers again: checkpoint restores the state of the generator.
        x = checkpoint(chain, x, use_reentrant=False) if segment.is_checkpointed else chain(x)
    return x


def require_plan(plan: Plan, num_layers: int) -> None:
    """Segments must follow each other from the first layer to the last."""
    ends = [0, *(segment.stop for segment in plan)]
    starts = [*(segment.start for segment in plan), num_layers]
    if ends != starts or any(segment.start >= segment.stop for segment in plan):
        raise ValueError(f"a plan covers layers 0 to {num_layers - 1}, each once and in order: got {plan}.")


@checked
def peak_bytes(plan: Plan, layer_bytes: Sequence[float], input_bytes: Sequence[float]) -> float:
    """Bytes of activations at the peak of a step: the kept ones, and the segment that backward has recomputed.

    `layer_bytes`: kept by each layer for backward, its input included; `input_bytes`: of each layer's input.
    """
    peak = kept = 0.0
    for segment in plan:
        whole = sum(layer_bytes[segment.start : segment.stop])
        # `whole` includes the segment's input, so its checkpoint is not counted twice.
        peak = max(peak, kept + whole)
        kept += input_bytes[segment.start] if segment.is_checkpointed else whole
    return max(peak, kept)


@checked
def recomputed(plan: Plan, costs: Sequence[float]) -> float:
    """Cost of recomputation: the sum of the costs of checkpointed layers."""
    return sum((sum(costs[segment.start : segment.stop]) for segment in plan if segment.is_checkpointed), 0.0)


def keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Selective by operator: keep the results of matrix products and of fused attention, recompute the rest."""
    return CheckpointPolicy.MUST_SAVE if op in KEPT_OPERATORS else CheckpointPolicy.PREFER_RECOMPUTE


_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default)
KEPT_OPERATORS = frozenset({*_PRODUCTS, flash_attention, flash_attention_for_cpu.default, efficient_attention})


def checkpoint_operators(layer: Layer, x: Tensor, policy: Callable[..., CheckpointPolicy] = keep_products) -> Tensor:
    """Run one layer and keep only the results of the operators that the policy selects."""
    return checkpoint(layer, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, policy))


@checked
def checkpoint_each(modules: Iterable[nn.Module], kind: Annotated[str, OneOf(("none", "selective", "full"))]) -> None:
    """Checkpoint every module, in place: "full" keeps its inputs, "selective" also its products, "none" everything."""
    run = partial(checkpoint, use_reentrant=False) if kind == "full" else checkpoint_operators
    for module in modules if kind != "none" else ():
        module.forward = partial(run, module.forward)


def checkpoint_modules(module: nn.Module, *kinds: type[nn.Module]) -> nn.Module:
    """Selective by module: checkpoint every submodule of these classes, in place. ValueError: there is none."""
    found = [child for child in module.modules() if isinstance(child, kinds)]
    if not found:
        names = " or ".join(kind.__name__ for kind in kinds) or "no class"
        raise ValueError(f"nothing to checkpoint: {type(module).__name__} has no submodule that is {names}.")
    for child in found:
        child.forward = partial(checkpoint, child.forward, use_reentrant=False)
    return module


def _chain(layers: Sequence[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x
