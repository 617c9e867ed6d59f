"""Time of the optimizer's step on one rank: mostly the time of the bytes that it moves.

    time = max( (bytes that the optimizer moves + 3 g per own parameter) / bandwidth, its FLOPs / peak ) + launches
         + projections, and periodically a new subspace (GaLore)         3 g: clipping reads a gradient, unscaling reads
         + x * the pipeline's makespan (Sophia)                               and writes it; in 32 bits with masters
    own  = P / s + E / n                  with ZeRO-1 and more; P + E without

With the states in the host's memory, gradients go there and parameters come back, while the host updates the others;
parameters that stay there too have travelled with their layers (step.py):

    time = max( own parameters * (g + w) / the link's bandwidth, G * bytes that the optimizer moves / the host's )

Sophia estimates its Hessian every tenth step from half of the batch: x = 0.05 of all forward and backward passes.
GaLore projects every gradient to a space of rank k and the update back, and renews the space by a decomposition.

Muon multiplies whole matrices: s steps of three products each. Ranks that split matrices (tensor ranks, and with ZeRO-3
those that share parameters) send their parts to the owner of each matrix and get its update back, in 16 bits. ZeRO-1
and 2 give whole matrices to ranks; without ZeRO every rank of the data axis does the same work.

Legend: P parameters on a rank without experts, s ranks that share their states; E of its experts, n ranks with the same
ones; g and w bytes of a gradient and of a parameter; G GPUs of a node.

Source: Micikevicius et al., 2017, arXiv 1710.03740 (master weights); Rajbhandari et al., 2019, arXiv 1910.02054; Ren et
al., "ZeRO-Offload", 2021, arXiv 2101.06840 (the host's memory); Liu et al., Sophia, 2023, arXiv 2305.14342, section
3.1; Zhao et al., GaLore, 2024, arXiv 2403.03507, algorithm 2; others in optimizers.py.
Simplified: every host has the same memory; all parameters of layers are in matrices of D x D, those of embedding and
head in V x D, none in vectors; estimates of the Hessian and renewals of a space are spread over the steps; owners have
equally many matrices. An eager stack's passes: eager/optimizer.py.
"""

from functools import lru_cache
from typing import NamedTuple

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.models.transformer import Transformer
from lablib.models.transformer_sizes import layer_matrices, transformer_parameters
from lablib.plan.eager import optimizer as eager_optimizer
from lablib.plan.machine import PassTime
from lablib.plan.optimizers import Optimizer
from lablib.plan.parameters_per_rank import ParametersPerRank
from lablib.plan.setup import Setup

# Share of the float32 peak that a decomposition reaches, by the FLOPs of optimizers.py: 10 minutes for a 7B model on an
# A100 (Zhang et al., Q-GaLore, 2024, arXiv 2407.08296, section 1; from memory, not verified).
_DECOMPOSITION_SHARE = 0.01
# Memory of a node's host: two sockets of eight channels of DDR4-3200, 410 GB/s, of which reads and writes together
# reach some three quarters; an estimate.
_HOST_BYTES_PER_S = 300e9


class Own(NamedTuple):
    """Parameters that one rank updates: its layers, embedding and head."""

    layers: Numbers
    ends: Numbers

    @property
    def total(self) -> Numbers:
        """Both."""
        return self.layers + self.ends


def own_parameters(setup: Setup, shared: Numbers, expert: Numbers, ends: Numbers, from_stage: int = 1) -> Own:
    """All parameters of a rank, or its share of them if ZeRO splits from this stage on.

    Arguments:
        shared, expert: of its layers, common to all ranks of the data axis, and to those with the same experts.
        ends: of embedding and head.
    """
    if setup.zero_stage < from_stage:
        return Own(shared + expert, ends)
    if not setup.model.experts:
        return Own(shared / setup.shards, ends / setup.shards)
    return Own(shared / setup.shards + expert / setup.expert_shards, ends / setup.shards)


def state_bytes(setup: Setup, own: Own) -> Numbers:
    """Bytes of optimizer state, masters included; of all parameters at once, as blocks are counted whole."""
    optimizer, has_master = setup.optimizer, setup.machine.has_master
    if not _has_shapes(optimizer):
        return optimizer.state_bytes(own.total, has_master=has_master)
    rows, columns = _shape_of_ends(optimizer, setup.model)
    width = setup.model.d_model
    layers = optimizer.state_bytes(own.layers, rows=width, columns=width, has_master=has_master)
    return layers + optimizer.state_bytes(own.ends, rows=rows, columns=columns, has_master=has_master)


