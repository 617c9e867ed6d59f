"""Phases of a training in timelines, their seconds, and metrics of the machine."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from lablib import launch
from lablib.data import Batch
from lablib.train import ReplicaStep, TimedPhases, Trainer, build, memory_utilization
from tests.train.test_trainer import config_of, loader_of, text


def steps(*overrides: str) -> list[dict[str, float]]:
    config, found = config_of(*overrides), []
    trainer = build(config, loader=loader_of(config, text()))
    trainer.phase = phases = TimedPhases(trainer.step)
    trainer.on_step.append(lambda _: found.append(phases.take()))
    trainer.train(2)
    return found


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_the_timeline_has_the_phases_with_their_communication(backend: str):
    def program() -> None:
        config = config_of("parallel.zero_stage=2", "health.policy=skip", name="adamw")
        build(config, loader=loader_of(config, text())).train(2)

    timeline = launch(program, ranks=2, backend=backend).timeline
    computing = {span.phase for span in timeline.select(0, "compute")}
    assert {"forward", "backward", "clip", "update"} <= computing
    communicating = {span.phase for span in timeline.select(0, "comm")}
    assert {"clip", "judge", "update"} <= communicating


class Clock:
    """Seconds that a program passes on itself."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Slow(nn.Module):
    """A model whose forward takes 3 seconds and its backward 5."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.scores, self.clock = nn.Embedding(4, 4), clock

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.clock.now_s += 3
        logits = self.scores(tokens)
        logits.register_hook(self._backward)
        return logits

    def _backward(self, _: torch.Tensor) -> None:
        self.clock.now_s += 5


class Batches:
    def __init__(self, clock: Clock):
        self.clock = clock

    def __next__(self) -> Batch:
        self.clock.now_s += 2
        return Batch(torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


def test_seconds_are_those_of_the_phases():
    """Two micro-batches: two forwards and two backwards in a step; a line has the mean of its steps."""
    clock = Clock()
    model = Slow(clock)
    step = ReplicaStep(model, torch.optim.SGD(model.parameters(), lr=0.1), micro_batch=1)
    phases = TimedPhases(step, clock)
    trainer = Trainer(step, Batches(clock), phase=phases)
    for num_steps in (1, 3):
        trainer.train(num_steps)
        assert phases.take() == {"data": 2, "forward": 6, "backward": 10, "clip": 0, "judge": 0, "update": 0}


@pytest.mark.parametrize(
    ("overrides", "ranks"), [([], 1), (["parallel.zero_stage=3"], 2), (["parallel.pipeline=2"], 2)], ids=str
)
def test_every_kind_of_step_has_seconds_of_forward_and_backward(overrides: list[str], ranks: int):
    for found in launch(steps, *overrides, ranks=ranks, trace=False).values:
        for one in found:
            assert list(one) == ["data", "forward", "backward", "clip", "judge", "update"]
            assert one["forward"] > 0 and one["backward"] > 0 and one["update"] > 0


def test_seconds_change_no_value():
    def losses(timed: bool) -> Iterator[float]:
        config, found = config_of(name="adamw"), []
        trainer = build(config, loader=loader_of(config, text()), on_step=[lambda one: found.append(one["loss"])])
        if timed:
            trainer.phase = TimedPhases(trainer.step)
        trainer.train(3)
        return found  # pyright: ignore[reportReturnType]

    assert losses(True) == losses(False)


def test_memory_is_measured_in_processes_only():
    used = memory_utilization()
    assert used is not None and 0 < used < 1
    found: list[float | None] = []
    thread = threading.Thread(target=lambda: found.append(memory_utilization()))
    thread.start()
    thread.join()
    assert found == [None]
