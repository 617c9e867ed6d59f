"""Limit the CPU seconds of a block of code, with a limit of real time as a backstop.

CPU time is summed over the threads and child processes of this process, so a busy machine ends no block early. The
backstop ends a block that waits forever. On simulated ranks, `launch` says which rank ran.
"""

import _thread
import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Literal

from lablib.process.thread_errors import raise_in_thread
from lablib.process.thread_frames import thread_frames

CPU_LIMIT_S = 30.0  # of one answer
CLOCK_LIMIT_S = 300.0
LAUNCH_LIMIT_S = CLOCK_LIMIT_S + 30  # of a launch in another thread, which has no limit here
_LONGEST_TICK_S = 1.0
_PAUSE_S = 1.0  # before another interrupt: code may catch one and continue
_WAITING_SHARE = 0.01  # of one core: a block that uses less is waiting

Reason = Literal["cpu", "busy", "waiting"]


class TimeIsUp(Exception):
    """The block was ended.

    Attributes:
        reason: "cpu": it used its CPU seconds; "busy": the machine gave it little CPU; "waiting": it used none.
        stack: where the main thread was.
        where: which rank ran, and on what line, if the block was in `launch`.
    """

    def __init__(self, reason: Reason, used: str, stack: traceback.StackSummary, where: str = ""):
        super().__init__(f"still running after {used}")
        self.reason, self.stack, self.where = reason, stack, where


def cpu_time_s() -> float:
    """CPU seconds of this process and its descendants, without the calling thread."""
    import psutil  # here: `lab --help` needs no psutil

    own = os.times()
    total_s = time.process_time() + own.children_user + own.children_system - time.thread_time()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            used = child.cpu_times()
            total_s += used.user + used.system + getattr(used, "children_user", 0) + getattr(used, "children_system", 0)
    return total_s


@contextlib.contextmanager
def time_limit(
    cpu_limit_s: float = CPU_LIMIT_S,
    clock_limit_s: float = CLOCK_LIMIT_S,
    cpu: Callable[[], float] = cpu_time_s,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """End the block after `cpu_limit_s` of CPU time, or `clock_limit_s` of real time; only in the main thread.

    The block is interrupted as by the stop button, once a second until it ends. C code that ignores signals continues
    until it returns. Raises TimeIsUp: instead of the block's exception or value.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _Watch(cpu_limit_s, clock_limit_s, cpu, clock)
    try:
        yield
    except BaseException as error:
        watch.stop()
        if watch.reason:
            where = "\n".join(getattr(error, "__notes__", [])) if isinstance(error, KeyboardInterrupt) else ""
            raise TimeIsUp(watch.reason, watch.used, watch.stack, where) from None
        raise
    watch.stop()
    if watch.reason:
        raise TimeIsUp(watch.reason, watch.used, watch.stack)


class _Watch:
    """Interrupts the main thread from a second thread when time is up."""

    def __init__(
        self, cpu_limit_s: float, clock_limit_s: float, cpu: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self.reason: Reason | None = None
        self.used = ""
        self.stack = traceback.StackSummary()
        self._limits_s = cpu_limit_s, clock_limit_s
        self._cpu, self._clock = cpu, clock
        self._main = threading.get_ident()
        self._stopped = threading.Event()
        self._turn = threading.Lock()  # no interrupt may come after `stop`
        self._thread = threading.Thread(target=self._watch, name="time limit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the interrupts. A pending one is consumed here."""
        while True:
            try:
                with self._turn:
                    self._stopped.set()
                self._thread.join()
                return
            except KeyboardInterrupt:
                if not self.reason:  # the user's own interrupt
                    raise

    def _watch(self) -> None:
        tick_s = min(_LONGEST_TICK_S, *(limit_s / 10 for limit_s in self._limits_s))
        cpu_limit_s, clock_limit_s = self._limits_s
        began, half = (self._cpu(), self._clock()), None
        while not self._stopped.wait(_PAUSE_S if self.reason else tick_s):
            cpu_s, clock_s = self._cpu() - began[0], self._clock() - began[1]
            if half is None and clock_s >= clock_limit_s / 2:
                half = cpu_s, clock_s
            if cpu_s < cpu_limit_s and clock_s < clock_limit_s:
                continue
            with self._turn:
                if self._stopped.is_set():
                    return
                if not self.reason:
                    backstop: Reason = "waiting" if _waits(half, cpu_s, clock_s) else "busy"
                    self.reason = "cpu" if cpu_s >= cpu_limit_s else backstop
                    self.used = f"{cpu_s:.3g} s of CPU" + ("" if self.reason == "cpu" else f" in {clock_s:.3g} s")
                    self.stack = traceback.extract_stack(thread_frames().get(self._main))
                _interrupt(self._main)


def _waits(half: tuple[float, float] | None, cpu_s: float, clock_s: float) -> bool:
    """Whether a block used no CPU since the first sample in the second half of its time."""
    since_cpu_s, since_s = half if half and half[1] < clock_s else (0.0, 0.0)
    return cpu_s - since_cpu_s < _WAITING_SHARE * (clock_s - since_s)


def _interrupt(main: int) -> None:
    """KeyboardInterrupt in the main thread: by a signal, which also ends waiting, unless SIGINT is ignored.

    Another handler of the signal decides for itself: `launch` has one while it ends its ranks.
    """
    if not callable(signal.getsignal(signal.SIGINT)):
        raise_in_thread(main, KeyboardInterrupt)
    elif hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()
