"""Run ranks as threads in turns: exactly one runs, until it must wait.

The engine chooses the next rank and detects deadlocks (lablib/engine/scheduler.py). Here the turn is a baton: passing
it is one lock released and one acquired, about 10 us.

An error on one rank ends the run: every other rank is woken, one at a time, with `RunEnded` raised where it waits, so
that its `finally` blocks run and no thread is left. A deadlock or a mismatch ends it the same way, and is not raised
inside a rank: on a real cluster it would be a hang, which no `except` can catch either.
"""

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from types import FrameType
from typing import NoReturn

from lablib.engine.scheduler import Scheduler
from lablib.errors import DeadlockError, LaunchError, RankError, Wait
from lablib.process.thread_frames import thread_frames
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.threads import owner as owner_of
from lablib.sim.ranks.threads import set_owner, wait_to_be_run
from lablib.sim.ranks.watchdog import Watchdog, end_wait
from lablib.sim.source import handling, is_program, program_line

THREAD_NAME = "sim rank"
_TURNS = 100  # number of turns on the same core after a move
_SLICE_S = 0.2  # largest delay until an interrupt is noticed
_STEP_S = 0.02  # polling interval for a rank that is being ended
_MAX_REFUSALS = 10  # refused communications after which a rank counts as catching everything
_UNWINDING_S = 0.5  # time for a rank's `finally` blocks before the next interrupt
_PATIENCE_S = 5.0  # time after which a rank in a long call outside Python is abandoned


class RunEnded(BaseException):
    """Raised inside a rank to unwind it when the run ends. Not an Exception, which a program might catch."""


class RunEndedForGood(RunEnded):
    """The same for a program that catches everything: the next line that it runs raises again.

    Every frame of the program gets a trace function, as set by a debugger, that raises. Python removes a trace function
    once it has raised, so each of these leaves one `try` block.
    """

    def __init__(self) -> None:
        super().__init__()
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not Turns._thread.__code__:
            if is_program(frame):
                frame.f_trace = _raise_again
            frame = frame.f_back
        sys.settrace(_raise_again)


def _raise_again(frame: FrameType, event: str, arg: object) -> Callable | None:
    if event == "line" and is_program(frame):
        raise RunEnded
    return _raise_again if event != "call" else None


class _Seat:
    """One rank's thread."""

    def __init__(self, rank: Rank):
        self.rank = rank
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: threading.Thread | None = None
        self.ident = 0  # thread identity, once it runs
        self.native_id = 0  # thread id of the operating system
        self.has_turn = False
        self.is_unwinding = False
        self.num_refusals = 0
        self.has_finished = False


