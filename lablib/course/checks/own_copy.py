"""A separate copy of a learner's function for each rank, as processes have.

Simulated ranks are threads, so an answer could put its tensor into a list or dict of the notebook and read another
rank's tensor from there: right values without communication. Real ranks get the function pickled. So do the ranks of
every `expect.launch`, with separate modules (own_modules.py), whether the program holds the answer in a closure or gets
it as an argument:

    def program(xs):
        return observe(answer, xs[dist.get_rank()])        `answer` is this rank's copy
"""

import functools
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any

import cloudpickle

from lablib.course.checks.learner_code import exited
from lablib.course.checks.own_modules import OwnModules, SharedObjects

Replace = Callable[[Any], Any]  # the replacement of a value; the value itself if it has none
_SHARED = (type(threading.Lock()), type(threading.RLock()), threading.local, io.IOBase, GeneratorType)


def with_own_copies(
    program: Callable[..., Any], args: Sequence[Any], answers: Sequence[Any], ranks: int
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The program and its arguments, with a separate copy of the answers, the check's callable values, for every rank.

    An answer that cannot be copied stays as it is; locks and open files in it are shared.
    """
    answers = [answer for answer in answers if callable(answer)]
    shelves = SharedObjects()
    copies = _copies(answers, ranks, shelves) if answers else None
    if copies is None:
        return program, tuple(args)
    number_of = {id(answer): number for number, answer in enumerate(answers)}

    # The simulator copies arguments: a mark is also found in the copy.
    def marked(value: Any) -> Any:
        return _Mark(number_of[id(value)]) if id(value) in number_of else value

    @functools.wraps(program)
    def on_rank(*args: Any) -> Any:
        import torch.distributed as dist

        own = copies[dist.get_rank()]
        unmarked = _replaced(args, lambda value: own[value.number] if isinstance(value, _Mark) else value)
        launched = _replaced(program, lambda value: own[number_of[id(value)]] if id(value) in number_of else value)
        try:
            value = launched(*unmarked)
        except SystemExit as end:
            raise exited(end) from None
        shelves.look()
        return value

    return on_rank, tuple(_replaced(arg, marked) for arg in args)


@dataclass(frozen=True)
class _Mark:
    """Placeholder for an answer among the arguments."""

    number: int

    def __call__(self) -> None:
        """`functools.partial` accepts only callables."""


def _copies(answers: Sequence[Any], ranks: int, shelves: SharedObjects) -> list[list[Any]] | None:
    """The answers, once per rank; None if they cannot be pickled. Objects that answers share stay shared."""
    shared: list[Any] = []
    file = io.BytesIO()
    try:
        _Pickler(file, shared, shelves).dump(list(answers))
        return [_Unpickler(file.getvalue(), shared, OwnModules(rank, shelves)).load() for rank in range(ranks)]
    except Exception:  # a learner's object may raise any error: real ranks report it better
        return None


class _Pickler(cloudpickle.Pickler):
    """Collects in `shared` the objects that a process could not receive, such as a lock; the rest is still copied."""

    def __init__(self, file: io.BytesIO, shared: list[Any], shelves: SharedObjects):
        super().__init__(file)
        self._shared, self._shelves = shared, shelves

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            self._shelves.meet_code(obj)
        elif isinstance(obj, ModuleType):
            return obj.__name__ if sys.modules.get(obj.__name__) is obj else None
        elif isinstance(obj, _SHARED) and not isinstance(obj, io.BytesIO | io.StringIO):
            self._shared.append(obj)
            return len(self._shared) - 1
        else:
            self._shelves.meet(obj)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, shared: list[Any], modules: OwnModules):
        super().__init__(io.BytesIO(content))
        self._shared, self._modules = shared, modules

    def persistent_load(self, found: int | str) -> Any:
        return self._modules.of(sys.modules[found]) if isinstance(found, str) else self._shared[found]

    def find_class(self, module: str, name: str) -> Any:
        """cloudpickle makes a class of the notebook once per process; here a rank counts as a process.

        It also gives functions the process's builtins, with the import of the process's modules.
        """
        if name == "_make_skeleton_class":
            return _new_class
        found = super().find_class(module, name)
        return self._with_builtins(found) if name in ("_make_function", "_function_setstate") else found

    def _with_builtins(self, make: Callable[..., Any]) -> Callable[..., Any]:
        own = self._modules.builtins

        def made(first: Any, second: Any, *more: Any) -> Any:
            if isinstance(first, CodeType):  # code, globals, name, ...
                second["__builtins__"] = own
                return FunctionType(first, second, *more)
            value = make(first, second, *more)
            first.__globals__["__builtins__"] = own
            return value

        return made


def _new_class(kind: type, name: str, bases: tuple, namespace: dict[str, Any], _id: str, _extra: Any) -> type:
    return types.new_class(name, bases, {"metaclass": kind}, lambda members: members.update(namespace))


def _replaced(value: Any, replace: Replace, known: dict[int, Any] | None = None) -> Any:
    """The value with replacements, also in closures, partial functions, lists, tuples and dicts.

    An object that contains nothing to replace stays the same object.
    """
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)]
    new = replace(value)
    if new is not value:
        return new
    known[id(value)] = value  # a function may contain itself
    if type(value) in (list, tuple):
        items = [_replaced(item, replace, known) for item in value]
        new = value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    elif type(value) is dict:
        items = {key: _replaced(item, replace, known) for key, item in value.items()}
        new = value if all(items[key] is value[key] for key in value) else items
    elif isinstance(value, functools.partial):
        parts = _replaced((value.func, value.args, value.keywords), replace, known)
        unchanged = all(a is b for a, b in zip(parts, (value.func, value.args, value.keywords), strict=True))
        new = value if unchanged else functools.partial(parts[0], *parts[1], **parts[2])
    elif isinstance(value, FunctionType) and value.__closure__:
        new = _with_closure(value, replace, known)
    known[id(value)] = new
    return new


def _with_closure(function: FunctionType, replace: Replace, known: dict[int, Any]) -> FunctionType:
    """The function with replaced values in its closure; cells with nothing to replace stay shared."""
    cells: list[CellType] = []
    for cell in function.__closure__ or ():
        try:
            new = _replaced(cell.cell_contents, replace, known)
            cells.append(cell if new is cell.cell_contents else CellType(new))
        except ValueError:  # not assigned yet
            cells.append(cell)
    if all(a is b for a, b in zip(cells, function.__closure__ or (), strict=True)):
        return function
    new = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    new.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(new, function)
    return new
