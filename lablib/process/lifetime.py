"""End of a worker process: when its parent dies, and by `sys.exit()`.

With its parent: on Linux the kernel sends a signal, which works even if a process is stuck in C code that holds the
interpreter's lock. It is one of two mechanisms: a dead process also closes its sockets (Linux and macOS), which their
readers notice.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have Linux send this process a signal when the thread that started it ends; no effect elsewhere.

    If the parent has ended already, this process ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)


def ends_well(code: object) -> bool:
    """Whether this argument of `sys.exit` means success: None or 0. Calls no method of the object."""
    return code is None or (issubclass(type(code), int) and int.__eq__(code, 0))  # pyright: ignore[reportArgumentType]
