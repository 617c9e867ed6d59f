"""A trainer in plain torch: one loop for every kind of parallelism, each part an argument.

    trainer = Trainer(step, loader, schedule=partial(cosine, num_steps=1000), scaler=LossScaler(), max_norm=1.0)
    trainer.train(1000)

The same program runs on the simulator (values and shapes), gloo and nccl. The differences between DDP, ZeRO, FSDP2 and
a mesh of tensor, pipeline and context ranks are in `step` (lablib/train/steps.py); lablib/train/build.py makes all
parts from a configuration. Your own part is any object with the same calls.

Phases of a step (the code has the same headings):
    1. rate        peak rate times schedule(updates so far); a step with overflow does not advance the schedule
    2. gradients   of the mean loss over all tokens with a loss, of all micro-batches and ranks
    3. clip        unscale, norm over all shards, scale down
    4. update      optimizer step, unless the gradient overflowed; the loss scale moves
    5. report      numbers of the step to every `on_step`; here the host waits for the device

Cost: the step's; five numbers are read per step.
Source: the order of accumulation, unscaling, clipping and update is torch.amp's ("Automatic Mixed Precision examples",
torch 2.13); the pieces have their own sources.
Simplified: one optimizer; evaluation is another program.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from lablib.batches.clipping import MaxNorm
from lablib.data import Batch
from lablib.precision.loss_scaling import LossScaler
from lablib.signature import NonNegativeInt, checked
from lablib.train.generators import generator_states, set_generator_states
from lablib.train.steps import Step

Schedule = Callable[[int], float]  # updates so far -> factor of the peak rate
Metrics = dict[str, Any]


class Loader(Protocol):
    """This rank's batches, and where they are in the data."""

    def __next__(self) -> Batch: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Trainer:
    """Training of a model, step by step. All ranks make one, and call the same methods.

    Arguments:
        step: model and optimizer on these ranks.
        loader: gives a batch for each step; targets of -100 are padding.
        schedule: factor of the peak rate, which is the optimizer's rate at the start.
        scaler: of the loss, for float16.
        max_norm: limit for the norm of the gradient; infinity: it is only measured.
        on_step: functions that get the numbers of each step, on every rank.
        clock: seconds; for `tokens_per_s`.

    Attributes:
        num_steps: steps taken, with those that were skipped.
        num_skipped: steps with overflow.
    """

    @checked
    def __init__(
        self,
        step: Step,
        loader: Loader,
        *,
        schedule: Schedule | None = None,
        scaler: LossScaler | None = None,
        max_norm: MaxNorm = math.inf,
        on_step: Iterable[Callable[[Metrics], Any]] = (),
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.step, self.loader, self.schedule, self.scaler = step, loader, schedule, scaler
        self.max_norm, self.on_step, self.clock = max_norm, list(on_step), clock
        self.num_steps = self.num_skipped = 0
        self._peaks = [group["lr"] for group in step.optimizer.param_groups]

    @checked
    def train(self, num_steps: NonNegativeInt) -> None:
        """Take this many steps more. Communicates."""
        for _ in range(num_steps):
            self.train_step()

    def train_step(self) -> Metrics:
        """One step; returns its numbers. Communicates.

        Returns:
            step: from 1. loss: mean in nats. tokens: with a loss, of all ranks. tokens_per_s, step_s. grad_norm: before
            clipping. lr: of the first group. loss_scale: of this step. skipped: whether the gradient overflowed. Loss
            and norm are None on the simulator without values; so are the tokens.

        Raises:
            ValueError: a batch without any token with a loss.
        """
        began_s = self.clock()
        # ---- 1. rate ----
        factor = self.schedule(self.num_steps - self.num_skipped) if self.schedule else 1.0
        for group, peak in zip(self.step.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        # ---- 2. gradients ----
        scale = self.scaler.loss_scale if self.scaler else 1.0
        loss, num_tokens = self.step.backward(next(self.loader), scale)
        # ---- 3. clip ----
        norm, skipped = self.step.clip(self.max_norm, self.scaler)
        # ---- 4. update ----
        self.step.update(self.scaler)
        self.num_steps += 1
        self.num_skipped += skipped
        # ---- 5. report ----
        tokens, step_s = _number(num_tokens), self.clock() - began_s
        if tokens == 0:
            raise ValueError(
                f"a batch must have a token with a loss: the batch of step {self.num_steps} has none; check the data"
            )
        metrics = {
            "step": self.num_steps,
            "loss": _number(loss),
            "tokens": tokens,
            "tokens_per_s": tokens / step_s if tokens and step_s > 0 else None,
            "step_s": step_s,
            "grad_norm": _number(norm),
            "lr": self.step.optimizer.param_groups[0]["lr"],
            "loss_scale": scale,
            "skipped": skipped,
        }
        for report in self.on_step:
            report(metrics)
        return metrics

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, as a flat mapping for torch.distributed.checkpoint.

        Equal names on several ranks are one tensor, whole or in parts (lablib/train/state.py); the generators of a rank
        begin with "rank0.", "rank1.", ... The tensors are the live ones: copy them, or save them before the next step.
        Before the first step the optimizer's state is there too, so that a checkpoint can be loaded into the tensors.
        """
        counts = {"num_steps": self.num_steps, "num_skipped": self.num_skipped}
        own = {f"{_rank()}generators.{name}": state for name, state in generator_states().items()}
        scaler = {"scaler": self.scaler.state_dict()} if self.scaler else {}
        return {**self.step.state_dict(), **counts, "loader": self.loader.state_dict(), **scaler, **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next steps are the same to the bit. Communicates with sharded models.

        A rank that was not in the saved run keeps its random generators. KeyError: a part is missing.
        """
        self.step.load_state_dict(state, has_stepped=state["num_steps"] > state["num_skipped"])
        self.loader.load_state_dict(state["loader"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        self.num_steps, self.num_skipped = state["num_steps"], state["num_skipped"]
        prefix = f"{_rank()}generators."
        if own := {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}:
            set_generator_states(own)


def _rank() -> str:
    return f"rank{dist.get_rank() if dist.is_initialized() else 0}."


def _number(value: Tensor) -> float | int | None:
    """The number in a tensor; None if only shapes are computed."""
    return None if value.is_meta else value.item()
