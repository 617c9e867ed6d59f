"""Moments at which the memory of an eager program may peak, with the bytes of each.

    head         all activations; logits in 32 bits twice from forward, and twice more in backward
    layer        all activations, the recomputed ones, the gradients of the MLP's inner tensor (of a gated one, of its
                 factors, too) and of its last weight
    attention    its inputs, output and their gradients; of rotated queries the gradient in 32 bits, and its products
    ring         with context ranks: inputs of its kernels, gradients that travel, all ranks' keys and values
    message      all activations, the gradient that was sent down and the one that comes from above
    embedding    one micro-batch less, the table's new gradient and the sum of the earlier ones
    optimizer    no activations; temporaries of the step, and with masters gradients in 32 bits

The first micro-batch's backward allocates the gradients one by one while activations are freed. From the second on all
exist, and each new one for a moment as well. A stage with more micro-batches than it holds at once (m > k) meets both
in full; any other meets gradients with one micro-batch less.

Legend: m micro-batches, k of them in flight; others as layer/.

Source: the memory tracker of the simulator for such steps; torch's DDP (buckets as large as the gradients) and FSDP2
(the root's parameters stay from forward to backward, the next layer's are gathered during a layer).
Simplified: of offloaded activations two layers of each micro-batch in flight are on the device; variables that outlive
their last use are not modelled.
"""

from typing import NamedTuple

from lablib.cost.arrays import Numbers, highest, is_array, minimum, np
from lablib.plan.layer.operators import load_of
from lablib.plan.layer.ring import held_in_backward
from lablib.plan.setup import Setup
from lablib.plan.step import StepTimes


class Moment(NamedTuple):
    """Bytes of one moment, without a rank's own parameters and its optimizer's state."""

    gradient: Numbers = 0.0
    activation: Numbers = 0.0
    communication: Numbers = 0.0
    other: Numbers = 0.0
    parameter: Numbers = 0.0

    def plus(self, moment: "Moment", times: Numbers = 1.0) -> "Moment":
        return Moment(*[a + times * b for a, b in zip(self, moment, strict=True)])


