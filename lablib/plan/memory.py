"""Peak memory of one rank, by category, for a stage of the pipeline.

    parameter             P w                       / s with ZeRO-3; and with hpZ / ranks of a node; none if the host
                          keeps them, as of the gradient
    gradient              P (g + x)                 / s with ZeRO-2 and 3; none if only adapters are trained. If each
                          step allocates them, and ZeRO-3 splits them or there is one rank, a single micro-batch peaks
                          either with them at the end of backward or with the activations at its beginning
    optimizer state       P (master + moments)      / s with ZeRO-1, 2 and 3; none if the host keeps them
    activation            (layers of the stage * bytes kept per layer + the embedding's) * micro-batches in flight, and
                          the working memory of one layer, or the logits with their gradients (last stage): the larger
                          one with its buffers. If the host keeps them: of two layers, in transit
    communication buffer  with ZeRO-3 the gathered parameters: two layers, with gradients of one, or the head;
                          messages of the pipeline, R D w each; error feedback of compressed gradients; buckets
    other                 workspaces of libraries (derating.py); on some stacks (`keeps_dummies`) empty gradients that
                          products return, one for each weight of a layer; the optimizer's update where it is larger
                          than the activations, which are freed before it

Bytes kept per layer, with and without recomputation: layer/ and recompute.py; micro-batches in flight:
pipeline/closed_form.py.

Legend: P parameters on the rank, w and g bytes of a parameter and of a gradient, x of its second copy where the stack
has one, s ranks that share states (for experts the ranks with the same ones), R tokens of a micro-batch on a rank, D
width.

Source: Rajbhandari et al., 2019, arXiv 1910.02054, section 3; Korthikanti et al., 2022, arXiv 2205.05198, section 4;
NVIDIA/TransformerEngine, module/base.py (`get_dummy_wgrad`), which MooreThreads/SimuMax counts, too.
Simplified: no fragmentation; apart from the above, all categories peak together. Eager programs are followed from
moment to moment instead (eager/peak.py).
"""

from functools import reduce
from typing import NamedTuple

from lablib.cost.arrays import Numbers, highest, maximum, minimum
from lablib.pipeline.closed_form import in_flight
from lablib.pipeline.sums import where
from lablib.plan.eager import peak as eager_peak
from lablib.plan.optimizer_step import own_parameters, state_bytes, update_bytes
from lablib.plan.parameters_per_rank import ParametersPerRank
from lablib.plan.pieces import QUANTIZED_BYTES
from lablib.plan.setup import Setup
from lablib.plan.step import StepTimes, layers_of

CATEGORIES = ("parameter", "gradient", "optimizer state", "activation", "communication buffer", "other")


class RankMemory(NamedTuple):
    """Bytes of one rank by category (numbers, or arrays)."""

    parameter: Numbers
    gradient: Numbers
    optimizer_state: Numbers
    activation: Numbers
    communication_buffer: Numbers
    other: Numbers

    @property
    def total(self) -> Numbers:
        """Bytes of all categories."""
        return sum(self)


def stage_memory(setup: Setup, step: StepTimes, rank: Numbers) -> RankMemory:
    """Peak memory of a rank of pipeline stage `rank`. The head's stage also holds a tied table."""
    machine, model = setup.machine, setup.model
    first, last = rank == 0, _has_head(setup, rank)
    layers = layers_of(model.num_layers, setup.pipeline, rank)
    if setup.is_eager:
        found = eager_peak.peak(setup, step, rank, layers, _microbatches_in_flight(setup, rank))
        return RankMemory(*found)._replace(other=found[-1] + machine.derating.base_bytes)
    parameters = step.pieces.parameters
    head = last * (parameters.head + parameters.tied)
    outside = first * parameters.embedding + head - first * last * parameters.tied
    shared = layers * parameters.layer + outside
    expert = layers * parameters.expert_layer
    shards, expert_shards = setup.shards, setup.expert_shards

    def split_from(size: Numbers, from_stage: int) -> Numbers:
        """`size` bytes per parameter, split from this ZeRO stage on."""
        if setup.zero_stage < from_stage:
            return (shared + expert) * size
        return shared * size / shards + expert * size / expert_shards

    trained = 1.0 if setup.has_weight_gradients else 0.0
    copies = machine.stack.extra_gradient_bytes if machine.gradient_bytes == 4 else 0
    own = own_parameters(setup, layers * parameters.layer, expert, outside)
    is_kept, on_device = setup.has_weight_gradients and not setup.has_host_optimizer, 1.0 - setup.has_host_parameters
    state = state_bytes(setup, own) if is_kept else 0.0 * shared
    whole = parameters.layer + parameters.expert_layer * (expert_shards > 1)  # gathered by ZeRO-3 for one layer
    gradient = split_from((machine.gradient_bytes + copies) * trained * on_device, 2)
    gradient = gradient * (not machine.stack.updates_in_backward)
    buffers = _buffers(setup, shared, rank)
    held_bytes, working, logits = _activations(setup, step, layers, rank)
    at_layer, at_head = _gathered(setup, layers * whole, whole, outside, head)
    is_at_head = (logits > 0) & (logits + at_head > working + at_layer)
    activation = held_bytes + where(is_at_head, logits, working)
    # The optimizer's updates, if it writes them out, are allocated after the activations are freed.
    update = update_bytes(setup, own.total) if is_kept else 0.0
    of_step = gradient + update
    is_alone = (setup.data * setup.context == 1) | (setup.zero_stage == 3)
    if not machine.stack.keeps_gradients and highest(is_alone):
        # At the end of backward: the activations of one layer, and every gradient.
        left = held_bytes / maximum(layers, 1) + working
        has_one, is_early = is_alone & (setup.num_microbatches == 1), activation > gradient + left
        activation = where(has_one, where(is_early, activation, left), activation)
        gradient = where(has_one & is_early, 0.0 * gradient, gradient)
    return RankMemory(
        parameter=on_device * split_from(QUANTIZED_BYTES if setup.has_narrow_weights else machine.width, 3)
        + _copy_bytes(setup, shared, expert),
        gradient=gradient,
        optimizer_state=state,
        activation=activation,
        communication_buffer=buffers + where(is_at_head, at_head, at_layer),
        other=machine.derating.base_bytes
        + _dummy_bytes(setup, parameters)
        + maximum(of_step - gradient - activation, 0.0 * buffers),
    )


