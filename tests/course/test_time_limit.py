"""A limit on the seconds of a block, and on an answer that never ends: where it stood is said."""

import linecache
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib.course.exercise import exercise
from lablib.course.expect import Expect
from lablib.course.time_limit import TimeIsUp, time_limit
from lablib.course.trial import run_check

CELL: str = """
def forever(*values):
    while True:
        pass
"""
NAMES: dict[str, Any] = {}
exec(compile(CELL, "<cell 7>", "exec"), NAMES)
forever = NAMES["forever"]  # as in a notebook, not in the file of the check


def test_a_block_that_ends_in_time_is_left_alone():
    with time_limit(60):
        value = sum(range(10))
    assert value == 45
    with pytest.raises(KeyError), time_limit(60):
        raise KeyError("mine")


@pytest.mark.parametrize("block", [forever, lambda: time.sleep(600)])
def test_a_block_that_does_not_end_is_ended(block):
    with pytest.raises(TimeIsUp, match="still running after 0.2 s") as raised, time_limit(0.2):
        block()
    assert raised.value.stack


def test_code_that_catches_the_interrupt_is_interrupted_again():
    caught = []
    with pytest.raises(TimeIsUp), time_limit(0.1):
        for _ in range(2):
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                caught.append(1)
    assert caught == [1, 1]


def test_where_the_signal_is_ignored_a_loop_is_ended_all_the_same():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(TimeIsUp), time_limit(0.2):
            forever()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_users_own_interrupt_passes_through():
    with pytest.raises(KeyboardInterrupt), time_limit(60):
        raise KeyboardInterrupt


@exercise("Called here")
def called(expect: Expect, answer):
    answer(3)


@exercise("Called on ranks")
def launched(expect: Expect, answer):
    expect.launch(answer, torch.ones(2), ranks=3)


def test_an_answer_that_never_ends_is_told_where_it_stood():
    linecache.cache["<cell 7>"] = (len(CELL), None, [*CELL.splitlines(keepends=True)], "<cell 7>")
    result = run_check("90", called, forever, limit_s=0.2)
    assert (result.status, result.rule) == ("failed", "your code comes to its end")
    assert result.trace.splitlines()[-1] in ("line 3 in forever: while True:", "line 4 in forever: pass"), result


def test_a_rank_that_never_ends_is_told_with_its_line():
    def rank_1_stays(x: torch.Tensor) -> None:
        if dist.get_rank() == 1:
            forever()
        dist.all_reduce(x)

    result = run_check("90", launched, rank_1_stays, limit_s=0.5)
    assert (result.status, result.rule) == ("failed", "your code comes to its end")
    assert "rank 1" in result.saw and "forever" in result.saw, result