class Stage(NamedTuple):
    """Bytes of a stage that moments are made of. Names with `is_` and `has_` are 0 or 1."""

    layers: Numbers  # layers, is_first, is_last: of the stage
    is_first: Numbers
    is_last: Numbers
    # entering, whole, tokens: a layer's input, of all tokens if it is one rank's share; the model's input
    entering: Numbers
    whole: Numbers
    tokens: Numbers
    sent: Numbers  # the gradient of its input, which a stage that alternates forward and backward still holds
    saved: Numbers  # of a layer, from forward to backward, its output included
    # layers with their `saved` on the device at once: all, or with offloaded activations two, in transit
    window: Numbers
    recomputed: Numbers  # of a layer, recomputed for backward
    inner: Numbers  # inner, last_weight: the MLP's inner tensor, and the weight of its last product; or of the experts
    last_weight: Numbers
    gated: int  # inner tensors more that a gated MLP has at once, or 0
    dispatched: Numbers  # sent by a rank to experts
    beyond: Numbers  # that arrive at the busiest rank beyond these
    attention: Numbers  # the gradients around queries, keys and values, when their weights' are computed
    passing: Numbers  # of a layer, temporary in forward
    head: Numbers  # head, loss, logits: kept by the head, temporary in the loss's backward, and the logits themselves
    loss: Numbers
    logits: Numbers
    layer_gradient: Numbers  # layer_gradient, head_gradient, embedding_gradient: of the parameters
    head_gradient: Numbers
    embedding_gradient: Numbers
    tied: Numbers  # of a table that both ends share
    is_split: Numbers  # whether there are several tensor ranks
    # with context ranks, of a layer: kept, on the wires and made in the ring's backward (layer/ring.py)
    in_ring: tuple[Numbers, ...] = ()
    has_ring: Numbers = 0.0  # whether there are several context ranks
    entrance_gradient: Numbers = 0.0  # of the parameters that come before attention
    # bytes kept, and made beside the stream's gradient, when attention's backward ends, and a rotation's
    around_attention: tuple[tuple[Numbers, Numbers], ...] = ()

    @property
    def gradient(self) -> Numbers:
        return self.layers * self.layer_gradient + self.head_gradient + self.embedding_gradient

    @property
    def spread(self) -> Numbers:
        """A gradient that is gathered from the ranks' shares; experts receive the tokens of each rank."""
        return self.whole * (self.whole > self.entering) * (self.dispatched == 0)

    def saved_of(self, layers: Numbers) -> Numbers:
        """Bytes on the device from forward to backward for so many layers of one micro-batch."""
        return minimum(self.window, layers) * self.saved

    def gone_after(self, layers: Numbers) -> Numbers:
        """Bytes of all layers' `saved` on the device that are freed after the backward of so many layers."""
        return (minimum(self.window, self.layers) - minimum(self.window, self.layers - layers)) * self.saved

    def holds(self, k: Numbers) -> Moment:
        """k micro-batches from forward to backward. The input of a later stage is in a communication buffer."""
        received = (1 - self.is_first) * self.entering
        kept = self.saved_of(self.layers) + self.is_first * (self.entering + self.tokens) + self.is_last * self.head
        return Moment(activation=k * kept, communication=k * received)

    def at_head(self) -> Moment:
        return Moment(other=self.is_last * self.loss)

    def at_head_weight(self, is_later: bool) -> Moment:
        """The logits' gradient, the head's input's, and its weight's; the logits are freed."""
        weight = self.head_gradient + self.tied
        summed = self.is_last * self.is_split * self.whole  # over the tensor ranks
        other = self.is_last * (self.loss / 2 + self.whole) - summed
        left = Moment(activation=-self.is_last * (self.head - self.whole), communication=summed, other=other)
        return left.plus(Moment(other=weight) if is_later else Moment(gradient=weight))

    @property
    def freed(self) -> Numbers:
        """Bytes freed by the head's backward: its own, and its input."""
        return self.is_last * (self.head + self.entering)

    def at_layer(self, is_top: bool, is_later: bool) -> list[Moment]:
        """During a layer's backward; new gradients are kept, or temporary and added to the earlier ones.

        After the gradients of: the MLP's last weight, its activation, its first weight, the layer's last weight.
        """
        received, top = (1 - self.is_last) * self.entering, self.is_last if is_top else 1.0
        # The gradients of rows that arrived replace the rows that were sent, which weights were applied to.
        base = Moment(0.0, self.recomputed - self.freed, received, top * self.entering + self.beyond)
        weight = Moment(other=self.last_weight) if is_later else Moment(gradient=self.last_weight)
        first = base.plus(Moment(other=self.inner, communication=self.spread)).plus(weight)
        activation = base.plus(Moment(activation=-self.inner, other=(2 + self.gated) * self.inner))
        input_gradient = Moment(communication=self.is_split * self.whole, other=(1 - self.is_split) * self.entering)
        after = Moment(activation=-(2 + self.gated) * self.inner, other=(1 + self.gated) * self.inner)
        second = base.plus(after).plus(input_gradient).plus(weight)
        came_back = base.plus(Moment(other=2 * self.dispatched))
        attention = self._at_attention(is_later, received, came_back)
        if is_later:
            return [first, activation, second, came_back, *attention]
        left = self.entering + self.whole - self.saved - self.freed
        end = Moment(self.layer_gradient, left, received, self.attention + top * self.entering)
        return [activation.plus(weight), first, second.plus(weight), came_back, *attention, end]

    def _at_attention(self, is_later: bool, received: Numbers, instead: Moment) -> list[Moment]:
        """In the backward of attention; over context ranks, before and after the second round's kernel.

        For plans with or without context ranks, where the others count: `instead`, which the list has already.
        """
        gradient = 0.0 if is_later else self.layer_gradient - self.entrance_gradient
        left = self.entering + self.whole - self.saved - self.freed

        def moment(kept: Numbers, wires: Numbers, made: Numbers, share: Numbers) -> Moment:
            found = Moment(gradient, left + kept, received + wires, self.entering + made)
            return instead.plus(found.plus(instead, -1.0), share)

        found = [moment(kept, 0.0, made, 1.0 - self.has_ring) for kept, made in self.around_attention]
        if not self.in_ring:
            return found
        kept, wires, made, more = self.in_ring
        return [*found, *(moment(kept, wires, made + later, self.has_ring) for later in (0.0, more))]

    def at_message(self) -> Moment:
        """Between forward and backward: the gradient that was sent, and the buffer of the next one."""
        return Moment(self.sent, 0.0, (1 - self.is_last) * self.entering)

    def at_embedding(self, is_later: bool) -> Moment:
        """Gradients of the table: the new one, of both ends if it is shared, and the earlier sum."""
        before = self.embedding_gradient if is_later else 0.0
        return Moment(other=self.is_first * (self.whole + before + 2 * self.tied))


def backward_moments(stage: Stage, k: Numbers, m: Numbers) -> list[Moment]:
    """The moments of backward passes that may be largest, with k of m micro-batches in flight."""
    head, tied, summed = Moment(gradient=stage.head_gradient), Moment(other=stage.tied), Moment(gradient=stage.gradient)
    others = stage.layers - 1
    above = Moment(gradient=others * stage.layer_gradient, activation=-stage.gone_after(others))
    top, bottom = stage.holds(k).plus(head).plus(tied), stage.holds(k).plus(head).plus(tied).plus(above)
    first = [
        stage.holds(k).plus(stage.at_head()),
        stage.holds(k).plus(stage.at_head_weight(is_later=False)),
        *(top.plus(moment) for moment in stage.at_layer(is_top=True, is_later=False)),
        *(Moment().plus(bottom.plus(moment), 1.0 * (others > 0)) for moment in stage.at_layer(False, False)),
        stage.holds(k - 1).plus(summed).plus(stage.at_embedding(is_later=False)),
    ]
    later_k = k - (m <= k)
    held = stage.holds(later_k).plus(summed)
    later = [
        held.plus(stage.at_head()),
        held.plus(stage.at_head_weight(is_later=True)),
        *(held.plus(tied).plus(moment) for moment in stage.at_layer(is_top=True, is_later=True)),
        Moment().plus(held.plus(stage.at_message()), 1.0 * (m > k)),
        stage.holds(later_k - 1).plus(summed).plus(stage.at_embedding(is_later=True)),
    ]
    return first + [Moment().plus(moment, 1.0 * (m > 1)) for moment in later]


