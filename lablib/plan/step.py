"""One training step as a sum: pipeline, data axis, optimizer. The heart of the planner.

    step = makespan of the pipeline (m micro-batches over p stages; pipeline/closed_form.py)
         + exposed communication of the data axis (data_axis.py)
         + the optimizer (optimizer_step.py) + a fixed few milliseconds
         + on an eager stack, the time in which the device waits for the host

    a stage in the middle    L / p * (forward + backward + recomputation + waiting for ZeRO-3 or the host)
    the first, the last      the same and the embedding; the same and head and loss
    busy                     m * the largest of these; the rest of the makespan is bubble, and messages
    launches                 time of the layers beyond the work of their kernels
    host                     launches ahead, of the whole step: the device waits for it at the first forward, and at the
                             end if a stage's launches take longer than its kernels, messages and bubble

If p does not divide L, the makespan is for stages with L / p layers on average: the fullest have one more, the first
and the last the fewest.

Legend: m micro-batches, p stages, L layers, t tensor ranks.

Source: Narayanan et al., SC21, arXiv 2104.04473, section 3 (the sum) and 4.1 (messages split over tensor ranks).
Simplified: every layer takes as long as the average one (dense ones and those with experts in their proportion).
"""

from functools import reduce
from typing import NamedTuple

from lablib.cost.arrays import Numbers, ceil_div, lowest, maximum, minimum
from lablib.pipeline.closed_form import V_SHAPED, StageTime, makespan_s
from lablib.pipeline.sums import where
from lablib.plan.data_axis import Waiting, data_axis, matrices_of, sharded_layer
from lablib.plan.eager.messages import mixed_makespan_s, sent_s
from lablib.plan.machine import AxisTime, PassTime
from lablib.plan.optimizer_step import exchanged_s, optimizer_step_s
from lablib.plan.pieces import Pieces, accumulated, pieces_of
from lablib.plan.setup import Setup


class StepTimes(NamedTuple):
    """Parts of one step: seconds of the busiest stage, which add up to `step_s`."""

    step_s: Numbers  # the whole step
    # products_s, attention_s, memory_s: kernels of the layers by their limit, recomputation included
    products_s: Numbers
    attention_s: Numbers
    memory_s: Numbers
    launch_s: Numbers  # time of the layers beyond these and their communication: launches, by a host that may be late
    recompute_s: Numbers  # recomputation in the layers; `repeated` is the same by kind
    repeated: PassTime
    # on the busiest stage, embedding or head without the tensor axis, and a layer more than the average
    ends_s: Numbers
    bubble_s: Numbers  # the busiest stage waits for others, or for their messages
    optimizer_s: Numbers  # optimizer_s, fixed_s: at the end of the step
    fixed_s: Numbers
    # tensor, context, expert, data, pipeline, host: communication by axis, embedding and head included; for `pipeline`,
    # messages of a rank with two neighbours: their exposed seconds are in bubble_s
    tensor: AxisTime
    context: AxisTime
    expert: AxisTime
    data: AxisTime
    pipeline: AxisTime
    host: AxisTime
    pieces: Pieces  # a layer, the embedding and the head, for one micro-batch
    pipeline_s: Numbers  # the makespan

    @property
    def bubble_fraction(self) -> Numbers:
        """Share of the makespan in which the busiest stage waits; 0 if nothing takes time."""
        return self.bubble_s / where(self.pipeline_s > 0, self.pipeline_s, 1.0)

    def check_takes_time(self) -> None:
        """Raises ValueError for a step of 0 s, which has no speed."""
        if lowest(self.step_s) > 0:
            return
        raise ValueError(
            "a step must take some time: got 0 s, with a device that computes in no time, no communication and no "
            "derating; give the usual derating, or ranks that communicate in every plan"
        )


