"""Limits on the CPU seconds of a block and of an answer: the message gives the reason and the line."""

import linecache
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import lablib.course.checks.time_limit as time_limit_module
from lablib.course.checks import trial
from lablib.course.checks.exercise import Exercise, exercise
from lablib.course.checks.expect import Expect
from lablib.course.checks.time_limit import TimeIsUp, time_limit
from lablib.course.checks.trial import run_check
from lablib.course.progress import Entry

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


class Machine:
    """Clocks that a test sets; each look moves them on, from when the block runs."""

    def __init__(self, cpu_s: float, clock_s: float) -> None:
        self.per_look = cpu_s, clock_s
        self.looks = 0
        self.block_runs = False

    def cpu(self) -> float:
        self.looks += self.block_runs
        return self.looks * self.per_look[0]

    def clock(self) -> float:
        return self.looks * self.per_look[1]


@given(
    cpu_s=st.sampled_from([0.0, 0.001, 0.2, 1.0, 8.0]),  # of each second of the clock
    clock_s=st.sampled_from([0.7, 10.0, 149.0, 400.0]),
)
@settings(max_examples=12, deadline=None)
def test_the_reason_is_the_limit_that_was_reached_first(cpu_s: float, clock_s: float):
    machine = Machine(cpu_s * clock_s, clock_s)
    looks_to_cpu = math.inf if not cpu_s else math.ceil(30 / (cpu_s * clock_s))
    reason = "cpu" if looks_to_cpu <= math.ceil(300 / clock_s) else "busy" if cpu_s > 0.01 else "waiting"
    with patch.object(time_limit_module, "_LONGEST_TICK_S", 1e-3), pytest.raises(TimeIsUp) as raised:
        with time_limit(30, 300, machine.cpu, machine.clock):
            machine.block_runs = True
            time.sleep(600)
    assert raised.value.reason == reason, (machine.looks, str(raised.value))


def test_on_a_busy_machine_a_block_has_its_cpu_seconds():
    """29 s of CPU in 290 s of the clock: ten other programs run."""
    machine = Machine(0.1, 1.0)
    with patch.object(time_limit_module, "_LONGEST_TICK_S", 1e-4), time_limit(30, 300, machine.cpu, machine.clock):
        machine.block_runs = True
        while machine.looks < 290:
            time.sleep(0.001)
        machine.per_look = 0.0, 0.0


def test_threads_and_processes_of_a_block_count():
    def burn() -> None:
        end_s = time.thread_time() + 0.3
        while time.thread_time() < end_s:
            pass

    before_s = time_limit_module.cpu_time_s()
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    after_thread_s = time_limit_module.cpu_time_s()
    assert after_thread_s - before_s >= 0.29
    program = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as child:
        assert child.stdout and child.stdin
        child.stdout.readline()
        while_it_lives_s = time_limit_module.cpu_time_s()
        child.communicate(b"\n")
    assert while_it_lives_s - after_thread_s >= 0.45
    assert time_limit_module.cpu_time_s() >= while_it_lives_s - 0.02  # it counts once, dead or alive


@pytest.mark.parametrize(
    ("block", "limits", "reason"),
    # Without child processes, which other tests have left at work.
    [(forever, (0.2, 300), "cpu"), (lambda: time.sleep(600), (30, 1.0, time.process_time), "waiting")],
)
def test_a_block_that_does_not_end_is_ended(block: Callable[[], None], limits: Any, reason: str):
    with pytest.raises(TimeIsUp, match="still running after .* of CPU") as raised, time_limit(*limits):
        block()
    assert raised.value.stack and raised.value.reason == reason


def test_code_that_catches_the_interrupt_is_interrupted_again():
    caught = []
    with pytest.raises(TimeIsUp), time_limit(30, 0.1):
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


def test_a_handler_of_the_signal_decides_for_itself():
    """`launch` ignores interrupts while it ends its ranks; one raised there would leave a rank behind."""
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        with pytest.raises(TimeIsUp), time_limit(30, 0.1):
            while len(caught) < 2:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == [signal.SIGINT] * 2


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
    result = run_check("90", called, forever, cpu_limit_s=0.2)
    assert (result.status, result.rule) == ("failed", "your code comes to its end")
    assert result.trace.splitlines()[-1] in ("line 3 in forever: while True:", "line 4 in forever: pass"), result


def test_a_rank_that_never_ends_is_told_with_its_line():
    def rank_1_stays(x: torch.Tensor) -> None:
        if dist.get_rank() == 1:
            forever()
        dist.all_reduce(x)

    result = run_check("90", launched, rank_1_stays, cpu_limit_s=0.5)
    assert (result.status, result.rule) == ("failed", "your code comes to its end")
    assert "rank 1" in result.saw and "forever" in result.saw, result


def sleeps(*values: object) -> None:
    time.sleep(600)


@pytest.mark.parametrize("check", [called, launched])
def test_an_answer_that_waits_is_not_asked_for_a_correction(check: Exercise):
    machine = Machine(0.0, 2.0)  # a look each 0.3 s
    machine.block_runs = True
    with patch.object(trial, "time_limit", lambda *limits: time_limit(3, 30, machine.cpu, machine.clock)):
        result = run_check("90", check, sleeps)
    assert (result.status, result.rule) == ("failed", "your code comes to its end")
    assert "waiting" in result.saw and "correct it" not in result.message, result


@pytest.mark.parametrize("check", [called, launched])
def test_an_answer_that_got_no_cpu_is_not_judged(check: Exercise):
    machine = Machine(0.1, 2.0)
    machine.block_runs = True
    with patch.object(trial, "time_limit", lambda *limits: time_limit(3, 30, machine.cpu, machine.clock)):
        result = run_check("90", check, sleeps)
    assert result.status == "not checked" and not result
    assert "busy" in result.message and "correct it" not in result.message, result
    entry = Entry().attempted("failed")
    assert entry.attempted(result.status) == entry