def optimizer_moment(stage: Stage, gradient_bytes: Numbers, temporary_bytes: Numbers) -> Moment:
    """Gradients, as wide as the optimizer's states, and temporaries of this rank's share of the step."""
    return Moment(gradient=gradient_bytes + stage.sent, other=temporary_bytes)


def largest(moments: list[Moment]) -> Moment:
    """The moment with the most bytes, element by element."""
    best = moments[0]
    for moment in moments[1:]:
        is_more = sum(moment) > sum(best)
        if is_array(is_more):
            best = Moment(*[np.where(is_more, a, b) for a, b in zip(moment, best, strict=True)])
        elif is_more:
            best = moment
    return best


def _last_weight(setup: Setup) -> Numbers:
    """Rows of the last weight of an MLP, or of all experts of a rank, which are one tensor."""
    mixture = setup.model.experts
    if not mixture:
        return setup.model.hidden_size / setup.tensor
    return mixture.num_experts * mixture.d_ff / setup.expert_stride


def stage_of(setup: Setup, step: StepTimes, rank: Numbers, layers: Numbers) -> Stage:
    machine, parameters, policy, sizes = setup.machine, step.pieces.parameters, setup.recompute, setup.sizes
    model, gated = setup.model, int(setup.model.activation == "swiglu")
    is_first, is_last = 1.0 * (rank == 0), 1.0 * (rank == setup.pipeline - 1)
    whole, entering = setup.whole_bytes, setup.entering_bytes
    work = step.pieces.layer._replace(saved_bytes=step.pieces.layer.saved_bytes + entering)
    kept = policy.saved_bytes(work, machine.stack, entering, layers)
    recomputed = policy.working_bytes(work, kept, layers) - (policy.kind == "full") * entering
    tied = is_first * is_last * parameters.tied
    has_ring = bool(highest(setup.context) > 1) and not model.latent
    heads = model.num_heads, model.num_heads + 2 * model.kv_heads  # of Q; of Q, K and V
    query_columns, entrance_columns = (n * model.head_size / setup.tensor for n in heads)
    queries, all_three = (sizes.rows * n * machine.width for n in (query_columns, entrance_columns))
    around = [(step.pieces.layer.attention_bytes + all_three, queries + all_three)]
    if model.positions == "rotary":
        # Queries last: their gradient in 32 bits, its products with the angles' sines and cosines, also in 16 bits.
        around.append((0.0, all_three - queries + queries / machine.width * (12 if machine.width == 4 else 11)))
    return Stage(
        layers=layers,
        is_first=is_first,
        is_last=is_last,
        entering=entering,
        whole=whole,
        tokens=step.pieces.embedding.saved_bytes,
        sent=(1 - is_first) * entering * (setup.num_microbatches >= setup.pipeline - rank),
        saved=kept,
        window=minimum(2, layers) if "activations" in setup.offload else layers,
        recomputed=recomputed,
        inner=step.pieces.layer.peak_bytes,
        last_weight=_last_weight(setup) * model.d_model * machine.width,
        dispatched=(model.experts.num_active if model.experts else 0) * entering,
        beyond=model.experts.num_active * entering * (load_of(model.experts, sizes) - 1) if model.experts else 0.0,
        attention=whole * ((1 + 3 / setup.tensor) if machine.stack.is_megatron else (2 + 1 / setup.tensor)),
        gated=gated,
        # The output of the last product; if a layer keeps nothing, the MLP's two or three tensors, not its output yet.
        passing=entering + (policy.kind == "full") * (2 + gated) * step.pieces.layer.peak_bytes,
        head=step.pieces.head.saved_bytes,
        loss=step.pieces.head.peak_bytes,
        logits=step.pieces.head.peak_bytes / 8 * machine.width,
        layer_gradient=(parameters.layer + parameters.expert_layer) * machine.width,
        head_gradient=is_last * (parameters.head + parameters.tied - tied) * machine.width,
        embedding_gradient=is_first * parameters.embedding * machine.width,
        tied=tied * machine.width,
        is_split=1.0 * (setup.tensor > 1),
        in_ring=held_in_backward(machine, model, sizes) if has_ring else (),
        has_ring=1.0 * (setup.context > 1),
        entrance_gradient=entrance_columns * model.d_model * machine.width,
        around_attention=() if model.latent else tuple(around),
    )