def optimizer_step_s(setup: Setup, parameters: ParametersPerRank, passes_s: Numbers) -> Numbers:
    """Seconds of one update of a stage's parameters; 0 for adapters alone. `passes_s`: of all passes of the step."""
    machine, optimizer = setup.machine, setup.optimizer
    if not setup.has_weight_gradients:
        return 0.0 * setup.layers
    estimate_s = optimizer.extra_gradients * passes_s
    ends = parameters.embedding + setup.has_both_ends * parameters.head
    own = own_parameters(setup, setup.layers * parameters.layer, setup.layers * parameters.expert_layer, ends)
    if setup.has_host_optimizer:
        link_s = own.total * (machine.gradient_bytes + machine.width) / setup.host_link.bandwidth_bytes_per_s
        rate = _HOST_BYTES_PER_S / minimum(setup.num_ranks, machine.cluster.devices_per_node)
        host_s = _moved_bytes(setup, own, clips=False) / rate
        return maximum(link_s * (not setup.has_host_parameters), host_s) + estimate_s
    if eager_optimizer.is_torchs(setup):
        return eager_optimizer.seconds(setup, eager_optimizer.step(setup, parameters)) + estimate_s
    tensors = maximum(setup.layers * _tensors_of_layer(setup.model) / (setup.shards if setup.zero_stage else 1), 1)
    flops_s = optimizer.flops_per_param * own.total / machine.device.peak("float32")
    memory_s = maximum(machine.stream_s(_moved_bytes(setup, own)), flops_s)
    kernels = optimizer.num_kernels(tensors)
    update_s = maximum(machine.time_s(PassTime(memory_s=memory_s, kernels=kernels)), machine.host_s(kernels))
    return update_s + _projection_s(setup, own.layers) + _newton_schulz_s(setup, own.layers) + estimate_s


def _moved_bytes(setup: Setup, own: Own, clips: bool = True) -> Numbers:
    machine, optimizer, width = setup.machine, setup.optimizer, setup.model.d_model
    read_bytes = 4 if machine.has_master else machine.gradient_bytes
    same = {"has_master": machine.has_master, "param_bytes": machine.width, "grad_bytes": read_bytes}
    clipping = 3 * read_bytes * own.total * clips
    if not _has_shapes(optimizer):
        return optimizer.moved_bytes(own.total, **same) + clipping
    rows, columns = _shape_of_ends(optimizer, setup.model)
    layers = optimizer.moved_bytes(own.layers, rows=width, columns=width, **same)
    return layers + optimizer.moved_bytes(own.ends, rows=rows, columns=columns, **same) + clipping


def _projection_s(setup: Setup, numbers: Numbers) -> Numbers:
    """GaLore: two products per matrix of a gradient, and its share of a decomposition."""
    machine, optimizer, width = setup.machine, setup.optimizer, setup.model.d_model
    if optimizer.rank is None:
        return 0.0
    matrices = numbers / width**2
    products_s = 2 * machine.product_s(min(optimizer.rank, width), width, width, matrices, machine.plain)
    return products_s + optimizer.renewal_flops(numbers, rows=width, columns=width) / (
        _DECOMPOSITION_SHARE * machine.device.peak("float32")
    )


def _newton_schulz_s(setup: Setup, numbers: Numbers) -> Numbers:
    """Muon: X X^T, its square, and that sum times X, s times, for this rank's share of the layers' matrices."""
    machine, model, steps = setup.machine, setup.model, setup.optimizer.newton_schulz_steps
    if not steps:
        return 0.0
    sizes = transformer_parameters(model)
    kinds = {False: sizes.num_dense_layers, True: sizes.num_expert_layers}
    found = [
        (matrix, n * matrix.count)
        for kind, n in kinds.items()
        if n
        for matrix in layer_matrices(model, is_expert_layer=kind)
    ]
    share = numbers / sum(n * matrix.rows * matrix.columns for matrix, n in found)
    time_s = 0.0 * numbers
    for matrix, count in found:
        m, n = sorted((matrix.rows, matrix.columns))
        products = ((m, m, n), (m, m, m), (m, n, m))
        time_s = time_s + steps * sum(machine.product_s(*sides, share * count, machine.plain) for sides in products)
    return time_s


def exchanged_s(setup: Setup, parameters: ParametersPerRank) -> tuple[Numbers, Numbers]:
    """Muon: seconds per step to collect and return parts of matrices, on the tensor axis and on the data axis."""
    if not setup.optimizer.newton_schulz_steps or not setup.has_weight_gradients:
        return 0.0, 0.0
    own = own_parameters(setup, setup.layers * parameters.layer, setup.layers * parameters.expert_layer, 0.0)
    size, machine = 2 * own.layers, setup.machine  # in 16 bits
    data_s = 2 * machine.collective_s("all_to_all", size, setup.shards, setup.tensor) * (setup.zero_stage == 3)
    return 2 * machine.collective_s("all_to_all", size, setup.tensor), data_s


def update_bytes(setup: Setup, own: Numbers) -> Numbers:
    """Bytes of written-out updates: all, or at most the largest matrix if the optimizer goes tensor by tensor."""
    model, optimizer = setup.model, setup.optimizer
    if not optimizer.update_passes:
        return 0.0
    width = model.experts.d_ff if model.experts and not model.experts.num_dense_layers else model.hidden_size
    largest = max(width, model.vocab_size) * model.d_model
    return optimizer.temporary_bytes(minimum(own, largest) if optimizer.is_per_tensor else own)


def _has_shapes(optimizer: Optimizer) -> bool:
    """Whether the state depends on the shapes of matrices."""
    return optimizer.is_factored or optimizer.rank is not None or optimizer.newton_schulz_steps > 0


def _shape_of_ends(optimizer: Optimizer, model: Transformer) -> tuple[int | None, int | None]:
    """Embedding and head are one matrix each; GaLore leaves them in the full space, Muon gives them to AdamW."""
    return (model.vocab_size, model.d_model) if optimizer.is_factored else (None, None)


@lru_cache(maxsize=256)
def _tensors_of_layer(model: Transformer) -> int:
    matrices = sum(matrix.count for matrix in layer_matrices(model, is_expert_layer=model.experts is not None))
    return matrices * (1 + model.has_bias) + model.num_norms * (2 if model.norm == "layer" else 1)
