"""Policies for bad steps and drift on every kind of step: to the bit the weights of a run that did what they say."""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.tensor import DTensor

from lablib import CorruptGradient, RankError, launch, train
from lablib.data import Batch, ResumableBatches
from lablib.precision.loss_scaling import LossScaler, ScaleRule
from lablib.train.boxes import BoxedTensor
from lablib.train.run import save_and_resume
from tests.train.test_trainer import config_of, loader_of, text

ALL_MODES = [
    ([], 2),
    pytest.param(["parallel.library=torch"], 2, marks=pytest.mark.thorough),
    pytest.param(["parallel.zero_stage=1"], 2, marks=pytest.mark.thorough),
    pytest.param(["parallel.zero_stage=2"], 2, marks=pytest.mark.thorough),
    (["parallel.zero_stage=3"], 2),
    (["parallel.zero_stage=3", "parallel.library=torch"], 2),
    (["parallel.tensor=2"], 4),
    pytest.param(["parallel.tensor=2", "parallel.zero_stage=2"], 4, marks=pytest.mark.thorough),
    (["parallel.pipeline=2"], 4),
    pytest.param(["model.num_experts=4", "parallel.expert=2"], 4, marks=pytest.mark.thorough),
    (["model.num_experts=4", "parallel.expert=2", "parallel.zero_stage=1"], 4),
    (["model.num_experts=4", "parallel.expert=2", "parallel.zero_stage=2"], 4),
]


def name_of(one: Any) -> str:
    return " ".join(one) if isinstance(one, list) else str(one)


# ---- a run with injected faults, and what a policy makes of them ----


@dataclass
class Faulty:
    """A run in which batches with these numbers, from 1, have their loss multiplied by NaN or infinity.

    Three good losses that differ have a deviation, a billion of which nothing exceeds: there are no other bad steps.
    """

    bad: Mapping[int, float]
    policy: str = "skip"
    num_steps: int = 8
    every: int = 2
    most_skips: int = 1
    most_roll_backs: int = 1
    window: int = 4
    skip_batches: bool = True
    overrides: Sequence[str] = field(default_factory=list)

    def config(self, folder: str) -> train.TrainConfig:
        given = {name: getattr(self, name) for name in ("most_skips", "most_roll_backs", "window", "skip_batches")}
        words = [f"health.{name}={str(value).lower()}" for name, value in given.items()]
        words += [f"health.policy={self.policy}", "health.warm_up=3", "health.num_deviations=1e9"]
        words += [f"checkpoint.folder={folder}", f"checkpoint.every={self.every}", "checkpoint.keep=50"]
        options: dict[str, Any] = {"name": "adamw", "lr": 1e-2, "schedule": "linear", "num_warmup": 2, "max_norm": 1.0}
        return config_of(*words, f"num_steps={self.num_steps}", *self.overrides, **options)

    def surviving(self) -> tuple[list[int], int | None]:
        """The batches of the updates that the final weights have, in order, and the step in which the run stops."""
        most_skips = 0 if self.policy == "stop" else self.most_skips
        left = self.most_roll_backs if self.policy == "roll_back" else 0
        updates: list[int | None] = []  # of each step; None: skipped
        saved: dict[int, tuple[list[int | None], int]] = {0: ([], 0)}
        judged: list[tuple[int, bool]] = []
        batch, is_due = 0, False
        while len(updates) < self.num_steps:
            batch, step = batch + 1, len(updates) + 1
            is_bad = batch in self.bad
            judged = [*judged, (step, is_bad)][-self.window :]
            bad_steps = [one for one, was_bad in judged if was_bad]
            if is_bad and len(bad_steps) > most_skips:
                if not left:
                    return [one for one in updates if one], step
                left, judged = left - 1, []
                at = max(one for one in saved if one < bad_steps[0])
                updates, place = list(saved[at][0]), saved[at][1]
                batch = batch if self.skip_batches else place
                saved = {one: state for one, state in saved.items() if one < at} | {at: (list(updates), batch)}
                is_due = is_due or step % self.every == 0 or step == self.num_steps
                continue
            updates.append(None if is_bad else batch)
            is_due = is_due or step % self.every == 0
            if is_due and not is_bad:
                saved[step], is_due = (list(updates), batch), False
        return [one for one in updates if one], None


