"""Watchdog of a run: report a rank without progress, and detect a wait that can never end.

Ranks take turns, so a rank that waits for another rank in a lock, a queue or a `threading.Barrier` waits for ever: the
other gets no turn. This is certain if the rank is in `threading.Condition.wait` without a timeout (used by Event,
Barrier, Queue, Semaphore and Future), and no thread runs that could end the wait. A rank that computes for long, or
waits for an external event, is only reported, at growing intervals.

Reported only, though they may wait for ever: a bare `threading.Lock().acquire()`, `queue.SimpleQueue().get()` and other
waits in C. Such a call has no frame, so neither the call nor its timeout is visible, and a signal handler or a C thread
may end it. `timeout_s` or an interrupt ends the run.
"""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from lablib.process.thread_frames import thread_frames
from lablib.sim.source import is_program, program_line

_SURE_AFTER_S = 3.0
_GRACE_S = 10.0
_LONGEST_TIMER_S = 1e6
_FIRST_WORD_AFTER_S = 30.0
# Threads of the notebook's kernel, warm workers, or test processes: none can end a wait of the program.
_SERVERS = (
    *("ipykernel", "IPython", "zmq", "tornado", "anyio", "debugpy", "pydevd", "_pydevd", "tqdm", "execnet"),
    "lablib.real",
)


class Watchdog:
    """Checks a run periodically, from the launcher's thread."""

    def __init__(
        self,
        num_calls: Callable[[], int],
        running: Callable[[], tuple[int, int | None]],
        ranks_threads: Collection[threading.Thread],
    ):
        self._num_calls, self._running, self._ranks_threads = num_calls, running, ranks_threads
        self._seen = -1
        self._since_s = time.monotonic()
        self._speak_after_s = _FIRST_WORD_AFTER_S

    def look(self) -> str:
        """The reason why the run can never go on, or "". Reports on stderr a rank that has made no call for long."""
        if (num_calls := self._num_calls()) != self._seen:
            self._seen, self._since_s, self._speak_after_s = num_calls, time.monotonic(), _FIRST_WORD_AFTER_S
        quiet_s = time.monotonic() - self._since_s
        rank, ident = self._running()
        frame = thread_frames().get(ident or 0) if quiet_s >= _SURE_AFTER_S else None
        if frame is None:
            return ""
        is_endless = _is_wait(frame) and frame.f_locals.get("timeout") is None and not _starts_a_thread(frame)
        if is_endless and not self._somebody_else_runs():
            return (
                f"rank {rank} waits in {_primitive(frame)} ({program_line(frame)}), and no rank can end that: ranks of "
                f"the simulator take turns, and no other has one while a rank waits outside torch.distributed. Real "
                f"ranks are processes and would not share this object; use torch.distributed to wait for another rank."
            )
        if quiet_s >= self._speak_after_s:
            self._speak_after_s *= 4
            place = program_line(frame)
            print(
                f"launch: rank {rank} has made no call for {quiet_s:.0f} s: it is at {place}. No other rank has a turn "
                f"until it does. Interrupt the run if it should not be there (timeout_s= ends it by itself).",
                file=sys.__stderr__,
            )
        return ""

    def _somebody_else_runs(self) -> bool:
        """Whether another thread runs that could end a rank's wait."""
        known = {threading.get_ident(), threading.main_thread().ident, *(t.ident for t in self._ranks_threads)}
        return any(not _serves_others(frame) for ident, frame in thread_frames().items() if ident not in known)


@contextmanager
def naming_what_cannot_be_ended(timeout_s: float | None) -> Iterator[None]:
    """Write the stack of every thread to stderr, from a C thread, some seconds after the limit.

    C code that holds the interpreter lock (`sum(iter(int, 1))`) blocks the launcher as well, so no other report is
    possible. Python has one such timer: it replaces one that the user has set.
    """
    if timeout_s is None or timeout_s > _LONGEST_TIMER_S:
        yield
        return
    try:
        faulthandler.dump_traceback_later(timeout_s + _GRACE_S, file=sys.__stderr__ or sys.stderr)
    except (OSError, ValueError, AttributeError, RuntimeError):
        pass  # stderr is closed or not a file
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def end_wait(ident: int) -> None:
    """Wake a thread from its wait, so that an exception set for it is raised.

    The lock belongs to the wait: no lock of the program is released.
    """
    frame = thread_frames().get(ident)
    if frame is not None and _is_wait(frame) and (waiter := frame.f_locals["waiter"]).locked():
        waiter.release()


def _serves_others(frame: FrameType | None) -> bool:
    """Whether a thread runs a server's code and none of the program."""
    is_server = False
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_SERVERS):
            is_server = True
        elif is_program(frame):
            return False
        frame = frame.f_back
    return is_server


def _is_wait(frame: FrameType) -> bool:
    return frame.f_code is threading.Condition.wait.__code__ and "waiter" in frame.f_locals


def _starts_a_thread(frame: FrameType | None) -> bool:
    """Whether a thread waits for a new one, which has no frame until the machine has time for it."""
    start = ("threading", "start")  # by name: ranks have their own `Thread.start` around it
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != start:
        frame = frame.f_back
    return frame is not None


def _primitive(frame: FrameType) -> str:
    """The function called by the program: "threading.Barrier.wait"."""
    while frame.f_back is not None and not is_program(frame.f_back):
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
