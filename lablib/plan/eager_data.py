"""The data axis of an eager program: torch's DDP, ZeroRedundancyOptimizer and FSDP2, with the copies that they make.

    DDP         the last micro-batch's gradients are divided into buckets, tensor by tensor (2 passes), each bucket is
                summed while backward goes on, and all are copied back at the end (2 passes); the last bucket, with the
                embedding in it, and the copies that wait for it hide behind nothing
    ZeRO-1      the same; after its share of the step each rank broadcasts its parameters, tensor by tensor
    FSDP2       each layer: shards copied together (2 / s), gathered, taken apart (2); in backward the same again, and
                gradients put together (2), summed and scattered, added to their shards from the second micro-batch on.
                Embedding, head and last norm are a group of their own, gathered once

Passes are over the parameters. Legend: s ranks that share them.

Source: torch/csrc/distributed/c10d/reducer.cpp; torch/distributed/optim/zero_redundancy_optimizer.py;
torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
Simplified: a stage's matrices fill buckets in the order in which they were made, backwards; vectors do not count.
Experts are summed in one collective of their own, which hides behind nothing. With `data_overlap` FSDP2's wires work
beside the layers, as on a GPU; without, each is waited for, as torch does on a CPU.
"""

from dataclasses import replace

import numpy as np

from lablib.cost.arrays import Numbers, distinct_rows, most
from lablib.plan.eager_optimizer import layer_pass_s, layer_tensors
from lablib.plan.held import Held
from lablib.plan.machine import Machine
from lablib.plan.setup import Choices, Split

_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 2**20, 25 * 2**20


def reduced_s(
    choices: Choices, split: Split, held: Held, layers: Numbers, backward_s: Numbers
) -> tuple[Numbers, Numbers]:
    """Seconds of DDP's sums and copies a step (in all, and not hidden), with ZeRO-1's broadcasts; 0 for one rank."""
    on = choices.machine
    n, outside = split.data * split.context, _outside(split, held)
    size = layers * held.layer * on.width
    # The head's own matrix comes first, the embedding last; with it, what did not fill a bucket.
    first, embedding = (split.pipeline == 1) * held.head * on.width, held.embedding * on.width
    count, left = _buckets(choices, split)
    last_s = on.collective_s("all_reduce", embedding + left, n, split.tensor)
    filled = most(size + first - left, 0.0)
    others_s = count * on.collective_s("all_reduce", filled / most(count, 1), n, split.tensor)
    copies_s = layers * layer_pass_s(choices, split, 2 * on.width, has_experts=False)
    ends_s = on.stream_s(2 * on.width * outside) + 5 * on.device.kernel_overhead_s
    # What divides the gradients into buckets makes that backward pass longer, too.
    behind_s = most(others_s - backward_s - copies_s, 0.0) if on.stack.data_overlap else others_s
    # The copies back of all but the last bucket take place while that is summed.
    late = left / most(size, 1)
    shown_s = copies_s + ends_s + most(behind_s + last_s, (1 - late) * copies_s) + late * copies_s + ends_s
    spread_s = _broadcasts_s(choices, split, held, layers) if choices.zero_stage else 0.0
    total_s = 2 * (copies_s + ends_s) + others_s + last_s
    is_split = n > 1
    experts_s = _experts_s(choices, split, layers * held.expert_layer * on.width) if choices.model.experts else 0.0
    return is_split * (total_s + spread_s) + experts_s, is_split * (shown_s + spread_s) + experts_s


def _experts_s(choices: Choices, split: Split, size: Numbers) -> Numbers:
    """What DDP leaves out, summed after it over the ranks that have the same experts; with ZeRO-1 broadcast too."""
    on, group = choices.machine, (split.expert_copies, split.expert_stride)
    sum_s = on.collective_s("all_reduce", size, *group)
    return sum_s + (on.collective_s("broadcast", size, *group) if choices.zero_stage else 0.0)


def _buckets(choices: Choices, split: Split) -> tuple[Numbers, Numbers]:
    """How many buckets a stage's layers fill, and the bytes that are left over for the last one."""
    cut = (split.tensor, split.pipeline)
    if not any(isinstance(number, np.ndarray) for number in cut):
        return _filled(choices, split)
    distinct, which = distinct_rows(*cut)
    found = np.array(
        [
            _filled(choices, replace(split, tensor=tensor, pipeline=pipeline))
            for tensor, pipeline in zip(*map(np.ndarray.tolist, distinct), strict=True)
        ]
    )
    return found[which, 0], found[which, 1]


