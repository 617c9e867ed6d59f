"""An exception raised in another thread, at its next Python instruction, without stopping a traced thread.

CPython 3.11 flags a pending exception for all threads until its own thread has raised it. While the flag is set, a
thread with a trace or profile function (a debugger, a profiler, a coverage tool) does not get past the start of a
function: it would be blocked for as long as the other thread sleeps or runs C code. So the flag is cleared at once, by
an exception of our own. The other thread sets it again when it takes the interpreter's lock.
"""

import ctypes
import threading


class _ClearsFlag(BaseException):
    pass


def raise_in_thread(ident: int, error: type[BaseException]) -> None:
    """Raise `error` in the thread of identity `ident`; one that sleeps or runs C code raises when it has returned."""
    set_error, own, target = ctypes.pythonapi.PyThreadState_SetAsyncExc, threading.get_ident(), ctypes.c_ulong(ident)
    what, clears, this = ctypes.py_object(error), ctypes.py_object(_ClearsFlag), ctypes.c_ulong(own)
    if ident == own:
        set_error(target, what)
        return
    try:
        # Between the two calls below no Python function may begin.
        set_error(target, what)
        set_error(this, clears)
        for _ in range(2):  # the interpreter raises pending exceptions at the end of a call or of a loop's round
            pass
    except _ClearsFlag:
        pass
