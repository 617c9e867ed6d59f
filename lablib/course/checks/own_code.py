"""The rule that an answer is the learner's own code, by static analysis of the answer.

    not_from_lablib(answer, allowed=("exchange",))

The check follows everything that an answer can reach: names in its code with their attributes (`parallel.exchange`),
imports inside it, other names for a module (`p = parallel`), closures, default arguments, and the values in these:
helpers of the notebook, lists, dicts, namespaces, partial functions, wrappers, classes and their objects. Ways to reach
an object without its name are refused, as they also lead to the check's values: frames, `sys.modules`, `__globals__`,
`globals()`, `exec`, a text that names lablib, `pickle`. torch's stores are refused too: ranks could pass values by them
without traffic.
"""

import dis
import functools
import importlib
import re
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import lablib
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.process.whose_code import is_users
from lablib.torch_compat import name_in_torch

_ALWAYS = ("phase",)  # it names a part of the timeline
_MODULES = ("builtins", "gc", "importlib", "inspect", "marshal", "pickle", "_pickle", "pkgutil", "pydoc")
_ATTRIBUTES = ("__closure__", "__globals__", "__subclasses__", "f_back", "f_globals", "f_locals", "tb_frame")
_STORES = ("Store", "TCPStore", "FileStore", "HashStore")
_STORES += tuple(name_in_torch(name) for name in ("default_store", "process_group_store", "World"))
_BUILTINS = ("__import__", "eval", "exec", "globals")
_CONTAINERS = (list, tuple, set, frozenset, deque)
_MAX_ITEMS = 1000  # of one container


def not_from_lablib(answer: Any, allowed: Iterable[str] = (), refused: Iterable[Any] = ()) -> None:
    """The answer's code, and all code of the notebook that it reaches, neither imports nor uses lablib.

    Args:
        answer: a function or a callable object; other values have no code.
        allowed: names in lablib that may be used. `phase` is always allowed.
        refused: functions and classes of other packages that must not be used, such as torch's own solution, nor
            objects of such a class (`type(mesh)` is the class); and modules that must not be used as a whole, as in
            `getattr(torch.optim, name)`.

    Raises RuleBroken: it does; the message lists the allowed names.
    """
    allowed = tuple(allowed)
    seen = {}
    name = next(_refused(answer, {*allowed, *_ALWAYS}, seen), None)
    found = next((one for one in refused if id(one) in seen or _has_object(seen, one)), None)
    if name is None and found is not None:
        name = f"{_home(found)} as a whole" if isinstance(found, ModuleType) else f"{_home(found)}.{found.__name__}"
    if name is not None:
        but = " and ".join(_public_name(one) for one in allowed)
        expected = f"your own lines: no ready solution, and nothing of lablib{' but ' if but else ''}{but}"
        raise RuleBroken("the answer is your own code", f"it uses {name}", expected)


def _refused(value: Any, allowed: set[str], seen: dict[int, Any]) -> Iterator[str]:
    """Forbidden names that can be reached from a value. `seen` holds the visited values, by id."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    name = _reason(value, allowed)
    if name:
        yield name
    elif kernel := _kernel(value):
        yield from _refused(kernel, allowed, seen)
    elif not _is_lablib(_home(value)):  # allowed, or an object of lablib: a cluster, a link
        for part in _parts(value):
            yield from _refused(part, allowed, seen)
        if isinstance(value, FunctionType) and is_users(value.__code__.co_filename):
            for code in _codes(value.__code__):
                yield from _refused_names(code, value.__globals__)
            for used in _used(value):
                yield from _refused(used, allowed, seen)
            for code in _codes(value.__code__):
                yield from filter(None, map(_refused_text, _texts(code)))


def _reason(value: Any, allowed: set[str]) -> str:
    """The name under which a value is refused; "" if it is allowed."""
    home = _home(value)
    if isinstance(value, str | bytes):
        return _refused_text(value)
    if value is sys.modules or value is sys._getframe:
        return "sys.modules" if value is sys.modules else "sys._getframe"
    if isinstance(value, ModuleType) and _is_lablib(home):
        return f"{home} as a whole"
    if home.startswith("torch.") and getattr(value, "__name__", type(value).__name__) in _STORES:
        return "torch's store, by which values pass that no traffic shows"
    if value is sys:
        return "sys as a whole"
    if isinstance(value, FunctionType | type) and _is_lablib(home) and value.__name__ not in allowed:
        return _public_name(value.__name__, value)
    if (kernel := _kernel(value)) and _is_lablib(_home(kernel)) and kernel.__name__ not in allowed:
        return kernel.__name__
    is_code = isinstance(value, ModuleType) or (callable(value) and home != "builtins")  # `len`, `int` are allowed
    return f"{home}, by which anything can be reached" if is_code and home in _MODULES else ""


def _kernel(value: Any) -> FunctionType | None:
    """The function of a kernel made by `jit`."""
    function = getattr(value, "fn", None) if _is_lablib(_home(type(value))) else None
    return function if isinstance(function, FunctionType) else None


def _refused_text(value: str | bytes) -> str:
    """The name under which a text is refused: a text by which `getattr` or a loader reaches lablib."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    is_refused = "lablib" in text or text == "sys" or text in _ATTRIBUTES
    return f"the text {short_repr(value)}, by which anything can be reached" if is_refused else ""


