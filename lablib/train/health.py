"""Health of a run: replicas that drift apart, and steps with NaN or a spike of loss or gradient norm.

Drift. Data-parallel replicas have equal parameters, to the bit. A flipped bit or a missed reduction on one rank ends
that silently, and the average gradient then belongs to no model. Each rank adds the bits of each tensor as whole
numbers, modulo 2^64, and all ranks compare the sums. A change of one element always changes the sum; changes that
cancel, such as two exchanged elements, do not.

    sums of w, b     rank 0   81 17     rank 1   81 17     rank 2   81 21     drift: b differs on rank 2

Spikes. A step is bad if its loss or gradient norm is NaN or infinite, or after a warm-up exceeds

    median + num_deviations * 1.4826 * median(|x - median|)        over the last good steps

(1.4826 makes the second median the standard deviation of normal noise; single outliers do not move it, as they would a
mean.) The update of a bad step is skipped, and if more than `most_skips` of the last `window` steps were bad, also with
good ones between, the run is rolled back to a checkpoint; after `most_roll_backs` it stops. Weights that are broken
already give one bad step after another, so they are rolled back.

A trainer with a `guard` asks it between clipping and update (trainer.py); guards.py makes one from a configuration.

Cost: drift reads the parameters once, and all-gathers 8 bytes per tensor. Spikes: two medians of `window` numbers.
Source: Dixit et al., "Silent Data Corruptions at Scale", 2021, arXiv 2102.11245; Chowdhery et al., "PaLM", 2022, arXiv
2204.02311, section 5.1 (a run restarted about 100 steps before a spike, without the batches around it).
Simplified: the caller loads the checkpoint, and skips the batches or meets the same ones again.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.signature import Count, NonNegativeInt, Positive, checked
from lablib.text.units import plural

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per element
_NORMAL = 1.4826  # standard deviation of normal noise over its median absolute deviation


@dataclass(frozen=True)
class Drift:
    """A tensor that is not equal on all replicas: its name, and the ranks of the group that differ from most."""

    name: str
    ranks: tuple[int, ...]
    num_ranks: int

    def __str__(self) -> str:
        return f"{self.name} differs on ranks {', '.join(map(str, self.ranks))} of {plural(self.num_ranks, 'replicas')}"


def bit_sum(tensor: Tensor) -> Tensor:
    """Sum of a tensor's elements, taken as whole numbers of as many bits, modulo 2^64; int64 []."""
    flat = tensor.detach().contiguous().flatten()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    return flat.view(_BITS[flat.element_size()]).sum(dtype=torch.int64)


@checked
def find_drift(named_tensors: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None = None) -> list[Drift]:
    """Tensors that differ among the replicas of the group: `find_drift(model.named_parameters())`. Communicates.

    The same on all ranks. Without a majority, such as on two replicas, all ranks of all versions are listed.
    """
    names, sums = [], []
    for name, tensor in named_tensors:
        names.append(name)
        sums.append(bit_sum(tensor))
    if not sums or not dist.is_initialized():  # one replica
        return []
    num_ranks = dist.get_world_size(group)
    own = torch.stack(sums)
    everyone = [torch.empty_like(own) for _ in range(num_ranks)]
    dist.all_gather(everyone, own, group=group)
    found = []
    for name, of_ranks in zip(names, zip(*(each.tolist() for each in everyone), strict=True), strict=True):
        usual, count = Counter(of_ranks).most_common(1)[0]
        if count < num_ranks:
            is_known = 2 * count > num_ranks
            ranks = tuple(rank for rank, value in enumerate(of_ranks) if not is_known or value != usual)
            found.append(Drift(name, ranks, num_ranks))
    return found


class Action(Enum):
    """Response to a step, from mild to severe."""

    GO_ON = "go on"
    SKIP = "skip the update"
    ROLL_BACK = "roll back to a checkpoint"
    STOP = "stop"


class RunStopped(RuntimeError):
    """The policy of a guard ended the run."""


