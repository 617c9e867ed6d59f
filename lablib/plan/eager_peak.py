"""What a rank of an eager program keeps at its peak, by category: its own states, and the largest of many moments.

    no sharding, ZeRO-1, 2    moments of eager_memory.py; DDP's buckets are as large as the gradients
    ZeRO-3                    moments of eager_sharded.py

Source and simplified: as there. ZeRO-1 gives tensors to ranks whole, so that the fullest has at least the largest.
"""

from lablib.cost.arrays import Numbers, most
from lablib.plan import eager_optimizer
from lablib.plan.eager_memory import Moment, Stage, backward_moments, largest, optimizer_moment, stage_of
from lablib.plan.eager_sharded import sharded_moments
from lablib.plan.setup import Choices, Split
from lablib.plan.step import Step


def peak(
    choices: Choices, split: Split, step: Step, rank: Numbers, layers: Numbers, in_flight: Numbers
) -> tuple[Numbers, ...]:
    """Parameter, gradient, optimizer state, activation, communication buffer and other bytes of a stage at its peak."""
    on = choices.machine
    stage = stage_of(choices, split, step, rank, layers)
    numbers = stage.gradient / on.width
    found = largest(_moments(choices, split, stage, numbers, in_flight))
    is_sharded = choices.zero_stage == 3
    own = numbers / split.shards if is_sharded else numbers
    buckets = numbers * on.width * (split.data > 1) * (not is_sharded)
    return (
        own * on.width + found.parameter,
        found.gradient,
        _states(choices, split, numbers),
        found.activation,
        found.communication + buckets,
        found.other,
    )


def _moments(choices: Choices, split: Split, stage: Stage, numbers: Numbers, in_flight: Numbers) -> list[Moment]:
    m, is_sharded = split.num_microbatches, choices.zero_stage == 3
    if is_sharded:
        moments = sharded_moments(stage, in_flight, m, split.shards, choices.reshard_after_forward)
        numbers = numbers / split.shards
    else:
        moments = backward_moments(stage, in_flight, m)
    if choices.trainable == "all" and "optimizer" not in choices.offload:
        shards = split.shards if choices.zero_stage in (1, 2) else 1
        width = eager_optimizer.state_width(choices.machine)
        moments.append(optimizer_moment(stage, numbers, shards, width, eager_optimizer.temporary_bytes(choices)))
    return moments


def _states(choices: Choices, split: Split, numbers: Numbers) -> Numbers:
    if choices.trainable != "all" or "optimizer" in choices.offload:
        return 0.0 * numbers
    if choices.zero_stage in (1, 2):
        numbers = most(numbers / split.shards, eager_optimizer.largest_tensor(choices, split))
    elif choices.zero_stage == 3:
        numbers = numbers / split.shards
    return numbers * eager_optimizer.state_bytes(choices)