class Chosen:
    """The batches of a loader with these numbers, from 1."""

    def __init__(self, loader: ResumableBatches, numbers: Sequence[int]):
        self._batches = self._chosen(loader, set(numbers), max(numbers, default=0))

    def __next__(self) -> Batch:
        return next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    @staticmethod
    def _chosen(loader: ResumableBatches, numbers: set[int], last: int) -> Iterator[Batch]:
        for number in range(1, last + 1):
            batch = next(loader)
            if number in numbers:
                yield batch


def weights(trainer: train.Trainer) -> dict[str, Tensor]:
    """This rank's parameters and optimizer state."""
    found = {}
    for name, value in trainer.step.state_dict().items():
        if isinstance(value, BoxedTensor):
            found |= {f"{name} at {corner}": view.detach().clone() for corner, view in value.boxes}
        elif isinstance(value, Tensor):
            found[name] = (value.to_local() if isinstance(value, DTensor) else value).detach().clone()
    return found


def inject(trainer: train.Trainer, bad: Mapping[int, float]) -> None:
    """Multiply the losses of these batches by a number."""
    backward, loader = trainer.step.backward, trainer.loader

    def faulty(batch: Batch, scale: float) -> tuple[Tensor, Tensor]:
        loss, num_tokens = backward(batch, scale)
        return loss * bad.get(loader.state_dict()["num_taken"], 1.0), num_tokens

    trainer.step.backward = faulty  # pyright: ignore[reportAttributeAccessIssue]


def run_faulty(faulty: Faulty, folder: str) -> tuple[dict[str, Tensor], int | None, list[str]]:
    """Final weights, the step in which it stopped, and the actions of the steps."""
    config, actions = faulty.config(folder), []
    trainer = train.build(
        config, loader=loader_of(config, text()), on_step=[lambda one: actions.append(one["action"].name)]
    )
    inject(trainer, faulty.bad)
    with train.Checkpoints(folder, 50) as checkpoints:
        save_and_resume(trainer, checkpoints, config, lambda _: None)
        try:
            trainer.train(faulty.num_steps)
        except train.RunStopped:
            return weights(trainer), trainer.num_steps, actions
    return weights(trainer), None, actions


def run_chosen(faulty: Faulty, numbers: Sequence[int]) -> dict[str, Tensor]:
    """Final weights of a run without a guard and with these batches only."""
    config = replace(faulty.config("unused"), health=config_of().health)
    trainer = train.build(config, loader=Chosen(loader_of(config, text()), numbers))
    trainer.train(len(numbers))
    return weights(trainer)


def assert_same(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@given(
    bad=st.dictionaries(st.integers(1, 12), st.sampled_from([math.nan, math.inf, -math.inf]), max_size=5),
    policy=st.sampled_from(["skip", "roll_back", "stop"]),
    sizes=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.integers(3, 6)),
    skip_batches=st.booleans(),
)
@settings(max_examples=20)
def test_final_weights_are_those_of_a_run_that_did_what_the_policy_says(
    bad: dict[int, float], policy: str, sizes: tuple[int, ...], skip_batches: bool
):
    every, most_skips, most_roll_backs, window = sizes
    small = ["model.num_layers=1", "data.batch_size=2", "model.d_model=8"]
    faulty = Faulty(bad, policy, 8, every, most_skips, most_roll_backs, window, skip_batches, small)
    numbers, stops_in = faulty.surviving()
    with tempfile.TemporaryDirectory() as folder:
        found, stopped_in, _ = run_faulty(faulty, folder)
    assert stopped_in == stops_in
    assert_same(found, run_chosen(faulty, numbers))


