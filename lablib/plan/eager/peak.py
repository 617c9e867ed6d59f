"""Peak memory of a rank of an eager program, by category: its own states, and the largest of many moments.

    no sharding, ZeRO-1, 2    moments of eager/memory.py; DDP's buckets are as large as the gradients
    ZeRO-3                    moments of eager/sharded.py

Source and simplified: as there. ZeRO-2 in eager torch keeps the same as ZeRO-1; FSDP2 gathers experts too.
"""

from lablib.cost.arrays import Numbers
from lablib.plan.eager import optimizer as eager_optimizer
from lablib.plan.eager.memory import Moment, Stage, backward_moments, largest, optimizer_moment, stage_of
from lablib.plan.eager.sharded import sharded_moments
from lablib.plan.optimizer_step import Own, state_bytes, update_bytes
from lablib.plan.pieces import QUANTIZED_BYTES
from lablib.plan.setup import Setup
from lablib.plan.step import StepTimes


def peak(setup: Setup, step: StepTimes, rank: Numbers, layers: Numbers, in_flight: Numbers) -> tuple[Numbers, ...]:
    """Parameter, gradient, optimizer state, activation, communication buffer and other bytes of a stage at its peak."""
    machine = setup.machine
    stage = stage_of(setup, step, rank, layers)
    numbers, expert = stage.gradient / machine.width, layers * step.pieces.parameters.expert_layer
    own = eager_optimizer.own_numbers(setup, numbers - expert, expert) if setup.zero_stage else numbers
    is_sharded, trains = setup.zero_stage == 3, setup.has_weight_gradients
    whole = stage
    if not trains and not is_sharded:
        stage = stage._replace(layer_gradient=0.0, head_gradient=0.0, embedding_gradient=0.0, tied=0.0, last_weight=0.0)
    found = largest(_moments(setup, stage, numbers, own, in_flight))
    buckets = (numbers - expert) * (setup.data * setup.context > 1) + expert * (setup.expert_copies > 1)
    n = setup.data * setup.context
    left_out = (n > 1) * setup.compression.memory_bytes(numbers - expert, ranks=n)  # error feedback
    buckets = buckets * machine.width * (trains and not is_sharded) + left_out
    return (
        _parameter_bytes(setup, own if is_sharded else numbers) + found.parameter,
        found.gradient,
        _state_bytes(setup, whole, own, numbers) * (trains and not setup.has_host_optimizer),
        found.activation,
        found.communication + buckets,
        found.other,
    )


def _parameter_bytes(setup: Setup, numbers: Numbers) -> Numbers:
    if setup.has_narrow_weights:
        return numbers * QUANTIZED_BYTES
    return numbers * (setup.machine.shard_width if setup.zero_stage == 3 else setup.machine.width)


def _moments(setup: Setup, stage: Stage, numbers: Numbers, own: Numbers, in_flight: Numbers) -> list[Moment]:
    m, is_sharded = setup.num_microbatches, setup.zero_stage == 3
    if is_sharded:
        has_replicas, overlaps = 1.0 * (setup.replicas > 1), setup.machine.stack.data_overlap
        reshards = setup.reshard_after_forward
        wider = setup.machine.shard_width / setup.machine.width
        moments = sharded_moments(stage, in_flight, m, numbers / own, reshards, has_replicas, overlaps, wider)
    else:
        moments = backward_moments(stage, in_flight, m)
    if setup.has_weight_gradients and not setup.has_host_optimizer:
        gradients = (own if is_sharded else numbers) * eager_optimizer.state_width(setup.machine)
        is_torchs = eager_optimizer.is_torchs(setup)
        temporary = own * eager_optimizer.temporary_bytes(setup) if is_torchs else update_bytes(setup, own)
        moments.append(optimizer_moment(stage, gradients, temporary))
    return moments


def _state_bytes(setup: Setup, stage: Stage, own: Numbers, numbers: Numbers) -> Numbers:
    """The optimizer's state: torch's at the width of its parameters, any other as in optimizers.py."""
    if eager_optimizer.is_torchs(setup):
        return own * eager_optimizer.state_bytes(setup)
    ends = (stage.head_gradient + stage.embedding_gradient) / setup.machine.width * own / numbers
    return state_bytes(setup, Own(own - ends, ends))
