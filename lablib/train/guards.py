"""The guard of a run, which a trainer asks between clipping and update; made from the configuration of [health].

    step    guard.judge(loss, norm, step)      GO_ON: update     SKIP: no update
                                               ROLL_BACK: load a checkpoint of at most `last_good_step`     STOP: end

`SpikeGuard` (health.py) judges loss and norm. `DriftGuard` compares the replicas every n steps, and asks another guard
in the steps between. Parameters are compared before the update: a good comparison in step k confirms step k - 1.
The replicas depend on the parallelism:

    plain, DataParallel, DistributedDataParallel     all parameters, over all ranks
    experts on several ranks                         experts over the ranks with the same ones, the others over all
    ZeRO 1 and 2                                     all parameters, which are whole; masters in shards are not compared
    ZeRO 3, fully_shard                              none: each number is on one rank
    mesh                                             this rank's part, over data and context ranks. Norms that tensor
                                                     ranks have whole are not compared along the tensor axis

Cost: as `find_drift` (health.py), and an all-reduce of 8 bytes, every n steps.
Source: health.py.
Simplified: replicas are not repaired from the majority, as the optimizer's state may differ, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from lablib.parallel.experts.gradients import expert_parameters
from lablib.signature import Count, NonNegativeInt, checked
from lablib.train.config import HealthConfig
from lablib.train.health import Action, Drift, SpikeGuard, find_drift
from lablib.train.steps import ExpertStep, MeshStep, ReplicaStep, Step, ZeroStep


class Guard(Protocol):
    """Judges steps, the same on all ranks; all ranks call it after the same steps."""

    @property
    def last_good_step(self) -> int:
        """A roll back goes to a checkpoint of at most this step."""
        ...

    def judge(self, loss: float, gradient_norm: float, step: int) -> tuple[Action, str]:
        """The response to a step before its update, and the reason; may communicate."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Replicas(NamedTuple):
    """Tensors that must be equal on all ranks of a group; None: on all ranks of the run."""

    named_tensors: Sequence[tuple[str, Tensor]]
    group: dist.ProcessGroup | None


@checked
def replicas_of(step: Step) -> list[Replicas]:
    """The parameters that other ranks have, too. ValueError: a step of another class."""
    if isinstance(step, MeshStep) and step.combined.how.zero_stage == 3:
        return []
    if isinstance(step, MeshStep):
        by_group: dict[Any, list[tuple[str, Tensor]]] = {}  # experts have another group
        for buffer in step.combined.sharded.buffers:
            by_group.setdefault(buffer.unit.group, []).extend((one.name, one.param) for one in buffer.owned)
        return [Replicas(named, group) for group, named in by_group.items()]
    if not isinstance(step, ReplicaStep):
        remedy = "give DriftGuard a function that returns them"
        raise ValueError(f"the replicas of a step must be known: got {type(step).__name__}; {remedy}")
    if isinstance(step.model, FSDPModule) or (isinstance(step, ZeroStep) and step.zero.stage == 3):
        return []
    named = list(getattr(step.model, "module", step.model).named_parameters())
    if isinstance(step, ExpertStep):
        experts, same = expert_parameters(step.model), step.model.group
    elif isinstance(step, ZeroStep) and step.zero.experts is not None:
        experts, same = step.zero.experts
    else:
        return [Replicas(named, step.group)]
    own = [(name, param) for name, param in named if param in experts]
    dense = [(name, param) for name, param in named if param not in experts]
    return [Replicas(dense, None), Replicas(own, same)]  # pyright: ignore[reportArgumentType]


class DriftGuard:
    """Compares replicas every `every` judged steps.

    Arguments:
        replicas: returns the tensors; called at each comparison.
        action: response to a difference, ROLL_BACK or STOP.
        most_roll_backs: of differences, before the run stops.
        guard: judges the other steps; None: all are good.
    """

    @checked
    def __init__(
        self,
        replicas: Callable[[], Sequence[Replicas]],
        every: Count,
        action: Action = Action.STOP,
        most_roll_backs: NonNegativeInt = 2,
        guard: Guard | None = None,
    ):
        self._replicas, self._every, self._action, self._guard = replicas, every, action, guard
        self._most_roll_backs = most_roll_backs
        self._num_judged = self._num_roll_backs = self._compared_step = self.last_good_step = 0

    def judge(self, loss: float, gradient_norm: float, step: int) -> tuple[Action, str]:
        self._num_judged += 1
        if self._num_judged % self._every == 0:
            if found := drift_of_all(self._replicas()):
                self.last_good_step = min(self._compared_step, step - 1)
                reason = f"replicas differ: {'; '.join(found)}"
                if self._action is Action.ROLL_BACK and self._num_roll_backs < self._most_roll_backs:
                    self._num_roll_backs += 1
                    return Action.ROLL_BACK, reason
                return Action.STOP, reason
            self._compared_step = step - 1
        if self._guard is None:
            return Action.GO_ON, ""
        verdict = self._guard.judge(loss, gradient_norm, step)
        self.last_good_step = self._guard.last_good_step
        return verdict

    def state_dict(self) -> dict[str, Any]:
        counts = [self._num_judged, self._num_roll_backs, self._compared_step]
        return {"counts": counts, "guard": self._guard.state_dict() if self._guard else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_judged, self._num_roll_backs, self._compared_step = state.get("counts", (0, 0, 0))
        if self._guard and state.get("guard"):
            self._guard.load_state_dict(state["guard"])


def drift_of_all(replicas: Sequence[Replicas], most: int = 8) -> list[str]:
    """The differing tensors of all groups in words, with the run's ranks; the same on all ranks. Communicates."""
    found: list[Drift] = []
    for named_tensors, group in replicas:
        for one in find_drift(named_tensors, group):
            of_run = dist.get_process_group_ranks(group)
            found.append(replace(one, ranks=tuple(of_run[rank] for rank in one.ranks)))
    if not dist.is_initialized():
        return []
    device = next((tensor.device for one in replicas for _, tensor in one.named_tensors), None)
    number = torch.tensor(float(len(found)), device=device)
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    if not number:
        return []
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, list(map(str, found)))
    names = list(dict.fromkeys(name for of_rank in everyone for name in of_rank))
    return names if len(names) <= most else [*names[:most], f"and {len(names) - most} more tensors"]


@checked
def make_guard(config: HealthConfig, step: Step) -> Guard | None:
    """The guard of a configuration; None: no step is judged."""
    spikes = None
    if config.policy != "off":
        skips = 0 if config.policy == "stop" else config.most_skips
        roll_backs = config.most_roll_backs if config.policy == "roll_back" else 0
        spikes = SpikeGuard(config.num_deviations, config.window, config.warm_up, skips, roll_backs)
    if not config.drift_every:
        return spikes
    action = Action.ROLL_BACK if config.drift == "roll_back" else Action.STOP
    return DriftGuard(lambda: replicas_of(step), config.drift_every, action, config.most_roll_backs, spikes)