@pytest.mark.parametrize(("overrides", "ranks"), ALL_MODES, ids=name_of)
def test_every_kind_of_step_skips_and_rolls_back(overrides: list[str], ranks: int, tmp_path: Path):
    """Batch 3 is skipped; 6 is the second bad one, and leads back to step 2; batches 3 to 6 are left out."""
    faulty = Faulty({3: math.nan, 6: math.inf}, "roll_back", 6, overrides=overrides)

    def program() -> tuple[Any, Any]:
        return run_faulty(faulty, str(tmp_path)), run_chosen(faulty, [1, 2, 7, 8, 9, 10])

    assert faulty.surviving() == ([1, 2, 7, 8, 9, 10], None)
    go_on = ["GO_ON"] * 4
    for (found, stopped, actions), wanted in launch(program, ranks=ranks, trace=False).values:
        assert (stopped, actions) == (None, [*go_on[:2], "SKIP", *go_on[:2], "ROLL_BACK", *go_on])
        assert_same(found, wanted)


def test_real_processes_do_the_same(tmp_path: Path):
    faulty = Faulty({3: math.nan, 6: math.inf}, "roll_back", 6, overrides=["parallel.zero_stage=2"])
    simulated = launch(run_faulty, faulty, str(tmp_path / "sim"), ranks=2, trace=False).values
    real = launch(run_faulty, faulty, str(tmp_path / "gloo"), ranks=2, backend="gloo", trace=False).values
    for (found, _, actions), (wanted, _, same) in zip(real, simulated, strict=True):
        assert actions == same
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_a_corrupted_gradient_on_one_rank_is_skipped_on_all(kind: str):
    faulty = Faulty({}, "skip", 5)

    def program() -> dict[str, Tensor]:
        config = faulty.config("")
        trainer = train.build(config, loader=loader_of(config, text()))
        trainer.train(5)
        return weights(trainer)

    # A step has two micro-batches: gradient number 4 is of step 3.
    fault = CorruptGradient(1, 0, step=4, kind=kind)
    found = launch(program, ranks=2, faults=[fault]).values
    wanted = launch(run_chosen, faulty, [1, 2, 4, 5], ranks=2).values
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("overrides", [[], ["parallel.zero_stage=2"], ["parallel.tensor=2"]], ids=name_of)
def test_an_overflow_is_the_scalers_and_no_bad_step(overrides: list[str]):
    def program(guard: train.SpikeGuard | None) -> tuple[list[str], dict[str, Tensor]]:
        config, actions = config_of(*overrides), []
        scaler = LossScaler(ScaleRule(1e308, backoff=1e-300, maximum=math.inf))  # 1e308 overflows float64
        trainer = train.build(config, scaler=scaler, guard=guard, loader=loader_of(config, text()))
        trainer.on_step.append(lambda one: actions.append((one["action"].name, one["skipped"])))
        trainer.train(3)
        return actions, weights(trainer)

    guarded = launch(program, train.SpikeGuard(most_skips=0, most_roll_backs=0), ranks=2, trace=False).values
    plain = launch(program, None, ranks=2, trace=False).values
    for (actions, found), (_, wanted) in zip(guarded, plain, strict=True):
        assert actions == [("GO_ON", True), ("GO_ON", False), ("GO_ON", False)]
        assert_same(found, wanted)


def test_a_skipped_step_leaves_a_scaler_that_the_next_step_can_use():
    def program(bad: dict[int, float]) -> list[tuple[str, float]]:
        config, found = config_of("health.policy=skip"), []
        trainer = train.build(config, scaler=LossScaler(ScaleRule(8.0, interval=2)), loader=loader_of(config, text()))
        inject(trainer, bad)
        trainer.on_step.append(lambda one: found.append((one["action"].name, one["loss_scale"])))
        trainer.train(5)
        return found

    (found,) = launch(program, {2: math.nan}, ranks=1, trace=False).values
    assert found == [("GO_ON", 8.0), ("SKIP", 8.0), ("GO_ON", 16.0), ("GO_ON", 16.0), ("GO_ON", 32.0)]


