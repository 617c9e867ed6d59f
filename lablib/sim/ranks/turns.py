"""Run ranks as threads in turns: exactly one runs, until it must wait.

The engine chooses the next rank and detects deadlocks (lablib/engine/scheduler.py). Here the turn is a baton: passing
it is one lock released and one acquired, about 10 us.

An error on one rank ends the run: every other rank is woken, one at a time, with `RunEnded` raised where it waits, so
that its `finally` blocks run and no thread is left. A deadlock or a mismatch ends it the same way, and is not raised
inside a rank: on a real cluster it would be a hang, which no `except` can catch either.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import NoReturn

from lablib.engine.scheduler import Scheduler
from lablib.errors import DeadlockError, LaunchError, RankError, Wait
from lablib.sim.ranks.ending import THREAD_NAME, RankThread, RunEnded, RunEndedForGood
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.threads import owner as owner_of
from lablib.sim.ranks.threads import wait_to_be_run
from lablib.sim.ranks.watchdog import Watchdog
from lablib.sim.source import handling, program_line

OnError = Callable[[int, BaseException], BaseException]  # a rank, its exception -> the error of the run
_TURNS = 100  # number of turns on the same core after a move
_SLICE_S = 0.2  # largest delay until an interrupt is noticed
_MAX_REFUSALS = 10  # refused communications after which a rank counts as catching everything


class Turns:
    """Runs one body per rank, one at a time. Use once.

    `error_of`: makes the error for a run in which no rank can go on, from a headline and the waits of all ranks.
    """

    def __init__(
        self,
        ranks: Sequence[Rank],
        scheduler: Scheduler,
        error_of: Callable[[str, Sequence[Wait]], LaunchError] = DeadlockError,
    ):
        self._scheduler = scheduler
        self._error_of = error_of
        self._ranks = ranks
        self._threads: dict[int, RankThread] = {}
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

    def run(
        self,
        body: Callable[[int], None],
        on_error: OnError,
        timeout_s: float | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> bool:
        """Run `body(rank)` on every rank until all have returned or one has failed; call `look()` now and then.

        Returns True, or False if `timeout_s` of real time passed first (ranks are left as they are: call `end`). The
        error that ended the run, as made by `on_error(rank, exception)`, is in `self.error`.
        """
        live = partial(self._live, body, on_error)
        self._threads = {rank.rank: RankThread(rank, live) for rank in self._ranks}
        for number, one in self._threads.items():
            try:
                one.thread.start()
            except RuntimeError as error:
                raise LaunchError(
                    f"a rank is a thread, and this machine starts no more of them: got ranks={len(self._threads)}, and "
                    f"{number} could start; try ranks={max(1, number // 2)}"
                ) from error
        first = self._scheduler.next()
        assert first is not None
        self._give_turn(self._threads[first])
        deadline_s = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
        threads = [one.thread for one in self._threads.values()]
        watchdog = Watchdog(lambda: self._num_calls, self.running_rank, threads)
        # In slices, to notice an interrupt that does not wake a waiting thread (`_thread.interrupt_main`).
        while not self._over.wait(min(_SLICE_S, max(0.0, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                return False
            look()
            if reason := watchdog.look():
                self._end_with(self._deadlock(reason))
        return True

    def end(self) -> list[int]:
        """Unwind every rank that has not finished, one after another, and wait for its thread.

        Returns the ranks that could not be ended: their threads are in a long call outside Python.
        """
        self._ending = True
        stuck: list[int] = []
        left = list(self._threads.values())
        try:
            while left:
                one = next((one for one in left if one.has_turn), None)
                if one is None:
                    one = left[0]
                    one.is_unwinding = True
                    self._scheduler.current = one.rank.rank
                    self._give_turn(one)  # it waits, and then raises RunEnded
                if not one.interrupt():
                    stuck.append(one.rank.rank)
                if not one.thread.is_alive() or one.rank.rank in stuck:
                    left.remove(one)
        finally:  # also after an interrupt of this loop
            self.is_closed = True
        return stuck

    def running_rank(self) -> tuple[int, int | None]:
        """The rank that has the turn, and its thread's identity; -1 and None before the first turn."""
        return self.current, self._threads[self.current].thread.ident if self.current in self._threads else None

    def waits(self) -> list[Wait]:
        """The waits of the ranks that cannot go on now, or have finished; none if a rank goes on at this moment."""
        try:
            return self._scheduler.stuck()[1]
        except TypeError:  # a wait ended between the look at it and its description
            return []

    # ---- called from the current rank ----

    def check(self, owner: int | None = None) -> None:
        """Raise `RunEnded` when the run is over: a rank that is being unwound must not communicate.

        `owner`: the rank that owns the used group or handle. Using another rank's ends the run.

        Raises RuntimeError, and ends the run, in a thread that the program started itself.
        """
        current = self._scheduler.current
        me = self._threads[current]
        self._num_calls += 1
        if me.ident != threading.get_ident():
            self._refuse_thread()
        if self._ending:
            me.is_unwinding = True
            me.num_refusals += 1
            raise RunEndedForGood if me.num_refusals > _MAX_REFUSALS else RunEnded
        if owner is not None and owner != current:
            self.fail(
                LaunchError(
                    f"rank {current} uses a process group or the handle of a communication that belongs to rank "
                    f"{owner} ({program_line()}): it reached rank {current} through a global, a default argument or "
                    f"another shared object, and processes share none; let each rank use its own."
                )
            )

    def _refuse_thread(self) -> NoReturn:
        """End the run for a thread that communicates instead of the rank that started it."""
        thread = threading.current_thread()
        if thread.name.startswith(THREAD_NAME) and all(thread is not one.thread for one in self._threads.values()):
            raise RunEnded  # it was abandoned by an earlier run
        started_by = owner_of(thread)
        rank = self.current if started_by is None else started_by
        place = str(program_line())
        error = RuntimeError(
            f"a simulated rank communicates from one thread only: the thread {thread.name!r}, which the program "
            f"started, communicates in the place of rank {rank}{f' ({place})' if place else ''}; "
            f"call torch.distributed from the function that was launched"
        )
        if not self._ending:
            self._end_with(_described(RankError, rank, error))
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
        me, next_rank = self._threads[self._scheduler.current], self._scheduler.next()
        if next_rank is None:
            self.fail(self._deadlock())
        if next_rank == me.rank.rank:
            return
        me.rank.leave()
        self._give_turn(self._threads[next_rank], me)
        self._begin_turn(me)

    def _begin_turn(self, me: RankThread) -> None:
        """Wait for the turn, and begin it. Raises `RunEnded` when the run is over."""
        me.wake.acquire()
        self._cores.free()
        if self.is_closed:  # this thread was abandoned: the state of the process belongs to others now
            raise RunEnded
        me.rank.enter()
        self.check()

    def _give_turn(self, to: RankThread, giver: RankThread | None = None) -> None:
        self._num_calls += 1
        to.has_turn = True
        if giver is not None:
            giver.has_turn = False
            self._cores.bind(to.native_id)
        to.wake.release()

    def _live(self, body: Callable[[int], None], on_error: OnError, me: RankThread) -> None:
        """The function of a rank's thread."""
        me.ident, me.native_id = threading.get_ident(), threading.get_native_id()
        wait_to_be_run()

        def begin() -> None:
            self._begin_turn(me)
            body(me.rank.rank)

        try:
            self._guard(me, on_error, begin)
            me.has_finished = True
            if not self.is_closed:  # otherwise the process has its state back, and this thread is a leftover
                self._guard(me, on_error, me.rank.leave)
            self._guard(me, on_error, partial(self._finish, me))
        except RunEnded:
            self._over.set()  # `end` came while this thread was ending by itself

    def _guard(self, me: RankThread, on_error: OnError, step: Callable[[], None]) -> None:
        """Run a step. Any exception, except from the run's end, ends the run with an error."""
        try:
            step()
        except BaseException as error:  # noqa: B036 - any exception of a rank ends the run, and the launch raises it
            if not self._ending:
                self._fail(_described(on_error, me.rank.rank, error))

    def _finish(self, me: RankThread) -> None:
        """End this rank's thread: pass the turn, or end the run."""
        if self._ending:
            self._over.set()
            return
        self._scheduler.finish()
        if (next_rank := self._scheduler.next()) is not None:
            self._give_turn(self._threads[next_rank], me)
        elif self._scheduler.is_over:
            self._over.set()
        else:
            self._fail(self._deadlock())

    def _fail(self, error: BaseException) -> None:
        self._threads[self.current].is_unwinding = True
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
    if not text:
        return describe

    def describe_both() -> Wait:
        wait = describe()
        return replace(wait, why=wait.why + text) if wait.why else replace(wait, what=wait.what + text)

    return describe_both


def _described(on_error: OnError, rank: int, error: BaseException) -> BaseException:
    """The error from `on_error`, which calls the program's exception class; that may raise again."""
    try:
        return on_error(rank, error)
    except BaseException:  # noqa: B036 - then the error as it is
        return RankError(rank, error)


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
