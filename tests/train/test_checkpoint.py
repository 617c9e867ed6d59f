"""Checkpoints: resumed runs, damaged and half-written folders, a full disk, retention; on the simulator and on gloo."""

import math
import os
import random
import resource
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from lablib import RankError, launch
from lablib.optim import AdamW
from lablib.parallel.zero.checkpoint import checkpoint_entries, load_checkpoint
from lablib.parallel.zero.module import Zero
from lablib.train import Checkpoints, PerRank, checkpoint_save, generator_states, set_generator_states
from lablib.train.checkpoint_save import Save
from lablib.train.manifest import saved_in
from tests.train.resumable_run import net, train

STEPS = 8


@pytest.mark.parametrize("backend", ["sim", "gloo"])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(tmp_path, backend, is_sharded):
    run = partial(launch, ranks=2, backend=backend)
    straight = run(train, str(tmp_path / "straight"), STEPS, is_sharded).values
    run(train, str(tmp_path / "resumed"), 5, is_sharded)  # the last checkpoint is of step 4
    resumed = run(train, str(tmp_path / "resumed"), STEPS, is_sharded).values
    for found, wanted in zip(resumed, straight, strict=True):
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize(("ranks", "later"), [pytest.param(1, 4, marks=pytest.mark.thorough), (4, 2), (2, 1)])
def test_on_another_number_of_ranks_it_equals_it_to_rounding(tmp_path, is_sharded, ranks, later):
    straight = launch(train, str(tmp_path / "straight"), STEPS, is_sharded, 0.0, ranks=ranks).values[0]
    launch(train, str(tmp_path / "resumed"), 4, is_sharded, 0.0, ranks=ranks)
    for found in launch(train, str(tmp_path / "resumed"), STEPS, is_sharded, 0.0, ranks=later).values:
        for one, wanted in zip(found, straight, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-14)


def zero_run(folder: str, stage: int, num_steps: int) -> list[torch.Tensor]:
    """ZeRO, saved in the background and loaded by its own function, which any number of ranks and any stage can."""
    zero = Zero(net(), partial(AdamW, lr=0.01), stage)
    with Checkpoints(folder) as checkpoints:
        path = checkpoints.newest()
        first = load_checkpoint(zero, path) if path else 0
        for step in range(first, num_steps):
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            zero(x.chunk(dist.get_world_size())[dist.get_rank()]).square().mean().backward()
            zero.step()
            zero.zero_grad()
            checkpoints.save(step + 1, {**checkpoint_entries(zero, step + 1), "count": PerRank(step + 1)})
    return list(zero.full_state_dict().values())


def test_zero_saves_in_the_background_and_resumes_at_another_stage_on_other_ranks(tmp_path):
    straight = launch(zero_run, str(tmp_path / "straight"), 3, 5, ranks=4).values[0]
    launch(zero_run, str(tmp_path / "resumed"), 3, 3, ranks=4)
    for found in launch(zero_run, str(tmp_path / "resumed"), 1, 5, ranks=2).values:
        for one, wanted in zip(found, straight, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-14)


# ---- one process, without a process group ----


def numbers(value: float) -> dict[str, Any]:
    return {"w": torch.full((2000,), value), "deep": {"b": torch.full((3,), value), 7: value}, "text": f"at {value}"}


def saved_steps(folder: Path, *steps: int) -> None:
    with Checkpoints(folder, keep_last=len(steps)) as checkpoints:
        for step in steps:
            checkpoints.save(step, numbers(float(step)))


def loaded(folder: Path, **options: Any) -> tuple[int | None, dict[str, Any]]:
    state = numbers(-1.0)
    return Checkpoints(folder).load_latest(state, **options), state


def assert_has(state: dict[str, Any], step: float) -> None:
    assert torch.equal(state["w"], numbers(step)["w"]) and torch.equal(state["deep"]["b"], numbers(step)["deep"]["b"])
    assert (state["deep"][7], state["text"]) == (step, f"at {step}")


def test_a_save_may_be_followed_by_changes_before_it_is_written(tmp_path, monkeypatch):
    may_write, write_data = threading.Event(), FileSystemWriter.write_data

    def waiting(*arguments: Any) -> Any:
        assert may_write.wait(20)
        return write_data(*arguments)

    monkeypatch.setattr(FileSystemWriter, "write_data", waiting)
    state = numbers(1.0)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state)
    state["w"].fill_(5.0)
    state["deep"][7] = 5.0
    assert not saved_in(tmp_path)
    may_write.set()
    checkpoints.wait()
    assert_has(loaded(tmp_path)[1], 1.0)


FILES = ["__0_0.distcp", "rank-0.pt", ".metadata", "manifest.json"]


