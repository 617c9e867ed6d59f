"""Where memory peaks in an eager program: the moments that may be the largest, and what is there then.

    head         all activations; logits in 32 bits twice from forward, and twice more in backward
    layer        all activations, what is made again, the gradients of the MLP's inner tensor and of its last weight
    embedding    one micro-batch less, and the table's new gradient beside the sum of those before
    optimizer    no activations; temporaries of the step, and gradients in 32 bits beside masters

The first micro-batch's backward makes the gradients one by one while activations go. From the second on they are all
there, and each new one for a moment besides. A stage with more micro-batches than it holds at once (m > k) meets both
in full; one without meets gradients with one micro-batch less.

Legend: m micro-batches, k of them in flight; others as layer.py.

Source: the ledger of the simulator for such steps; torch's DDP (buckets as large as the gradients) and FSDP2
(the root's parameters stay from forward to backward, the next layer's are gathered while one is at work).
Simplified: what a program's variables keep longer than they need is not here.
"""

from typing import NamedTuple

import numpy as np

from lablib.cost.arrays import Numbers
from lablib.plan.setup import Choices, Split
from lablib.plan.step import Step, sizes_of


class Moment(NamedTuple):
    """Bytes of one moment, beside a rank's own parameters and its optimizer's state."""

    gradient: Numbers = 0.0
    activation: Numbers = 0.0
    communication: Numbers = 0.0
    other: Numbers = 0.0
    parameter: Numbers = 0.0

    def plus(self, moment: "Moment", times: Numbers = 1.0) -> "Moment":
        return Moment(*[a + times * b for a, b in zip(self, moment, strict=True)])


class Stage(NamedTuple):
    """What a moment is made of: a stage's bytes. `is_first` and `is_last` are 0 or 1.

    Attributes:
        layers, is_first, is_last: of the stage.
        entering: a layer's input.
        kept: of a layer, from forward to backward, its output among it.
        again: of a layer, made a second time for backward.
        inner, last_weight: the gradients of the MLP's inner tensor and of its last weight; of the latter alone.
        head, loss: what the head keeps, and what backward of the loss needs besides.
        layer_gradient, head_gradient, embedding_gradient: of the parameters.
        tied: of a table that both ends share.
    """

    layers: Numbers
    is_first: Numbers
    is_last: Numbers
    entering: Numbers
    kept: Numbers
    again: Numbers
    inner: Numbers
    last_weight: Numbers
    head: Numbers
    loss: Numbers
    layer_gradient: Numbers
    head_gradient: Numbers
    embedding_gradient: Numbers
    tied: Numbers

    @property
    def gradient(self) -> Numbers:
        return self.layers * self.layer_gradient + self.head_gradient + self.embedding_gradient

    def holds(self, k: Numbers) -> Moment:
        """k micro-batches from forward to backward. What entered a later stage came in a buffer."""
        received = (1 - self.is_first) * self.entering
        kept = self.layers * self.kept + self.is_first * self.entering + self.is_last * self.head
        return Moment(activation=k * kept, communication=k * received)

    def at_head(self) -> Moment:
        return Moment(other=self.is_last * self.loss)

    @property
    def freed(self) -> Numbers:
        """What is gone once the head's backward is done: its own, and what entered it."""
        return self.is_last * (self.head + self.entering)

    def at_layer(self) -> Moment:
        """The head's share is free again; the gradient of the layer's output came in a buffer, or from the head."""
        received = (1 - self.is_last) * self.entering
        return Moment(0.0, self.again - self.freed, received, self.inner + self.is_last * self.entering)

    def at_embedding(self) -> Moment:
        """The gradients of a shared table and their sum, or the gradient of one that is no other's."""
        table = self.embedding_gradient + 2 * self.tied
        return Moment(other=self.is_first * (self.entering + table))


def backward_moments(stage: Stage, k: Numbers, m: Numbers) -> list[Moment]:
    """The largest moments of backward passes, with k of m micro-batches in flight."""
    none, all_kept = Moment(gradient=stage.head_gradient, other=stage.tied), Moment(gradient=stage.gradient)
    others = stage.layers - 1
    done = Moment(gradient=others * stage.layer_gradient, activation=-others * stage.kept)
    first = [
        stage.holds(k).plus(stage.at_head()),
        stage.holds(k).plus(stage.at_layer()).plus(none),
        stage.holds(k).plus(stage.at_layer()).plus(none).plus(done),
        stage.holds(k - 1).plus(all_kept).plus(stage.at_embedding()),
    ]
    later_k = k - (m <= k)
    tied = Moment(other=stage.tied)
    later = [
        stage.holds(later_k).plus(all_kept).plus(stage.at_head()),
        stage.holds(later_k).plus(all_kept).plus(stage.at_layer()).plus(tied),
        stage.holds(later_k - 1).plus(all_kept).plus(stage.at_embedding()),
    ]
    return first + [Moment().plus(moment, 1.0 * (m > 1)) for moment in later]


def optimizer_moment(numbers: Numbers, shards: Numbers, width: float, temporary_bytes: float) -> Moment:
    """`numbers` gradients, as wide as the states they go into; temporaries of this rank's share of the step."""
    return Moment(gradient=numbers * width, other=numbers / shards * temporary_bytes)


def largest(moments: list[Moment]) -> Moment:
    """The moment with the most bytes, element by element."""
    best = moments[0]
    for moment in moments[1:]:
        is_more = sum(moment) > sum(best)
        if isinstance(is_more, np.ndarray):
            best = Moment(*[np.where(is_more, a, b) for a, b in zip(moment, best, strict=True)])
        elif is_more:
            best = moment
    return best


def stage_of(choices: Choices, split: Split, step: Step, rank: Numbers, layers: Numbers) -> Stage:
    on, held, policy, at = choices.machine, step.held, choices.recompute, sizes_of(choices, split)
    is_first, is_last = 1.0 * (rank == 0), 1.0 * (rank == split.pipeline - 1)
    entering = at.rows * choices.model.d_model * on.width / at.sequence_shards
    work = step.work._replace(saved_bytes=step.work.saved_bytes + entering)
    kept = policy.kept_bytes(work, on.stack, entering, layers)
    again = policy.working_bytes(work, kept, layers) - (policy.kind == "full") * entering
    tied = is_first * is_last * held.tied
    return Stage(
        layers=layers,
        is_first=is_first,
        is_last=is_last,
        entering=entering,
        kept=kept,
        again=again,
        inner=step.work.peak_bytes,
        last_weight=choices.model.hidden_size / split.tensor * choices.model.d_model * on.width,
        head=step.head.saved_bytes,
        loss=step.head.peak_bytes,
        layer_gradient=(held.layer + held.expert_layer) * on.width,
        head_gradient=is_last * (held.head + held.tied - tied) * on.width,
        embedding_gradient=is_first * held.embedding * on.width,
        tied=tied * on.width,
    )
