"""The data axis: gradients summed over ranks that saw other sequences, and with ZeRO the parameters gathered again.

A stage's P parameters have n = d c copies; ZeRO splits them over s of these ranks (`Split.shards`). On the wires, in a
ring, a rank sends P g (n - 1) / n bytes in a reduce-scatter, as many in an all-gather, twice that in an all-reduce.

    ZeRO-0      one all-reduce of the gradients. With `data_overlap` it hides behind the last micro-batch's backward:
                    exposed = max( reduce - backward, reduce / L )          the last bucket waits for nobody
    ZeRO-1      a reduce-scatter in its place, and after the optimizer an all-gather of parameters, which hides behind
                the first micro-batch's forward in the same way
    ZeRO-2      the same, with the gradients of every micro-batch reduced: m reduce-scatters
    ZeRO-3      every layer of every micro-batch: parameters gathered before its forward and, if they were dropped,
                before its backward; gradients reduced after that. A layer takes as long as the slower of the two:
                    added = max( gather - forward, 0 ) + max( gather + reduce - backward, 0 )
                The first layer's gather, the last one's sum and those of the model's ends hide behind nothing.
    ZeRO++      qwZ gathers one byte a number; hpZ gathers for backward inside the node, w bytes a number; qgZ reduces
                half a byte a number in an all-to-all
    experts     the same over the t d c / (x e) ranks that have the same ones; they have as many copies of a sharded
                state as the rest, or as there are such ranks
    tied head   the first and the last stage add up their two copies' gradients

Legend: P parameters on a rank, L layers of a stage, m micro-batches, g and w bytes of a gradient and of a parameter;
d data, c context, t tensor and e expert ranks, x ranks that share each expert.

Source: Rajbhandari et al., 2019, arXiv 1910.02054, section 7; Li et al., "PyTorch Distributed", 2020, arXiv 2006.15704
(buckets behind backward); Zhao et al., "PyTorch FSDP", 2023, arXiv 2304.11277; Wang et al., ZeRO++, 2023, arXiv
2306.10209.
Simplified: compressed gradients are packed and unpacked by kernels that compute waits for, PowerSGD's products in 32
bits; compute does not slow down while communication runs beside it; prefetch is perfect after the first layer; a
pipeline's stages communicate at the same time, the fullest one is the first.
"""

from typing import NamedTuple

from lablib.cost.arrays import Numbers, maximum
from lablib.pipeline.closed_form import StageTime
from lablib.plan.eager import data as eager_data
from lablib.plan.gradient_compression import ALL_GATHER, TWO_PHASE
from lablib.plan.machine import Axis
from lablib.plan.parameters_per_rank import ParametersPerRank
from lablib.plan.setup import Choices, Split, has_both_ends


class Waiting(NamedTuple):
    """What waiting for parameters, or for the host, adds to one layer of one micro-batch.

    Attributes:
        forward_s, backward_s: added, copies among it.
        total_s: on the wires.
        copies_s: of kernels that pack and unpack.
    """

    forward_s: Numbers = 0.0
    backward_s: Numbers = 0.0
    total_s: Numbers = 0.0
    copies_s: Numbers = 0.0

    @property
    def exposed_s(self) -> Numbers:
        """Seconds of the wires that nothing hides."""
        return self.forward_s + self.backward_s - self.copies_s


def sharded_layer(
    choices: Choices, split: Split, parameters: ParametersPerRank, forward_s: Numbers, backward_s: Numbers
) -> Waiting:
    """ZeRO-3, one layer: its traffic hides behind the layer's own compute; what is left over holds everybody up."""
    if choices.zero_stage < 3:
        return Waiting()
    if choices.machine.stack.is_eager:
        return Waiting(*eager_data.sharded_layer_s(choices, split, parameters, forward_s, backward_s))
    gather_s = _layer_gather_s(choices, split, parameters)
    regather_s = _layer_gather_s(choices, split, parameters, is_backward=True) * choices.reshard_after_forward
    reduce_s = _layer_reduce_s(choices, split, parameters) * (choices.trainable == "all")
    each = 1 - _is_gathered_once(choices, split)
    return Waiting(
        each * maximum(gather_s - forward_s, 0.0),
        each * maximum(regather_s + reduce_s - backward_s, 0.0),
        each * (gather_s + regather_s + reduce_s),
    )


