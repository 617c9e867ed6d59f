"""Per-process settings of Python: paths, hooks, the collector, limits, warnings."""

import builtins
import contextlib
import decimal
import gc
import locale
import os
import signal
import socket
import sys
import threading
import warnings
from functools import partial
from typing import Any

from lablib.process.settings.setting import ProcessSetting, attributes, contents, flags

_BUILTINS = ("print", "open", "input", "breakpoint", "__import__")  # programs replace these: a print on rank 0 alone


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the folder has been removed
        return None


def _go_back(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _mask() -> int:
    """The file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _set_handlers(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) != handler:  # None: set by code outside Python
            with contextlib.suppress(OSError, ValueError):  # SIGKILL
                signal.signal(number, handler)


def _decimals() -> tuple:
    now = decimal.getcontext()
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, dict(now.traps)


def _set_decimals(state: tuple) -> None:
    *numbers, traps = state
    decimal.setcontext(decimal.Context(*numbers, flags=[], traps=[trap for trap, is_on in traps.items() if is_on]))


def _set_collector(state: tuple) -> None:
    is_enabled, thresholds, debug, callbacks = state
    (gc.enable if is_enabled else gc.disable)()
    gc.set_threshold(*thresholds)
    gc.set_debug(debug)
    gc.callbacks[:] = callbacks


def _filters_changed() -> None:
    """Clear the interpreter's cache of shown warnings."""
    warnings._filters_mutated()  # pyright: ignore[reportAttributeAccessIssue]


SETTINGS = (
    ProcessSetting("working directory", _folder, _go_back, setters=((os, "chdir"), (os, "fchdir")), travels=True),
    contents("sys.path", sys, "path", travels=True),
    contents("sys.argv", sys, "argv", travels=True),
    contents("sys.meta_path", sys, "meta_path"),
    ProcessSetting("environment", lambda: dict(os.environ), _set_environment, is_of_thread=True),
    attributes("standard streams", sys, "stdin", "stdout", "stderr", is_of_thread=True),
    # init_process_group sets one on every rank.
    attributes(
        "hooks of the interpreter",
        sys,
        *("excepthook", "unraisablehook", "displayhook", "breakpointhook"),
        is_always=True,
    ),
    attributes("hook for errors of threads", threading, "excepthook", "__excepthook__"),
    attributes("replaced builtins", builtins, *_BUILTINS),
    ProcessSetting(
        "garbage collector",
        lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug(), tuple(gc.callbacks)),
        _set_collector,
        reads=lambda: (gc.isenabled, gc.get_threshold, gc.get_debug),
        lists=(partial(getattr, gc, "callbacks"),),
    ),
    flags(
        "limits of the interpreter",
        (sys.getswitchinterval, sys.setswitchinterval),
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (socket.getdefaulttimeout, socket.setdefaulttimeout),
    ),
    ProcessSetting("umask", _mask, lambda mask: _ignore(os.umask(mask)), setters=((os, "umask"),), travels=True),
    ProcessSetting(
        "locale",
        lambda: locale.setlocale(locale.LC_ALL, None),
        lambda state: _ignore(locale.setlocale(locale.LC_ALL, state)),
        setters=((locale, "_setlocale"),),
        travels=True,
    ),
    contents("warnings filters", warnings, "filters", changed=_filters_changed),
    attributes("how warnings are shown", warnings, "showwarning", "formatwarning", "_showwarnmsg_impl"),
    ProcessSetting("decimal context", _decimals, _set_decimals, is_of_thread=True),
    ProcessSetting(
        "signal handlers",
        lambda: {number: signal.getsignal(number) for number in signal.valid_signals()},
        _set_handlers,
        is_of_thread=True,
    ),
)


def _ignore(_: object) -> None:
    """Discard the return value of a setter."""
