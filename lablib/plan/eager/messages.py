"""A pipeline with several stages per node: some messages stay in a node, others leave it and delay both.

makespan_s takes one price for all messages, the slowest one's. With several stages per node only every so many hops
leave it, messages block, and the step is the longest of two paths:

    at the ends       the first and the last rank have one neighbour: they wait for one hop
    between           a rank next to a hop that leaves the node waits for it, and for one that does not

both start and end with a way down and up the pipeline, which takes every hop twice

Legend: p stages, m micro-batches, g stages per node.

Source: the simulator's timelines of 1F1B with `batch_isend_irecv(...)` and `wait()`.
Simplified: nodes hold whole stages; the makespan with the slowest hop everywhere is an upper bound.
"""

from lablib.cost.arrays import Numbers, ceil_div, maximum, minimum
from lablib.pipeline.closed_form import V_SHAPED, StageTime, makespan_s
from lablib.plan.machine import Machine
from lablib.plan.setup import Setup


def mixed_makespan_s(
    setup: Setup,
    middle: StageTime,
    first: StageTime,
    last: StageTime,
    busiest: StageTime,
    size_bytes: Numbers,
    upper_s: Numbers,
) -> Numbers:
    """`upper_s`, the makespan with the slowest message everywhere, or less if only some leave a node."""
    machine, p = setup.machine, setup.pipeline
    stride = setup.num_ranks // p
    in_node = machine.in_node(p, stride)
    leaving = ceil_div(p, in_node) - 1
    far_s, near_s = machine.collective_s("send", size_bytes, p, stride), _near_s(machine, size_bytes, p, stride)
    way_s = leaving * far_s + (p - 1 - leaving) * near_s

    def span_s(first: StageTime, last: StageTime, send_s: Numbers) -> Numbers:
        whole_s = makespan_s(
            *(setup.schedule, p, setup.num_microbatches, setup.chunks, middle, first, last),
            *(send_s, machine.stack.pipeline_overlap, busiest),
        )
        return whole_s + 2 * (way_s - (p - 1) * send_s)

    is_last_far = (p - 1) % in_node == 0
    ends_s = span_s(first, last, near_s + is_last_far * (far_s - near_s))
    nothing = StageTime(0.0, 0.0, 0.0)
    between_s = span_s(nothing, nothing, (near_s + far_s) / 2) + sum(first) + sum(last)
    is_mixed = (in_node > 1) & (leaving > 0)
    return upper_s + is_mixed * (minimum(maximum(ends_s, between_s), upper_s) - upper_s)


def sent_s(setup: Setup, size_bytes: Numbers, send_s: Numbers) -> Numbers:
    """Seconds of the messages that a rank sends in a step; `send_s` is one that leaves the node, if any does.

    Each neighbour gets one per micro-batch and piece of the model, and some stay in the node; the turn of a V is no
    message. With two stages there is no rank in between, and the first one does not send its last piece's output.
    """
    p, v = setup.pipeline, setup.chunks
    stride = setup.num_ranks // p
    in_node = setup.machine.in_node(p, stride)
    is_mixed = (in_node > 1) & (p > in_node)
    far_s = setup.machine.collective_s("send", size_bytes, p, stride)
    near_s = _near_s(setup.machine, size_bytes, p, stride)
    alone = (p == 2) * (1 + (setup.schedule in V_SHAPED))
    return setup.num_microbatches * (2 * v - alone) * (send_s - is_mixed * (far_s - near_s) / 2)


def _near_s(machine: Machine, size_bytes: Numbers, p: Numbers, stride: Numbers) -> Numbers:
    """Seconds to the next stage of the same node; one stage sends nothing, and the next rank may not exist."""
    return machine.collective_s("send", size_bytes, 1 + (p > 1), stride)
