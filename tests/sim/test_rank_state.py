"""A rank has for itself what a process has for itself: nothing that one rank sets is seen by another, or afterwards."""

import ctypes
import gc
import inspect
import os
import sys
import warnings

import pytest
import torch
import torch.distributed as dist

from lablib import launch

pytestmark = pytest.mark.usefixtures("everything_is_given_back")


def test_each_rank_sees_the_environment_of_torchrun():
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

    def program() -> list[int]:
        return [int(os.environ[name]) for name in names] + [int(os.getenv("RANK", "-1"))]

    values = launch(program, ranks=10, cluster="dgx-h100").values
    assert values[0] == [0, 0, 0, 10, 8, 0] and values[7] == [7, 7, 0, 10, 8, 7]
    assert values[8] == [8, 0, 1, 10, 2, 8] and values[9] == [9, 1, 1, 10, 2, 9]


def test_a_child_process_started_later_does_not_inherit_what_a_rank_set():
    def program() -> None:
        os.environ["LAB_TEST_OWN"] = "mine"
        os.environ["LAB_TEST_HOST"] = "changed"

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    os.environ["LAB_TEST_HOST"] = "kept"
    try:
        launch(program, ranks=2)
        assert getenv(b"LAB_TEST_OWN") is None and getenv(b"LAB_TEST_HOST") == b"kept"
    finally:
        del os.environ["LAB_TEST_HOST"]


def test_each_rank_prints_to_its_own_output():
    def program() -> None:
        for step in range(3):
            print(f"step {step} of rank {dist.get_rank()}")
            dist.barrier()
        sys.stdout.write("end")

    run = launch(program, ranks=3)
    assert run.stdout == ["".join(f"step {step} of rank {rank}\n" for step in range(3)) + "end" for rank in range(3)]


@pytest.fixture
def nothing_set_aside(monkeypatch: pytest.MonkeyPatch):
    """As in a notebook: the tests' own process has frozen what was there when they began (tests/conftest.py)."""
    monkeypatch.setattr(gc, "get_freeze_count", inspect.unwrap(gc.get_freeze_count))  # which counts anew
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    if was_frozen:
        gc.freeze()


@pytest.mark.usefixtures("nothing_set_aside")
def test_the_collector_sets_aside_what_is_older_than_the_run_and_takes_it_back():
    is_set_aside = launch(lambda: gc.get_freeze_count() > 1000, ranks=2).values
    assert is_set_aside == [True, True] and gc.get_freeze_count() == 0
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        launch(lambda: None, ranks=2)
        assert gc.get_freeze_count() >= frozen - 10  # a program's own stay where they are
    finally:
        gc.unfreeze()


def test_each_rank_has_its_own_groups():
    def program() -> tuple[str, int, bool]:
        if dist.get_rank() == 0:
            dist.destroy_process_group()
            return "left", -1, dist.is_initialized()
        return dist.get_backend(), dist.get_world_size(), dist.is_initialized()

    assert launch(program, ranks=2).values == [("left", -1, False), ("sim", 2, True)]


def test_a_warning_on_a_rank_is_a_warning_and_not_lost():
    def program() -> None:
        warnings.warn(f"rank {dist.get_rank()} warns", stacklevel=1)

    with pytest.warns(UserWarning, match="rank . warns"):
        launch(program, ranks=2)


def test_tensors_of_inference_mode_take_part_in_collectives():
    def program() -> float:
        with torch.inference_mode(dist.get_rank() == 0):
            x = torch.ones(2)
            dist.all_reduce(x)
            return x.sum().item()

    assert launch(program, ranks=3).values == [6.0] * 3
