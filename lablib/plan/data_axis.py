"""Communication of the data axis: sums of gradients, and with ZeRO all-gathers of parameters.

A stage's P parameters have n = d c copies; ZeRO splits them over s of these ranks (`Setup.shards`). In a ring, a rank
sends P g (n - 1) / n bytes in a reduce-scatter, as many in an all-gather, twice that in an all-reduce.

    ZeRO-0      one all-reduce of the gradients. With `data_overlap` it hides behind the last micro-batch's backward:
                    exposed = max( reduce - backward, reduce / L )          the last bucket hides behind nothing
    ZeRO-1      a reduce-scatter instead, and after the optimizer an all-gather of parameters, which hides behind the
                first micro-batch's forward in the same way. With `owns_tensors` each of the owners, min(s, tensors of
                the stage), has a collective of its own in both: as many fixed times, of s ranks in a ring, one by one
    ZeRO-2      the same, with the gradients of every micro-batch reduced: m reduce-scatters
    ZeRO-3      every layer of every micro-batch: parameters gathered before its forward and, if they were dropped,
                before its backward; gradients reduced after that. The slower of compute and communication counts:
                    added = max( gather - forward, 0 ) + max( gather + reduce - backward, 0 )
                Nothing hides the first layer's gather, the last sum, or the traffic of embedding and head; without
                `data_overlap`, all of it is added. With `gathers_matrices` each matrix has its own collectives.
    ZeRO++      qwZ gathers one byte per parameter; hpZ gathers for backward inside the node, w bytes per parameter;
                qgZ reduces half a byte per gradient in an all-to-all
    experts     the same over the t d c / (x e) ranks with the same experts; a sharded state has `replicas` copies, or
                as many of them as divide these ranks
    tied head   the first and the last stage sum the gradients of their two copies

Legend: P parameters on a rank, L layers of a stage, m micro-batches, g and w bytes of a gradient and of a parameter;
d data, c context, t tensor and e expert ranks, x ranks that share each expert.

Source: Rajbhandari et al., 2019, arXiv 1910.02054, section 7; Li et al., "PyTorch Distributed", 2020, arXiv 2006.15704
(buckets behind backward); Zhao et al., "PyTorch FSDP", 2023, arXiv 2304.11277; Wang et al., ZeRO++, 2023, arXiv
2306.10209; InternLM/InternEvo, internlm/solver/optimizer/hybrid_zero_optim.py (`_partition_param_list`,
`broadcast_params`: owners of whole tensors).
Simplified: packing of compressed gradients does not overlap compute, PowerSGD's products are in 32 bits; communication
does not slow compute down; prefetch is perfect after the first layer; a pipeline's stages communicate at the same time,
and the first is the fullest.
"""

from typing import NamedTuple

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.pipeline.closed_form import StageTime
from lablib.plan.eager import data as eager_data
from lablib.plan.gradient_compression import ALL_GATHER, TWO_PHASE
from lablib.plan.machine import AxisTime
from lablib.plan.parameters_per_rank import ParametersPerRank
from lablib.plan.setup import Setup


class Waiting(NamedTuple):
    """Seconds added to one layer of one micro-batch by waiting for parameters, or for the host."""

    forward_s: Numbers = 0.0  # forward_s, backward_s: added to each pass, copies included
    backward_s: Numbers = 0.0
    total_s: Numbers = 0.0  # on the wires
    copies_s: Numbers = 0.0  # kernels that pack and unpack

    @property
    def exposed_s(self) -> Numbers:
        """Communication that nothing hides."""
        return self.forward_s + self.backward_s - self.copies_s


def sharded_layer(setup: Setup, parameters: ParametersPerRank, forward_s: Numbers, backward_s: Numbers) -> Waiting:
    """ZeRO-3, one layer: the part of its traffic that the layer's own compute does not hide."""
    if setup.zero_stage < 3:
        return Waiting()
    if setup.is_eager:
        return Waiting(*eager_data.sharded_layer_s(setup, parameters, forward_s, backward_s))
    layer, apart_s = _layer(setup, parameters), _apart_s(setup, "all_gather")
    gather_s = _gather_s(setup, layer) + apart_s
    regather_s = (_gather_s(setup, layer, is_backward=True) + apart_s) * setup.reshard_after_forward
    reduce_s = (_reduce_s(setup, layer) + _apart_s(setup, "reduce_scatter")) * setup.has_weight_gradients
    each = 1 - _is_gathered_once(setup)
    if not setup.machine.stack.data_overlap:
        forward_s = backward_s = 0.0
    return Waiting(
        each * setup.machine.exposed_s(gather_s, forward_s),
        each * setup.machine.exposed_s(regather_s + reduce_s, backward_s),
        each * (gather_s + regather_s + reduce_s),
    )


