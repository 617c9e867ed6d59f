"""Garbage collection at the same steps on all ranks: which steps, the state afterwards, and the waiting it saves."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.process.garbage import SynchronizedCollection
from lablib.train import parse_config, with_overrides
from lablib.train.run import run
from tests.train.test_communication import NAMES, flat_cluster, measured

SMALL = {"model": {"num_layers": 1, "d_model": 16}, "data": {"batch_size": 4, "seq_len": 16}, "num_steps": 6}


@contextmanager
def automatic(is_on: bool) -> Iterator[None]:
    before = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        yield
    finally:
        (gc.enable if before else gc.disable)()


@given(every=st.integers(0, 5), is_on=st.booleans(), fails=st.booleans())
def test_the_collector_is_as_before_at_the_end(every: int, is_on: bool, fails: bool):
    with automatic(is_on):
        try:
            with SynchronizedCollection(every):
                assert gc.isenabled() == (is_on and not every)
                if fails:
                    raise ArithmeticError
        except ArithmeticError:
            pass
        assert gc.isenabled() == is_on


def steps_of_collections(every: int, fails_after: int = 0) -> tuple[list[int], bool]:
    """The steps during which full collections began, and whether collection is automatic afterwards.

    Each rank leaves another number of cycles in each step, so that automatic collections come at other times.
    """
    config = parse_config(with_overrides(SMALL, [f"memory.gc_every_steps={every}", "monitor.every=100"]))
    step, found = 0, list[int]()

    def attach(trainer: Any) -> None:
        def at_end(metrics: dict[str, Any]) -> None:
            nonlocal step
            step = metrics["step"]
            if step == fails_after:
                raise ArithmeticError
            for _ in range(20_000 * dist.get_rank()):
                cycle: list[Any] = []
                cycle.append(cycle)

        trainer.on_step.insert(0, at_end)

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2 and step:
            found.append(step)

    gc.enable()
    gc.callbacks.append(note)
    try:
        run(config, [attach])
    except ArithmeticError:
        assert fails_after
    finally:
        gc.callbacks.remove(note)
    return found, gc.isenabled()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "data"))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("every", "steps"), [(2, [2, 4, 6]), (4, [4])])
def test_real_ranks_collect_at_the_same_steps_and_at_no_others(every: int, steps: list[int]):
    assert launch(steps_of_collections, every, ranks=2, backend="gloo").values == [(steps, True)] * 2


@pytest.mark.usefixtures("cache")
def test_a_run_that_fails_gives_automatic_collection_back():
    assert launch(steps_of_collections, 2, 5, ranks=2, backend="gloo").values == [([2, 4], True)] * 2


# ---- stragglers ----

NUM_STEPS, PAUSED = 4, 200  # width of a product that stands for a collection: 2 x 200^3 / 1e9 = 0.016 s


def paused(is_together: bool, pause: Callable[[], Any]) -> list[dict[str, Any]]:
    """Rank r stops before the gradients of step r, or all ranks before those of step 0."""
    step = -1

    def before() -> None:
        nonlocal step
        step += 1
        if step == (0 if is_together else dist.get_rank()):
            pause()

    return measured([], NUM_STEPS, before)


def test_ranks_that_stop_together_wait_for_none():
    """Separately, each of 4 steps is longer by a pause, and each rank waits in 3; together, one step is longer."""

    def product() -> None:
        x = torch.zeros(PAUSED, PAUSED)
        torch.mm(x, x)

    pause_s = 2 * PAUSED**3 / 1e9
    separate, together = (launch(paused, each, product, ranks=4, cluster=flat_cluster()) for each in (False, True))
    for rank in range(4):
        assert together.timeline.waiting_s(rank) == pytest.approx(0, abs=1e-6)
        assert separate.timeline.waiting_s(rank) == pytest.approx(3 * pause_s, rel=0.01)
    longer_s = separate.timeline.makespan_s - together.timeline.makespan_s
    assert longer_s == pytest.approx(3 * pause_s, rel=0.01)


@pytest.mark.slow
def test_real_ranks_that_stop_together_wait_less():
    def waiting_s(is_together: bool) -> float:
        runs = launch(paused, is_together, lambda: time.sleep(1.5), ranks=2, backend="gloo").values
        return sum(step[NAMES[1]] for steps in runs for step in steps)

    assert waiting_s(is_together=True) < waiting_s(is_together=False)
