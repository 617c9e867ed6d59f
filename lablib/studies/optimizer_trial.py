"""Training trial of an optimizer: the same model, batches and schedule for all, with held-out losses.

Equal: the model and its initial weights (by seed), the batches and their order (by seed), the schedule, the gradient
clipped to norm 1, and no decay of vectors. Different: the optimizer, and its rate and decay.

    hidden matrices    of the blocks: the optimizer
    embeddings         also matrices, but looked up: Muon, SOAP, GaLore and 8 bits use plain AdamW for them, as their
                       papers do; the others treat them as any matrix
    vectors            biases and norms: the optimizer; with Muon, AdamW

Settings other than rate and decay are published ones for language models: betas (0.9, 0.95) for Adam and optimizers
based on it, (0.95, 0.98) for Lion, Sophia's curvature every 10 steps, a rank of a quarter of the width.

Cost: a training run.
Source: Brown et al., 2020, arXiv 2005.14165, appendix B (betas, clipping); Chen et al., 2023, arXiv 2302.06675, section
4.6 (Lion's betas for language); the heads of the optimizers' files.
Simplified: one sequence length, one schedule for all; only rate and decay are searched.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lablib.models import next_token_loss
from lablib.models.drawing import generator_beside
from lablib.optim.adam_bf16 import AdamBF16
from lablib.optim.adamw import AdamW
from lablib.optim.base import BatchedOptimizer
from lablib.optim.memory import OPTIMIZERS
from lablib.optim.muon import Muon
from lablib.optim.sophia import SophiaG, sampled_label_loss
from lablib.signature import OneOf, checked

ADAM = (0.9, 0.95)
CURVATURE_EVERY = 10  # steps
NO_8BIT = {"min_8bit_size": 2**62}


@dataclass(frozen=True)
class Evaluation:
    """The loss of held-out text after so many steps, in nats."""

    step: int
    loss: float


@dataclass(frozen=True)
class TrialOptimizer:
    """An optimizer's class, its settings, and other settings for embeddings."""

    make: type[BatchedOptimizer]
    options: dict[str, Any]
    for_embeddings: dict[str, Any]


def kinds(width: int) -> dict[str, TrialOptimizer]:
    """The settings of every optimizer for a model of this width, by the name of its file."""
    low = {"betas": ADAM, "rank": max(1, width // 4), "update_proj_gap": 50}
    settings: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "adamw": ({"betas": ADAM}, {}),
        "lamb": ({"betas": ADAM}, {}),
        "lion": ({"betas": (0.95, 0.98)}, {}),
        "muon": ({"adjust_lr_fn": "match_rms_adamw"}, {}),
        "soap": ({}, {"max_precond_dim": 0}),
        "adam8bit": ({"betas": ADAM}, NO_8BIT),
        "adam_bf16": ({"betas": ADAM}, {}),
        "galore": (low, {"rank": None}),
        "q_galore": (low, {"rank": None} | NO_8BIT),
    }
    return {name: TrialOptimizer(kind, *settings.get(name, ({}, {}))) for name, kind in OPTIMIZERS.items()}


@checked
def make_optimizers(
    name: Annotated[str, OneOf(kinds(1))], model: nn.Module, lr: float, weight_decay: float
) -> list[BatchedOptimizer]:
    """The optimizer of this name for a GPT, as one or (with Muon) two objects."""
    width = model.get_parameter("token_embedding.weight").shape[1]
    kind = kinds(width)[name]
    named = list(model.named_parameters())
    hidden = [param for key, param in named if param.ndim == 2 and key.startswith("blocks.")]
    embeddings = [param for key, param in named if param.ndim == 2 and not key.startswith("blocks.")]
    vectors = [param for _, param in named if param.ndim != 2]
    groups: list[dict[str, Any]] = [
        {"params": hidden},
        {"params": embeddings} | kind.for_embeddings,
        {"params": vectors, "weight_decay": 0.0},
    ]
    common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
    if name == "muon":
        return [Muon(hidden, **common, **kind.options), AdamW(groups[1:], **common, betas=ADAM)]
    return [kind.make(groups, **common, **kind.options)]


class Training:
    """A model and its optimizers; `step` trains on one batch. `seed` sets the optimizers' randomness.

    Arguments:
        model: a GPT; it is changed.
        name, lr, weight_decay: of the optimizer.
        factor: step -> the share of `lr` in it; None: always 1.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        name: str,
        lr: float,
        weight_decay: float,
        factor: Callable[[int], float] | None = None,
        seed: int = 0,
    ):
        self.model, self.step_number = model, 0
        self.optimizers = make_optimizers(name, model, lr, weight_decay)
        self.generator = generator_beside(model, seed)
        for optimizer in self.optimizers:
            if isinstance(optimizer, AdamBF16):
                optimizer.generator = self.generator
        self.schedules = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, factor or (lambda step: 1.0)) for optimizer in self.optimizers
        ]

    def step(self, inputs_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"]) -> float:
        """One step; returns the loss of this batch before it, or infinity if a gradient is not finite."""
        self._estimate_curvature(inputs_BT)
        self._zero_grad()
        loss = next_token_loss(self.model(inputs_BT), targets_BT)
        loss.backward()
        self.step_number += 1
        if not nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).isfinite():
            return math.inf
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            schedule.step()
        return loss.item()

    def state_bytes(self) -> int:
        return sum(optimizer.state_bytes() for optimizer in self.optimizers)

    def _estimate_curvature(self, inputs_BT: Tensor) -> None:
        (optimizer, *_) = self.optimizers
        if isinstance(optimizer, SophiaG) and self.step_number % CURVATURE_EVERY == 0:
            self._zero_grad()
            sampled_label_loss(self.model(inputs_BT), self.generator).backward()
            optimizer.update_curvature(inputs_BT.numel())

    def _zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()


@checked
def train(
    training: Training, train_batches: Iterable[Any], held_out: Any, num_steps: int, look_every: int
) -> list[Evaluation]:
    """Train for so many steps; the loss of `held_out` before the first, every `look_every` and after the last.

    `train_batches`, `held_out`: inputs and targets (B, T), many of them and one. Returns the evaluations; the last loss
    is infinite if training diverged, which ends the trial.
    """
    looks = [Evaluation(0, held_out_loss(training.model, held_out))]
    for inputs_BT, targets_BT in islice(train_batches, num_steps):
        if not math.isfinite(training.step(inputs_BT, targets_BT)):
            return [*looks, Evaluation(training.step_number, math.inf)]
        if training.step_number % look_every == 0 or training.step_number == num_steps:
            looks.append(Evaluation(training.step_number, held_out_loss(training.model, held_out)))
    return looks


@torch.no_grad()
def held_out_loss(model: nn.Module, held_out: Any) -> float:
    """Mean loss of held-out text, in nats; infinite if it is not a number."""
    loss = next_token_loss(model(held_out[0]), held_out[1]).item()
    return loss if math.isfinite(loss) else math.inf
