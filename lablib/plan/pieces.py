"""Passes, bytes and seconds of a layer, the embedding and the head, cached by the cut of a layer.

They depend only on the few numbers of `Sizes`, not on stages, micro-batches, replicas or the schedule:

    micro-batch, tokens of a sequence, tensor, context and expert ranks (and those that share each expert)

100,000 plans of a search have some 100 distinct cuts. So the pieces of one plan are cached, and the pieces of many
plans are computed once per cut.

Cost: a look-up for a plan; for n plans with u cuts, u times the lists of layer/.

Legend and source: as layer/.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from lablib.cost.arrays import Array, Numbers, distinct_rows, is_array, minimum, np
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import StageTime
from lablib.plan.layer import Cut, Op, Sizes, Work, embedding, head, layer, work_of
from lablib.plan.layer.adapters import with_adapters
from lablib.plan.layer.dispatch import cores_share
from lablib.plan.layer.op import FORWARD, INPUT
from lablib.plan.machine import Machine, PassTime
from lablib.plan.parameters_per_rank import ParametersPerRank, parameters_per_rank
from lablib.plan.setup import Setup

QUANTIZED_BYTES = 0.516  # 4 bits, and an 8-bit scale for 64 of them (arXiv 2305.14314, section 3)
_FEW = 512  # up to so many cuts are computed one by one and cached; more are cheaper as arrays


class Pieces(NamedTuple):
    """Seconds and bytes of one micro-batch in a layer, the embedding and the head."""

    layer: Work  # an average layer, dense ones and those with experts in their proportion
    embedding: Work  # embedding, head: bytes kept, and numbers of kernels; their seconds are in embedding_s and head_s
    head: Work
    parameters: ParametersPerRank  # of one rank
    forward_s: Numbers  # forward_s, input_s, weight_s: of the layer
    input_s: Numbers
    weight_s: Numbers
    hidden_s: Numbers  # exchanges over the tensor axis that hide behind the products of weight gradients
    hidden_expert_s: Numbers  # exchanges with experts that hide behind another micro-batch's compute
    embedding_s: StageTime  # embedding_s, head_s: of embedding and head
    head_s: StageTime
    embedding_tensor_s: Numbers  # embedding_tensor_s, head_tensor_s: of these, on the tensor axis
    head_tensor_s: Numbers


class _Table:
    """The pieces of one model on one machine, by the cut of a layer."""

    def __init__(self, machine: Machine, model: Transformer, trainable: str, hides_experts: bool):
        self.machine, self.model = machine, model
        self.trainable, self.hides_experts = trainable, hides_experts
        self.of_one = lru_cache(maxsize=4096)(self.of)

    def of(self, sizes: Sizes) -> Pieces:
        machine, cut = self.machine, Cut.of(self.machine, self.model, sizes)
        parameters = parameters_per_rank(self.model, sizes.tensor, sizes.expert, sizes.expert_tensor)
        lists = [layer(cut), embedding(cut), head(cut)]
        if self.trainable == "qlora":
            lists[0] += _widened(machine, parameters)
        if self.trainable != "all":
            ends = [[op for op in ops if op.phase in (FORWARD, INPUT)] for ops in lists[1:]]
            lists = [with_adapters(cut, lists[0]), *ends]
        work = work_of(machine, lists[0])
        (first, first_s, first_tensor_s), (last, last_s, last_tensor_s) = (_end(machine, ops) for ops in lists[1:])
        hides = machine.stack.hides_backward_exchange
        hidden_s = minimum(work.input.tensor_s, work.weight.product_s) if hides else 0.0
        hidden_s = hidden_s * (1 - machine.derating.contention)
        forward, backward = work.forward, work.input._replace(tensor_s=work.input.tensor_s - hidden_s)
        hidden_expert_s = 0.0 * hidden_s
        if self.hides_experts:
            # A forward is paired with a backward of another micro-batch: tokens of one travel while the other computes
            # (DeepSeek-V3, 2024, arXiv 2412.19437, section 3.2.1), on the remaining cores.
            left = 1 - cores_share(machine)
            behind = [minimum(each.expert_s, each.compute_s) * left for each in (forward, backward)]
            forward = forward._replace(expert_s=forward.expert_s - behind[0])
            backward = backward._replace(expert_s=backward.expert_s - behind[1])
            hidden_expert_s = behind[0] + behind[1]
        return Pieces(
            layer=work,
            embedding=first,
            head=last,
            parameters=parameters,
            forward_s=machine.time_s(forward),
            input_s=machine.time_s(backward),
            weight_s=machine.time_s(work.weight),
            hidden_s=hidden_s,
            hidden_expert_s=hidden_expert_s,
            embedding_s=first_s,
            head_s=last_s,
            embedding_tensor_s=first_tensor_s,
            head_tensor_s=last_tensor_s,
        )


_table = lru_cache(maxsize=256)(_Table)


def pieces_of(setup: Setup) -> Pieces:
    """The pieces of a plan, or of many."""
    hides_experts = setup.schedule == "dualpipe-v" or setup.machine.stack.hides_dispatch
    table = _table(setup.machine, setup.model, setup.trainable, hides_experts)
    if not any(is_array(number) for number in setup.sizes):
        return table.of_one(setup.sizes)
    distinct, which = distinct_rows(*setup.sizes)
    if len(distinct[0]) > _FEW:
        return _handed_out(table.of(Sizes(*distinct)), which)
    cuts = zip(*map(np.ndarray.tolist, distinct), strict=True)
    return _handed_out(_side_by_side([table.of_one(Sizes(*cut)) for cut in cuts]), which)


def accumulated(setup: Setup, pieces: Pieces) -> Pieces:
    """The pieces, with the accumulation of gradients, as a mean over the micro-batches."""
    machine, share = setup.machine, _added_share(setup)
    if isinstance(share, float) and not share:
        return pieces
    work = pieces.layer._replace(weight=pieces.layer.weight.plus(pieces.layer.accumulate.times(share)))
    ends_s = (
        time._replace(weight_s=time.weight_s + share * machine.time_s(end.accumulate))
        for time, end in ((pieces.embedding_s, pieces.embedding), (pieces.head_s, pieces.head))
    )
    embedding_s, head_s = ends_s
    return pieces._replace(layer=work, weight_s=machine.time_s(work.weight), embedding_s=embedding_s, head_s=head_s)


def _added_share(setup: Setup) -> Numbers:
    """Share of `Work.accumulate` per micro-batch.

    Kept buffers are added to by all, other gradients by all but the first. ZeRO-3 adds shards (in eager programs:
    eager/data.py), after a cast to the width of the sum.
    """
    machine = setup.machine
    if setup.zero_stage == 3:
        return 0.0 if setup.is_eager else (machine.width + machine.gradient_bytes) / (3 * machine.gradient_bytes)
    return 1.0 if machine.stack.keeps_gradients and not setup.is_eager else 1 - 1 / setup.num_microbatches


def _widened(machine: Machine, parameters: ParametersPerRank) -> list[Op]:
    """Weights of 4 bits, read and written as 16 bits before the products of a pass, matrix by matrix."""
    stack, phases = machine.stack, (FORWARD,) if machine.stack.keeps_widened else (FORWARD, INPUT)
    moved = (parameters.layer + parameters.expert_layer) * stack.widened_bytes
    return [Op("widening", phase, size_bytes=moved, kernels=7 * stack.widened_kernels) for phase in phases]


def _end(machine: Machine, ops: list[Op]) -> tuple[Work, StageTime, Numbers]:
    """Embedding or head: bytes and numbers of kernels, seconds, and those on the tensor axis."""
    work = work_of(machine, ops)
    passes = (work.forward, work.input, work.weight)
    forward, grad, weight = (PassTime(kernels=each.kernels) for each in passes)
    tensor_s = work.forward.tensor_s + work.input.tensor_s + work.weight.tensor_s
    work = work._replace(forward=forward, input=grad, weight=weight)
    return work, StageTime(*map(machine.time_s, passes)), tensor_s


def _side_by_side(pieces: Sequence[Any]) -> Any:
    """Records of numbers as one record of arrays; a number that is the same in all stays one."""
    first = pieces[0]
    if isinstance(first, tuple):
        return type(first)(*map(_side_by_side, zip(*pieces, strict=True)))
    return first if all(each == first for each in pieces) else np.array(pieces)


def _handed_out(piece: Any, which: Array) -> Any:
    """Arrays with one number per cut as arrays with one per plan, in nested records; a number of all cuts stays one."""
    if isinstance(piece, tuple):
        return type(piece)(*(_handed_out(each, which) for each in piece))
    return piece.take(which) if is_array(piece) else piece
