"""Ranks take turns: each is a thread, exactly one runs, and control passes only where a rank must wait.

A real cluster runs its ranks at the same time, so what one sees of another depends on chance. Here a rank runs until it
must wait (a collective, a receive, `wait`, `barrier`); then the runnable rank with the smallest virtual clock goes on,
ties to the lowest rank; or, when an event on the wires comes before that (network.py), the event happens first: whoever
runs later can only start what comes after it. From that follow three things:

    deterministic    the order depends on the program alone, never on the host
    no locks         nothing else runs while a rank's Python code does
    deadlock seen    no runnable rank and not all finished *is* a deadlock

Passing control is one lock released and one acquired: about 10 us. A rank that polls (`while not work.is_completed()`)
yields too; when nobody but pollers is left, nobody can make the poll come true, and that is a deadlock as well.

An error on one rank ends the run: every other rank is woken, one at a time, with `RunEnded` raised where it waits, so
that its `finally` blocks run and no thread is left. A deadlock or a mismatch ends it the same way, and is not raised
inside a rank: on a real cluster it would be a hang, which no `except` can catch either.
"""

import ctypes
import heapq
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from types import FrameType
from typing import NoReturn, Protocol

from lablib.errors import DeadlockError, LaunchError, RankError, Wait
from lablib.sim.source import handling, is_program, program_line
from lablib.sim.threads import owner as owner_of
from lablib.sim.threads import set_owner
from lablib.sim.watchdog import Watchdog, end_wait
from lablib.units import plural

THREAD_NAME = "sim rank"
_AT_ONCE, _GIVING_WAY = 0, 1  # among those with the same clock: who goes on, who lets the others go first
_MAX_IDLE_POLLS = 10_000  # this many polls in a row, with nothing happening in between, are a deadlock
_SLICE_S = 0.2  # how soon an interrupt is noticed, at the latest
_STEP_S = 0.02  # how often a rank that is being ended is looked at
_MAX_REFUSALS = 10  # a rank whose communication is refused so often, and goes on, catches everything
_UNWINDING_S = 0.5  # what a rank gets for its `finally` blocks before it is interrupted again
_PATIENCE_S = 5.0  # after which a rank that no exception reaches (a long call outside Python) is given up


class RunEnded(BaseException):
    """Raised inside a rank to unwind it when the run is over. Not an Exception: a program must not swallow it."""


class RunEndedForGood(RunEnded):
    """The same for a program that catches everything and goes on: the next line that it runs raises again.

    Every frame of the program gets a trace function, as a debugger would set one, and that raises. Python takes a trace
    function away once it has raised, so one of these leaves one `try` block.
    """

    def __init__(self) -> None:
        super().__init__()
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not Scheduler._thread.__code__:
            if is_program(frame):
                frame.f_trace = _raise_again
            frame = frame.f_back
        sys.settrace(_raise_again)


def _raise_again(frame: FrameType, event: str, arg: object) -> Callable | None:
    if event == "line" and is_program(frame):
        raise RunEnded
    return _raise_again if event != "call" else None


class Turn(Protocol):
    """What the scheduler needs of a rank: its number, its clock, what to do when its turn begins and ends."""

    rank: int
    clock_s: float

    def enter(self) -> None: ...

    def leave(self) -> None: ...


class Network(Protocol):
    """What happens in virtual time by itself: when next, and let it happen. It wakes those who wait for it."""

    @property
    def next_s(self) -> float | None: ...

    @property
    def lets_ranks_go_first(self) -> bool: ...

    def advance(self) -> None: ...


class _Seat:
    """One rank's thread and what it waits for."""

    def __init__(self, turn: Turn):
        self.turn = turn
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: threading.Thread | None = None
        self.waiting: Callable[[], Wait] | None = None
        self.until_s = inf
        self.time_is_up = False
        self.is_polling = False
        self.handling = ""
        self.joins = True
        self.has_turn = False
        self.is_unwinding = False
        self.num_refusals = 0
        self.has_finished = False


