"""A rank has for itself what a process has for itself: nothing that one rank sets is seen by another, or afterwards."""

import ctypes
import gc
import inspect
import os
import random
import sys
import warnings

import numpy
import pytest
import torch
import torch.distributed as dist

from lablib import launch

pytestmark = pytest.mark.usefixtures("everything_is_given_back")


def test_seeding_one_rank_leaves_the_others_alone():
    def program(seeds: bool) -> list[float]:
        dist.barrier()
        if seeds and dist.get_rank() == 0:
            torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
        dist.barrier()
        return [torch.rand(()).item(), random.random(), numpy.random.rand()]

    undisturbed, disturbed = launch(program, False, ranks=3).values, launch(program, True, ranks=3).values
    assert undisturbed[1:] == disturbed[1:] and undisturbed[0] != disturbed[0]


def test_numbers_drawn_by_one_rank_are_not_missing_on_another():
    def program(greedy: bool) -> float:
        total = 0.0
        for _ in range(4):
            if greedy and dist.get_rank() == 0:
                torch.rand(1000)
            total += torch.rand(()).item()
            dist.barrier()
        return total

    assert launch(program, False, ranks=2).values[1] == launch(program, True, ranks=2).values[1]


def test_grad_mode_autocast_and_default_dtype_are_a_ranks_own():
    def program() -> tuple[bool, bool, torch.dtype, torch.dtype]:
        even = dist.get_rank() % 2 == 0
        torch.set_default_dtype(torch.float64 if even else torch.float32)
        with torch.set_grad_enabled(even), torch.autocast("cpu", dtype=torch.bfloat16, enabled=even):
            dist.barrier()
            product = torch.ones(2, 2, dtype=torch.float32) @ torch.ones(2, 2, dtype=torch.float32)
            return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.ones(1).dtype, product.dtype

    even = (True, True, torch.float64, torch.bfloat16)
    odd = (False, False, torch.float32, torch.float32)
    assert launch(program, ranks=4).values == [even, odd, even, odd]


def test_a_default_device_is_a_ranks_own():
    def program() -> str:
        if dist.get_rank() == 0:
            torch.set_default_device("meta")
        dist.barrier()
        device = torch.ones(1).device.type
        torch.set_default_device(None)
        return device

    assert launch(program, ranks=3).values == ["meta", "cpu", "cpu"]


def test_each_rank_sees_the_environment_of_torchrun():
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

    def program() -> list[int]:
        return [int(os.environ[name]) for name in names] + [int(os.getenv("RANK", "-1"))]

    values = launch(program, ranks=10, cluster="dgx-h100").values
    assert values[0] == [0, 0, 0, 10, 8, 0] and values[7] == [7, 7, 0, 10, 8, 7]
    assert values[8] == [8, 0, 1, 10, 2, 8] and values[9] == [9, 1, 1, 10, 2, 9]


def test_an_environment_variable_is_a_ranks_own():
    def program() -> tuple[str | None, bool]:
        if dist.get_rank() == 1:
            os.environ["LAB_TEST_OWN"] = "mine"
            del os.environ["HOME"]
        dist.barrier()
        return os.environ.get("LAB_TEST_OWN"), "HOME" in os.environ

    assert launch(program, ranks=3).values == [(None, True), ("mine", False), (None, True)]
    assert "LAB_TEST_OWN" not in os.environ and "HOME" in os.environ


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
