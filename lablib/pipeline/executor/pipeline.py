"""Run a pipeline plan of any schedule on torch.distributed: each rank runs its row of actions.

    pieces = cut(model, plan.num_pieces)                    # stages.py, on every rank
    pipeline = Pipeline(plan, pieces, next_token_loss)
    losses = pipeline.step(inputs, targets)                 # micro-batches; gradients are added to `.grad`
    optimizer.step()                                        # of pipeline.parameters()

The loss of a step is the mean over its batch, so each micro-batch's loss is weighted by its share. Without the weights
gradients are m times too large, which Adam hides. With n_i tokens in micro-batch i:

    loss = sum over i of weights[i] * loss_i        weights[i] = 1 / m, or n_i / (n_1 + ... + n_m): `token_weights`

Phases of a step (the code has the same headings):
    1. check   the micro-batches, before any communication
    2. act     run the rank's row of the plan: actions (actions.py), and exchanges between them (exchange.py)
    3. tie     sum the gradients of parameters that pieces on several ranks share (tied.py)

Cost: time as in `replay(plan, costs)`, if messages are posted early enough (communication.py). Peak bytes of a rank:
its pieces and their gradients, and `replay(plan).in_flight` times the tensors that autograd saves of a micro-batch
(with `recompute`, only its inputs). Sent bytes: an activation forward and its gradient back for each micro-batch and
boundary between ranks.
Legend: m micro-batches; a piece is called a stage in an action.
Source: Huang et al., "GPipe", 2018, arXiv 1811.06965, section 2.3; Narayanan et al., 2021, arXiv 2104.04473, section
2.2.
Simplified: one tensor is passed between pieces; pairs of DualPipe-V run one after the other; gradients are complete
only at the end of a step.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from lablib.pipeline.communication import with_communication
from lablib.pipeline.executor.actions import Actions, LossFn, MicroBatches, seed_of
from lablib.pipeline.executor.boundaries import Boundaries, Shape
from lablib.pipeline.executor.checks import check_micro_batches, check_pieces, check_ranks
from lablib.pipeline.executor.exchange import StepMessages
from lablib.pipeline.executor.tied import sum_tied_gradients, tied_parameters
from lablib.pipeline.messages import CommunicationPlan, Exchange
from lablib.pipeline.plan import Kind, Plan
from lablib.pipeline.validate import check
from lablib.signature import checked

OnGradients = Callable[[int, nn.Module], Any]
ShapesOf = Callable[[Tensor], Sequence[Shape]]


class Pipeline:
    """This rank's part of a pipeline.

    Arguments:
        plan: a schedule; pass `with_communication(plan, costs)` to order the messages by known costs.
        pieces: all pieces of the model, in order. Of other ranks' pieces only shells are kept.
        loss_fn: a mean, of the last piece's output and a micro-batch's target.
        group: the ranks of the plan, in order; None: all ranks.
        recompute: hold only the inputs of pieces, and run the pieces again in backward.
        seed: of the random numbers in the pieces (dropout), which are then the same for every plan; None: each rank
            draws from its generator in the order of its actions.
        shapes_of: maps a micro-batch's input to the output shape and dtype of each piece but the last; None: found by
            running the pieces on "meta", which does not work for pieces that communicate (tensor parallelism).

    `pieces`: the pieces of this rank, by number.

    Communicates: one number, so that NCCL connects all ranks.

    Raises ValueError: ranks or pieces do not match the plan, a piece has no layers, or the plan breaks a rule.
    """

    @checked
    def __init__(
        self,
        plan: Plan | CommunicationPlan,
        pieces: Sequence[nn.Module],
        loss_fn: LossFn,
        *,
        group: dist.ProcessGroup | None = None,
        recompute: bool = False,
        seed: int | None = None,
        shapes_of: ShapesOf | None = None,
    ):
        check(plan)
        self.communication = with_communication(plan) if isinstance(plan, Plan) else plan
        self.plan, self.group = self.communication.plan, group
        check_ranks(self.plan, dist.get_world_size(group))
        check_pieces(self.plan, pieces)
        self.rank = dist.get_rank(group)
        own = [number for number, rank in enumerate(self.plan.rank_of) if rank == self.rank]
        self.pieces = {number: pieces[number] for number in own}
        self._shapes_of = Boundaries(pieces, own).of if shapes_of is None else shapes_of
        self._tied = tied_parameters(pieces, self.plan.rank_of, self.rank)
        self._loss_fn, self._recompute, self._seed, self._num_steps = loss_fn, recompute, seed, 0
        self._device = next((param.device for param in self.parameters()), torch.get_default_device())
        dist.all_reduce(torch.zeros(1, device=self._device), group=group)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of this rank's pieces, each once, for its optimizer."""
        yield from dict.fromkeys(param for piece in self.pieces.values() for param in piece.parameters())

    @checked
    def step(
        self,
        inputs: Sequence[Tensor],
        targets: Sequence[Tensor],
        weights: Sequence[float] | None = None,
        *,
        is_last: bool = True,
        on_gradients: OnGradients | None = None,
    ) -> list[Tensor]:
        """Run all micro-batches forward and backward: add the gradients of the step's loss to `.grad`. Communicates.

        Arguments:
            inputs, targets: of each micro-batch, on all ranks. The first piece's rank reads the inputs and the last
                piece's the targets; other ranks need only shapes and may pass "meta" tensors.
            weights: of each micro-batch's loss; None: 1/m, for micro-batches of one shape.
            is_last: False: more calls follow before the optimizer step, and `weights` are over all of them; the last
                call sums tied gradients and calls `on_gradients`.
            on_gradients: called with a piece's number and the piece once its gradients are complete, while the rank
                continues with others: to average them over replicas. If the result has `wait`, it is called at the end.

        Returns:
            On the last piece's rank each micro-batch's loss, without its weight; on other ranks an empty list.

        Raises ValueError: not as many micro-batches, targets or weights as the plan has; unequal shapes and no weights.
        """
        # ---- 1. check ----
        batch = MicroBatches(inputs, targets, check_micro_batches(self.plan, inputs, targets, weights))
        messages = StepMessages(self.communication, self.group, [self._shapes_of(x) for x in inputs], self._device)
        seeds = None if self._seed is None else partial(seed_of, self._seed, self._num_steps)
        actions = Actions(self.plan, self.pieces, messages, batch, self._loss_fn, self._recompute, seeds)
        # ---- 2. act ----
        handles = []
        # For each piece, the action after which its gradients are complete.
        ends = self.plan.actions[self.rank] if is_last and on_gradients else ()
        final = {action.stage: action for action in ends if action.kind in (Kind.B, Kind.W)}
        for step in self.communication.steps[self.rank]:
            if isinstance(step, Exchange):
                messages.post(step)
                continue
            if step.kind is not Kind.W:
                messages.let_go()
            with record_function(f"{step.kind.phase} {step}"):
                actions.do(step)
            if final.get(step.stage) == step and on_gradients:
                handles.append(on_gradients(step.stage, self.pieces[step.stage]))
        messages.finish()
        for handle in handles:
            if hasattr(handle, "wait"):
                handle.wait()
        # ---- 3. tie ----
        if is_last:
            sum_tied_gradients(self._tied, self.rank, self.group)
        self._num_steps += 1
        return [loss for _, loss in sorted(actions.losses.items())]
