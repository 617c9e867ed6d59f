"""Where memory peaks under FSDP2: the moments of eager_memory.py, with parameters and gradients whole where they are.

A rank keeps 1 / s of everything. Whole are, for a time,

    the root        embedding, head, last norm: parameters from forward to the end of backward, the head's gradient too
    a layer         its parameters while it is at work; in backward its gradients, up to all of them at its end
    the next one    its parameters, in the buffer of the gather that was started early
    the last one    its gradients, in the buffer that is summed and scattered

So at the end of a layer's backward there are four layers' worth: two of parameters, two of gradients.

Legend: s ranks that share; others as layer.py.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (prefetch in backward, `ReduceScatterState`).
Simplified: parameters and gradients of one dtype; layers are wrapped one by one.
"""

from lablib.cost.arrays import Numbers
from lablib.plan.eager_memory import Moment, Stage


def sharded_moments(stage: Stage, k: Numbers, m: Numbers, shards: Numbers, reshards: bool) -> list[Moment]:
    """The largest moments of backward passes, with k of m micro-batches in flight and states split over `shards`."""
    later_k, is_later = k - (m <= k), 1.0 * (m > 1)
    summed = Moment(gradient=stage.gradient / shards)
    first = _round(stage, k, Moment(), stage.layer_gradient / shards, reshards)
    later = _round(stage, later_k, summed, 0.0, reshards)
    return first + [Moment().plus(moment, is_later) for moment in later]


def _round(stage: Stage, k: Numbers, summed: Moment, growth: Numbers, reshards: bool) -> list[Moment]:
    """One backward pass; `growth` bytes of gradients stay of each layer."""
    whole = Moment(parameter=stage.head_gradient + stage.embedding_gradient)
    if not reshards:
        whole = whole.plus(Moment(parameter=stage.layers * stage.layer_gradient))
    held = stage.holds(k).plus(summed).plus(whole)
    # In forward the root's buffer lives until the first layer is gathered, and copied out of its own.
    layer = reshards * stage.layer_gradient
    buffers = Moment(communication=whole.parameter + layer, parameter=layer, activation=stage.entering)
    gathered = stage.holds(k - 1).plus(summed).plus(whole).plus(buffers)
    apart = Moment(0.0, -stage.freed, layer, stage.is_last * stage.entering, layer)  # the top layer, in backward
    found = [gathered, held.plus(apart), held.plus(stage.at_head()), held.plus(stage.at_head_weight(is_later=False))]
    for j in (0, 1):
        exists = 1.0 * (stage.layers > j)
        done = held.plus(Moment(gradient=j * growth, activation=-j * stage.kept)).plus(_buffers(stage, j, reshards))
        found += [Moment().plus(done.plus(moment), exists) for moment in stage.at_layer(j == 0, False)]
    end = stage.holds(k - 1).plus(summed).plus(whole).plus(stage.at_embedding(is_later=False))
    others = Moment(
        gradient=stage.head_gradient + stage.embedding_gradient + stage.layers * growth,
        communication=stage.layer_gradient,
    )
    return [*found, end.plus(others)]


def _buffers(stage: Stage, j: int, reshards: bool) -> Moment:
    """Beside the gradients of the j-th layer from the top: what is whole of it, of the next, and of the last one."""
    ahead, behind = 1.0 * (stage.layers > j + 1) * reshards, 1.0 * (j > 0)
    return Moment(
        gradient=stage.head_gradient,
        communication=(ahead + behind) * stage.layer_gradient,
        parameter=1.0 * reshards * stage.layer_gradient,
        other=stage.tied,
    )
