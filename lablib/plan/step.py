"""One training step as a sum: pipeline, data axis, optimizer. The heart of the planner.

    step = makespan of the pipeline (m micro-batches over p stages)
         + what the data axis cannot hide
         + the optimizer + a fixed few milliseconds

The stage in the middle holds L / p layers; the first also the embedding, the last also head and loss. Where p does not
divide L the fullest stages have one layer more.

    data axis, ZeRO-0      one all-reduce of the stage's gradients, after the last micro-batch or during its backward
    ZeRO-1, 2              a reduce-scatter of gradients (ZeRO-2: of every micro-batch), an all-gather of parameters
    ZeRO-3                 every layer's parameters gathered before its forward and, if they were dropped, before its
                           backward; its gradients reduced after; a layer takes as long as the slower of the two
    optimizer              its state read and written once: bytes / bandwidth (or over the host's link)

Legend: m micro-batches, p stages, L layers, t tensor, d data, c context ranks, P parameters on a rank.

Source: Narayanan et al., SC21, arXiv 2104.04473, section 3; Rajbhandari et al., 2019, arXiv 1910.02054; Zhao et al.,
"PyTorch FSDP", 2023, arXiv 2304.11277; Wang et al., ZeRO++, 2023, arXiv 2306.10209; Micikevicius et al., 2017, arXiv
1710.03740 (master weights).
Simplified: compute does not slow down while communication runs beside it; prefetch is perfect after the first layer.
"""

from typing import NamedTuple

from lablib.cost.arrays import Numbers, ceil_div, least, most
from lablib.pipeline.closed_form import StageTime, makespan_s
from lablib.plan import eager_data, eager_optimizer
from lablib.plan.eager_messages import mixed_makespan_s
from lablib.plan.gradient_compression import ALL_GATHER, TWO_PHASE
from lablib.plan.held import Held
from lablib.plan.layer import Sizes, Work
from lablib.plan.machine import Pass
from lablib.plan.pieces import accumulated, pieces_of
from lablib.plan.setup import Choices, Split


class Axis(NamedTuple):
    """Seconds of one rank a step on one axis: in all, and those not hidden behind compute."""

    total_s: Numbers = 0.0
    exposed_s: Numbers = 0.0


class Step(NamedTuple):
    """What one step is made of. Seconds are those of the busiest stage, and add up to `step_s`."""

    step_s: Numbers
    products_s: Numbers
    attention_s: Numbers
    memory_s: Numbers
    launch_s: Numbers
    recompute_s: Numbers
    repeated: Pass
    ends_s: Numbers
    bubble_s: Numbers
    optimizer_s: Numbers
    fixed_s: Numbers
    tensor: Axis
    context: Axis
    expert: Axis
    data: Axis
    pipeline: Axis
    host: Axis
    work: Work
    embedding: Work
    head: Work
    held: Held
    pipeline_s: Numbers


def sizes_of(choices: Choices, split: Split) -> Sizes:
    shards = split.tensor if choices.sequence_parallel else split.tensor * 0 + 1
    return Sizes(
        micro_batch=split.micro_batch,
        tokens=split.seq_len // split.context,
        tensor=split.tensor,
        context=split.context,
        expert=split.expert,
        sequence_shards=shards,
        stride_expert=split.tensor,
    )


