"""No worker outlives the process that started it, however that process ends.

Two independent watches: the end of the connection (a dead process closes its sockets; Linux and macOS), which the
worker's listening thread sees, and on Linux a signal from the kernel, which works even when a rank is stuck in C code
that holds Python's lock.
"""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends; elsewhere do nothing.

    That thread is the elastic agent's: it ends after its workers, or with the whole process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
