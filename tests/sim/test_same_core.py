"""Ranks pass the turn on one core: bound to it while they sleep, free while they run."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.errors import LaunchError
from lablib.sim.ranks.turns import SameCore

CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
needs_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores and Linux")


def turns() -> list[set[int]]:
    """The cores that a rank may use after each of some turns, then of a thread and of a process that it starts."""
    found = [os.sched_getaffinity(0)]
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
        found.append(os.sched_getaffinity(0))
    thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    code = "import os; print(*os.sched_getaffinity(0))"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [*found, {int(core) for core in started.stdout.split()}]


@needs_cores
def test_a_rank_that_runs_and_all_that_it_starts_may_use_every_core():
    assert all(found == CORES for of_rank in launch(turns, ranks=3).values for found in of_rank)
    assert os.sched_getaffinity(0) == CORES


@needs_cores
def test_the_next_rank_wakes_on_the_core_of_the_one_before(monkeypatch: pytest.MonkeyPatch):
    bound: list[set[int]] = []
    bind = SameCore.bind

    def noted(cores: SameCore, thread_id: int) -> None:
        bind(cores, thread_id)
        bound.append(os.sched_getaffinity(thread_id))

    monkeypatch.setattr(SameCore, "bind", noted)
    launch(lambda: [dist.barrier() for _ in range(5)] and None, ranks=3)
    assert bound and all(len(cores) == 1 for cores in bound)


def fails() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.barrier()


def interrupted() -> None:
    dist.barrier()
    raise KeyboardInterrupt


@needs_cores
@pytest.mark.parametrize("program", [fails, interrupted])
def test_the_process_keeps_its_cores_when_a_run_fails(program):
    with pytest.raises((LaunchError, KeyboardInterrupt)):
        launch(program, ranks=3)
    assert {frozenset(os.sched_getaffinity(thread.native_id or 0)) for thread in threading.enumerate()} == {
        frozenset(CORES)
    }


@needs_cores
def test_a_process_that_may_use_one_core_stays_on_it():
    one = {min(CORES)}
    os.sched_setaffinity(0, one)
    try:
        assert all(found == one for of_rank in launch(turns, ranks=2).values for found in of_rank)
    finally:
        os.sched_setaffinity(0, CORES)


@given(st.sets(st.integers(0, 1023), min_size=2, max_size=40))
def test_a_mask_has_one_bit_per_core(cores: set[int]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
        made = SameCore()
    bits = int.from_bytes(made._every, "little")
    assert {core for core in range(1024) if bits >> core & 1} == cores and len(made._every) % 8 == 0
    assert all(int.from_bytes(mask, "little") == 1 << core for core, mask in made._single.items())


def test_a_system_without_affinities_runs_as_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert launch(lambda: dist.barrier() or dist.get_rank(), ranks=2).values == [0, 1]
