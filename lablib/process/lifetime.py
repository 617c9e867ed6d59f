"""No process outlives the one that started it, however that one ends.

On Linux the kernel sends a signal, which works even when a process is stuck in C code that holds Python's lock. It is
one of two watches: a dead process also closes its sockets (Linux and macOS), which who reads from them sees.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have Linux send this process a signal when the thread that started it ends; elsewhere do nothing.

    Args:
        parent: the process id of the process that started this one. Where that is gone already, this one ends.
        number: of the signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)