def _parts(value: Any) -> Iterable[Any]:
    """The values inside a value, as far as a learner can have put them there."""
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        # Modules in it are judged by the attributes taken from them: see _used.
        return [held for held in [*_bound(value).values(), *_wrapped(value)] if not isinstance(held, ModuleType)]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, weakref.ref):
        return [value()]
    if _home(type(value)).startswith(("numpy", "pandas")) and getattr(value, "dtype", "") == "O":
        return value.tolist()  # an array or a series
    if isinstance(value, dict):
        return [held for item in [*value.items()][:_MAX_ITEMS] for held in item]
    if isinstance(value, _CONTAINERS):
        return list(value)[:_MAX_ITEMS]
    if isinstance(value, SimpleNamespace):
        return vars(value).values()
    kind = value if isinstance(value, type) else type(value)
    if not is_users(getattr(sys.modules.get(kind.__module__), "__file__", None) or "") or _home(kind) == "builtins":
        return _wrapped(value)
    members = (held for name, held in getattr(value, "__dict__", {}).items() if name not in ("__doc__", "__module__"))
    return [*members, *(() if kind is value else (kind,)), *kind.__bases__]


def _wrapped(value: Any) -> list[Any]:
    """The inner function that `functools.wraps` and `functools.cache` keep."""
    try:
        inside = value.__dict__.get("__wrapped__")
    except Exception:  # an object may raise any error
        inside = None
    return [] if inside is None else [inside]


