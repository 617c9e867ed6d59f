"""The data axis of an eager program: torch's DDP, ZeroRedundancyOptimizer and FSDP2, with the copies that they make.

    DDP         the last micro-batch's gradients are divided into buckets, tensor by tensor (2 passes), each bucket is
                summed while backward goes on, and all are copied back at the end (2 passes); the last bucket, with the
                embedding in it, and the copies that wait for it hide behind nothing
    ZeRO-1      the same; after its share of the step each rank broadcasts its parameters, tensor by tensor
    FSDP2       each layer: shards copied together (2 / s), gathered, taken apart (2); in backward the same again, and
                gradients put together (2), summed and scattered, added to their shards from the second micro-batch on.
                With wide shards (mixed precision) they are cast before, and sums travel in 32 bits.
                Copies of the whole (HSDP) are summed on a stream of their own, beside the next layer's scatter.
                Embedding, head and last norm are one group, gathered once

Passes are over the parameters. Legend: s ranks that share them.

Source: torch/csrc/distributed/c10d/reducer.cpp; torch/distributed/optim/zero_redundancy_optimizer.py;
torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
Simplified: a stage's matrices fill buckets in reverse order of creation; vectors do not count. Experts are summed in a
separate collective, which hides behind nothing. With `data_overlap` FSDP2 communicates during the layers, as on a GPU;
without, the program waits for each collective, as torch does on a CPU.
"""

from dataclasses import replace
from typing import NamedTuple

from lablib.cost.arrays import Numbers, distinct_rows, is_array, maximum, minimum, np
from lablib.plan.eager.optimizer import layer_pass, layer_tensors, seconds, vectors, vectors_of_norm
from lablib.plan.machine import AxisTime
from lablib.plan.parameters_per_rank import ParametersPerRank
from lablib.plan.setup import Setup

_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 2**20, 25 * 2**20


class Buckets(NamedTuple):
    """DDP's buckets of a stage: bytes and counts."""

    first: Numbers  # of the layers in the first bucket, which the head's matrix may fill alone
    has_first: Numbers  # whether there is one before the last
    count: Numbers  # further ones that layers fill
    left: Numbers  # of the layers in the last one, with the embedding


def reduced(setup: Setup, parameters: ParametersPerRank, backward_s: Numbers, embedding_s: Numbers) -> AxisTime:
    """DDP's sums and copies per step, with ZeRO-1's broadcasts; 0 for one rank.

    `backward_s`, `embedding_s`: of the layers' backward, and of the embedding's after it.
    """
    machine = setup.machine
    n, outside = setup.data * setup.context, _outside(setup, parameters)
    size = setup.layers * parameters.layer * machine.width
    # The head's own matrix comes first; the embedding last, with the rest that did not fill a bucket.
    head, embedding = (setup.pipeline == 1) * parameters.head * machine.width, parameters.embedding * machine.width
    packed = _buckets(setup)
    middle = maximum(size - packed.first - packed.left, 0.0) / maximum(packed.count, 1)

    def sum_s(size_bytes: Numbers) -> Numbers:
        return machine.collective_s("all_reduce", size_bytes, n, setup.tensor)

    first_s, middle_s = packed.has_first * sum_s(head + packed.first), sum_s(middle)
    last_s = sum_s(embedding + packed.left + (1 - packed.has_first) * head)
    others_s = packed.count * middle_s
    copies_s = setup.layers * seconds(setup, layer_pass(setup, 2 * machine.width, has_experts=False))
    ends_s = machine.stream_s(2 * machine.width * outside) + 5 * machine.device.queued_s
    # The copies into buckets also make that backward pass longer.
    backward_s, embedding_s = backward_s + copies_s, embedding_s + ends_s
    behind_s = first_s + others_s
    if machine.stack.data_overlap:
        behind_s = _behind_s(packed, size, middle, first_s, middle_s, backward_s) - embedding_s
    # The copies back of all but the last bucket take place while that is summed.
    early_s = (1 - packed.left / maximum(size, 1)) * copies_s + packed.has_first * machine.stream_s(2 * head)
    shown_s = maximum(maximum(behind_s, 0.0) + last_s - early_s, 0.0)
    spread_s = _broadcasts_s(setup, parameters) if setup.zero_stage else 0.0
    is_split = n > 1
    tensors = layer_tensors(setup, has_experts=False)
    copies = setup.layers * (sum(count for *_, count in tensors) + vectors(setup.model, len(tensors))) + 5
    expert_bytes = setup.layers * parameters.expert_layer * machine.width
    experts_s = _experts_s(setup, expert_bytes) if setup.model.experts else 0.0
    return AxisTime(
        is_split * (first_s + others_s + last_s + spread_s) + experts_s,
        is_split * (shown_s + spread_s) + experts_s,
        is_split * 2 * (copies_s + ends_s),
        is_split * 2 * copies,
    )


