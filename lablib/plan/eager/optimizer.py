"""The step of torch's own optimizers (`foreach=True`, the default on GPUs): one pass over all parameters per operator.

A fused optimizer reads and writes its state once. `foreach` has one kernel per operator of the formula, so each moves
all the numbers again, and its temporaries are as large as the parameters:

    optimizer       passes over P numbers (reads and writes)                                     temporaries
    adamw, adam     21 = decay 2, lerp 3, mul 2, addcmul 4, sqrt 2, div 2, add 2, addcdiv 4      P (the denominator)
    sgd-momentum     8 = mul 2, add 3, add 3                                                     0
    sgd              3 = add 3                                                                   0

With 32-bit masters of 16-bit parameters: before the step every gradient is copied to 32 bits (6 bytes per number; the
16-bit one is freed at once), and after it every parameter from its master (6 bytes), tensor by tensor.

Source: torch/optim/adamw.py, adam.py, sgd.py (`_multi_tensor_*`), torch 2.13; launches: lablib/operators/kernels.py.
Simplified: no clipping, no weight decay in sgd, no amsgrad, no maximize.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from lablib.cost.arrays import Numbers, ceil_div, maximum
from lablib.models.transformer import Transformer
from lablib.models.transformer_sizes import layer_matrices
from lablib.plan.layer import Op
from lablib.plan.machine import Machine
from lablib.plan.optimizers import OPTIMIZERS, Optimizer
from lablib.plan.parameters_per_rank import ParametersPerRank
from lablib.plan.setup import Setup

_ADAM = (2, 3, 2, 4, 2, 2, 2, 4)
PASSES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"adamw": _ADAM, "adam": _ADAM[1:], "sgd-momentum": (2, 3, 3), "sgd": (3,)}
)
_NUMBERS_A_LAUNCH = 320 * 65536


def state_width(machine: Machine) -> int:
    """Bytes per master and per moment: as wide as a parameter without masters."""
    return 4 if machine.has_master else machine.shard_width


@lru_cache(maxsize=64)
def _is_of_catalogue(optimizer: Optimizer) -> bool:
    name = optimizer.name
    return name in PASSES and replace(optimizer, source=OPTIMIZERS[name].source) == OPTIMIZERS[name]


def is_torchs(setup: Setup) -> bool:
    """Whether the step is one of torch's own: an eager stack's, with an unchanged record of the catalogue."""
    return setup.is_eager and _is_of_catalogue(setup.optimizer)


def state_bytes(setup: Setup) -> float:
    """Bytes per parameter: the moments, and the masters with their gradients."""
    moments = setup.optimizer.moments * state_width(setup.machine)
    return moments + 4 * setup.machine.has_master


def temporary_bytes(setup: Setup) -> float:
    """Temporary bytes of the step per parameter."""
    return state_width(setup.machine) * (setup.optimizer.name in ("adamw", "adam"))


def step(setup: Setup, parameters: ParametersPerRank) -> list[Op]:
    """The operators of the optimizer's step, on a stage with the average number of layers and the embedding."""
    machine, name = setup.machine, setup.optimizer.name
    outside = parameters.embedding + (setup.pipeline == 1) * parameters.head
    shared, expert = setup.layers * parameters.layer + outside, setup.layers * parameters.expert_layer
    own = own_numbers(setup, shared, expert) if setup.zero_stage else shared + expert
    size, launches = state_width(machine) * own, maximum(ceil_div(own, _NUMBERS_A_LAUNCH), 1)
    ops = [Op("update", size_bytes=numbers * size, kernels=launches) for numbers in PASSES[name]]
    if name in ("adamw", "adam"):
        ops.append(Op("step counters"))  # of all tensors at once
    if not machine.has_master:
        return ops
    moved, share = 4 + machine.width, setup.shards if setup.zero_stage else 1
    copies = [op.repeated(setup.layers) for op in layer_pass(setup, moved, share)]
    ends = Op("copies of the ends", size_bytes=outside / share * moved, kernels=2)
    return [*ops, *(op.repeated(2) for op in (*copies, ends))]


def own_numbers(setup: Setup, shared: Numbers, expert: Numbers) -> Numbers:
    """The fullest rank's share of parameters common to the data axis, and of experts common to some ranks.

    ZeRO-1 gives whole tensors to ranks, so that the fullest has at least the largest.
    """
    own = shared / setup.shards + expert / setup.expert_shards
    if setup.zero_stage == 3:
        return own
    matrices = max(rows * columns for rows, columns, _ in layer_tensors(setup))
    return maximum(own, max(matrices, setup.model.vocab_size * setup.model.d_model) / setup.tensor)


def layer_pass(setup: Setup, size: float, shards: Numbers = 1, has_experts: bool = True) -> list[Op]:
    """One operator per tensor of a layer, or per share of it on this rank: it moves `size` bytes per number."""
    model, tensors = setup.model, layer_tensors(setup, has_experts)
    split = setup.tensor * shards
    ops = [Op("matrix", size_bytes=rows * columns / split * size, times=count) for rows, columns, count in tensors]
    return [*ops, Op("vectors", kernels=vectors(model, len(tensors)))]


def vectors_of_norm(model: Transformer) -> int:
    """Scale and shift, or scale alone."""
    return 2 if model.norm == "layer" else 1


def vectors(model: Transformer, matrices: int) -> int:
    """Of a layer: parameters of its norms, and biases."""
    return model.num_norms * vectors_of_norm(model) + model.has_bias * matrices


def seconds(setup: Setup, ops: list[Op]) -> Numbers:
    """Seconds on the device of operators that stream."""
    machine, queued_s = setup.machine, setup.machine.device.queued_s
    return sum(op.times * (machine.stream_s(op.size_bytes) + op.kernels * queued_s) for op in ops)


def layer_tensors(setup: Setup, has_experts: bool = True) -> tuple[tuple[Numbers, int, Numbers], ...]:
    """Rows (of all tensor ranks), columns and number of a layer's matrices; queries, keys and values may be one.

    The experts of a rank are one tensor per matrix, which DDP leaves out: other ranks have other experts.
    """
    model = setup.model
    matrices = layer_matrices(model, is_expert_layer=model.experts is not None)
    found = [(m.rows, m.columns, m.count) for m in matrices if m.part != "experts"]
    if has_experts:
        ranks = setup.expert_stride / setup.tensor  # ranks per tensor rank that share them
        found += [(m.rows * m.count / ranks, m.columns, 1) for m in matrices if m.part == "experts"]
    if not setup.machine.stack.is_megatron or model.latent:
        return tuple(found)
    together = sum(columns for _, columns, _ in found[:3])
    return ((found[0][0], together, 1), *found[3:])