class _Layer(NamedTuple):
    """An average layer of one micro-batch: compute, recomputation, and waiting."""

    compute_s: Numbers  # seconds of its passes, recomputation included
    recomputed: PassTime  # recomputed, recomputed_s: the part of the forward pass that runs a second time
    recomputed_s: Numbers
    sharded: Waiting  # sharded, moved: waiting for ZeRO-3's parameters, and for the host
    moved: Waiting
    time: StageTime  # seconds of F, I and W, with all of these

    @property
    def waiting_s(self) -> Numbers:
        return (self.sharded.forward_s + self.moved.forward_s) + (self.sharded.backward_s + self.moved.backward_s)


class _Pipe(NamedTuple):
    """The pipeline: makespan, work of the busiest stage, the tensor axis of its embedding or head, messages."""

    makespan_s: Numbers
    busy_s: Numbers
    ends_tensor_s: Numbers
    sent_s: Numbers


def step_of(setup: Setup) -> StepTimes:
    """The step of a plan, or of many."""
    machine, m, layers = setup.machine, setup.num_microbatches, setup.layers
    pieces = accumulated(setup, pieces_of(setup))
    layer = _layer_of(setup, pieces)
    pipe = _pipe_of(setup, pieces, layer.time)
    data = data_axis(setup, pieces.parameters, layer.time, pieces.embedding_s.total_s - pieces.embedding_s.forward_s)
    together_s, gathered_s = exchanged_s(setup, pieces.parameters)
    data = data._replace(total_s=data.total_s + gathered_s, exposed_s=data.exposed_s + gathered_s)
    optimizer_s = optimizer_step_s(setup, pieces.parameters, pipe.makespan_s)

    added_s = data.added_s + together_s
    passes_s = pipe.makespan_s + added_s
    late_s = _late_s(setup, pieces, layer, passes_s, data.kernels) if setup.is_eager else 0.0
    work = pieces.layer
    passes = [a + b + c + d for a, b, c, d in zip(work.forward, work.input, work.weight, layer.recomputed, strict=True)]
    spent = PassTime(*[m * layers * each for each in passes])
    exposed_tensor_s = spent.tensor_s - m * layers * pieces.hidden_s
    exposed_expert_s = spent.expert_s - m * layers * pieces.hidden_expert_s
    layers_s = m * layers * layer.compute_s
    return StepTimes(
        step_s=pipe.makespan_s + added_s + optimizer_s + machine.derating.step_s + late_s,
        products_s=spent.product_s,
        attention_s=spent.attention_s,
        memory_s=spent.memory_s,
        launch_s=layers_s - (spent.compute_s + spent.context_s + exposed_expert_s + exposed_tensor_s) + late_s,
        recompute_s=m * layers * layer.recomputed_s,
        repeated=layer.recomputed.times(m * layers),
        ends_s=pipe.busy_s - layers_s - m * layers * layer.waiting_s - pipe.ends_tensor_s,
        bubble_s=pipe.makespan_s - pipe.busy_s,
        optimizer_s=optimizer_s,
        fixed_s=machine.derating.step_s,
        tensor=AxisTime(
            spent.tensor_s + pipe.ends_tensor_s + together_s, exposed_tensor_s + pipe.ends_tensor_s + together_s
        ),
        context=AxisTime(spent.context_s + spent.hidden_context_s, spent.context_s),
        expert=AxisTime(spent.expert_s, exposed_expert_s),
        data=AxisTime(
            data.total_s + m * layers * layer.sharded.total_s,
            data.exposed_s + m * layers * layer.sharded.exposed_s,
            data.copies_s + m * layers * layer.sharded.copies_s,
        ),
        pipeline=AxisTime(pipe.sent_s, 0.0 * pipe.sent_s),
        host=AxisTime(m * layers * layer.moved.total_s, m * layers * (layer.moved.forward_s + layer.moved.backward_s)),
        pieces=pieces,
        pipeline_s=pipe.makespan_s,
    )