def _experts_s(setup: Setup, size: Numbers) -> Numbers:
    """Gradients that DDP leaves out, summed after it over the ranks with the same experts; ZeRO-1 also broadcasts."""
    machine, group = setup.machine, (setup.expert_copies, setup.expert_stride)
    sum_s = machine.collective_s("all_reduce", size, *group)
    return sum_s + (machine.collective_s("broadcast", size, *group) if setup.zero_stage else 0.0)


def _behind_s(
    packed: Buckets, size: Numbers, middle: Numbers, first_s: Numbers, middle_s: Numbers, backward_s: Numbers
) -> Numbers:
    """Seconds for which all buckets but the last go on after the layers' backward; below 0 if they finish earlier.

    They are sent one after another, each when it is full: the wires wait for the first one, for the second, or for the
    last of those in between.
    """
    per_byte_s, others_s = backward_s / maximum(size, 1), packed.count * middle_s
    after_first_s = (packed.first - size) * per_byte_s + first_s + others_s
    after_second_s = (packed.first + middle - size) * per_byte_s + others_s
    after_last_s = -packed.left * per_byte_s + middle_s
    return maximum(after_first_s, maximum(after_second_s, after_last_s))


def _buckets(setup: Setup) -> Buckets:
    cut = (setup.tensor, setup.pipeline)
    if not any(is_array(number) for number in cut):
        return _filled(setup)
    distinct, which = distinct_rows(*cut)
    found = np.array(
        [
            _filled(replace(setup, tensor=tensor, pipeline=pipeline))
            for tensor, pipeline in zip(*map(np.ndarray.tolist, distinct), strict=True)
        ]
    )
    return Buckets(*found[which].T)


