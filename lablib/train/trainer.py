"""A trainer in plain torch: one loop for every kind of parallelism, each part an argument.

    trainer = Trainer(step, loader, schedule=partial(cosine, num_steps=1000), scaler=LossScaler(), guard=SpikeGuard())
    trainer.train(1000)

The same program runs on the simulator (values and shapes), gloo and nccl. The differences between DDP, ZeRO, FSDP2 and
a mesh are in `step` (steps.py); build.py makes all parts from a configuration. Your own part has the same calls.

Phases of a step (the code has the same headings; in timelines data, forward, backward, clip, judge, update):
    1. rate        peak rate times schedule(updates so far); a step without update does not advance the schedule
    2. gradients   of the mean loss over all tokens with a loss, of all micro-batches and ranks
    3. clip        unscale, norm over all shards, scale down
    4. judge       the guard's response to loss and norm, unless the gradient overflowed, which is the scaler's
    5. update      optimizer step, unless the gradient overflowed or the step is bad; the loss scale moves
    6. report      numbers of the step to every `on_step`; here the host waits for the device
    7. respond     roll back or stop, if the guard says so

Cost: the step's; five numbers are read per step. A guard adds an all-reduce of 32 bytes.
Source: the order is torch.amp's ("Automatic Mixed Precision examples", torch 2.13); the pieces have their own sources.
Simplified: one optimizer; evaluation is another program.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from lablib.batches.clipping import MaxNorm
from lablib.data import Batch
from lablib.precision.loss_scaling import LossScaler
from lablib.signature import NonNegativeInt, checked
from lablib.train.breakdown import label
from lablib.train.generators import generator_states, set_generator_states
from lablib.train.guards import Guard
from lablib.train.health import Action, RunStopped, worst_of_ranks
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
        guard: judges each step; without values (`fidelity="shapes"`) it is not asked.
        roll_back: loads a state of at most the given step, when the guard says so; None: the run stops.
        on_step: functions that get the numbers of each step, on every rank.
        phase: context of each phase, by its name (breakdown.py takes their seconds). clock: for `tokens_per_s`.

    Attributes: num_steps: steps taken; num_skipped: those without an update.
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
        guard: Guard | None = None,
        roll_back: Callable[[int], Any] | None = None,
        on_step: Iterable[Callable[[Metrics], Any]] = (),
        phase: Callable[[str], AbstractContextManager[Any]] = label,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.step, self.loader, self.schedule, self.scaler = step, loader, schedule, scaler
        self.max_norm, self.guard, self.roll_back = max_norm, guard, roll_back
        self.on_step, self.phase, self.clock = list(on_step), phase, clock
        self.num_steps = self.num_skipped = 0
        self._peaks = [group["lr"] for group in step.optimizer.param_groups]

    @checked
    def train(self, num_steps: NonNegativeInt) -> None:
        """Take this many steps more; those before a roll back are taken again. Communicates."""
        last = self.num_steps + num_steps
        while self.num_steps < last:
            self.train_step()

    def train_step(self) -> Metrics:
        """One step; returns its numbers. Communicates.

        Returns:
            step: from 1. loss: mean in nats. grad_norm: before clipping. loss_scale, lr: of this step, the first group.
            tokens: with a loss, of all ranks. skipped: no update. action, reason: of the guard. On the simulator
            without values, loss, norm and tokens are None.

        ValueError: a batch without any token with a loss. RunStopped: the guard's policy.
        """
        began_s = self.clock()
        # ---- 1. rate ----
        factor = self.schedule(self.num_steps - self.num_skipped) if self.schedule else 1.0
        for group, peak in zip(self.step.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        # ---- 2. gradients ----
        with self.phase("data"):
            batch = next(self.loader)
        scale = self.scaler.loss_scale if self.scaler else 1.0
        with self.phase("gradients"):
            loss, num_tokens = self.step.backward(batch, scale)
        # ---- 3. clip ----
        with self.phase("clip"):
            norm, overflowed = self.step.clip(self.max_norm, self.scaler)
        # ---- 4. judge ----
        with self.phase("judge"):
            action, reason = self._judge(loss, norm, overflowed)
        # ---- 5. update ----
        with self.phase("update"):
            if action is Action.GO_ON:
                self.step.update(self.scaler)
            elif self.scaler:
                self.scaler.update()
        is_skipped = overflowed or action is not Action.GO_ON
        self.num_steps += 1
        self.num_skipped += is_skipped
        # ---- 6. report ----
        tokens, step_s, step = _number(num_tokens), self.clock() - began_s, self.num_steps
        if tokens == 0:
            rule = "a batch must have a token with a loss"
            raise ValueError(f"{rule}: the batch of step {step} has none; check the data")
        tokens_per_s, lr = tokens / step_s if tokens and step_s > 0 else None, self.step.optimizer.param_groups[0]["lr"]
        metrics = {"step": step, "loss": _number(loss), "grad_norm": _number(norm), "loss_scale": scale, "lr": lr}
        metrics |= {"tokens": tokens, "step_s": step_s, "tokens_per_s": tokens_per_s}
        metrics |= {"skipped": is_skipped, "action": action, "reason": reason}
        for report in self.on_step:
            report(metrics)
        # ---- 7. respond ----
        if action is Action.STOP or (action is Action.ROLL_BACK and self.roll_back is None):
            raise RunStopped(f"the run was stopped in step {step}: {reason}")
        if self.guard and self.roll_back and action is Action.ROLL_BACK:
            self.roll_back(self.guard.last_good_step)
        return metrics

    def _judge(self, loss: Tensor, norm: Tensor, overflowed: bool) -> tuple[Action, str]:
        """The guard's response, the same on all ranks; an overflow with a finite loss is no spike. Communicates."""
        if self.guard is None or loss.is_meta:
            return Action.GO_ON, ""
        worst_loss, worst_norm = worst_of_ranks(loss, norm)
        if overflowed and math.isfinite(worst_loss):
            return Action.GO_ON, ""
        return self.guard.judge(worst_loss, worst_norm, self.num_steps + 1)

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, as a flat mapping for torch.distributed.checkpoint.

        Equal names on several ranks are one tensor, whole or in parts (lablib/train/state.py); the generators of a rank
        begin with "rank0.", "rank1.", ... The tensors are live, and the optimizer's are there before the first step, so
        that a checkpoint can be loaded into them.
        """
        counts = {"num_steps": self.num_steps, "num_skipped": self.num_skipped}
        own = {f"{_prefix()}{name}": state for name, state in generator_states().items()}
        scaler = {"scaler": self.scaler.state_dict()} if self.scaler else {}
        guard = {"guard": [self.guard.state_dict()] if self.guard else []}  # a list: one name, with a guard or without
        return {**self.step.state_dict(), **counts, "loader": self.loader.state_dict(), **scaler, **guard, **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next steps are the same to the bit. Communicates with sharded models.

        A rank that was not in the saved run keeps its random generators. KeyError: a part is missing.
        """
        self.step.load_state_dict(state, has_stepped=state["num_steps"] > state["num_skipped"])
        self.loader.load_state_dict(state["loader"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        if self.guard and state.get("guard"):  # the saved run may have had none
            self.guard.load_state_dict(state["guard"][0])
        self.num_steps, self.num_skipped = state["num_steps"], state["num_skipped"]
        prefix = _prefix()
        if own := {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}:
            set_generator_states(own)


def _prefix() -> str:
    return f"rank{dist.get_rank() if dist.is_initialized() else 0}.generators."


def _number(value: Tensor) -> float | int | None:
    return None if value.is_meta else value.item()  # meta: only shapes are computed