def _layer_of(setup: Setup, pieces: Pieces) -> _Layer:
    machine = setup.machine
    recomputed = setup.recompute.recomputed(pieces.layer, machine.stack, setup.layers)
    recomputed_s = machine.time_s(recomputed)
    forward_s, input_s, weight_s = pieces.forward_s, pieces.input_s, pieces.weight_s
    backward_s = input_s + weight_s + recomputed_s
    sharded = sharded_layer(setup, pieces.parameters, forward_s, backward_s)
    late = _late_layer_s(setup, pieces, recomputed, forward_s + sharded.forward_s, backward_s + sharded.backward_s)
    # The host's link is another wire: its traffic also hides behind the waiting for parameters.
    busy_s = (forward_s + sharded.forward_s, backward_s + sharded.backward_s)
    moved = _offloaded_layer(setup, pieces, *busy_s)
    time = StageTime(
        forward_s + late[0] + (sharded.forward_s + moved.forward_s),
        input_s + recomputed_s + late[1] + (sharded.backward_s + moved.backward_s),
        weight_s,
    )
    compute_s = forward_s + input_s + weight_s + recomputed_s + sum(late)
    return _Layer(compute_s, recomputed, recomputed_s, sharded, moved, time)


def _late_layer_s(
    setup: Setup, pieces: Pieces, recomputed: PassTime, forward_s: Numbers, backward_s: Numbers
) -> tuple[Numbers, Numbers]:
    """Seconds in which a layer's passes wait for a host that also fetches and releases matrices, for ZeRO-3."""
    machine, work = setup.machine, pieces.layer
    if setup.zero_stage < 3 or not machine.stack.fetch_calls:
        return 0.0, 0.0
    fetches_s = matrices_of(setup) * machine.stack.fetch_calls * machine.derating.dispatch_s
    passes = 1 + (setup.recompute.kind == "full")
    kernels = work.input.kernels + work.weight.kernels + recomputed.kernels
    return (
        maximum(machine.host_s(work.forward.kernels) + fetches_s - forward_s, 0.0),
        maximum(machine.host_s(kernels) + passes * fetches_s - backward_s, 0.0),
    )


def _late_s(setup: Setup, pieces: Pieces, layer: _Layer, device_s: Numbers, copies: Numbers) -> Numbers:
    """Seconds that the host, which launches kernels as far ahead as it can, adds to passes of `device_s`."""
    machine, m, both = setup.machine, setup.num_microbatches, setup.has_both_ends
    _, at_first, at_last = _shares(setup)
    work, embedding, head = pieces.layer, pieces.embedding, pieces.head
    first, last = (sum(p.kernels for p in (end.forward, end.input, end.weight)) for end in (embedding, head))
    each = work.forward.kernels + work.input.kernels + work.weight.kernels + layer.recomputed.kernels
    fullest = maximum(at_first * each + first + both * last, at_last * each + last)
    # At the end of the first forward, of the loss after it (with its backward), and of all.
    forward = at_first * work.forward.kernels + embedding.forward.kernels
    forward_s = at_first * pieces.forward_s + pieces.embedding_s.forward_s
    moments = (
        machine.host_s(forward) - forward_s,
        both * (machine.host_s(forward + last) - forward_s - pieces.head_s.total_s),
        machine.host_s(m * fullest + copies) - device_s,
    )
    return maximum(reduce(maximum, moments), 0.0)


def _pipe_of(setup: Setup, pieces: Pieces, layer: StageTime) -> _Pipe:
    """The pipeline in this schedule, with the work of its busiest stage."""
    machine, total, p, m = setup.machine, setup.model.num_layers, setup.pipeline, setup.num_microbatches
    between, at_first, at_last = _shares(setup)
    middle, busiest = _scaled(layer, between), _scaled(layer, ceil_div(total, p))
    first = _less(pieces.embedding_s, layer, between - at_first)
    last = _less(pieces.head_s, layer, between - at_last)
    message_bytes, send_s = _message(setup)
    makespan = makespan_s(
        *(setup.schedule, p, m, setup.chunks, middle, first, last), *(send_s, machine.stack.pipeline_overlap, busiest)
    )
    if setup.is_eager:
        makespan = mixed_makespan_s(setup, middle, first, last, busiest, message_bytes, makespan)
    larger_s, smaller_s = maximum(first.total_s, last.total_s), minimum(first.total_s, last.total_s)
    ends_s = larger_s + setup.has_both_ends * smaller_s
    longest_s = middle.total_s + ends_s
    at_first_s, at_last_s = pieces.embedding_tensor_s, pieces.head_tensor_s
    tensor_s = where(first.total_s >= last.total_s, at_first_s, at_last_s)
    tensor_s = tensor_s + setup.has_both_ends * (at_first_s + at_last_s - tensor_s)
    has_end = longest_s >= busiest.total_s
    busy_s = minimum(m * maximum(longest_s, busiest.total_s), makespan)
    return _Pipe(makespan, busy_s, m * has_end * tensor_s, sent_s(setup, message_bytes, send_s))