def data_axis(setup: Setup, parameters: ParametersPerRank, one: StageTime, embedding_s: Numbers) -> AxisTime:
    """Communication once per step, behind the passes of a layer for `one` micro-batch and the embedding's backward."""
    if not setup.has_weight_gradients and setup.zero_stage < 3:
        return AxisTime()
    outside = parameters.embedding + setup.has_both_ends * parameters.head
    if setup.is_eager and setup.zero_stage == 3:
        wires_s, copies_s = (setup.num_microbatches * each for each in eager_data.sharded_ends_s(setup, parameters))
        return AxisTime(wires_s, wires_s, copies_s)
    if setup.is_eager and setup.compression.is_none:
        return eager_data.reduced(setup, parameters, setup.layers * (one.input_s + one.weight_s), embedding_s)
    if setup.zero_stage == 3:
        return _sharded_ends(setup, parameters, outside, one)
    reduce_s, packing_s = _reduced_s(setup, parameters, outside)
    numbers, expert = setup.layers * parameters.layer + outside, setup.layers * parameters.expert_layer
    gather_s = (setup.zero_stage > 0) * _gather_s(setup, _shared(setup, numbers) + _experts(setup, expert))
    if setup.machine.stack.owns_tensors and setup.zero_stage:
        owners_s = _owners_s(setup)
        reduce_s, gather_s = reduce_s + owners_s, gather_s + owners_s
    # ZeRO-2 keeps only its shard of the gradients, so it reduces them for every micro-batch.
    before = (setup.num_microbatches - 1) * (setup.zero_stage == 2)
    total_s, packing_s = (1 + before) * reduce_s + gather_s, (1 + before) * packing_s
    if not setup.machine.stack.data_overlap:
        return AxisTime(total_s, total_s, packing_s)
    # Gradients travel during the last micro-batch's backward, updated parameters during the first one's forward;
    # nothing hides the last bucket and the first layer.
    backward_s = setup.layers * (one.input_s + one.weight_s)
    exposed_s = setup.machine.exposed_s
    behind_backward_s = maximum(exposed_s(reduce_s, backward_s), reduce_s / maximum(setup.layers, 1))
    behind_forward_s = maximum(exposed_s(gather_s, setup.layers * one.forward_s), gather_s / maximum(setup.layers, 1))
    before_s = before * exposed_s(reduce_s, backward_s)
    return AxisTime(total_s, before_s + behind_backward_s + behind_forward_s, packing_s)


def _owners_s(setup: Setup) -> Numbers:
    """Additional fixed time if ranks own whole tensors: for each owner a reduction, and a broadcast."""
    # Of a layer: norms, two products of attention, two or three of the MLP; biases of all but the gated ones.
    of_layer = 7 if setup.model.activation == "swiglu" else 12
    owners = minimum(setup.shards, setup.layers * of_layer + 3)
    return (owners - 1) * setup.machine.collective_s("all_gather", 0, setup.shards, setup.tensor)


def _sharded_ends(setup: Setup, parameters: ParametersPerRank, outside: Numbers, one: StageTime) -> AxisTime:
    """ZeRO-3 traffic outside `sharded_layer`: the first layer, the embedding and the head are not hidden.

    A pipeline that keeps its parameters gathers them once per step: the other layers' gathers and sums hide behind the
    first and the last micro-batch.
    """
    is_once = _is_gathered_once(setup)
    trained = 1.0 * setup.has_weight_gradients
    ends, layer = _shared(setup, outside), _layer(setup, parameters)
    layer_s = _gather_s(setup, layer) + _apart_s(setup, "all_gather")
    layer_s = layer_s + trained * (_reduce_s(setup, layer) + _apart_s(setup, "reduce_scatter"))
    ends_s = 2 * _gather_s(setup, ends) + trained * _reduce_s(setup, ends)
    times = 1 + (setup.num_microbatches - 1) * (1 - is_once)
    total_s = times * (layer_s + ends_s)
    rest_s = is_once * maximum(setup.layers - 1, 0) * layer_s
    shown_s = is_once * setup.machine.exposed_s(rest_s, setup.layers * (one.forward_s + one.input_s))
    return AxisTime(total_s + rest_s, total_s + shown_s)


def _is_gathered_once(setup: Setup) -> Numbers:
    """Whether ZeRO-3's parameters stay gathered for the whole step: not dropped after forward, and in a pipeline."""
    return (setup.pipeline > 1) * (not setup.reshard_after_forward)


def _reduced_s(setup: Setup, parameters: ParametersPerRank, outside: Numbers) -> tuple[Numbers, Numbers]:
    """Seconds to sum the gradients of a stage once, without ZeRO-3: on the wires, and to pack and unpack."""
    machine, packing_s = setup.machine, 0.0
    numbers, expert = setup.layers * parameters.layer + outside, setup.layers * parameters.expert_layer
    is_whole = setup.zero_stage == 0 or not machine.stack.has_reduce_scatter
    if not setup.compression.is_none:
        reduce_s, packing_s = _exchanged_s(setup, numbers), _packing_s(setup, numbers)
    elif is_whole:
        size = numbers * machine.gradient_bytes
        reduce_s = machine.collective_s("all_reduce", size, setup.data * setup.context, setup.tensor)
    else:
        reduce_s = _reduce_s(setup, _shared(setup, numbers))
    if setup.model.experts and is_whole:  # their gradients are not compressed
        size = expert * machine.gradient_bytes
        reduce_s = reduce_s + machine.collective_s("all_reduce", size, setup.expert_copies, setup.expert_stride)
    elif setup.model.experts:
        reduce_s = reduce_s + _reduce_s(setup, _experts(setup, expert))
    if setup.model.tied_head:
        size, apart = parameters.tied * machine.gradient_bytes, maximum(setup.num_ranks - 1, 1)
        pair_s = machine.collective_s("all_reduce", size, 2, apart)
        reduce_s = reduce_s + pair_s * (1 - setup.has_both_ends)
    return reduce_s, packing_s


