"""Seconds of the phases of a step, as DeepSpeed's `wall_clock_breakdown`.

    phases = TimedPhases(step)
    Trainer(step, loader, phase=phases, on_step=[lambda metrics: print(phases.take())])

    {"data": 0.001, "forward": 0.031, "backward": 0.060, "clip": 0.001, "judge": 0.0, "update": 0.003}

Hooks of the whole model time its forward; backward is the rest of the gradients, with the loss, and with the
communication that both wait for. Before each time is taken, the host waits for the GPU: kernels run later than their
launch, so without it the seconds would be the launches'. So this costs speed, and is off by default.

    forward recomputed for backward     counts as backward, in a pipeline as forward

Cost: two waits per phase and forward; nothing if it is not used.
Source: DeepSpeed 0.18, deepspeed/utils/timer.py (SynchronizedWallClockTimer) and runtime/engine.py.
Simplified: one rank's seconds. On the simulator they are the host's: `lab train` prints virtual seconds instead.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from lablib.phases import phase
from lablib.signature import checked
from lablib.train.steps import MeshStep, ReplicaStep, Step

PHASES = ("data", "forward", "backward", "clip", "judge", "update")


def label(name: str) -> AbstractContextManager[None]:
    """Name a phase in timelines. Spans without a label are named "forward" and "backward", so gradients get none."""
    return nullcontext() if name == "gradients" else phase(name)


class TimedPhases:
    """The `phase` of a trainer that adds up seconds."""

    @checked
    def __init__(self, step: Step, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._seconds, self._began_s, self._num_steps = clock, defaultdict[str, float](float), 0.0, 0
        modules: list[nn.Module] = []
        if isinstance(step, MeshStep):
            modules = list(step.combined.pipeline.pieces.values())
        elif isinstance(step, ReplicaStep):
            modules = [step.model]
        for module in modules:
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(self._end)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began_s = self._now()
        self._num_steps += name == "update"
        with label(name):
            yield
        self._seconds[name] += self._now() - began_s

    def take(self) -> dict[str, float]:
        """Mean seconds per step since the last call, by phase in the order of `PHASES`."""
        found = defaultdict(float, {name: time_s / max(1, self._num_steps) for name, time_s in self._seconds.items()})
        self._seconds, self._num_steps = defaultdict(float), 0
        found["backward"] = found["gradients"] - found["forward"]
        return {name: found[name] for name in PHASES}

    def _begin(self, *_: Any) -> None:
        self._began_s = self._now()

    def _end(self, *_: Any) -> None:
        self._seconds["forward"] += self._now() - self._began_s

    def _now(self) -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return self._clock()