class Scheduler:
    """Runs one body a rank, one at a time. Use once.

    Args:
        turns: one for each rank, in rank order.
        network: the transfers under way.
        blame: makes the error for a run in which no rank can go on, from a headline and what each waits for.
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        network: Network,
        blame: Callable[[str, Sequence[Wait]], LaunchError] = DeadlockError,
    ):
        self._network = network
        self._blame = blame
        self._seats = [_Seat(turn) for turn in turns]
        # A heap of (virtual clock, order, rank). Those who poll come last, in the order of polling.
        self._runnable: list[tuple[float, int, int]] = []
        self._num_polls = _GIVING_WAY
        self._num_bystanders = 0  # ranks that wait for data and will go on at their own clock, perhaps long ago
        self._num_calls = 0
        self._num_idle_polls = 0
        self._num_patient = 0  # ranks that wait until some moment at the latest
        self._over = threading.Event()
        self._ending = False
        self.is_closed = False
        self.error: BaseException | None = None
        self.current: int = -1

    # ---- called from outside the ranks ----

    def run(self, body: Callable[[int], None], on_error: Callable[[int, BaseException], BaseException], timeout_s=None):
        """Run `body(rank)` on every rank until all have returned or one has failed.

        Returns True, or False when `timeout_s` of real time ran out first (ranks are left as they are: call `end`).
        The error that ended the run, as `on_error(rank, exception)` made it, is in `self.error`.
        """
        for seat in self._seats:
            name = f"{THREAD_NAME} {seat.turn.rank}"
            seat.thread = threading.Thread(target=self._thread, args=(seat, body, on_error), name=name, daemon=True)
            set_owner(seat.thread, seat.turn.rank)
            heapq.heappush(self._runnable, (seat.turn.clock_s, _AT_ONCE, seat.turn.rank))
        for seat in self._seats:
            assert seat.thread is not None
            try:
                seat.thread.start()
            except RuntimeError as error:
                raise LaunchError(
                    f"a rank is a thread, and this machine starts no more of them: got ranks={len(self._seats)}, and "
                    f"{seat.turn.rank} could start; try ranks={max(1, seat.turn.rank // 2)}"
                ) from error
        self._hand_over()
        deadline_s = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
        threads = [seat.thread for seat in self._seats if seat.thread]
        watchdog = Watchdog(lambda: self._num_calls, self.running_rank, threads)
        # In slices, so that an interrupt is seen that does not wake a waiting thread (`_thread.interrupt_main`).
        while not self._over.wait(min(_SLICE_S, max(0.0, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                return False
            if reason := watchdog.look():
                self._end_with(self._deadlock(reason))
        return True

    def end(self) -> list[int]:
        """Unwind every rank that has not finished, one after another, and wait for its thread.

        Returns the ranks that could not be ended: their threads are in a call outside Python that takes very long.
        """
        self._ending = True
        stuck: list[int] = []
        left = list(self._seats)
        while left:
            seat = next((seat for seat in left if seat.has_turn), None)
            if seat is None:
                seat = left[0]
                seat.is_unwinding = True
                self._give_turn(seat)  # it waits, and finds that the run is over
            deadline_s = time.monotonic() + _PATIENCE_S
            self._interrupt(seat, deadline_s)
            if not _is_alive(seat):
                left.remove(seat)
            elif time.monotonic() >= deadline_s:
                left.remove(seat)
                stuck.append(seat.turn.rank)
        self.is_closed = True
        return stuck

    def _interrupt(self, seat: _Seat, deadline_s: float) -> None:
        """Have the interpreter raise `RunEnded` in a rank that runs, until it has ended or given its turn away.

        A rank that is on its way out is left alone at first.
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

    def clock_s(self, rank: int) -> float:
        """How far a rank has come."""
        return self._seats[rank].turn.clock_s

    def running_rank(self) -> tuple[int, int | None]:
        """The rank whose turn it is, and its thread's identity."""
        thread = self._seats[self.current].thread
        return self.current, thread.ident if thread else None

    # ---- called from the rank whose turn it is ----

    def check(self, owner: int | None = None) -> None:
        """Raise `RunEnded` when the run is over: a rank that is being unwound must not communicate.

        Args:
            owner: the rank whose group or handle is used. Another rank's ends the run.

        Raises RuntimeError in a thread that the program started itself, and ends the run for the same reason.
        """
        seat = self._seats[self.current]
        self._num_calls += 1
        if seat.thread is not threading.current_thread():
            self._refuse_thread()
        if self._ending:
            seat.is_unwinding = True
            seat.num_refusals += 1
            raise RunEndedForGood if seat.num_refusals > _MAX_REFUSALS else RunEnded
        if owner is not None and owner != self.current:
            self.fail(_foreign(self.current, owner))

    def _refuse_thread(self) -> NoReturn:
        """End the run for a thread that communicates in the place of the rank that started it."""
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
        """End the run with this error, from the rank whose turn it is."""
        self._fail(error)
        raise RunEnded

    def wait(self, describe: Callable[[], Wait], joins: bool = True) -> None:
        """Give up the turn until somebody calls `wake_up` for this rank.

        Args:
            describe: says what for, if nobody can.
            joins: whether the rank's clock will move to the end of what it waits for.
        """
        seat = self._seats[self.current]
        seat.waiting, seat.joins, seat.handling = describe, joins, handling()
        self._num_bystanders += not joins
        self._switch(seat)
        self._num_bystanders -= not joins
        seat.waiting = None

    def poll(self, describe: Callable[[], Wait], until_s: float = inf) -> bool:
        """Give up the turn once; go on when every other runnable rank has had one.

        Args:
            describe: says what for, if it cannot come true.
            until_s: the virtual moment at which the rank gives up.

        Returns whether that moment has come: nobody is left who could do anything before it. The rank's clock is there.
        """
        seat = self._seats[self.current]
        self._num_polls += 1
        self._num_idle_polls += 1
        seat.waiting, seat.is_polling, seat.until_s, seat.time_is_up = describe, True, until_s, False
        if self._num_idle_polls > _MAX_IDLE_POLLS and all(self._seats[rank].is_polling for *_, rank in self._runnable):
            self.fail(self._deadlock())
        last_clock_s = max((clock_s for clock_s, *_ in self._runnable), default=0.0)
        heapq.heappush(self._runnable, (max(seat.turn.clock_s, last_clock_s), self._num_polls, seat.turn.rank))
        self._num_patient += until_s < inf
        self._switch(seat)
        self._num_patient -= until_s < inf
        seat.waiting, seat.is_polling, seat.until_s = None, False, inf
        if seat.time_is_up:
            seat.turn.clock_s = max(seat.turn.clock_s, until_s)
        return seat.time_is_up

    def give_way(self, at_s: float) -> None:
        """Go on when every rank has gone as far as it can before `at_s`, and until then."""
        seat = self._seats[self.current]
        heapq.heappush(self._runnable, (at_s, _GIVING_WAY, seat.turn.rank))
        self._switch(seat)

    def progress(self) -> None:
        """Something happened that a polling rank may see."""
        self._num_idle_polls = 0

    def wake_up(self, rank: int, at_s: float = 0.0) -> None:
        """Make a waiting rank runnable. It goes on when its turn comes; the caller keeps the turn.

        Args:
            rank: which.
            at_s: the virtual end of what it waited for. A rank that joins it has that clock when it goes on.
        """
        seat = self._seats[rank]
        clock_s = max(seat.turn.clock_s, at_s) if seat.joins else seat.turn.clock_s
        heapq.heappush(self._runnable, (clock_s, _AT_ONCE, rank))

    # ---- the baton ----

    def _pass_time(self) -> None:
        """Let everything happen on the wires that no rank can be in time to change, and whoever waited enough go on."""
        while True:
            next_s = self._network.next_s
            until_s = min(seat.until_s for seat in self._seats) if self._num_patient else inf
            if until_s < inf and until_s <= (inf if next_s is None else next_s):
                if self._is_hopeless(until_s):
                    self._give_up_waiting(next(seat for seat in self._seats if seat.until_s == until_s))
                return
            if next_s is None or not self._is_settled(next_s):
                return
            self._network.advance()

    def _is_hopeless(self, at_s: float) -> bool:
        """Whether nobody can do anything before `at_s` that one who waits until then would see."""
        busy = [clock_s for clock_s, order, _ in self._runnable if order <= _GIVING_WAY]
        have_looked = self._num_idle_polls >= len(self._runnable) - len(busy)
        return have_looked and (not busy or (min(busy) >= at_s and not self._num_bystanders))

    def _give_up_waiting(self, seat: _Seat) -> None:
        """A rank's time is up: it goes on at that moment, before all who poll."""
        self._runnable = [entry for entry in self._runnable if entry[2] != seat.turn.rank]
        heapq.heapify(self._runnable)
        heapq.heappush(self._runnable, (seat.until_s, _AT_ONCE, seat.turn.rank))
        seat.until_s, seat.time_is_up = inf, True

    def _is_settled(self, at_s: float) -> bool:
        """Whether nobody will start anything before `at_s`, or nobody can before this has happened."""
        if not self._runnable:
            return True
        clock_s, order, _ = self._runnable[0]
        if order > _GIVING_WAY:
            return self._num_idle_polls >= len(self._runnable)  # all have looked, and wait for this
        in_time = at_s < clock_s if self._network.lets_ranks_go_first else at_s <= clock_s
        return in_time and not self._num_bystanders

    def _switch(self, seat: _Seat) -> None:
        self.check()
        self._pass_time()
        if not self._runnable:
            self.fail(self._deadlock())
        if self._runnable[0][2] == seat.turn.rank:
            heapq.heappop(self._runnable)
            return
        seat.turn.leave()
        self._hand_over(seat)
        seat.wake.acquire()
        seat.turn.enter()
        self.check()

    def _hand_over(self, giver: _Seat | None = None) -> None:
        *_, rank = heapq.heappop(self._runnable)
        self._give_turn(self._seats[rank], giver)

    def _give_turn(self, seat: _Seat, giver: _Seat | None = None) -> None:
        self.current = seat.turn.rank
        self._num_calls += 1
        seat.has_turn = True
        if giver is not None:
            giver.has_turn = False
        seat.wake.release()

    def _thread(self, seat: _Seat, body: Callable[[int], None], on_error) -> None:
        try:
            seat.wake.acquire()
            self._guard(seat, on_error, self._live, seat, body)
            seat.has_finished = True
            if not self.is_closed:  # else the process has its own things back, and this thread is a left-over
                self._guard(seat, on_error, seat.turn.leave)
            self._guard(seat, on_error, self._finish, seat)
        except RunEnded:
            self._over.set()  # `end` came when this thread was just ending by itself

    def _guard(self, seat: _Seat, on_error, step: Callable[..., None], *args: object) -> None:
        """Do a step. Whatever it raises, but by the run's end, ends the run with an error: nothing raised is lost."""
        try:
            step(*args)
        except BaseException as error:  # noqa: B036 - whatever a rank raises ends the run, and the launch raises it
            if not self._ending:
                self._fail(_told(on_error, seat.turn.rank, error))

    def _live(self, seat: _Seat, body: Callable[[int], None]) -> None:
        seat.turn.enter()
        self.check()
        body(seat.turn.rank)

    def _finish(self, seat: _Seat) -> None:
        """This rank's thread is done: hand over, or end the run."""
        if self._ending:
            self._over.set()
            return
        self._pass_time()
        if self._runnable:
            self._hand_over(seat)
        elif all(seat.has_finished for seat in self._seats):
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
        waits = []
        for seat in self._seats:
            if seat.waiting is not None:
                wait = seat.waiting()
                waits.append(replace(wait, text=wait.text + seat.handling))
            elif seat.has_finished:
                waits.append(Wait(seat.turn.rank, "has finished"))
        stuck = sum(not seat.has_finished for seat in self._seats)
        finished = len(self._seats) - stuck
        headline = (
            f"deadlock: {stuck} of {plural(len(self._seats), 'ranks')} {'waits' if stuck == 1 else 'wait'} "
            "and none can go on"
        )
        if finished:
            headline += f"; {finished} returned without joining them"
        return self._blame(f"deadlock: {reason}" if reason else headline + ".", waits)


