"""A limit on the seconds of a block in the main thread: an answer that never ends must not hold the notebook.

Programs on ranks have a limit of their own (`launch(..., timeout_s=)`); this one ends code that a check calls itself.
"""

import _thread
import contextlib
import ctypes
import signal
import threading
import traceback
from collections.abc import Iterator

from lablib.thread_frames import thread_frames

_AGAIN_AFTER_S = 1.0  # code may catch the interrupt and go on


class TimeIsUp(Exception):
    """The block was ended. `stack` is where it stood then."""

    def __init__(self, limit_s: float, stack: traceback.StackSummary):
        super().__init__(f"still running after {limit_s:g} s")
        self.limit_s, self.stack = limit_s, stack


@contextlib.contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """End the block after `limit_s` seconds of real time; outside of the main thread there is no limit.

    The block is interrupted as by a press of the stop button, once a second until it ends. What it does in one call of
    C code that no signal ends, goes on until that call returns.

    Raises:
        TimeIsUp: in place of whatever the block raised or returned then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    clock = _Clock(limit_s)
    try:
        yield
    except BaseException:
        clock.stop()
        if clock.is_up:
            raise TimeIsUp(limit_s, clock.stack) from None
        raise
    clock.stop()
    if clock.is_up:
        raise TimeIsUp(limit_s, clock.stack)


class _Clock:
    """Interrupts the main thread when time is up, from a thread of its own."""

    def __init__(self, limit_s: float):
        self.is_up = False
        self.stack = traceback.StackSummary()
        self._main = threading.get_ident()
        self._stopped = threading.Event()
        self._turn = threading.Lock()  # so that no interrupt comes after `stop`
        self._thread = threading.Thread(target=self._watch, args=(limit_s,), name="time limit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No interrupt comes after this. One of ours that was on its way is taken here."""
        while True:
            try:
                with self._turn:
                    self._stopped.set()
                self._thread.join()
                return
            except KeyboardInterrupt:
                if not self.is_up:  # the user's own
                    raise

    def _watch(self, limit_s: float) -> None:
        wait_s = limit_s
        while not self._stopped.wait(wait_s):
            with self._turn:
                if self._stopped.is_set():
                    return
                if not self.is_up:
                    # At once: the frames are taken apart when the block ends.
                    self.is_up, self.stack = True, traceback.extract_stack(thread_frames().get(self._main))
                _interrupt(self._main)
            wait_s = _AGAIN_AFTER_S


def _interrupt(main: int) -> None:
    """KeyboardInterrupt in the main thread: by a signal, which ends waiting too; where SIGINT is ignored, without."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(KeyboardInterrupt))
    elif hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()
