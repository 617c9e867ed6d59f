"""What launch refuses, in one sentence at once: nothing has run, and the next launch works."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import numpy
import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import LaunchError, RankError, launch

ODD = [
    None,
    5,
    -1,
    0,
    2**63,
    10**5000,
    1.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    "",
    "four",
    b"x",
    [],
    [None],
]
ODD += [{}, object(), numpy.zeros(3), numpy.float64(2), complex(1, 2), lambda: None]


async def coroutine() -> None: ...


async def async_generator() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


class Called:
    async def __call__(self) -> None: ...

    async def method(self) -> None: ...

    @classmethod
    def generator(cls) -> Iterator[int]:
        yield 1


NOT_RUN_BY_A_CALL: dict[str, tuple[Any, str]] = {
    "async function": (coroutine, "an async function"),
    "async generator": (async_generator, "an async generator"),
    "generator": (generator, "a generator function"),
    "partial": (partial(partial(coroutine)), "an async function"),
    "async call": (Called(), "an async function"),
    "async method": (Called().method, "an async function"),
    "generator of a class": (Called.generator, "a generator function"),
}


@pytest.mark.parametrize("name", NOT_RUN_BY_A_CALL)
@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_function_whose_call_does_not_run_its_body_is_refused(name: str, backend: str):
    fn, what = NOT_RUN_BY_A_CALL[name]
    with pytest.raises(TypeError, match=f"launch runs plain functions: .* is {what}; "):
        launch(fn, ranks=2, backend=backend)


@pytest.mark.parametrize("fn", [coroutine, async_generator, generator])
def test_a_body_that_has_not_run_is_no_value(fn: Callable[[], Any]):
    with pytest.raises(RankError, match="rank 0 raised TypeError: the program returned .* but its body has not run"):
        launch(lambda: fn(), ranks=2)


def test_a_coroutine_that_the_program_runs_itself_is_fine():
    async def answer() -> int:
        await asyncio.sleep(0)
        return dist.get_rank()

    assert launch(lambda: asyncio.run(answer()), ranks=2).values == [0, 1]


@settings(max_examples=150)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.sampled_from(ODD)
            for name in ("ranks", "cluster", "backend", "timeout_s", "fidelity", "faults", "trace")
        },
    )
)
def test_any_argument_of_any_type_is_refused_by_name_or_works(arguments: dict[str, Any]):
    """The message says what is wrong with which argument; the few that are right (no faults, no limit) run."""
    try:
        run = launch(dist.get_rank, **{"ranks": 2, **arguments})
    except (ValueError, TypeError) as error:
        assert len(str(error)) < 1000 and "got" in str(error) or "unknown" in str(error), error
    else:
        assert run.values == list(range(arguments.get("ranks", 2)))


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_trace_is_a_switch(backend: str):
    with pytest.raises(TypeError, match="trace must be True or False: got 'no'"):
        launch(dist.get_rank, ranks=1, backend=backend, trace="no")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("ranks", [2**63, 10**5000, 16_385], ids=["2**63", "10**5000", "one more"])
def test_more_ranks_than_a_process_has_threads_are_refused(ranks: int):
    with pytest.raises(ValueError, match="ranks on sim are threads of one process, at most 16,384: got"):
        launch(dist.get_rank, ranks=ranks)
    with pytest.raises(ValueError, match="ranks on gloo are processes of one machine, at most 1,024: got"):
        launch(dist.get_rank, ranks=ranks, backend="gloo")


def test_a_machine_that_starts_no_more_threads_says_how_many_it_could(monkeypatch: pytest.MonkeyPatch):
    start = threading.Thread.start

    def fail_at_the_third(thread: threading.Thread) -> None:
        if thread.name == "sim rank 2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_the_third)
    with pytest.raises(LaunchError, match="got ranks=4, and 2 could start; try ranks=1"):
        launch(dist.get_rank, ranks=4)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sim rank")]
    assert launch(dist.get_rank, ranks=2).values == [0, 1]


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300, 10**400], ids=str)
def test_a_limit_beyond_all_time_is_none(timeout_s: float):
    assert launch(dist.get_rank, ranks=2, timeout_s=timeout_s).values == [0, 1]