@settings(max_examples=30)
@given(
    name=st.sampled_from(FILES),
    place=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from("flip cut add none".split()),
)
def test_a_damaged_checkpoint_is_skipped_with_its_file_and_the_one_before_is_loaded(
    tmp_path_factory, name, place, kind
):
    folder = tmp_path_factory.mktemp("run")
    saved_steps(folder, 1, 2)
    file = folder / "step-0000000002" / name
    content = bytearray(file.read_bytes())
    at = int(place * len(content))
    if kind == "flip":
        content[at] ^= 4
    file.write_bytes(bytes(content[:at] if kind == "cut" else content + b"0" if kind == "add" else content))
    if kind == "none":
        file.unlink()
    with pytest.warns(UserWarning, match=rf"skipped: .*step-0000000002: {name}"):
        step, state = loaded(folder)
    assert step == 1
    assert_has(state, 1.0)


def test_if_all_are_damaged_the_run_does_not_begin_again_silently(tmp_path):
    saved_steps(tmp_path, 1, 2)
    for path in tmp_path.glob("step-*/rank-0.pt"):
        path.unlink()
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="undamaged.*step-0000000002: rank-0.pt cannot be"):
        loaded(tmp_path)


def test_without_a_checkpoint_nothing_is_loaded(tmp_path):
    step, state = loaded(tmp_path / "new")
    assert step is None
    assert_has(state, -1.0)


def test_a_folder_that_a_dead_process_left_is_not_loaded_and_is_removed_by_the_next_save(tmp_path):
    saved_steps(tmp_path, 1, 2)
    (tmp_path / "step-0000000002").rename(tmp_path / ".saving-2-dead")
    assert loaded(tmp_path)[0] == 1
    checkpoints = Checkpoints(tmp_path)
    checkpoints.load_latest(numbers(0.0))
    checkpoints.save(3, numbers(3.0))
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000001", "step-0000000003"]