def _copy_bytes(setup: Setup, shared: Numbers, expert: Numbers) -> Numbers:
    """hpZ: the second copy, shared by the ranks of a node, if the ranks that split the first are in several nodes."""
    if "hpZ" not in setup.zero_plus_plus:
        return 0.0 * shared
    machine = setup.machine
    groups = ((shared, setup.shards, setup.tensor), (expert, setup.expert_shards, setup.expert_stride))
    sizes = [numbers * machine.width / machine.in_node(n, s) * (machine.in_node(n, s) < n) for numbers, n, s in groups]
    return sizes[0] + sizes[1]


def peak_bytes(setup: Setup, step: StepTimes) -> Numbers:
    """Bytes of the fullest stage: the first, the first of those with one layer more, or the last.

    Any other stage has as many layers as a stage before it, no more micro-batches in flight, and neither embedding nor
    head. An eager program may peak at another moment (eager/memory.py), so all its stages are compared.
    """
    p, extra = setup.pipeline, setup.model.num_layers % setup.pipeline
    stages = range(int(highest(p))) if setup.is_eager else (0 * p, (p - extra) // 2, p - 1)
    totals = [stage_memory(setup, step, minimum(stage, p - 1)).total for stage in stages]
    return reduce(maximum, totals)


def _dummy_bytes(setup: Setup, parameters: ParametersPerRank) -> Numbers:
    """Empty gradients that products return if they add to the sum: one of each weight's shape, of a single expert."""
    stack = setup.machine.stack
    if not (stack.keeps_dummies and stack.fused_accumulation and setup.has_weight_gradients):
        return 0.0
    numbers = parameters.layer
    if setup.model.experts:
        numbers = numbers + parameters.expert_layer / (setup.model.experts.num_experts / setup.expert)
    return numbers * setup.machine.width


def _buffers(setup: Setup, shared: Numbers, rank: Numbers) -> Numbers:
    """Communication buffers of a stage: messages, error feedback, buckets."""
    machine = setup.machine
    message = 1.0 * setup.micro_batch * (setup.seq_len // setup.context) * setup.model.d_model * machine.width
    # The incoming message, and the output of each micro-batch in flight or the outgoing message.
    messages = 1 + (_microbatches_in_flight(setup, rank) if machine.stack.keeps_outputs else 1)
    message = message * (setup.pipeline > 1) * messages / (setup.tensor if setup.sequence_parallel else 1)
    n = setup.data * setup.context
    error = setup.compression.memory_bytes(shared, ranks=n)
    return message + (n > 1) * (error + machine.stack.bucket_bytes)


def _gathered(setup: Setup, stage: Numbers, layer: Numbers, outside: Numbers, head: Numbers) -> tuple[Numbers, Numbers]:
    """ZeRO-3: gathered parameters and unsplit gradients, during a layer and during the loss.

    `stage`, `layer`, `outside`, `head`: parameters of the stage's layers, of one, of both ends, of the head.
    """
    machine = setup.machine
    gradient_bytes = machine.gradient_bytes if setup.has_weight_gradients else 0
    if setup.zero_stage < 3:
        return 0.0 * layer, 0.0 * layer
    if setup.reshard_after_forward:
        # The current layer and the next one, and the gradients of one; the head has none yet.
        return layer * (2 * machine.width + gradient_bytes), head * machine.width
    # Gathered for the whole step; with a pipeline, gradients are summed over micro-batches before they are split.
    unsplit = (setup.pipeline > 1) * (stage + outside) * gradient_bytes
    whole = (stage + outside) * machine.width
    return whole + maximum(unsplit, layer * gradient_bytes), whole + unsplit


def _has_head(setup: Setup, rank: Numbers) -> Numbers:
    return rank == where(setup.has_both_ends, 0, setup.pipeline - 1)


def _microbatches_in_flight(setup: Setup, rank: Numbers) -> Numbers:
    return in_flight(setup.schedule, setup.pipeline, setup.num_microbatches, setup.chunks, rank)


def _activations(setup: Setup, step: StepTimes, layers: Numbers, rank: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Bytes kept by the layers for all micro-batches in flight; working memory of a layer; memory of the head."""
    policy, work = setup.recompute, step.pieces.layer
    kept = policy.saved_bytes(work, setup.machine.stack, setup.entering_bytes, layers)
    # A layer's backward needs its recomputed activations and its gradients.
    working = policy.working_bytes(work, kept, layers) + work.peak_bytes
    if "activations" in setup.offload:
        kept = kept * minimum(2 / maximum(layers, 1), 1.0)  # in transit to the host or back
    logits = _has_head(setup, rank) * (step.pieces.head.saved_bytes + step.pieces.head.peak_bytes)
    first = (rank == 0) * step.pieces.embedding.saved_bytes
    return (layers * kept + first) * _microbatches_in_flight(setup, rank), working, logits