def test_a_run_that_dies_after_a_roll_back_goes_on_behind_it(tmp_path: Path):
    """The state rolled back to is the newest checkpoint, with the place in the data and the count of roll backs."""
    faulty = Faulty({5: math.nan}, "roll_back", 8, every=4, most_skips=0)
    config = faulty.config(str(tmp_path))
    trainer = train.build(config, loader=loader_of(config, text()))
    inject(trainer, faulty.bad)
    with train.Checkpoints(tmp_path, 50) as checkpoints:
        save_and_resume(trainer, checkpoints, config, lambda _: None)
        trainer.train(4)
        trainer.train_step()  # rolls back
        assert trainer.num_steps == 4
        trainer.train_step()  # is lost
    again = train.build(config, loader=loader_of(config, text()))
    with train.Checkpoints(tmp_path, 50) as checkpoints:
        save_and_resume(again, checkpoints, config, lambda _: None)
        again.train(4)
    assert again.guard is not None and again.guard.state_dict()["num_roll_backs"] == 1
    assert_same(weights(again), run_chosen(faulty, [1, 2, 3, 4, 6, 7, 8, 9]))


def test_a_roll_back_without_a_function_for_it_stops():
    config = config_of()
    trainer = train.build(config, loader=loader_of(config, text()), guard=train.SpikeGuard(most_skips=0))
    inject(trainer, {2: math.nan})
    with pytest.raises(train.RunStopped, match="the run was stopped in step 2: the loss is nan"):
        trainer.train(3)
    assert trainer.num_steps == 2


def test_without_an_old_enough_checkpoint_a_roll_back_stops(tmp_path: Path):
    faulty = Faulty({3: math.nan, 5: math.nan}, "roll_back", 8, every=1)
    config = faulty.config(str(tmp_path))
    trainer = train.build(config, loader=loader_of(config, text()))
    inject(trainer, faulty.bad)
    with train.Checkpoints(tmp_path, 1, 0) as checkpoints:
        save_and_resume(trainer, checkpoints, config, lambda _: None)
        with pytest.raises(
            train.RunStopped, match="a checkpoint of at most step 2: none is left; raise checkpoint.keep"
        ):
            trainer.train(8)


# ---- drift ----


def drifting(overrides: list[str], action: train.Action, folder: str) -> tuple[str, dict[str, Tensor]]:
    """After step 3, a bit of a parameter of rank 1 is flipped, once."""
    name = "health.drift=roll_back" if action is train.Action.ROLL_BACK else "health.drift=stop"
    words = [name, "health.drift_every=2", f"checkpoint.folder={folder}", "checkpoint.every=2", "num_steps=8"]
    config = config_of(*words, *overrides, name="adamw", lr=1e-2)
    trainer, has_flipped = train.build(config, loader=loader_of(config, text())), False

    @torch.no_grad()
    def flip(metrics: Any) -> None:
        nonlocal has_flipped
        if metrics["step"] == 3 and dist.get_rank() == 1 and not has_flipped:
            has_flipped = True
            for group in replicas(trainer):
                group.flatten()[:1].view(torch.int64).bitwise_xor_(1)

    with train.Checkpoints(folder, 50) as checkpoints:
        save_and_resume(trainer, checkpoints, config, lambda _: None)
        trainer.on_step.append(flip)
        try:
            trainer.train(8)
        except train.RunStopped as error:
            return str(error), weights(trainer)
    return "", weights(trainer)


def replicas(trainer: train.Trainer) -> list[Tensor]:
    return [group.named_tensors[0][1].data for group in train.replicas_of(trainer.step)[:1]]


DRIFTING = [one for one in ALL_MODES if "parallel.zero_stage=3" not in one[0]]


@pytest.mark.parametrize(("overrides", "ranks"), DRIFTING, ids=name_of)
def test_replicas_that_differ_stop_the_run_with_tensor_and_rank(overrides: list[str], ranks: int, tmp_path: Path):
    values = launch(drifting, overrides, train.Action.STOP, str(tmp_path), ranks=max(4, ranks), trace=False).values
    told = {message for message, _ in values}
    assert len(told) == 1
    (message,) = told
    assert message.startswith("the run was stopped in step 4: replicas differ: ")
    assert "rank" in message and "1" in message


def test_on_real_processes_too(tmp_path: Path):
    values = launch(drifting, [], train.Action.STOP, str(tmp_path), ranks=4, backend="gloo", trace=False).values
    assert {message for message, _ in values} == {
        "the run was stopped in step 4: replicas differ: token_embedding.weight differs on ranks 1 of 4 replicas"
    }