def _bound(function: FunctionType) -> dict[str, Any]:
    """Values that a function carries by name: default arguments and variables of the enclosing functions."""
    code = function.__code__
    arguments = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    bound = dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            bound[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return bound | (function.__kwdefaults__ or {})


def _used(function: FunctionType) -> Iterator[Any]:
    """Values that the code names: globals and imports, and for modules the attributes taken from them.

    Modules under other names (`p = parallel`, `import lablib.parallel as p`) are followed. A module that is used
    otherwise (passed to a function, put into a list), or imported without use, is yielded itself.
    """
    modules = {name: held for name, held in _bound(function).items() if isinstance(held, ModuleType)}
    brought, loaded = set(modules), set()
    for code in _codes(function.__code__):
        steps = list(instructions(code))
        for at, (operation, name) in enumerate(steps):
            if operation.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")):
                loaded.add(name)
            if operation in ("LOAD_GLOBAL", "LOAD_NAME") and name in function.__globals__:
                found, rest = _attribute(function.__globals__[name], steps, at + 1)
            elif operation.startswith(("LOAD_FAST", "LOAD_DEREF")) and name in modules:
                found, rest = _attribute(modules[name], steps, at + 1)
            elif operation == "IMPORT_NAME":
                yield from _imported(steps, at, modules)
                continue
            else:
                continue
            if isinstance(found, ModuleType) and steps[rest][0] in ("STORE_FAST", "STORE_DEREF"):
                modules[steps[rest][1]] = found
            else:
                yield found
    for name, module in modules.items():
        if name not in brought | loaded and _is_lablib(module.__name__):
            yield module


def _attribute(value: Any, steps: list[tuple[str, Any]], at: int) -> tuple[Any, int]:
    """The attribute that the code takes from a module from step `at` on, and the step after that."""
    while isinstance(value, ModuleType) and steps[at][0] in ("LOAD_ATTR", "LOAD_METHOD"):
        taken = getattr(value, steps[at][1], value)
        by_way_of_lablib = isinstance(taken, ModuleType) and _is_lablib(value.__name__) != _is_lablib(taken.__name__)
        if taken is value or by_way_of_lablib:
            break  # a module of another package, by way of lablib: the lablib module counts
        value, at = taken, at + 1
    return value, at


def _imported(steps: list[tuple[str, Any]], at: int, modules: dict[str, ModuleType]) -> Iterator[Any]:
    """Objects that an import inside a function brings; modules are entered in `modules` under their local name."""
    name, wanted = str(steps[at][1]), steps[at - 1][1]
    module = sys.modules.get(name)
    if module is None and (_is_lablib(name) or name in _MODULES):
        try:
            module = importlib.import_module(name)
        except ImportError:
            return  # running it reports this
    if module is None:
        return
    following = [step for step in steps[at + 1 :] if step[0].startswith(("STORE_", "IMPORT_"))]
    if not wanted:  # import a.b, import a.b as c
        with_as = following[0][0] == "IMPORT_FROM"
        stored = next(stored for operation, stored in following if operation.startswith("STORE_"))
        modules[stored] = module if with_as else sys.modules[name.partition(".")[0]]
        return
    for number, part in enumerate(wanted):
        taken = getattr(module, part, module)
        if isinstance(taken, ModuleType) and taken is not module:
            modules[following[2 * number + 1][1]] = taken
        else:
            yield taken


def instructions(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Instructions as (operation, argument), the same for every Python version.

    Python 3.13 combines two operations in one instruction, and loads a variable shared with an inner function by
    LOAD_FAST when it makes that function; earlier versions use LOAD_CLOSURE.
    """
    shared = {*code.co_cellvars, *code.co_freevars}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("CACHE", "EXTENDED_ARG", "PUSH_NULL", "RESUME"):
            continue
        parts = re.findall("LOAD_FAST|STORE_FAST", instruction.opname)
        is_pair = len(parts) == 2 and isinstance(instruction.argval, tuple)
        steps = zip(parts, instruction.argval, strict=True) if is_pair else [(instruction.opname, instruction.argval)]
        for operation, argument in steps:
            is_closure = operation.startswith("LOAD_FAST") and argument in shared
            yield "LOAD_CLOSURE" if is_closure else operation, argument
    yield "END", None


def _refused_names(code: CodeType, known: dict[str, Any]) -> Iterator[str]:
    for operation, name in instructions(code):
        by_attribute = operation in ("LOAD_ATTR", "LOAD_METHOD") and name in _ATTRIBUTES
        if by_attribute or (operation in ("LOAD_GLOBAL", "LOAD_NAME") and name in _BUILTINS and name not in known):
            yield f"{name}, by which anything can be reached"


def _texts(code: CodeType) -> Iterator[str | bytes]:
    """Texts that the code uses, without docstrings."""
    for operation, value in instructions(code):
        if operation == "LOAD_CONST":
            texts = value if isinstance(value, tuple | frozenset) else (value,)
            yield from (text for text in texts if isinstance(text, str | bytes))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and the code of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _public_name(name: str, value: Any = None) -> str:
    """A name of lablib as a notebook writes it: parallel.exchange, lablib.launch."""
    packages = [lablib, *(held for held in vars(lablib).values() if isinstance(held, ModuleType))]
    for package in packages:
        is_exported = name in getattr(package, "__all__", ())  # imported when it is asked for (lablib/index.py)
        held = getattr(package, name) if is_exported else vars(package).get(name)
        is_it = held is value if value is not None else callable(held)
        if _is_lablib(package.__name__) and is_it:
            return f"{package.__name__.removeprefix('lablib.')}.{name}"
    return name if value is None else f"{_home(value)}.{name}"


def _has_object(seen: dict[int, Any], kind: Any) -> bool:
    """Do these values, or a lablib object among them, include an object of the class?"""
    of_lablib = (each for each in seen.values() if not isinstance(each, type) and _is_lablib(_home(type(each))))
    held = [part for each in of_lablib for part in getattr(each, "__dict__", {}).values()]
    return isinstance(kind, type) and any(issubclass(type(each), kind) for each in [*seen.values(), *held])


def _home(value: Any) -> str:
    """Name of the module that a value is or comes from; `functools.wraps` and `staticmethod` copy `__module__`."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType) and is_users(value.__code__.co_filename):
        return str(value.__globals__.get("__name__"))
    if isinstance(value, staticmethod | classmethod | property | functools.partial):
        return ""
    try:
        home = getattr(value, "__module__", None) or type(value).__module__
    except Exception:  # an object may raise any error
        home = ""
    return home if isinstance(home, str) else ""


def _is_lablib(module: str) -> bool:
    return module == "lablib" or module.startswith(("lablib.", "lablib_checks_of_"))