class Turns:
    """Runs one body per rank, one at a time. Use once.

    Args:
        ranks: in rank order.
        scheduler: chooses the next rank.
        error_of: makes the error for a run in which no rank can go on, from a headline and the waits of all ranks.
    """

    def __init__(
        self,
        ranks: Sequence[Rank],
        scheduler: Scheduler,
        error_of: Callable[[str, Sequence[Wait]], LaunchError] = DeadlockError,
    ):
        self._scheduler = scheduler
        self._error_of = error_of
        self._seats = {rank.rank: _Seat(rank) for rank in ranks}
        self._cores = SameCore()
        self._num_calls = 0
        self._over = threading.Event()
        self._ending = False
        self.is_closed = False
        self.error: BaseException | None = None

    @property
    def current(self) -> int:
        """The rank that has the turn."""
        return self._scheduler.current

    def clock_s(self, rank: int) -> float:
        """Virtual time that a rank has reached."""
        return self._scheduler.clock_s(rank)

    # ---- called from outside the ranks ----

    def run(self, body: Callable[[int], None], on_error: Callable[[int, BaseException], BaseException], timeout_s=None):
        """Run `body(rank)` on every rank until all have returned or one has failed.

        Returns True, or False if `timeout_s` of real time passed first (ranks are left as they are: call `end`). The
        error that ended the run, as made by `on_error(rank, exception)`, is in `self.error`.
        """
        for seat in self._seats.values():
            name = f"{THREAD_NAME} {seat.rank.rank}"
            seat.thread = threading.Thread(target=self._thread, args=(seat, body, on_error), name=name, daemon=True)
            set_owner(seat.thread, seat.rank.rank)
        for seat in self._seats.values():
            assert seat.thread is not None
            try:
                seat.thread.start()
            except RuntimeError as error:
                raise LaunchError(
                    f"a rank is a thread, and this machine starts no more of them: got ranks={len(self._seats)}, and "
                    f"{seat.rank.rank} could start; try ranks={max(1, seat.rank.rank // 2)}"
                ) from error
        first = self._scheduler.next()
        assert first is not None
        self._give_turn(self._seats[first])
        deadline_s = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
        threads = [seat.thread for seat in self._seats.values() if seat.thread]
        watchdog = Watchdog(lambda: self._num_calls, self.running_rank, threads)
        # In slices, to notice an interrupt that does not wake a waiting thread (`_thread.interrupt_main`).
        while not self._over.wait(min(_SLICE_S, max(0.0, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                return False
            if reason := watchdog.look():
                self._end_with(self._deadlock(reason))
        return True

    def end(self) -> list[int]:
        """Unwind every rank that has not finished, one after another, and wait for its thread.

        Returns the ranks that could not be ended: their threads are in a long call outside Python.
        """
        self._ending = True
        stuck: list[int] = []
        left = list(self._seats.values())
        while left:
            seat = next((seat for seat in left if seat.has_turn), None)
            if seat is None:
                seat = left[0]
                seat.is_unwinding = True
                self._scheduler.current = seat.rank.rank
                self._give_turn(seat)  # it waits, and then raises RunEnded
            deadline_s = time.monotonic() + _PATIENCE_S
            self._interrupt(seat, deadline_s)
            if not _is_alive(seat):
                left.remove(seat)
            elif time.monotonic() >= deadline_s:
                left.remove(seat)
                stuck.append(seat.rank.rank)
        self.is_closed = True
        return stuck

    def _interrupt(self, seat: _Seat, deadline_s: float) -> None:
        """Raise `RunEnded` in a running rank, by the interpreter, until it has ended or passed its turn.

        A rank that is already unwinding first gets time to finish.
        """
        next_s = time.monotonic() + (_UNWINDING_S if seat.is_unwinding else 0.0)
        while seat.has_turn and _is_alive(seat) and time.monotonic() < deadline_s:
            is_free = not _takes_a_lock_of_logging(seat) or time.monotonic() > deadline_s - _PATIENCE_S / 2
            if time.monotonic() >= next_s and not seat.has_finished and is_free:
                _raise_in(seat, RunEndedForGood if seat.is_unwinding else RunEnded)
                next_s = time.monotonic() + _UNWINDING_S
                seat.is_unwinding = True
            assert seat.thread is not None
            seat.thread.join(_STEP_S)

    def running_rank(self) -> tuple[int, int | None]:
        """The rank that has the turn, and its thread's identity."""
        thread = self._seats[self.current].thread
        return self.current, thread.ident if thread else None

    # ---- called from the current rank ----

    def check(self, owner: int | None = None) -> None:
        """Raise `RunEnded` when the run is over: a rank that is being unwound must not communicate.

        Args:
            owner: the rank that owns the used group or handle. Using another rank's ends the run.

        Raises RuntimeError, and ends the run, in a thread that the program started itself.
        """
        current = self._scheduler.current
        seat = self._seats[current]
        self._num_calls += 1
        if seat.ident != threading.get_ident():
            self._refuse_thread()
        if self._ending:
            seat.is_unwinding = True
            seat.num_refusals += 1
            raise RunEndedForGood if seat.num_refusals > _MAX_REFUSALS else RunEnded
        if owner is not None and owner != current:
            self.fail(_foreign(current, owner))

    def _refuse_thread(self) -> NoReturn:
        """End the run for a thread that communicates instead of the rank that started it."""
        thread = threading.current_thread()
        started_by = owner_of(thread)
        rank = self.current if started_by is None else started_by
        place = str(program_line())
        error = RuntimeError(
            f"a simulated rank communicates from one thread only: the thread {thread.name!r}, which the program "
            f"started, communicates in the place of rank {rank}{f' ({place})' if place else ''}; "
            f"call torch.distributed from the function that was launched"
        )
        if not self._ending:
            self._end_with(_told(RankError, rank, error))
        raise error

    def fail(self, error: BaseException) -> NoReturn:
        """End the run with this error, from the current rank."""
        self._fail(error)
        raise RunEnded

    def wait(self, describe: Callable[[], Wait], joins: bool = True) -> None:
        """Give up the turn until this rank is woken. Arguments: see Scheduler.wait."""
        self._scheduler.wait(_with_handling(describe), joins)
        self._switch()

    def poll(self, describe: Callable[[], Wait], until_s: float = inf) -> bool:
        """Give up the turn once; go on when every other runnable rank has had one.

        Returns whether the poll has timed out at the virtual time `until_s`: no rank can act before it.
        """
        if not self._scheduler.poll(_with_handling(describe), until_s):
            self.fail(self._deadlock())
        self._switch()
        return self._scheduler.time_is_up(until_s)

    def yield_turn(self, at_s: float) -> None:
        """Go on when every rank has run as far as it can before `at_s`."""
        self._scheduler.yield_turn(at_s)
        self._switch()

    def progress(self) -> None:
        """Note a change that a polling rank may see."""
        self._scheduler.progress()

    # ---- the baton ----

    def _switch(self) -> None:
        self.check()
        seat, next_rank = self._seats[self._scheduler.current], self._scheduler.next()
        if next_rank is None:
            self.fail(self._deadlock())
        if next_rank == seat.rank.rank:
            return
        seat.rank.leave()
        self._give_turn(self._seats[next_rank], seat)
        seat.wake.acquire()
        self._cores.free()
        seat.rank.enter()
        self.check()

    def _give_turn(self, seat: _Seat, giver: _Seat | None = None) -> None:
        self._num_calls += 1
        seat.has_turn = True
        if giver is not None:
            giver.has_turn = False
            self._cores.bind(seat.native_id)
        seat.wake.release()

    def _thread(self, seat: _Seat, body: Callable[[int], None], on_error) -> None:
        seat.ident, seat.native_id = threading.get_ident(), threading.get_native_id()
        wait_to_be_run()
        try:
            seat.wake.acquire()
            self._cores.free()
            self._guard(seat, on_error, self._live, seat, body)
            seat.has_finished = True
            if not self.is_closed:  # otherwise the process has its state back, and this thread is a leftover
                self._guard(seat, on_error, seat.rank.leave)
            self._guard(seat, on_error, self._finish, seat)
        except RunEnded:
            self._over.set()  # `end` came while this thread was ending by itself

    def _guard(self, seat: _Seat, on_error, step: Callable[..., None], *args: object) -> None:
        """Run a step. Any exception, except from the run's end, ends the run with an error: none is lost."""
        try:
            step(*args)
        except BaseException as error:  # noqa: B036 - whatever a rank raises ends the run, and the launch raises it
            if not self._ending:
                self._fail(_told(on_error, seat.rank.rank, error))

    def _live(self, seat: _Seat, body: Callable[[int], None]) -> None:
        seat.rank.enter()
        self.check()
        body(seat.rank.rank)

    def _finish(self, seat: _Seat) -> None:
        """End this rank's thread: pass the turn, or end the run."""
        if self._ending:
            self._over.set()
            return
        self._scheduler.finish()
        if (next_rank := self._scheduler.next()) is not None:
            self._give_turn(self._seats[next_rank], seat)
        elif self._scheduler.is_over:
            self._over.set()
        else:
            self._fail(self._deadlock())

    def _fail(self, error: BaseException) -> None:
        self._seats[self.current].is_unwinding = True
        self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        if self.error is None and not self._ending:
            self.error = error
        self._ending = True
        self._over.set()

    def _deadlock(self, reason: str = "") -> LaunchError:
        headline, waits = self._scheduler.stuck()
        return self._error_of(f"deadlock: {reason}" if reason else f"deadlock: {headline}.", waits)


def _with_handling(describe: Callable[[], Wait]) -> Callable[[], Wait]:
    """Add the exception that the rank is handling at the wait."""
    text = handling()
    return partial(_adding, describe, text) if text else describe


def _adding(describe: Callable[[], Wait], text: str) -> Wait:
    wait = describe()
    return replace(wait, why=wait.why + text) if wait.why else replace(wait, what=wait.what + text)


def _foreign(rank: int, owner: int) -> LaunchError:
    """The error for a rank that uses state of another rank's process."""
    return LaunchError(
        f"rank {rank} uses a process group or the handle of a communication that belongs to rank {owner} "
        f"({program_line()}): it reached rank {rank} through a global, a default argument or another shared object, "
        f"and processes share none; let each rank use its own."
    )


def _told(on_error: Callable[[int, BaseException], BaseException], rank: int, error: BaseException) -> BaseException:
    """The error from `on_error`, which calls the program's exception class; that may raise again."""
    try:
        return on_error(rank, error)
    except BaseException:  # noqa: B036 - then the error as it is
        return RankError(rank, error)


def _is_alive(seat: _Seat) -> bool:
    return seat.thread is not None and seat.thread.is_alive()


def _takes_a_lock_of_logging(seat: _Seat) -> bool:
    """Whether the thread is between the request for a logging handler's lock and the `try` that releases it.

    An exception raised there would leave the lock held for ever, and block every later message of this process.
    """
    frame = thread_frames().get(seat.thread.ident or 0) if seat.thread is not None else None
    code = frame.f_code if frame is not None else None
    return code is not None and code.co_filename == logging.__file__ and code.co_name in ("acquire", "handle")


def _raise_in(seat: _Seat, error: type[RunEnded]) -> None:
    """Raise an exception in the seat's thread, at its next Python instruction."""
    thread = seat.thread
    if thread is not None and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))
        end_wait(thread.ident)


class SameCore:
    """Pass the turn from rank to rank on one processor core. Does nothing on one core, or without Linux.

    Linux wakes a thread on an idle core if there is one: turns would move from core to core and leave their caches. So
    a sleeping thread is bound to the core of its waker, and is free again once it runs: its computation, and threads
    and processes that it starts, may use every core. The two system calls take about 10 us per turn, so threads are
    bound only while turns move; on a busy machine they stay where they are.

    Simplified: a rank that binds itself (`os.sched_setaffinity`) loses that with its next turn.
    """

    def __init__(self) -> None:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._is_used = len(cores) > 1
        if self._is_used:
            self._libc = ctypes.PyDLL(None)  # keeps the interpreter lock, which is faster than releasing it
            self._size = max(cores) // 64 * 8 + 8  # bytes of a mask: whole words
            self._every = self._mask(cores)
            self._single = {core: self._mask({core}) for core in cores}
        self._core, self._turns_left, self._is_bound = -1, 0, False

    def _mask(self, cores: set[int]) -> bytes:
        return sum(1 << core for core in cores).to_bytes(self._size, "little")

    def bind(self, thread_id: int) -> None:
        """Make a sleeping thread wake up on this core. `thread_id` is its `threading.get_native_id()`."""
        if self._is_used and thread_id:
            core = self._libc.sched_getcpu()
            if core != self._core:
                self._core, self._turns_left = core, _TURNS
            if self._turns_left and core in self._single:
                self._turns_left -= 1
                self._is_bound = self._libc.sched_setaffinity(thread_id, self._size, self._single[core]) == 0

    def free(self) -> None:
        """Let the calling thread run on every core again."""
        if self._is_bound:
            self._is_bound = False
            self._libc.sched_setaffinity(0, self._size, self._every)
