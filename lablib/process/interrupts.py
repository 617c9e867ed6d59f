"""Interrupts (SIGINT) that are not lost.

The handler of a signal runs wherever the main thread is. In a finalizer or in a callback of the garbage collector,
Python prints its KeyboardInterrupt and drops it. So a loop that waits asks again whether one has come.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class NotedInterrupts:
    """Python's own handler of SIGINT for the first interrupt, which it also notes; later ones find the run ending."""

    def __init__(self) -> None:
        self.have_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.have_come:
            self.have_come = True
            signal.default_int_handler(number, frame)

    def raise_lost(self) -> None:
        if self.have_come:
            raise KeyboardInterrupt


@contextmanager
def kept_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if one of this context was dropped; only the first one raises.

    A handler of SIGINT that is not Python's own stays in place.
    """
    interrupts = NotedInterrupts()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupts.raise_lost
        return
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts.raise_lost
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