def test_a_full_disk_is_an_error_of_the_next_call_and_loses_no_older_checkpoint(tmp_path):
    saved_steps(tmp_path, 1)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.newest()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        checkpoints.save(2, numbers(2.0))
        with pytest.raises(OSError, match="step 2 was not written: .*older checkpoints are unchanged; free some disk"):
            checkpoints.save(3, numbers(3.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]
    assert_has(loaded(tmp_path)[1], 1.0)
    with checkpoints:
        checkpoints.save(4, numbers(4.0))
    assert loaded(tmp_path)[0] == 4


def has_no_space_on_rank_1(folder: str) -> str:
    """Rank 1 may write files of 20 kB only, and has an object of 80 kB."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, {"w": torch.ones(3)})
    checkpoints.wait()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    checkpoints.save(2, {"w": torch.ones(3), "own": PerRank(torch.zeros(20_000 * dist.get_rank()))})
    with pytest.raises(OSError, match="rank 1: the checkpoint of step 2 was not written") as caught:
        checkpoints.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    checkpoints.save(3, {"w": torch.ones(3)})
    checkpoints.wait()
    return str(caught.value)


def test_a_write_error_of_one_rank_is_raised_on_all_and_saving_goes_on(tmp_path):
    errors = launch(has_no_space_on_rank_1, str(tmp_path), ranks=3, backend="gloo").values
    assert len(set(errors)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000001", "step-0000000003"]


@settings(max_examples=25)
@given(
    metrics=st.lists(st.none() | st.sampled_from([0.5, 1.0, 2.0, math.nan, math.inf]), min_size=1, max_size=7),
    keep_last=st.integers(1, 3),
    keep_best=st.integers(0, 2),
)
def test_the_last_and_the_best_are_kept(tmp_path_factory, metrics, keep_last, keep_best):
    folder = tmp_path_factory.mktemp("run")
    with Checkpoints(folder, keep_last, keep_best) as checkpoints:
        for step, metric in enumerate(metrics):
            checkpoints.save(step, {"w": torch.ones(1)}, metric)
    finite = [step for step, metric in enumerate(metrics) if metric is not None and math.isfinite(metric)]
    kept = {manifest.step for manifest in saved_in(folder).values() if manifest}
    steps = set(range(len(metrics)))
    assert set(sorted(steps)[-keep_last:]) <= kept
    others = kept - set(sorted(steps)[-keep_last:])
    lowest = sorted(metrics[step] for step in finite)[:keep_best]
    assert sorted(metrics[step] for step in kept & set(finite))[: len(lowest)] == lowest
    assert len(others) <= keep_best and all(step in finite for step in others)


def test_a_run_that_was_rolled_back_resumes_from_what_it_saved_after(tmp_path):
    saved_steps(tmp_path, 1, 2, 3)
    checkpoints = Checkpoints(tmp_path, keep_last=3)
    state = numbers(0.0)
    assert checkpoints.load_latest(state, up_to_step=1) == 1
    assert_has(state, 1.0)
    with checkpoints:
        checkpoints.save(2, numbers(2.5))  # replaces the step 2 of before
    step, state = loaded(tmp_path)
    assert step == 2
    assert_has(state, 2.5)
    assert loaded(tmp_path, up_to_step=1)[0] == 1


def test_one_rank_publishes_also_if_another_finds_all_files_and_is_then_held_up(tmp_path, monkeypatch):
    both_have_written, write, make = threading.Barrier(2, timeout=20), Save._write, os.open
    folder, order = tmp_path / ".saving-1-x", iter(range(2))

    def write_and_meet(save: Save) -> None:
        write(save)
        both_have_written.wait()

    def make_late(path: Any, *arguments: Any) -> int:
        if str(path).endswith(".publisher") and both_have_written.wait() is not None and next(order) == 1:
            while not (folder / ".publisher").exists():
                time.sleep(0.0001)
            while (folder / ".publisher").exists():
                time.sleep(0.0001)
        return make(path, *arguments)

    saves = [Save({"w": torch.ones(3), "own": PerRank(rank)}, 1, rank, 2) for rank in range(2)]
    plans = [save.plan for save in saves]
    for save in saves:
        save.copy(plans, folder, 1, None)
    monkeypatch.setattr(Save, "_write", write_and_meet)
    monkeypatch.setattr(checkpoint_save.os, "open", make_late)
    for save in saves:
        save.start()
    for save in saves:
        save.join()
    assert sorted(save.is_published for save in saves) == [False, True]
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]
    assert not (tmp_path / "step-0000000001" / ".publisher").exists()


# ---- refused ----


def test_a_new_run_is_refused_in_the_folder_of_another(tmp_path):
    saved_steps(tmp_path, 5)
    with pytest.raises(ValueError, match="a new run needs a new folder: .* has step-0000000005; call load_latest"):
        saved_steps(tmp_path, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": torch.ones(4)}, r"same tensors: w was \(2000,\) in torch.float32, and is \(4,\)"),
        ({"w": torch.ones(2000).double()}, "in torch.float32, and is .* in torch.float64"),
        ({"more": torch.ones(1)}, "'more' is in the state only"),
        ({"more": 1}, "'more' is in the state only"),
        ({"deep": {7: 0.0}}, "'deep.b' is in the checkpoint only"),
        ({"text": PerRank()}, "'text' is in the checkpoint only"),
    ],
)
def test_a_state_of_another_structure_is_refused_and_unchanged(tmp_path, change, message):
    saved_steps(tmp_path, 1)
    state = {**numbers(-1.0), **change}
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path).load_latest(state)
    assert state["w"].unique().numel() == 1 and state["w"][0] != 1 or "w" in change


def test_objects_that_could_not_be_read_back_are_refused_when_they_are_saved(tmp_path):
    with pytest.raises(ValueError, match="objects in a state must be tensors, numbers, texts"):
        Checkpoints(tmp_path).save(1, {"path": Path("x")})
    with pytest.raises(ValueError, match="names in a state must differ: got 'a.b' twice"):
        Checkpoints(tmp_path).save(1, {"a.b": 1, "a": {"b": 2}})


def save_differently() -> None:
    step = 1 + dist.get_rank()
    Checkpoints("unused").save(step, {"w": torch.ones(1)})


def one_cannot_save(folder: str) -> None:
    Checkpoints(folder).save(1, {"own": PerRank(threading.Lock() if dist.get_rank() else 0)})


def test_an_error_of_one_rank_stops_all(tmp_path):
    with pytest.raises(RankError, match=r"step must be the same on all ranks: got \[1, 2\]"):
        launch(save_differently, ranks=2)
    for backend in ("sim", "gloo"):
        with pytest.raises(RankError, match="ValueError: rank 1: objects in a state"):
            launch(one_cannot_save, str(tmp_path), ranks=2, backend=backend)


def test_generators_draw_the_same_after_their_states_are_set():
    states = generator_states()
    drawn = [(torch.rand(3), np.random.rand(3), random.random()) for _ in range(2)]
    set_generator_states(states)
    for of_torch, of_numpy, of_python in drawn:
        assert torch.equal(torch.rand(3), of_torch) and (np.random.rand(3) == of_numpy).all()
        assert random.random() == of_python
    with pytest.raises(ValueError, match="numpy is not among"):
        set_generator_states({"torch": torch.get_rng_state()})