class _Group(NamedTuple):
    """Parameters with the n ranks that split them, `stride` apart, and the replicas of the whole."""

    numbers: Numbers
    n: Numbers
    stride: Numbers
    replicas: Numbers


def _shared(setup: Setup, numbers: Numbers) -> list[_Group]:
    return [_Group(numbers, setup.shards, setup.tensor, setup.replicas)]


def _experts(setup: Setup, numbers: Numbers) -> list[_Group]:
    """The ranks with the same experts; none in a dense model."""
    ranks = (setup.expert_shards, setup.expert_stride, setup.expert_replicas)
    return [_Group(numbers, *ranks)] if setup.model.experts else []


def _layer(setup: Setup, parameters: ParametersPerRank) -> list[_Group]:
    return _shared(setup, parameters.layer) + _experts(setup, parameters.expert_layer)


def matrices_of(setup: Setup) -> int:
    """Matrices of a layer that ZeRO-3 gathers; queries, keys and values are one."""
    return 5 if setup.model.activation == "swiglu" else 4


def _apart_s(setup: Setup, name: str) -> Numbers:
    """Additional fixed time if each matrix of a layer has a collective of its own."""
    if not setup.machine.stack.gathers_matrices:
        return 0.0
    return (matrices_of(setup) - 1) * setup.machine.collective_s(name, 0, setup.shards, setup.tensor)


def _gather_s(setup: Setup, groups: list[_Group], is_backward: bool = False) -> Numbers:
    """All-gather of parameters over the ranks that split them."""
    machine, time_s = setup.machine, 0.0
    has_copy = is_backward and "hpZ" in setup.zero_plus_plus
    width = 1 if "qwZ" in setup.zero_plus_plus and not has_copy else machine.width
    for numbers, n, stride, _ in groups:
        ranks = machine.in_node(n, stride) if has_copy else n
        time_s = time_s + machine.collective_s("all_gather", numbers * width, ranks, stride)
    return time_s


def _reduce_s(setup: Setup, groups: list[_Group]) -> Numbers:
    """Reduce-scatter of gradients over these ranks, then all-reduce of each share over the replicas."""
    machine, time_s = setup.machine, 0.0
    for numbers, n, stride, replicas in groups:
        if "qgZ" in setup.zero_plus_plus:
            # All-to-alls of INT4, in the node and across, instead of a ring: half a byte per gradient.
            time_s = time_s + machine.collective_s("all_to_all", numbers * 0.5, n, stride)
            continue
        size = numbers * machine.gradient_bytes
        time_s = time_s + machine.collective_s("reduce_scatter", size, n, stride)
        time_s = time_s + machine.collective_s("all_reduce", size / n, replicas, stride * n)
    return time_s


def _exchanged_s(setup: Setup, numbers: Numbers) -> Numbers:
    """Exchange of compressed gradients in one of three ways."""
    machine, method, n = setup.machine, setup.compression, setup.data * setup.context
    size = method.wire_bytes(numbers, **_shape(setup), grad_bytes=machine.gradient_bytes)
    if method.exchange == ALL_GATHER:
        return machine.collective_s("all_gather", n * size, n, setup.tensor)
    if method.exchange == TWO_PHASE:
        pieces_s = machine.collective_s("all_to_all", size, n, setup.tensor)
        return pieces_s + machine.collective_s("all_gather", size, n, setup.tensor)
    return machine.collective_s("all_reduce", size, n, setup.tensor)


def _packing_s(setup: Setup, numbers: Numbers) -> Numbers:
    """Packing and unpacking of compressed gradients: memory traffic, and products of PowerSGD's factors."""
    machine, method, n = setup.machine, setup.compression, setup.data * setup.context
    moved_bytes = method.moved_bytes(numbers, ranks=n, **_shape(setup), grad_bytes=machine.gradient_bytes)
    # Each of the three products reads its matrix once; the slower of memory and FLOPs counts.
    product_bytes = 3 * machine.gradient_bytes * numbers * (method.rank is not None)
    flops_s = method.flops(numbers, **_shape(setup)) / machine.device.matmul_rate("float32")
    packing_s = machine.stream_s(moved_bytes - product_bytes) + maximum(machine.stream_s(product_bytes), flops_s)
    return packing_s * (n > 1)  # one rank sends nothing


def _shape(setup: Setup) -> dict[str, int]:
    return {"rows": setup.model.d_model, "columns": setup.model.d_model}