def _filled(choices: Choices, split: Split) -> tuple[float, float]:
    """The same by filling them, the last layer's last tensor first."""
    count, held_bytes, limit = 0.0, 0.0, _FIRST_BUCKET_BYTES
    width = choices.machine.width / split.tensor
    tensors = layer_tensors(choices, split, has_experts=False)
    sizes = [rows * columns * width for rows, columns, many in tensors for _ in range(int(many))]
    for size in sizes[::-1] * (choices.model.num_layers // split.pipeline):
        held_bytes += size
        if held_bytes >= limit:
            count, held_bytes, limit = count + 1, 0.0, _BUCKET_BYTES
    return count, held_bytes


def _broadcasts_s(choices: Choices, split: Split, held: Held, layers: Numbers) -> Numbers:
    on, n = choices.machine, split.data * split.context

    def one_s(numbers: Numbers) -> Numbers:
        return on.collective_s("broadcast", numbers * on.width + 0.0 * n, n, split.tensor)

    layer_s = sum(
        count * one_s(rows * columns / split.tensor)
        for rows, columns, count in layer_tensors(choices, split, has_experts=False)
    )
    vectors = len(layer_tensors(choices, split, has_experts=False)) + 4
    ends_s = one_s(held.embedding) + one_s((split.pipeline == 1) * held.head) + 3 * one_s(choices.model.d_model)
    return layers * (layer_s + vectors * one_s(choices.model.d_model)) + ends_s


def gathered_s(on: Machine, split: Split, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Seconds to gather so many parameters: on the wires, and of the copies before and after."""
    size = numbers * on.width
    wires_s = on.collective_s("all_gather", size, split.shards, split.tensor)
    return wires_s, on.stream_s(2 * size / split.shards) + on.stream_s(2 * size) + 2 * on.device.kernel_overhead_s


def scattered_s(on: Machine, split: Split, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """The same to sum and scatter so many gradients."""
    size = numbers * on.width
    wires_s = on.collective_s("reduce_scatter", size, split.shards, split.tensor)
    wires_s = wires_s + on.collective_s("all_reduce", size / split.shards, split.replicas, split.tensor * split.shards)
    return wires_s, on.stream_s(2 * size) + on.device.kernel_overhead_s


def sharded_layer_s(
    choices: Choices, split: Split, held: Held, forward_s: Numbers, backward_s: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """What FSDP2 adds to a layer's forward and to its backward, and the seconds of all it does."""
    on = choices.machine
    trained, again = 1.0 * (choices.trainable == "all"), 1.0 * choices.reshard_after_forward
    gather_s, apart_s = gathered_s(on, split, held.layer)
    scatter_s, together_s = scattered_s(on, split, held.layer)
    later = trained * (1 - 1 / split.num_microbatches)
    added_s = later * layer_pass_s(choices, split, 3 * on.width, split.shards)
    wires_s = (gather_s, again * gather_s + trained * scatter_s)
    copies_s = (apart_s, again * apart_s + trained * together_s + added_s)
    hidden_s = (forward_s, backward_s) if on.stack.data_overlap else (0.0, 0.0)
    shown_s = [most(wire - hidden, 0.0) + copy for wire, hidden, copy in zip(wires_s, hidden_s, copies_s, strict=True)]
    return shown_s[0], shown_s[1], sum(wires_s) + sum(copies_s)


def sharded_ends_s(choices: Choices, split: Split, held: Held) -> Numbers:
    """What FSDP2 does once a micro-batch for embedding, head and last norm: nothing of it is hidden."""
    on, outside = choices.machine, _outside(split, held)
    gather_s, apart_s = gathered_s(on, split, outside)
    scatter_s, together_s = scattered_s(on, split, outside)
    added_s = (1 - 1 / split.num_microbatches) * on.stream_s(3 * outside / split.shards * on.width)
    return gather_s + scatter_s + apart_s + together_s + added_s


def _outside(split: Split, held: Held) -> Numbers:
    return held.embedding + (split.pipeline == 1) * held.head
