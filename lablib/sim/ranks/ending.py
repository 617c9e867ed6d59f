"""End a run: raise `RunEnded` in the thread of every rank, so that its `finally` blocks run and no thread is left.

A rank that waits for its turn is woken, one at a time, and raises. A rank that runs is interrupted by the interpreter.
"""

import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType

from lablib.process.thread_errors import raise_in_thread
from lablib.process.thread_frames import thread_frames
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.threads import set_owner
from lablib.sim.ranks.watchdog import end_wait
from lablib.sim.source import is_program

THREAD_NAME = "sim rank"
# Time is counted in polls, not read from a clock: no rank is abandoned because the machine stood still for seconds.
_POLL_S = 0.02
_UNWINDING = 25  # polls for a rank's `finally` blocks before the next interrupt
_PATIENCE = 250  # polls after which a rank in a long call outside Python is abandoned


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
        while frame is not None:
            if is_program(frame):
                frame.f_trace = _raise_again
            frame = frame.f_back
        sys.settrace(_raise_again)


def _raise_again(frame: FrameType, event: str, arg: object) -> Callable | None:
    if event == "line" and is_program(frame):
        raise RunEnded
    return _raise_again if event != "call" else None


class RankThread:
    """The thread of one rank, which sleeps in `wake.acquire()` until it has the turn."""

    def __init__(self, rank: Rank, live: Callable[["RankThread"], None]):
        self.rank = rank
        self.thread = threading.Thread(target=live, args=(self,), name=f"{THREAD_NAME} {rank.rank}", daemon=True)
        set_owner(self.thread, rank.rank)
        self.wake = threading.Lock()
        self.wake.acquire()
        self.ident = 0  # thread identity, once it runs
        self.native_id = 0  # thread id of the operating system
        self.has_turn = False
        self.is_unwinding = False
        self.num_refusals = 0
        self.has_finished = False

    def interrupt(self) -> bool:
        """Raise `RunEnded` while it runs, by the interpreter, until it has ended or passed its turn.

        A rank that is already unwinding first gets time to finish. Returns False if the rank has to be abandoned.
        """
        next_poll = _UNWINDING if self.is_unwinding else 0
        for poll in range(_PATIENCE):
            if not (self.has_turn and self.thread.is_alive()):
                return True
            is_free = not self._takes_a_lock_of_logging() or poll > _PATIENCE / 2
            if poll >= next_poll and not self.has_finished and is_free:
                error = RunEndedForGood if self.is_unwinding else RunEnded
                raise_in_thread(self.ident, error)
                end_wait(self.ident)
                next_poll = poll + _UNWINDING
                self.is_unwinding = True
            self.thread.join(_POLL_S)
        return not (self.has_turn and self.thread.is_alive())

    def _takes_a_lock_of_logging(self) -> bool:
        """Whether the thread is between the request for a logging handler's lock and the `try` that releases it.

        An exception raised there would leave the lock held for ever, and block every later message of this process.
        """
        frame = thread_frames().get(self.ident)
        code = frame.f_code if frame is not None else None
        return code is not None and code.co_filename == logging.__file__ and code.co_name in ("acquire", "handle")