def _foreign(rank: int, owner: int) -> LaunchError:
    """The error for a rank that uses what another rank's process would have."""
    return LaunchError(
        f"rank {rank} uses a process group or the handle of a communication that belongs to rank {owner} "
        f"({program_line()}): it reached rank {rank} through a global, a default argument or another shared object, "
        f"and processes share none; let each rank use its own."
    )


def _told(on_error: Callable[[int, BaseException], BaseException], rank: int, error: BaseException) -> BaseException:
    """What `on_error` makes of an error. It asks the program's own class, which may raise once more."""
    try:
        return on_error(rank, error)
    except BaseException:  # noqa: B036 - then the error as it is
        return RankError(rank, error)


def _is_alive(seat: _Seat) -> bool:
    return seat.thread is not None and seat.thread.is_alive()


def _takes_a_lock_of_logging(seat: _Seat) -> bool:
    """Whether the thread is between asking for a handler's lock and the `try` that gives it back.

    An exception raised there would leave the lock taken for ever, and every later message of this process waiting.
    """
    frame = sys._current_frames().get(seat.thread.ident or 0) if seat.thread is not None else None
    code = frame.f_code if frame is not None else None
    return code is not None and code.co_filename == logging.__file__ and code.co_name in ("acquire", "handle")


def _raise_in(seat: _Seat, error: type[RunEnded]) -> None:
    """Have the interpreter raise this in the seat's thread, at its next step of Python."""
    thread = seat.thread
    if thread is not None and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))
        end_wait(thread.ident)