def data_axis(
    choices: Choices, split: Split, parameters: ParametersPerRank, layers: Numbers, one: StageTime, embedding_s: Numbers
) -> Axis:
    """What travels once a step.

    Arguments:
        parameters: of a layer, of the embedding and of the head, on one rank.
        layers: of a stage, in the mean.
        one: seconds of a layer for one micro-batch: what the traffic can hide behind.
        embedding_s: seconds of the embedding's backward.
    """
    if choices.trainable != "all" and choices.zero_stage < 3:
        return Axis()
    outside = parameters.embedding + has_both_ends(choices, split) * parameters.head
    is_eager = choices.machine.stack.is_eager
    if is_eager and choices.zero_stage == 3:
        wires_s, copies_s = (
            split.num_microbatches * each for each in eager_data.sharded_ends_s(choices, split, parameters)
        )
        return Axis(wires_s, wires_s, copies_s)
    if is_eager and choices.compression.is_none:
        return eager_data.reduced(
            choices, split, parameters, layers, layers * (one.input_s + one.weight_s), embedding_s
        )
    if choices.zero_stage == 3:
        return _sharded_ends(choices, split, parameters, layers, outside, one)
    reduce_s, packing_s = _reduced_s(choices, split, parameters, layers, outside)
    gather_s = _gather_s(choices, split, layers * parameters.layer + outside) * (choices.zero_stage > 0)
    if choices.model.experts and choices.zero_stage:
        gather_s = gather_s + _gathered_s(choices, layers * parameters.expert_layer, *_expert_shards(split), False)
    # ZeRO-2 keeps its shard of the gradients alone, so it reduces those of every micro-batch.
    before = (split.num_microbatches - 1) * (choices.zero_stage == 2)
    total_s, packing_s = (1 + before) * reduce_s + gather_s, (1 + before) * packing_s
    if not choices.machine.stack.data_overlap:
        return Axis(total_s, total_s, packing_s)
    # Gradients travel during the last micro-batch's backward, updated parameters during the first one's forward; the
    # last bucket's and the first layer's wait for nobody.
    backward_s = layers * (one.input_s + one.weight_s)
    behind_backward_s = maximum(reduce_s - backward_s, reduce_s / maximum(layers, 1))
    behind_forward_s = maximum(gather_s - layers * one.forward_s, gather_s / maximum(layers, 1))
    before_s = before * maximum(reduce_s - backward_s, 0.0)
    return Axis(total_s, before_s + behind_backward_s + behind_forward_s, packing_s)


def _sharded_ends(
    choices: Choices, split: Split, parameters: ParametersPerRank, layers: Numbers, outside: Numbers, one: StageTime
) -> Axis:
    """ZeRO-3: what `sharded_layer` has not: the first layer's traffic and that of the ends have nothing to hide behind.

    In a pipeline that keeps its parameters, they are gathered once for the step: the other layers' gathers and sums
    hide behind the first and the last micro-batch.
    """
    is_once = _is_gathered_once(choices, split)
    trained = 1.0 * (choices.trainable == "all")
    layer_s = _layer_gather_s(choices, split, parameters) + trained * _layer_reduce_s(choices, split, parameters)
    ends_s = 2 * _gather_s(choices, split, outside) + trained * _reduce_s(choices, split, outside)
    times = 1 + (split.num_microbatches - 1) * (1 - is_once)
    total_s = times * (layer_s + ends_s)
    rest_s = is_once * maximum(layers - 1, 0) * layer_s
    shown_s = is_once * maximum(rest_s - layers * (one.forward_s + one.input_s), 0.0)
    return Axis(total_s + rest_s, total_s + shown_s)


def _is_gathered_once(choices: Choices, split: Split) -> Numbers:
    """Whether ZeRO-3's parameters stay gathered for the whole step: not dropped after forward, and in a pipeline."""
    return (split.pipeline > 1) * (not choices.reshard_after_forward)


def _reduced_s(
    choices: Choices, split: Split, parameters: ParametersPerRank, layers: Numbers, outside: Numbers
) -> tuple[Numbers, Numbers]:
    """The gradients of a stage summed over the data axis once, without ZeRO-3: on the wires; to pack and unpack."""
    machine = choices.machine
    numbers = layers * parameters.layer + outside
    packing_s = 0.0
    if not choices.compression.is_none:
        reduce_s, packing_s = _exchanged_s(choices, split, numbers), _packing_s(choices, split, numbers)
    elif choices.zero_stage == 0 or not machine.stack.has_reduce_scatter:
        size = numbers * machine.gradient_bytes
        reduce_s = machine.collective_s("all_reduce", size, split.data * split.context, split.tensor)
    else:
        reduce_s = _reduce_s(choices, split, numbers)
    if choices.model.experts:
        reduce_s = reduce_s + _reduced_experts_s(choices, split, layers * parameters.expert_layer)
    if choices.model.tied_head:
        pair_s = machine.collective_s(
            "all_reduce", parameters.tied * machine.gradient_bytes, 2, maximum(split.num_ranks - 1, 1)
        )
        reduce_s = reduce_s + pair_s * (1 - has_both_ends(choices, split))
    return reduce_s, packing_s


def _reduced_experts_s(choices: Choices, split: Split, numbers: Numbers) -> Numbers:
    """The same of the experts, whose gradients nobody compresses."""
    machine = choices.machine
    if choices.zero_stage == 0 or not machine.stack.has_reduce_scatter:
        return machine.collective_s(
            "all_reduce", numbers * machine.gradient_bytes, split.expert_copies, split.expert_stride
        )
    return _summed_s(choices, numbers, *_expert_shards(split), split.expert_replicas)


