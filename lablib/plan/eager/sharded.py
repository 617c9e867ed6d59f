"""Moments at which memory may peak under FSDP2: as in eager/memory.py, with gathered parameters and whole gradients.

A rank keeps 1 / s of everything. For a time it holds whole:

    the root        embedding, head, last norm: parameters from forward to the end of backward, and the head's gradient
    a layer         its parameters during its passes; in backward its gradients, up to all of them at its end
    its buffer      the gathered parameters: in forward until the next layer is copied out of its buffer, the last one's
                    until the logits exist; in backward until the copy
    the next one    in backward, its parameters in the buffer of the gather that was started early: as the head's
                    backward begins, then with each layer
    the last one    its gradients, in the buffer that is summed and scattered; the root at the end of backward

With `data_overlap`, the last layer's second gather begins with its first copy.

So at the end of a layer's backward there are two layers of parameters and two of gradients. With copies of the whole
(HSDP), the shard that is summed over them stays from each layer until the end of backward; of the first micro-batch it
is the gradient.

Legend: s ranks that share; others as layer/.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (prefetch in backward, `AllGatherState`,
`ReduceScatterState`, `AllReduceState`), torch 2.13.
Simplified: layers are wrapped one by one; casts of a rank's share are too small to count.
"""

from lablib.cost.arrays import Numbers
from lablib.plan.eager.memory import Moment, Stage


def sharded_moments(
    stage: Stage,
    k: Numbers,
    m: Numbers,
    shards: Numbers,
    reshards: bool,
    has_replicas: Numbers,
    overlaps: bool,
    wider: float = 1.0,
) -> list[Moment]:
    """The largest moments of a step, with k of m micro-batches in flight and states split over `shards`.

    `wider`: width of a summed gradient over its width in the layers.
    """
    later_k, is_later = k - (m <= k), 1.0 * (m > 1)
    summed, share = Moment(gradient=wider * stage.gradient / shards), wider * stage.layer_gradient / shards
    how = (reshards, overlaps, wider)
    first = _round(stage, k, Moment(), *how, Moment(gradient=share))
    later = _round(stage, later_k, summed, *how, Moment(communication=has_replicas * share))
    return first + [Moment().plus(moment, is_later) for moment in later]


def _round(
    stage: Stage, k: Numbers, summed: Moment, reshards: bool, overlaps: bool, wider: float, left: Moment
) -> list[Moment]:
    """One micro-batch, forward and backward; each layer leaves `left`."""
    root, stays = stage.head_gradient + stage.embedding_gradient, (not reshards) * stage.layer_gradient
    whole = Moment(parameter=root + stage.layers * stays).plus(summed)
    held, before = stage.holds(k).plus(whole), stage.holds(k - 1).plus(whole)
    end = stage.at_embedding(is_later=False).plus(left, stage.layers)
    end = end.plus(Moment(gradient=root, communication=wider * stage.layer_gradient, parameter=-stage.layers * stays))
    # Its parameters are freed before, as a layer's are.
    together = Moment(gradient=root, communication=wider * root, parameter=-root - stage.layers * stays)
    backward = [*_head(stage, reshards, overlaps), *_layers(stage, reshards, wider, left)]
    return [
        *(before.plus(moment) for moment in _start(stage, root, reshards)),
        *(held.plus(moment) for moment in [*_end(stage, reshards, overlaps), *backward]),
        before.plus(end),
        before.plus(together).plus(left, stage.layers),
    ]


def _start(stage: Stage, root: Numbers, reshards: bool) -> list[Moment]:
    """In forward, when the first layer is gathered, and the last one, with the buffer before it."""
    layer, others = stage.layer_gradient, stage.layers - 1
    first = Moment(0.0, stage.entering, root + layer, 0.0, (reshards - (not reshards) * others) * layer)
    above = stage.is_first * (stage.entering + stage.tokens) + stage.saved_of(others)
    last = Moment(0.0, above, 2 * layer, 0.0, reshards * layer)
    return [first, Moment().plus(last, 1.0 * (others > 0))]


def _end(stage: Stage, reshards: bool, overlaps: bool) -> list[Moment]:
    """In forward, the largest moment of the last layer, and the logits."""
    layer = stage.layer_gradient
    buffers = layer + overlaps * reshards * layer
    top = Moment(0.0, stage.passing - stage.is_last * stage.head, buffers, 0.0, reshards * layer)
    logits = Moment(0.0, stage.is_last * (stage.logits - stage.loss / 2), buffers)
    return [top, logits]


def _head(stage: Stage, reshards: bool, overlaps: bool) -> list[Moment]:
    """In backward: the loss, and the head's weight, with the top layer already gathered."""
    ahead = Moment(communication=reshards * stage.layer_gradient)
    return [stage.at_head().plus(ahead, 1.0 * overlaps), stage.at_head_weight(is_later=False).plus(ahead)]


def _layers(stage: Stage, reshards: bool, wider: float, left: Moment) -> list[Moment]:
    """In backward, the top layer, the next one, the last but one and the last; the others hold bytes between these.

    Parameters that stayed from forward are freed with their layer.
    """
    found, layer, stayed = [], reshards * stage.layer_gradient, (not reshards) * stage.layer_gradient
    for j, is_top in ((0, True), (1, False), (stage.layers - 2, False), (stage.layers - 1, False)):
        exists = (stage.layers > j) * (1.0 if is_top else 1.0 * (j > 0))
        ahead, behind = 1.0 * (stage.layers > j + 1), 1.0 - is_top
        above = Moment(stage.head_gradient, -stage.gone_after(j), 0.0, stage.tied, -j * stayed).plus(left, j)
        scattered = Moment(communication=behind * wider * stage.layer_gradient)
        flowing = Moment(0.0, -stage.freed, 0.0, stage.is_last * stage.entering)
        taken_apart = flowing.plus(scattered).plus(Moment(communication=layer, parameter=layer))
        work = Moment(communication=ahead * layer, parameter=layer).plus(scattered)
        # Its parameters are freed before its gradients are copied together for the wires.
        packed = wider * stage.layer_gradient
        together = Moment(stage.layer_gradient, -stage.saved, packed + ahead * layer, 0.0, -stayed)
        together = together.plus(flowing)
        moments = [taken_apart, together, *(work.plus(moment) for moment in stage.at_layer(is_top, False))]
        found += [Moment().plus(above.plus(moment), exists) for moment in moments]
    return found