def _filled(setup: Setup) -> Buckets:
    """Buckets filled in order: the head's matrix first, then the tensors of the layers, the last one first."""
    model, width = setup.model, setup.machine.width / setup.tensor
    head = model.vocab_size * model.d_model * width * (setup.pipeline == 1 and not model.tied_head)
    tensors = layer_tensors(setup, has_experts=False)
    sizes = [rows * columns * width for rows, columns, many in tensors for _ in range(int(many))]
    filled, held_bytes, limit = [], 0.0, _FIRST_BUCKET_BYTES
    for size in [head, *sizes[::-1] * (model.num_layers // setup.pipeline)]:
        held_bytes += size
        if held_bytes >= limit:
            filled, held_bytes, limit = [*filled, held_bytes], 0.0, _BUCKET_BYTES
    if not filled:
        return Buckets(0.0, 0.0, 0.0, held_bytes - head)
    return Buckets(filled[0] - head, 1.0, len(filled) - 1.0, held_bytes)


def _broadcasts_s(setup: Setup, parameters: ParametersPerRank) -> Numbers:
    """Tensor by tensor from its owner: the largest from the first rank, the others from any."""
    machine, n = setup.machine, setup.data * setup.context

    def one_s(numbers: Numbers, name: str = "broadcast in turn") -> Numbers:
        return machine.collective_s(name, numbers * machine.width + 0.0 * n, n, setup.tensor)

    tensors = layer_tensors(setup, has_experts=False)
    layer_s = sum(count * one_s(rows * columns / setup.tensor) for rows, columns, count in tensors)
    ends_s = one_s(parameters.embedding, "broadcast") + one_s((setup.pipeline == 1) * parameters.head)
    model, vector_s = setup.model, one_s(setup.model.d_model)
    ends_s = ends_s + (vectors_of_norm(model) + (model.positions == "learned")) * vector_s
    return setup.layers * (layer_s + vectors(model, len(tensors)) * vector_s) + ends_s


def gathered_s(setup: Setup, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Seconds to gather parameters: on the wires, and of the copies (and casts) before and after."""
    machine, size = setup.machine, numbers * setup.machine.width
    wires_s = machine.collective_s("all_gather", size, setup.shards, setup.tensor)
    copies_s = machine.stream_s(2 * size / setup.shards) + machine.stream_s(2 * size) + 2 * machine.device.queued_s
    if machine.shard_width > machine.width:
        cast_bytes = numbers / setup.shards * (machine.shard_width + machine.width)
        copies_s = copies_s + machine.stream_s(cast_bytes) + machine.device.queued_s
    return wires_s, copies_s


def scattered_s(setup: Setup, numbers: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The same to sum and scatter gradients; first, on other wires, to sum each share over the replicas."""
    machine, size = setup.machine, numbers * setup.machine.shard_width
    wires_s = machine.collective_s("reduce_scatter", size, setup.shards, setup.tensor)
    share, stride = size / setup.shards, setup.tensor * setup.shards
    replicas_s = machine.collective_s("all_reduce", share, setup.replicas, stride)
    return replicas_s, wires_s, machine.stream_s(numbers * machine.width + size) + machine.device.queued_s


def sharded_layer_s(
    setup: Setup, parameters: ParametersPerRank, forward_s: Numbers, backward_s: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Seconds that FSDP2 adds to a layer's forward and to its backward; seconds of its wires and of its copies."""
    machine = setup.machine
    trained, regathered = 1.0 * setup.has_weight_gradients, 1.0 * setup.reshard_after_forward
    gather_s, apart_s = gathered_s(setup, parameters.layer)
    replicas_s, scatter_s, together_s = scattered_s(setup, parameters.layer)
    later = trained * (1 - 1 / setup.num_microbatches)
    added_s = later * seconds(setup, layer_pass(setup, 3 * machine.shard_width, setup.shards))
    wires_s = [gather_s, regathered * gather_s + trained * scatter_s]
    total_s = sum(wires_s) + trained * replicas_s
    # The sums over replicas have a stream of their own, and travel while the next layer's gradients are scattered.
    overlaps = machine.stack.data_overlap
    wires_s[1] = maximum(wires_s[1], trained * replicas_s) if overlaps else wires_s[1] + trained * replicas_s
    copies_s = (apart_s, regathered * apart_s + trained * together_s + added_s)
    hidden_s = (forward_s, backward_s) if overlaps else (0.0, 0.0)
    passes = zip(wires_s, hidden_s, copies_s, strict=True)
    shown_s = [machine.exposed_s(wire, hidden) + copy for wire, hidden, copy in passes]
    # No layer before the first one hides its gather.
    shown_s[0] = shown_s[0] + minimum(gather_s, hidden_s[0]) * setup.pipeline / setup.model.num_layers
    return shown_s[0], shown_s[1], total_s, sum(copies_s)


def sharded_ends_s(setup: Setup, parameters: ParametersPerRank) -> tuple[Numbers, Numbers]:
    """Wires and copies of FSDP2 for embedding, head and last norm, once per micro-batch: nothing hides them."""
    machine, outside = setup.machine, _outside(setup, parameters)
    gather_s, apart_s = gathered_s(setup, outside)
    replicas_s, scatter_s, together_s = scattered_s(setup, outside)
    added_s = (1 - 1 / setup.num_microbatches) * machine.stream_s(3 * outside / setup.shards * machine.shard_width)
    trained = 1.0 * setup.has_weight_gradients
    return gather_s + trained * (scatter_s + replicas_s), apart_s + trained * (together_s + added_s)


def _outside(setup: Setup, parameters: ParametersPerRank) -> Numbers:
    return parameters.embedding + (setup.pipeline == 1) * parameters.head