def step_of(choices: Choices, split: Split) -> Step:
    """The step of a plan, or of many."""
    on, model = choices.machine, choices.model
    at = sizes_of(choices, split)
    pieces = accumulated(choices, pieces_of(choices, split), split.num_microbatches)
    work, held, hidden_s = pieces.layer, pieces.held, pieces.hidden_s
    again = choices.recompute.again(work, on.stack, model.num_layers / split.pipeline)
    forward_s, backward_s, weight_s = pieces.forward_s, pieces.input_s, pieces.weight_s
    again_s = on.time_s(again)
    sharded = _sharded_layer(choices, split, held, forward_s, backward_s + weight_s + again_s)

    layers = model.num_layers / split.pipeline
    fullest = ceil_div(model.num_layers, split.pipeline)
    moved = _offloaded_layer(choices, split, work, layers, forward_s, backward_s + weight_s + again_s)
    waiting_s = sharded.forward_s + moved.forward_s, sharded.backward_s + moved.backward_s
    one = StageTime(forward_s + waiting_s[0], backward_s + again_s + waiting_s[1], weight_s)
    middle, busiest = _scaled(one, layers), _scaled(one, fullest)
    # Where p does not divide L, the ends of the pipeline are those with a layer less.
    short = layers - model.num_layers // split.pipeline
    first = _less(pieces.embedding_s, one, short)
    last = _less(pieces.head_s, one, short)

    # Tensor ranks hold the same activations (or each its share of them): each sends 1/t, and gathers in the node.
    size = at.rows * model.d_model * on.width
    part = split.tensor if on.stack.splits_messages else 1
    send_s = on.collective_s("send", size / part, split.pipeline, split.num_ranks // split.pipeline)
    if on.stack.splits_messages and not choices.sequence_parallel:
        send_s = send_s + on.collective_s("all_gather", size, split.tensor) * (split.pipeline > 1)
    pipeline_s = makespan_s(
        *(choices.schedule, split.pipeline, split.num_microbatches, split.chunks, middle, first, last),
        *(send_s, on.stack.pipeline_overlap, busiest),
    )
    if on.stack.is_eager:
        pipeline_s = mixed_makespan_s(choices, split, middle, first, last, busiest, size / part, pipeline_s)
    busy_s = split.num_microbatches * most(_total(middle) + most(_total(first), _total(last)), _total(busiest))
    single = split.pipeline == 1
    busy_s = least(busy_s + single * split.num_microbatches * least(_total(first), _total(last)), pipeline_s)

    data = _data_axis(choices, split, held, layers, one)
    optimizer_s = _optimizer_s(choices, split, held, layers)
    m = split.num_microbatches
    both = [a + b + c + d for a, b, c, d in zip(work.forward, work.input, work.weight, again, strict=True)]
    spent = Pass(*[m * layers * each for each in both])
    exposed_tensor = (spent.tensor_s - m * layers * hidden_s) * (1 - on.stack.tensor_overlap)
    exposed_expert = spent.expert_s - m * layers * pieces.hidden_expert_s
    compute_s = spent.compute_s + spent.context_s + exposed_expert + exposed_tensor
    layers_s = m * layers * (forward_s + backward_s + weight_s + again_s)
    return Step(
        step_s=pipeline_s + data.exposed_s + optimizer_s + on.losses.step_s,
        products_s=spent.product_s,
        attention_s=spent.attention_s,
        memory_s=spent.memory_s,
        launch_s=layers_s - compute_s,
        recompute_s=m * layers * again_s,
        repeated=again.times(m * layers),
        ends_s=busy_s - layers_s - m * layers * (waiting_s[0] + waiting_s[1]),
        bubble_s=pipeline_s - busy_s,
        optimizer_s=optimizer_s,
        fixed_s=on.losses.step_s,
        tensor=Axis(spent.tensor_s, exposed_tensor),
        context=Axis(spent.context_s, spent.context_s),
        expert=Axis(spent.expert_s, exposed_expert),
        data=Axis(
            data.total_s + m * layers * sharded.total_s,
            data.exposed_s + m * layers * (sharded.forward_s + sharded.backward_s),
        ),
        pipeline=Axis(2 * m * split.chunks * send_s, 0.0 * send_s),
        host=Axis(m * layers * moved.total_s, m * layers * (moved.forward_s + moved.backward_s)),
        work=work,
        embedding=pieces.embedding,
        head=pieces.head,
        held=held,
        pipeline_s=pipeline_s,
    )


def _scaled(time: StageTime, n: Numbers) -> StageTime:
    return StageTime(n * time.forward_s, n * time.input_s, n * time.weight_s)


def _less(time: StageTime, layer_time: StageTime, n: Numbers) -> StageTime:
    return StageTime(*[a - n * b for a, b in zip(time, layer_time, strict=True)])


def _total(time: StageTime) -> Numbers:
    return time.forward_s + time.input_s + time.weight_s


class _Added(NamedTuple):
    """What waiting for parameters, or for the host, adds to one layer of one micro-batch; and what is moved in all."""

    forward_s: Numbers = 0.0
    backward_s: Numbers = 0.0
    total_s: Numbers = 0.0


def _gather_s(choices: Choices, split: Split, numbers: Numbers, is_backward: bool = False) -> Numbers:
    """All-gather of so many parameters over the ranks that share them."""
    on = choices.machine
    width = 1 if "qwZ" in choices.zero_plus_plus else on.width
    stride = split.tensor
    n = split.shards
    if is_backward and "hpZ" in choices.zero_plus_plus:
        n = least(n, most(on.cluster.devices_per_node // stride, 1))
    return on.collective_s("all_gather", numbers * width, n, stride)


def _reduce_s(choices: Choices, split: Split, numbers: Numbers) -> Numbers:
    """Reduce-scatter of so many gradients over the ranks that share their sum, then all-reduce over the replicas."""
    on = choices.machine
    size = numbers * on.gradient_bytes
    if "qgZ" in choices.zero_plus_plus:
        # Two all-to-alls in INT4, in the node and across, in the place of a ring.
        return on.collective_s("all_to_all", numbers * 0.5, split.shards, split.tensor)
    time_s = on.collective_s("reduce_scatter", size, split.shards, split.tensor)
    return time_s + on.collective_s("all_reduce", size / split.shards, split.replicas, split.tensor * split.shards)


def _sharded_layer(choices: Choices, split: Split, held: Held, forward_s: Numbers, backward_s: Numbers) -> _Added:
    """ZeRO-3, one layer: its traffic hides behind the layer's own compute; what is left over holds everybody up."""
    if choices.zero_stage < 3:
        return _Added()
    if choices.machine.stack.is_eager:
        return _Added(*eager_data.sharded_layer_s(choices, split, held, forward_s, backward_s))
    gather_s = _gather_s(choices, split, held.layer)
    regather_s = _gather_s(choices, split, held.layer, is_backward=True) * choices.reshard_after_forward
    reduce_s = _reduce_s(choices, split, held.layer) * (choices.trainable == "all")
    each = 1 - _is_gathered_once(choices, split)
    return _Added(
        each * most(gather_s - forward_s, 0.0),
        each * most(regather_s + reduce_s - backward_s, 0.0),
        each * (gather_s + regather_s + reduce_s),
    )


def _is_gathered_once(choices: Choices, split: Split) -> Numbers:
    """Whether ZeRO-3's parameters stay gathered for the whole step: not dropped after forward, and in a pipeline."""
    return (split.pipeline > 1) * (not choices.reshard_after_forward)


def _offloaded_layer(
    choices: Choices, split: Split, work: Work, layers: Numbers, forward_s: Numbers, backward_s: Numbers
) -> _Added:
    """Activations kept by the host: each layer's go there while the next computes, and come back ahead of backward."""
    if "activations" not in choices.offload:
        return _Added()
    size = choices.recompute.kept_bytes(work, choices.machine.stack, entering_bytes(choices, split), layers)
    one_way_s = size / choices.host_link.bandwidth_bytes_per_s
    return _Added(most(one_way_s - forward_s, 0.0), most(one_way_s - backward_s, 0.0), 2 * one_way_s)


def entering_bytes(choices: Choices, split: Split) -> Numbers:
    """A layer's input for one micro-batch, on one rank."""
    at = sizes_of(choices, split)
    return at.rows * choices.model.d_model * choices.machine.width / at.sequence_shards


def _data_axis(choices: Choices, split: Split, held: Held, layers: Numbers, one: StageTime) -> Axis:
    """What travels once a step on the data axis. The fullest stage is the first: layers and embedding."""
    on, stack = choices.machine, choices.machine.stack
    if choices.trainable != "all":
        return Axis()
    outside = held.embedding + (split.pipeline == 1) * held.head
    numbers = layers * held.layer + outside
    if stack.is_eager and choices.zero_stage == 3:
        total_s = split.num_microbatches * eager_data.sharded_ends_s(choices, split, held)
        return Axis(total_s, total_s)
    if stack.is_eager and choices.compression.name == "none":
        return Axis(*eager_data.reduced_s(choices, split, held, layers, layers * (one.input_s + one.weight_s)))
    if choices.zero_stage == 3:
        # The ends' own gathers and the first layer's have nothing to hide behind.
        once_s = _gather_s(choices, split, held.layer) + _reduce_s(choices, split, held.layer)
        ends_s = 2 * _gather_s(choices, split, outside) + _reduce_s(choices, split, outside)
        times = 1 + (split.num_microbatches - 1) * (1 - _is_gathered_once(choices, split))
        total_s = times * (once_s + ends_s)
        # Gathered once for the step: the other layers' gathers and sums hide behind the first and the last micro-batch.
        rest_s = _is_gathered_once(choices, split) * most(layers - 1, 0) * once_s
        shown_s = _is_gathered_once(choices, split) * most(rest_s - layers * (one.forward_s + one.input_s), 0.0)
        return Axis(total_s + rest_s, total_s + shown_s)
    if choices.compression.name != "none":
        reduce_s = _compressed_s(choices, split, numbers)
    elif choices.zero_stage == 0 or not stack.has_reduce_scatter:
        size = numbers * on.gradient_bytes
        reduce_s = on.collective_s("all_reduce", size, split.data * split.context, split.tensor)
    else:
        reduce_s = _reduce_s(choices, split, numbers)
    gather_s = _gather_s(choices, split, numbers) * (choices.zero_stage > 0)
    expert_s = on.collective_s(
        "all_reduce",
        layers * held.expert_layer * on.gradient_bytes,
        split.data * split.context // split.expert,
        split.tensor * split.expert,
    )
    reduce_s = reduce_s + expert_s
    if choices.model.tied_head:
        pair_s = on.collective_s("all_reduce", held.tied * on.gradient_bytes, 2, most(split.num_ranks - 1, 1))
        reduce_s = reduce_s + pair_s * (split.pipeline > 1)
    # ZeRO-2 keeps its shard of the gradients alone, so it reduces those of every micro-batch.
    before = (split.num_microbatches - 1) * (choices.zero_stage == 2)
    if not stack.data_overlap:
        total_s = (1 + before) * reduce_s + gather_s
        return Axis(total_s, total_s)
    # Gradients travel during the last micro-batch's backward, updated parameters during the first one's forward; the
    # last bucket's and the first layer's wait for nobody.
    backward_s = layers * (one.input_s + one.weight_s)
    behind_backward_s = most(reduce_s - backward_s, reduce_s / most(layers, 1))
    behind_forward_s = most(gather_s - layers * one.forward_s, gather_s / most(layers, 1))
    before_s = before * most(reduce_s - backward_s, 0.0)
    return Axis((1 + before) * reduce_s + gather_s, before_s + behind_backward_s + behind_forward_s)


def _compressed_s(choices: Choices, split: Split, numbers: Numbers) -> Numbers:
    """The same exchange of compressed gradients, with packing and unpacking them."""
    on, method = choices.machine, choices.compression
    n, shape = split.data * split.context, {"rows": choices.model.d_model, "columns": choices.model.d_model}
    size = method.wire_bytes(numbers, **shape, grad_bytes=on.gradient_bytes)
    packing_s = on.stream_s(method.moved_bytes(numbers, ranks=n, **shape, grad_bytes=on.gradient_bytes))
    if method.exchange == ALL_GATHER:
        return packing_s + on.collective_s("all_gather", n * size, n, split.tensor)
    if method.exchange == TWO_PHASE:
        pieces_s = on.collective_s("all_to_all", size, n, split.tensor)
        return packing_s + pieces_s + on.collective_s("all_gather", size, n, split.tensor)
    return packing_s + on.collective_s("all_reduce", size, n, split.tensor)


def _optimizer_s(choices: Choices, split: Split, held: Held, layers: Numbers) -> Numbers:
    on = choices.machine
    if choices.trainable != "all":
        return 0.0 * layers
    if on.stack.is_eager and choices.optimizer.name in eager_optimizer.PASSES:
        return eager_optimizer.step_s(choices, split, held, layers)
    outside = held.embedding + (split.pipeline == 1) * held.head
    shards = split.shards if choices.zero_stage else split.shards * 0 + 1
    own = (layers * held.layer + outside) / shards
    expert_shards = most(split.data * split.context // split.expert, 1) if choices.zero_stage else 1
    own = own + layers * held.expert_layer / expert_shards
    # Clipping reads every gradient once more; unscaling and casting read and write it.
    width = choices.model.d_model
    step_bytes = choices.optimizer.moved_bytes(
        1.0, rows=width, columns=width, has_master=on.has_master, param_bytes=on.width, grad_bytes=4
    )
    moved = own * (step_bytes + 12)
    if "optimizer" in choices.offload:
        return most(on.stream_s(moved) * 0, own * (on.gradient_bytes + on.width)) / (
            choices.host_link.bandwidth_bytes_per_s
        )
    return on.stream_s(moved)