def _shares(setup: Setup) -> tuple[Numbers, Numbers, Numbers]:
    """Layers of the stages between the ends, on average, of the first stage and of the last.

    In a V the first rank has both ends of the model, and the last is one of those between.
    """
    p, total = setup.pipeline, setup.model.num_layers
    is_v = setup.schedule in V_SHAPED
    at_first, at_last = layers_of(total, p, 0 * p), 0 * p if is_v else layers_of(total, p, p - 1)
    others = p - 1 if is_v else p - 2
    between = where(others > 0, (total - at_first - at_last) / maximum(others, 1), total / p)
    return between, at_first, between if is_v else at_last


def layers_of(total: int, p: Numbers, rank: Numbers) -> Numbers:
    """Layers of a stage: if p does not divide them, the stages in the middle have the extra ones."""
    few, extra = total // p, total % p
    begin = (p - extra) // 2
    return few + (extra > 0) * ((rank >= begin) & (rank < begin + extra))


def _message(setup: Setup) -> tuple[Numbers, Numbers]:
    """Bytes that a rank sends to the next stage, and seconds until all ranks there have the message.

    Tensor ranks hold the same activations (or each its share of them): each sends 1/t, and gathers in the node.
    """
    machine, size = setup.machine, setup.whole_bytes
    part = setup.tensor if machine.stack.splits_messages else 1
    send_s = machine.collective_s("send", size / part, setup.pipeline, setup.num_ranks // setup.pipeline)
    if machine.stack.splits_messages and not setup.sequence_parallel:
        send_s = send_s + machine.collective_s("all_gather", size, setup.tensor) * (setup.pipeline > 1)
    return size / part, send_s


def _offloaded_layer(setup: Setup, pieces: Pieces, forward_s: Numbers, backward_s: Numbers) -> Waiting:
    """States kept by the host: the link carries them in both directions at once, while other layers compute.

    Activations go to the host in forward, and return ahead of backward. A rank's shard of the parameters comes ahead of
    each gather, and its gradients go to the host.
    """
    if not {"activations", "parameters"} & {*setup.offload}:
        return Waiting()
    saved = setup.recompute.saved_bytes(pieces.layer, setup.machine.stack, setup.entering_bytes, setup.layers)
    expert = pieces.parameters.expert_layer / setup.expert_shards if setup.model.experts else 0.0
    own = setup.has_host_parameters * (pieces.parameters.layer / setup.shards + expert)
    saved = saved * ("activations" in setup.offload)
    shard, gradient = own * setup.machine.width, own * setup.machine.gradient_bytes * setup.has_weight_gradients
    rate = setup.host_link.bandwidth_bytes_per_s
    again = shard * setup.reshard_after_forward
    in_forward, in_backward = maximum(saved, shard) / rate, maximum(saved + again, gradient) / rate
    waits = maximum(in_forward - forward_s, 0.0), maximum(in_backward - backward_s, 0.0)
    return Waiting(*waits, in_forward + in_backward)


def _scaled(time: StageTime, n: Numbers) -> StageTime:
    return StageTime(n * time.forward_s, n * time.input_s, n * time.weight_s)


def _less(time: StageTime, layer: StageTime, n: Numbers) -> StageTime:
    return StageTime(*[a - n * b for a, b in zip(time, layer, strict=True)])
