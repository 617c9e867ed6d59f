"""However a run ends - an interrupt, a limit, a rank that resists - it ends, and gives the process back."""

import logging
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib import LaunchError, LaunchTimeoutError, RankError, launch
from lablib.sim.ranks import ending
from lablib.sim.ranks.watchdog import Watchdog

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(30)]


def interrupt_after(delay_s: float, times: int = 1) -> None:
    """What the notebook's stop button does: SIGINT for the main thread, which a launch occupies."""

    def press() -> None:
        for _ in range(times):
            time.sleep(delay_s)
            signal.raise_signal(signal.SIGINT)

    threading.Thread(target=press, name="stop button").start()


def endless_loop() -> None:
    x = torch.zeros(2)
    while True:
        x += 1


def one_computes_and_the_others_wait() -> None:
    if dist.get_rank() == 1:
        endless_loop()
    dist.recv(torch.ones(2), src=1)


def everybody_polls() -> None:
    work = dist.irecv(torch.ones(2), src=1 - dist.get_rank())
    assert work is not None
    for _ in range(2_000_000_000):
        dist.all_reduce(torch.ones(1))


def catches_everything() -> None:
    while True:
        try:
            dist.barrier()
            while True:
                torch.ones(2)
        except:  # noqa: E722
            continue


@pytest.mark.parametrize(
    "program", [endless_loop, one_computes_and_the_others_wait, everybody_polls, catches_everything]
)
@pytest.mark.parametrize("trace", [True, False])
def test_an_interrupt_ends_every_rank_and_reaches_the_caller(program: Callable[[], None], trace: bool):
    interrupt_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        launch(program, ranks=2, trace=trace)


class PressesStop:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("program", [endless_loop, partial(time.sleep, 0.5)])
def test_an_interrupt_that_comes_in_a_finalizer_of_the_main_thread_is_not_lost(
    program: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    def look(watchdog: Watchdog) -> str:
        PressesStop()  # its KeyboardInterrupt is printed and dropped by Python
        return ""

    monkeypatch.setattr(Watchdog, "look", look)
    with pytest.raises(KeyboardInterrupt):
        launch(program, ranks=2, timeout_s=20)


def test_a_rank_sees_the_handler_of_interrupts_that_a_process_has():
    assert launch(lambda: signal.getsignal(signal.SIGINT), ranks=2).values == [signal.default_int_handler] * 2


def test_pressing_stop_again_and_again_still_ends_every_rank():
    interrupt_after(0.1, times=5)
    with pytest.raises(KeyboardInterrupt):
        try:
            launch(catches_everything, ranks=4)
        finally:
            while any(thread.name == "stop button" for thread in threading.enumerate()):
                try:
                    time.sleep(0.01)
                except KeyboardInterrupt:
                    pass


def test_stop_pressed_again_while_the_first_is_described_leaves_no_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lablib.sim.simulation.where_it_is", lambda _: signal.raise_signal(signal.SIGINT) or "here")
    interrupt_after(0.1)
    with pytest.raises(KeyboardInterrupt) as caught:
        launch(catches_everything, ranks=2)
    assert caught.value.__notes__ == ["here"]


def test_an_interrupt_runs_the_finally_blocks_of_every_rank():
    left: list[int] = []

    def program() -> None:
        try:
            dist.barrier()
            if dist.get_rank() == 0:
                endless_loop()
            dist.barrier()
        finally:
            left.append(dist.get_rank())

    interrupt_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        launch(program, ranks=3)
    assert sorted(left) == [0, 1, 2]


def test_a_time_limit_ends_an_endless_loop_and_names_rank_and_line():
    with pytest.raises(LaunchTimeoutError, match=r"timeout_s=0.2 s.*rank 1 was at") as caught:
        launch(one_computes_and_the_others_wait, ranks=2, timeout_s=0.2)
    first = endless_loop.__code__.co_firstlineno
    assert any(f"{Path(__file__).name}:{first + line}: " in str(caught.value) for line in (2, 3)), caught.value


def test_a_time_limit_that_is_not_reached_changes_nothing():
    assert launch(dist.get_rank, ranks=3, timeout_s=1e30).values == [0, 1, 2]


def test_a_rank_that_swallows_the_limit_is_ended_all_the_same():
    with pytest.raises(LaunchTimeoutError):
        launch(catches_everything, ranks=3, timeout_s=0.2)


def test_a_failure_is_told_even_when_the_other_ranks_swallow_every_exception():
    def program() -> None:
        if dist.get_rank() == 2:
            raise ValueError("the first failure")
        while True:
            try:
                dist.all_reduce(torch.ones(2))
            except:  # noqa: E722
                continue

    with pytest.raises(RankError, match="^rank 2 raised ValueError: the first failure"):
        launch(program, ranks=4)


def test_a_rank_cannot_go_on_communicating_after_another_failed():
    went_on: list[int] = []

    def program() -> None:
        if dist.get_rank() == 1:
            raise ValueError
        try:
            dist.barrier()
        except Exception:
            pass
        went_on.append(dist.get_rank())

    with pytest.raises(RankError):
        launch(program, ranks=3)
    assert went_on == []


def test_an_exit_with_code_0_is_a_normal_end_and_any_other_is_a_failure():
    def leave(code: Any) -> None:
        raise SystemExit(code)

    assert launch(leave, 0, ranks=2).values == [None, None]
    with pytest.raises(RankError, match="rank 0 raised SystemExit: 3") as caught:
        launch(leave, 3, ranks=2)
    assert isinstance(caught.value.__cause__, SystemExit)


def test_a_second_launch_at_the_same_time_is_refused_and_disturbs_nobody():
    refusals: list[BaseException] = []

    def program() -> float:
        other = threading.Thread(target=second)
        other.start()
        other.join()
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    def second() -> None:
        try:
            launch(dist.get_rank, ranks=2)
        except LaunchError as error:
            refusals.append(error)

    assert launch(program, ranks=2).values == [2.0, 2.0]
    assert len(refusals) == 2 and "one simulation runs at a time" in str(refusals[0])


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_launch_inside_a_rank_is_refused_on_every_backend(backend: str):
    def program() -> None:
        launch(dist.get_rank, ranks=2, backend=backend)

    with pytest.raises(LaunchError, match="inside a rank"):
        launch(program, ranks=2)


def test_a_launch_from_another_thread_than_the_main_one_works():
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.extend(launch(dist.get_rank, ranks=3).values))
    thread.start()
    thread.join()
    assert values == [0, 1, 2]


