"""The innermost frame of each thread, without a deadlock in the garbage collector.

CPython 3.11 and 3.12 hold a lock of the interpreter while they list the frames. A garbage collection in that time,
which any new frame object may start, waits for the same lock when it frees a `threading.local` (of a pool, a logger,
torch), for ever and with all threads. So collections are disabled here.
"""

import gc
import sys
from types import FrameType


def thread_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's identity."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()
