"""Per-rank signal handlers: stored, so that a program reads back its own, and never called.

Only the main thread of a process can set one, and a simulated rank receives no signals.
"""

import signal
import threading
from contextlib import AbstractContextManager
from typing import Any

from lablib.sim.ranks.ending import THREAD_NAME
from lablib.sim.replaced import replaced


def own_signal_handlers() -> AbstractContextManager[None]:
    """Make `signal.signal` and `signal.getsignal` per-rank for the time of a run."""
    set_handler, get_handler = signal.signal, signal.getsignal

    def handlers() -> dict[int, Any] | None:
        thread = threading.current_thread()
        return thread.__dict__.setdefault("signal_handlers", {}) if thread.name.startswith(THREAD_NAME) else None

    def rank_gets(number: int) -> Any:
        own = handlers()
        return own[number] if own and number in own else get_handler(number)

    def rank_sets(number: int, handler: Any) -> Any:
        own = handlers()
        if own is None:
            return set_handler(number, handler)
        before, own[number] = rank_gets(number), handler
        return before

    return replaced((signal, "signal", rank_sets), (signal, "getsignal", rank_gets))