@torch.no_grad()
def worst_of_ranks(*values: Tensor) -> list[float]:
    """The largest of each number over all ranks; NaN if it is NaN on any. The same on all ranks. Communicates."""
    own = torch.stack([value.detach().double() for value in values])
    both = torch.stack([own.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf), own.isnan().double()])
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return [math.nan if is_nan else value for value, is_nan in zip(*both.tolist(), strict=True)]


class SpikeGuard:
    """Judges every step by its loss and gradient norm, which all ranks must have reduced before.

    Arguments:
        num_deviations: standard deviations above the median that make a spike.
        window: last steps that count.
        warm_up: good steps before anything finite can be a spike.
        most_skips: bad steps in the window that are only skipped; 0 rolls back at once.
        most_roll_backs: roll backs before the run stops; 0 stops instead.

    Attributes:
        last_good_step: the step before the bad ones of the window; the latest to roll back to.
    """

    @checked
    def __init__(
        self,
        num_deviations: Positive = 8.0,
        window: Count = 100,
        warm_up: Count = 20,
        most_skips: NonNegativeInt = 3,
        most_roll_backs: NonNegativeInt = 2,
    ):
        if warm_up > window:
            raise ValueError(f"warm_up must be at most window: got {warm_up} and {window}; try warm_up={window}.")
        self._num_deviations, self._warm_up = num_deviations, warm_up
        self._most_skips, self._most_roll_backs = most_skips, most_roll_backs
        self._good: dict[str, deque[float]] = {name: deque(maxlen=window) for name in ("loss", "gradient norm")}
        self._was_bad: deque[bool] = deque(maxlen=window)
        self._bad_steps: deque[int] = deque(maxlen=window)
        self._num_roll_backs = self._step = self.last_good_step = 0

    def judge(self, loss: float, gradient_norm: float, step: int | None = None) -> tuple[Action, str]:
        """The response to this step, before its update, and the reason in words. `step`: None: one after the last."""
        self._step = self._step + 1 if step is None else step
        values = {"loss": float(loss), "gradient norm": float(gradient_norm)}
        reason = "; ".join(filter(None, (self._fault(name, value) for name, value in values.items())))
        self._was_bad.append(bool(reason))
        if not reason:
            for name, value in values.items():
                self._good[name].append(value)
            return Action.GO_ON, ""
        num_bad = sum(self._was_bad)
        self._bad_steps.append(self._step)
        self.last_good_step = self._bad_steps[-num_bad] - 1
        if num_bad <= self._most_skips:
            return Action.SKIP, reason
        reason = f"{reason}; {num_bad} of the last {plural(len(self._was_bad), 'steps')} were bad"
        if self._num_roll_backs >= self._most_roll_backs:
            return Action.STOP, f"{reason}, after {plural(self._num_roll_backs, 'roll backs')}"
        self._num_roll_backs += 1
        self._was_bad.clear()
        self._bad_steps.clear()
        return Action.ROLL_BACK, reason

    def _fault(self, name: str, value: float) -> str:
        if not math.isfinite(value):
            return f"the {name} is {value}"
        good = self._good[name]
        if len(good) < self._warm_up:
            return ""
        middle = median(good)
        limit = middle + self._num_deviations * _NORMAL * median(abs(one - middle) for one in good)
        return f"the {name} is {value:.4g}, above {limit:.4g}" if value > limit else ""

    def state_dict(self) -> dict[str, Any]:
        """History and counts, as plain lists for a checkpoint."""
        good = {name: list(values) for name, values in self._good.items()}
        bad = {"was_bad": list(self._was_bad), "bad_steps": list(self._bad_steps)}
        return {"good": good, **bad, "step": self._step, "num_roll_backs": self._num_roll_backs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after a state of `state_dict`. After a roll back keep the guard as it is: it counts the roll backs."""
        for name, values in self._good.items():
            values.clear()
            values.extend(state["good"][name])
        for name, kept in (("was_bad", self._was_bad), ("bad_steps", self._bad_steps)):
            kept.clear()
            kept.extend(state[name])
        self._step, self._num_roll_backs = state["step"], state["num_roll_backs"]