@pytest.mark.parametrize(("overrides", "ranks"), DRIFTING[:4:3], ids=name_of)
def test_drift_is_rolled_back_to_what_was_compared(overrides: list[str], ranks: int, tmp_path: Path):
    """The drift of step 3 is found in step 4. Step 1 was compared, so the run begins again from step 0."""
    values = launch(drifting, overrides, train.Action.ROLL_BACK, str(tmp_path), ranks=ranks, trace=False).values
    config = config_of(*overrides, "num_steps=8", name="adamw", lr=1e-2)

    def straight(batches: Sequence[int]) -> dict[str, Tensor]:
        trainer = train.build(config, loader=Chosen(loader_of(config, text()), batches))
        trainer.train(8)
        return weights(trainer)

    for (message, found), wanted in zip(
        values, launch(straight, list(range(5, 13)), ranks=ranks, trace=False).values, strict=True
    ):
        assert message == ""
        assert_same(found, wanted)


def test_drift_without_replicas_or_checkpoints_is_refused():
    with pytest.raises(ValueError, match="health.drift_every must be 0 where each parameter is on one rank .* got 5"):
        config_of("health.drift_every=5", "parallel.zero_stage=3")
    with pytest.raises(ValueError, match='health.drift must be another than roll_back without checkpoints: .*"stop"'):
        config_of("health.drift_every=5", "health.drift=roll_back")
    with pytest.raises(ValueError, match='health.policy must be another than roll_back without checkpoints: .*"stop"'):
        config_of("health.policy=roll_back")


@given(st.lists(st.sampled_from([2.0, math.nan]), max_size=20), st.integers(0, 20), st.integers(1, 4))
def test_a_drift_guard_resumes_from_its_state(losses: list[float], place: int, every: int):
    def guard() -> train.DriftGuard:
        return train.DriftGuard(list, every, guard=train.SpikeGuard(most_skips=2, warm_up=3, window=5))

    def judged(one: train.DriftGuard, some: list[float], first: int) -> list[Any]:
        return [(*one.judge(loss, 1.0, first + i), one.last_good_step) for i, loss in enumerate(some)]

    straight, first, second = guard(), guard(), guard()
    expected = judged(straight, losses, 1)
    found = judged(first, losses[:place], 1)
    second.load_state_dict(first.state_dict())
    rest = judged(second, losses[place:], len(losses[:place]) + 1)
    assert [one[:2] for one in found + rest] == [one[:2] for one in expected]


def test_a_learners_step_needs_its_replicas():
    class Own:
        optimizer = None

        def backward(self, batch: Any, scale: float) -> Any: ...
        def clip(self, max_norm: float, scaler: Any) -> Any: ...
        def update(self, scaler: Any) -> None: ...
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any, has_stepped: bool) -> None: ...

    with pytest.raises(ValueError, match="the replicas of a step must be known: got Own; give DriftGuard a function"):
        train.replicas_of(Own())  # pyright: ignore[reportArgumentType]


def test_ranks_with_a_gpu_judge_and_compare_there():
    """On simulated GPUs: each message must be of a tensor on the rank's device."""

    def program() -> list[str]:
        config, found = config_of("health.policy=skip", "health.drift_every=1"), []
        trainer = train.build(config, loader=loader_of(config, text()))
        inject(trainer, {2: math.nan})
        trainer.on_step.append(lambda one: found.append(one["action"].name))
        trainer.train(3)
        return found

    assert launch(program, ranks=2, device="cuda", trace=False).values == [["GO_ON", "SKIP", "GO_ON"]] * 2


def test_ranks_that_see_different_numbers_decide_the_same():
    def program() -> str:
        config = config_of("health.policy=stop")
        trainer = train.build(config, loader=loader_of(config, text()))
        inject(trainer, {2: math.nan} if dist.get_rank() == 1 else {})
        trainer.train(3)
        return "went on"

    with pytest.raises(RankError, match="the run was stopped in step 2: the loss is nan") as caught:
        launch(program, ranks=4, trace=False)
    assert isinstance(caught.value.__cause__, train.RunStopped)