def test_a_rank_that_is_ended_while_it_logs_leaves_no_lock_behind():
    """Another thread of the program holds a handler's lock when the run ends, and gives it back a moment later."""

    class Quiet(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            pass

    handler, logger = Quiet(), logging.Logger("a program's")
    logger.addHandler(handler)
    lock = handler.lock
    assert lock is not None

    def program() -> None:
        def helper() -> None:
            with lock:
                started.set()
                time.sleep(0.2)  # the rank asks for the lock meanwhile
                with suppress(RuntimeError):
                    dist.barrier()  # ends the run: a rank communicates from one thread only
                time.sleep(0.5)  # the rank is to be ended meanwhile

        started = threading.Event()
        threading.Thread(target=helper).start()
        started.wait()
        logger.warning("waits for the lock")

    with pytest.raises(RankError, match="from one thread only"):
        launch(program, ranks=1)
    assert lock.acquire(timeout=10), "the lock is free again"
    lock.release()


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_rank_that_outlives_its_run_leaves_the_next_run_alone(monkeypatch: pytest.MonkeyPatch, is_interrupted: bool):
    """Its thread ends in the next run, and takes neither that run's process groups nor its turn."""
    ended = threading.Event()
    interrupt = ending.RankThread.interrupt

    def impatient(one: ending.RankThread) -> bool:
        if is_interrupted:
            raise KeyboardInterrupt
        return interrupt(one)

    def sleeps() -> None:
        try:
            time.sleep(1.0)  # cannot be ended
            dist.barrier()
        finally:
            threading.Timer(0.1, ended.set).start()

    def communicates() -> float:
        is_over = torch.zeros(1)
        while not is_over:
            dist.broadcast(is_over.fill_(ended.is_set()), 1)
        dist.all_reduce(is_over)
        return is_over.item()

    with monkeypatch.context() as patch:
        patch.setattr(ending, "_PATIENCE", 2)
        patch.setattr(ending.RankThread, "interrupt", impatient)
        with pytest.raises((LaunchTimeoutError, KeyboardInterrupt)):
            launch(sleeps, ranks=1, timeout_s=0.05)
    assert launch(communicates, ranks=3).values == [3.0, 3.0, 3.0]
