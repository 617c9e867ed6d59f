"""The actions F, B, I and W of one rank in one step of a pipeline.

    F   take the input (the first piece: the micro-batch), run the piece, keep its graph, pass the output on
    B   take the gradient of the output (the last piece: the weight of the loss), run backward, pass on the
        gradient of the input
    I   the same, but the weight gradients of linear layers are deferred
    W   the deferred weight gradients

Between F and B a micro-batch is held as its input and an edge into autograd's graph. The output is not held: backward
does not read it, so its memory is freed once it has arrived at the next piece. With `recompute`,
`torch.utils.checkpoint` makes the graph: only the input is held, and backward runs the piece again, with the same
random numbers.

Random numbers, such as for dropout, are drawn in the order of a rank's actions, so they differ between plans. With a
seed they depend only on the step, the piece and the micro-batch.

Source: the four actions: Qi et al., "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, section 2.
Simplified: one tensor is passed between pieces.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.checkpoint import checkpoint

from lablib.pipeline.executor.exchange import StepMessages
from lablib.pipeline.executor.split_backward import WeightGradients
from lablib.pipeline.messages import MessageKind, PipelineMessage
from lablib.pipeline.plan import Action, Kind, Plan

LossFn = Callable[[Tensor, Tensor], Tensor]
SeedOf = Callable[[int, int], int]  # of a piece and a micro-batch


class MicroBatches(NamedTuple):
    """The micro-batches of a step: inputs, targets, and the weight of each loss in the loss of the step."""

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    weights: Sequence[float]


class _Held(NamedTuple):
    """A micro-batch at a piece between F and B: input, and the edge where backward begins (None: no gradients)."""

    x: Tensor
    root: GradientEdge | None
    later: WeightGradients | None  # if the plan splits its backward


class Actions:
    """The actions of one rank in one step; the plan determines which backwards are split.

    `seed_of`: the seed of the random numbers of each forward; None: draw from torch's generator.
    """

    def __init__(
        self,
        plan: Plan,
        pieces: Mapping[int, nn.Module],
        messages: StepMessages,
        batch: MicroBatches,
        loss_fn: LossFn,
        recompute: bool,
        seed_of: SeedOf | None,
    ):
        self._pieces, self._messages, self._batch, self._loss_fn = pieces, messages, batch, loss_fn
        self._recompute, self._seed_of, self._last = recompute, seed_of, plan.num_pieces - 1
        self._is_split = {(a.stage, a.microbatch) for row in plan for a in row if a.kind is Kind.W}
        self._held: dict[tuple[int, int], _Held] = {}
        self._later: dict[tuple[int, int], WeightGradients] = {}
        self.losses: dict[int, Tensor] = {}  # by micro-batch, as far as the last piece has run

    def do(self, action: Action) -> None:
        """Run one action; waits for its input from other pieces."""
        where = (action.stage, action.microbatch)
        if action.kind is Kind.F:
            self._held[where] = self._forward(*where)
        elif action.kind is Kind.W:
            self._later.pop(where).accumulate()
        else:
            held = self._held.pop(where)
            self._backward(*where, held)
            if held.later is not None:
                self._later[where] = held.later

    def _forward(self, stage: int, microbatch: int) -> _Held:
        x = self._batch.inputs[microbatch]
        if stage:
            x = self._messages.take(PipelineMessage(stage, MessageKind.RECV_F, microbatch)).requires_grad_()
        later = WeightGradients() if (stage, microbatch) in self._is_split else None
        seed = None if self._seed_of is None else self._seed_of(stage, microbatch)
        with _putting_off(later), _seeded(seed, x.device):
            piece = self._pieces[stage]
            y: Any = checkpoint(piece, x, use_reentrant=False) if self._recompute else piece(x)
            if stage == self._last:
                y = self._loss_fn(y, self._batch.targets[microbatch])
                self.losses[microbatch] = y.detach()
                return _Held(x, _edge(y), later)
        self._messages.give(PipelineMessage(stage, MessageKind.SEND_F, microbatch), y.detach())
        return _Held(x, _edge(y), later)  # y is not held

    def _backward(self, stage: int, microbatch: int, held: _Held) -> None:
        if stage < self._last:
            grad_y = self._messages.take(PipelineMessage(stage, MessageKind.RECV_B, microbatch))
        else:
            grad_y = torch.full_like(self.losses[microbatch], self._batch.weights[microbatch])
        if held.root is not None:
            with _putting_off(held.later):  # also of recomputed layers
                torch.autograd.backward(held.root, grad_y)
        if stage:
            grad_x = torch.zeros_like(held.x) if held.x.grad is None else held.x.grad
            self._messages.give(PipelineMessage(stage, MessageKind.SEND_B, microbatch), grad_x)


def seed_of(seed: int, step: int, stage: int, microbatch: int) -> int:
    """The seed of the random numbers of a micro-batch at a piece, different for each."""
    return Random(f"{seed} {step} {stage} {microbatch}").getrandbits(63)


def _edge(y: Tensor) -> GradientEdge | None:
    # From an edge, unlike from a tensor, `backward` starts under the mode that defers weight gradients.
    return get_gradient_edge(y) if y.requires_grad else None


def _putting_off(later: WeightGradients | None) -> AbstractContextManager[Any]:
    return nullcontext() if later is None else later.of_linear_layers()


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch's generators in the block, and restore them after it."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device.index] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
