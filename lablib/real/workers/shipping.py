"""Shipping a program: run a function of a notebook in a process without that notebook.

Modules that the worker can import like this process (installed packages, files on `sys.path`) are sent by name; all
other code by value: functions of cells and scripts (`__main__`), and functions of modules found only here (a test
module, a module loaded by hand). The module of the launched function itself is always sent by value unless it is
installed, so that an edited and reloaded file runs as edited.

A function can only be sent if its references can. A lock, an open file, a socket or a running generator is specific to
one process: the program must make its own on each rank.
"""

import inspect
import linecache
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from lablib.process import settings as owners
from lablib.process.whose_code import is_users, module_file
from lablib.real.workers.messages import Job
from lablib.real.workers.pickling import PackedObject, pack


def ship(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any], trace: bool) -> Job:
    """The job that calls `fn(*args, **kwargs)` on a rank.

    ValueError: an object that the call needs cannot be copied to another process; the message names it. Or the working
    directory, in which ranks start, has been removed.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        rule = "ranks start in the working directory, so it must exist"
        raise ValueError(f"{rule}: it has been removed; os.chdir to another first") from None
    with _by_value(fn):
        program = _pack_program(fn, args, kwargs)
    settings, path = owners.taken(owners.TRAVELLING), [os.path.abspath(entry) for entry in sys.path]
    # The source of code without a file, such as notebook cells, for tracebacks and `inspect` on a rank.
    cached = list(linecache.cache.items())
    lines = {name: entry[2] for name, entry in cached if len(entry) == 4 and not os.path.exists(name)}
    return Job(program, trace, settings | {"sys.path": (path, tuple(path))}, lines)


def _pack_program(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> PackedObject:
    try:
        return pack((fn, args, kwargs))
    except RecursionError:
        raise
    except Exception as error:
        culprit = _culprit(fn, args, kwargs)
        raise ValueError(
            f"the program and its arguments are copied to every rank's process, so all of it must be picklable: "
            f"{culprit or describe_callable(fn)} is not ({type(error).__name__}: {error}); make it inside the "
            f"function, or pass plain data and tensors"
        ) from error


def describe_callable(fn: Any) -> str:
    return f"{getattr(fn, '__qualname__', None) or type(fn).__qualname__!s}()"


def _culprit(fn: Any, args: tuple, kwargs: dict[str, Any]) -> str:
    """The first argument, or variable used by the function, that cannot be packed."""
    parts = [(f"argument {i}", value) for i, value in enumerate(args)]
    parts += [(f"argument {name}=", value) for name, value in kwargs.items()]
    function = inspect.unwrap(fn) if callable(fn) else fn
    if inspect.isfunction(function):
        used = inspect.getclosurevars(function)
        names = (*used.nonlocals.items(), *used.globals.items())
        parts += [(f"{name!r}, which {describe_callable(fn)} uses,", value) for name, value in names]
    for label, value in parts:
        try:
            pack(value)
        except (Exception, pickle.PicklingError):
            return f"{label} of type {type(value).__qualname__}"
    return ""


@contextmanager
def _by_value(fn: Any) -> Iterator[None]:
    """Let cloudpickle copy code of modules that a worker would not find, or find in another version."""
    own = {getattr(part, "__module__", None) for part in _layers(fn)}
    importable = _Importable()
    # Programs put odd things into sys.modules.
    loaded = [m for m in list(sys.modules.values()) if issubclass(type(m), ModuleType)]
    users = [m for m in loaded if (file := module_file(m)) is not None and is_users(file)]
    modules = [m for m in users if m.__name__ in own or m not in importable]
    # cloudpickle's registry has names: one module may be loaded twice (debugpy's are), or under another name.
    left_out = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    by_name = {m.__name__: m for m in modules if m.__name__ in sys.modules and m.__name__ not in left_out}
    for module in by_name.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in by_name.values():
            cloudpickle.unregister_pickle_by_value(module)


def _layers(fn: Any) -> Iterator[Any]:
    """A callable and the callables it wraps: decorators, partials, bound methods, callable objects."""
    seen: list[Any] = []
    while fn is not None and not any(fn is known for known in seen):
        seen.append(fn)
        yield fn
        yield type(fn)
        fn = getattr(fn, "__wrapped__", None) or getattr(fn, "func", None) or getattr(fn, "__func__", None)


class _Importable:
    """The modules that another process with the same `sys.path` can import."""

    def __init__(self) -> None:
        # Python itself starts with the finders of editable installations, so a worker has them, too.
        finders = [finder for name, finder in sys.modules.copy().items() if name.startswith("__editable__")]
        self._editable = dict(ChainMap(*(getattr(finder, "MAPPING", {}) for finder in finders)))
        self._path = {os.path.realpath(entry or ".") for entry in sys.path}

    def __contains__(self, module: ModuleType) -> bool:
        """Whether `import` finds the same file under the same name."""
        (top, *below), real = module.__name__.split("."), os.path.realpath(module.__file__ or "")
        if top in self._editable:
            inside = os.path.join(os.path.realpath(self._editable[top]), *below)
            return real.startswith((inside + os.sep, inside + ".py"))
        file = Path(real)
        parents = len(below) + 1 - (file.stem != "__init__")
        root = file.parents[parents] if parents < len(file.parents) else None
        expected = module.__name__.split(".")[-1] in (file.stem, file.parent.name)
        return expected and root is not None and str(root) in self._path
