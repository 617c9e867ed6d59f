"""Ranks take turns: each is a thread, exactly one runs, and control passes only where a rank must wait.

A real cluster runs its ranks at the same time, so what one sees of another depends on chance. Here a rank runs until it
must wait (a collective, a receive, `wait`, `barrier`); then the runnable rank with the smallest virtual clock goes on,
ties to the lowest rank. From that follow three things:

    deterministic    the order depends on the program alone, never on the host
    no locks         nothing else runs while a rank's Python code does
    deadlock seen    no runnable rank and not all finished *is* a deadlock

Passing control is one lock released and one acquired: about 10 us. A rank that polls (`while not work.is_completed()`)
yields too; when nobody but pollers is left, nobody can make the poll come true, and that is a deadlock as well.

An error on one rank ends the run: every other rank is woken, one at a time, with `RunEnded` raised where it waits, so
that its `finally` blocks run and no thread is left.
"""

import ctypes
import heapq
import threading
from collections.abc import Callable
from typing import Protocol

from lablib.errors import DeadlockError, Wait


class RunEnded(BaseException):
    """Raised inside a rank to unwind it when the run is over. Not an Exception: a program must not swallow it."""


class Turn(Protocol):
    """What the scheduler needs of a rank: its number, its clock, what to do when its turn begins and ends."""

    rank: int
    clock_s: float

    def enter(self) -> None: ...

    def leave(self) -> None: ...


class _Seat:
    """One rank's thread and what it waits for."""

    def __init__(self, turn: Turn):
        self.turn = turn
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: threading.Thread | None = None
        self.waiting: Callable[[], Wait] | None = None
        self.is_polling = False
        self.has_finished = False


class Scheduler:
    """Runs one body a rank, one at a time. Use once.

    Args:
        turns: one for each rank, in rank order.
    """

    def __init__(self, turns: list[Turn]):
        self._seats = [_Seat(turn) for turn in turns]
        self._runnable: list[tuple[float, int]] = []
        self._num_polls = 0
        self._over = threading.Event()
        self._ending = False
        self.error: BaseException | None = None
        self.current: int = -1

    # ---- called from outside the ranks ----

    def run(self, body: Callable[[int], None], on_error: Callable[[int, BaseException], BaseException], timeout_s=None):
        """Run `body(rank)` on every rank until all have returned or one has failed.

        Returns True, or False when `timeout_s` of real time ran out first (ranks are left as they are: call `end`).
        The error that ended the run, as `on_error(rank, exception)` made it, is in `self.error`.
        """
        for seat in self._seats:
            name = f"sim rank {seat.turn.rank}"
            seat.thread = threading.Thread(target=self._thread, args=(seat, body, on_error), name=name, daemon=True)
            heapq.heappush(self._runnable, (seat.turn.clock_s, seat.turn.rank))
        for seat in self._seats:
            assert seat.thread is not None
            seat.thread.start()
        self._hand_over()
        return self._over.wait(timeout_s)

    def end(self) -> None:
        """Unwind every rank that has not finished, one after another, and wait for its thread."""
        self._ending = True
        for seat in self._seats:
            thread = seat.thread
            if thread is None:
                continue
            if not seat.has_finished and self.current == seat.turn.rank and thread.ident is not None:
                # It runs Python code of its own: have the interpreter raise there.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(RunEnded))
                thread.join()
        for seat in self._seats:
            if seat.thread is not None and seat.thread.is_alive():
                if not seat.has_finished:
                    self.current = seat.turn.rank
                    seat.wake.release()
                seat.thread.join()

    def running_rank(self) -> tuple[int, int | None]:
        """The rank whose turn it is, and its thread's identity."""
        thread = self._seats[self.current].thread
        return self.current, thread.ident if thread else None

    # ---- called from the rank whose turn it is ----

    def check(self) -> None:
        """Raise `RunEnded` when the run is over: a rank that is being unwound must not communicate."""
        if self._ending:
            raise RunEnded

    def wait(self, describe: Callable[[], Wait]) -> None:
        """Give up the turn until somebody calls `wake_up` for this rank. `describe` says what for, if nobody can."""
        seat = self._seats[self.current]
        seat.waiting = describe
        self._switch(seat)
        seat.waiting = None

    def poll(self, describe: Callable[[], Wait]) -> None:
        """Give up the turn once; go on when every other runnable rank has had one."""
        seat = self._seats[self.current]
        others = [rank for _, rank in self._runnable if not self._seats[rank].is_polling]
        # Two rounds in which only pollers had a turn: what they poll for cannot happen any more.
        self._num_polls = 0 if others else self._num_polls + 1
        seat.waiting, seat.is_polling = describe, True
        if self._num_polls > 2 * len(self._seats):
            raise self._deadlock()
        last_clock_s = max((clock_s for clock_s, _ in self._runnable), default=0.0)
        heapq.heappush(self._runnable, (max(seat.turn.clock_s, last_clock_s), seat.turn.rank))
        self._switch(seat)
        seat.waiting, seat.is_polling = None, False

    def wake_up(self, rank: int) -> None:
        """Make a waiting rank runnable. It goes on when its turn comes; the caller keeps the turn."""
        heapq.heappush(self._runnable, (self._seats[rank].turn.clock_s, rank))

    # ---- the baton ----

    def _switch(self, seat: _Seat) -> None:
        self.check()
        if not self._runnable:
            raise self._deadlock()
        if self._runnable[0][1] == seat.turn.rank:
            heapq.heappop(self._runnable)
            return
        seat.turn.leave()
        self._hand_over()
        seat.wake.acquire()
        seat.turn.enter()
        self.check()

    def _hand_over(self) -> None:
        _, rank = heapq.heappop(self._runnable)
        self.current = rank
        self._seats[rank].wake.release()

    def _thread(self, seat: _Seat, body: Callable[[int], None], on_error) -> None:
        seat.wake.acquire()
        seat.turn.enter()
        try:
            self.check()
            body(seat.turn.rank)
        except RunEnded:
            pass
        except BaseException as error:  # noqa: B036 - whatever a rank raises ends the run and is raised by the launch
            self._fail(on_error(seat.turn.rank, error))
        finally:
            seat.has_finished = True
            seat.turn.leave()
            self._finish()

    def _finish(self) -> None:
        """This rank's thread is done: hand over, or end the run."""
        if self._ending or self.error is not None:
            self._over.set()
        elif self._runnable:
            self._hand_over()
        elif all(seat.has_finished for seat in self._seats):
            self._over.set()
        else:
            self._fail(self._deadlock())
            self._over.set()

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self._ending = True

    def _deadlock(self) -> DeadlockError:
        waits = []
        for seat in self._seats:
            if seat.waiting is not None:
                waits.append(seat.waiting())
            elif seat.has_finished:
                waits.append(Wait(seat.turn.rank, "has finished"))
        stuck = sum(not seat.has_finished for seat in self._seats)
        finished = len(self._seats) - stuck
        headline = f"deadlock: {stuck} of {len(self._seats)} ranks wait and none can go on"
        if finished:
            headline += f"; {finished} returned without joining them"
        return DeadlockError(headline + ".", waits)