def _layer_gather_s(
    choices: Choices, split: Split, parameters: ParametersPerRank, is_backward: bool = False
) -> Numbers:
    """All-gather of a layer: its experts over the ranks that have the same ones, the rest over all."""
    shared_s = _gather_s(choices, split, parameters.layer, is_backward)
    if not choices.model.experts:
        return shared_s
    return shared_s + _gathered_s(choices, parameters.expert_layer, *_expert_shards(split), is_backward)


def _layer_reduce_s(choices: Choices, split: Split, parameters: ParametersPerRank) -> Numbers:
    shared_s = _reduce_s(choices, split, parameters.layer)
    if not choices.model.experts:
        return shared_s
    return shared_s + _summed_s(choices, parameters.expert_layer, *_expert_shards(split), split.expert_replicas)


def _expert_shards(split: Split) -> tuple[Numbers, Numbers]:
    """How many ranks split the state of the same experts, and how far apart they are."""
    return split.expert_shards, split.expert_stride


def _gather_s(choices: Choices, split: Split, numbers: Numbers, is_backward: bool = False) -> Numbers:
    """All-gather of so many parameters over the ranks that share them."""
    return _gathered_s(choices, numbers, split.shards, split.tensor, is_backward)


def _reduce_s(choices: Choices, split: Split, numbers: Numbers) -> Numbers:
    """So many gradients, to the ranks that share their sum."""
    return _summed_s(choices, numbers, split.shards, split.tensor, split.replicas)


def _summed_s(choices: Choices, numbers: Numbers, n: Numbers, stride: Numbers, replicas: Numbers) -> Numbers:
    """Reduce-scatter of so many gradients over n ranks, then all-reduce of each one's share over the replicas."""
    time_s = _scattered_s(choices, numbers, n, stride)
    if "qgZ" in choices.zero_plus_plus:
        return time_s
    size = numbers * choices.machine.gradient_bytes / n
    return time_s + choices.machine.collective_s("all_reduce", size, replicas, stride * n)


def _gathered_s(choices: Choices, numbers: Numbers, n: Numbers, stride: Numbers, is_backward: bool) -> Numbers:
    machine = choices.machine
    has_copy = is_backward and "hpZ" in choices.zero_plus_plus
    width = 1 if "qwZ" in choices.zero_plus_plus and not has_copy else machine.width
    if has_copy:
        n = machine.in_node(n, stride)
    return machine.collective_s("all_gather", numbers * width, n, stride)


def _scattered_s(choices: Choices, numbers: Numbers, n: Numbers, stride: Numbers) -> Numbers:
    machine = choices.machine
    if "qgZ" in choices.zero_plus_plus:
        # All-to-alls of INT4, in the node and across, in the place of a ring: half a byte a number.
        return machine.collective_s("all_to_all", numbers * 0.5, n, stride)
    return machine.collective_s("reduce_scatter", numbers * machine.gradient_bytes, n, stride)


def _exchanged_s(choices: Choices, split: Split, numbers: Numbers) -> Numbers:
    """The exchange of compressed gradients in one of three ways."""
    machine, method, n = choices.machine, choices.compression, split.data * split.context
    size = method.wire_bytes(numbers, **_shape(choices), grad_bytes=machine.gradient_bytes)
    if method.exchange == ALL_GATHER:
        return machine.collective_s("all_gather", n * size, n, split.tensor)
    if method.exchange == TWO_PHASE:
        pieces_s = machine.collective_s("all_to_all", size, n, split.tensor)
        return pieces_s + machine.collective_s("all_gather", size, n, split.tensor)
    return machine.collective_s("all_reduce", size, n, split.tensor)


def _packing_s(choices: Choices, split: Split, numbers: Numbers) -> Numbers:
    """Packing and unpacking compressed gradients: bytes that are moved, and products of PowerSGD's factors."""
    machine, method, n = choices.machine, choices.compression, split.data * split.context
    moved_bytes = method.moved_bytes(numbers, ranks=n, **_shape(choices), grad_bytes=machine.gradient_bytes)
    # Each of the three products goes over its matrix once, for so long or as long as its FLOPs take.
    product_bytes = 3 * machine.gradient_bytes * numbers * (method.rank is not None)
    flops_s = method.flops(numbers, **_shape(choices)) / machine.device.matmul_rate("float32")
    packing_s = machine.stream_s(moved_bytes - product_bytes) + maximum(machine.stream_s(product_bytes), flops_s)
    return packing_s * (n > 1)  # one rank has nobody to send to


def _shape(choices: Choices) -> dict[str, int]:
    return {"rows": choices.model.d_model, "columns": choices.model.d_model}
