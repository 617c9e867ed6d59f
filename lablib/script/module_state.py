"""Record the state of library modules without running library code, and compare two records.

Attribute access, `isinstance`, `len`, iteration, comparison and hashing call methods of an object's class: a lazy
module imports, a lazy table loads all its entries, a proxy raises. A record therefore reads

    type(value), issubclass          never `value.__class__`
    dict.items, list.__iter__, ...   never an overridden method of a subclass
    slots of type, module, object    never `__getattr__`, `__getattribute__` or a property

A record of a value is a tuple of plain data, or None for code and for objects without state (locks, loggers, caches of
functions), so that parts that a library loads late are no change.
"""

import collections
import enum
import logging
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from lablib.process.whose_code import module_contents, module_file
from lablib.script.modules import is_library_file
from lablib.torch_compat import untouched_version

_MAX_ENTRIES = 1_000  # per container; a longer one is recorded by its length
_DEPTH = 3
_EXACT = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
# The plain value of a subclass's instance, such as int.__int__.
_OF_SUBCLASS = {kind: getattr(kind, f"__{kind.__name__}__") for kind in (int, float, complex, str, bytes)}
_CONTAINERS = {kind: (kind.__iter__, kind.__len__) for kind in (list, tuple, collections.deque, set, frozenset)}
_STATELESS = (types.ModuleType, re.Pattern, logging.Logger, weakref.ref, threading.local, type(threading.Lock()))
_STATELESS += (type(cache(len)),)
_MODULE_OF: dict[type, Callable[[Any], Any]] = {
    types.FunctionType: types.FunctionType.__dict__["__module__"].__get__,
    types.BuiltinFunctionType: types.BuiltinFunctionType.__dict__["__module__"].__get__,
    type: type.__dict__["__module__"].__get__,
}
_FUNCTION_OF: Callable[[Any], Any] = types.MethodType.__dict__["__func__"].__get__
_ATTRIBUTES_OF: dict[type, Callable[[Any], Any]] = {
    types.FunctionType: types.FunctionType.__dict__["__dict__"].__get__,
    type: type.__dict__["__dict__"].__get__,
}
_CLASSES_OF: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_OF_A_RANK = (dist.ProcessGroup, dist.Work)

Record = tuple[str, Any, Any]
Change = tuple[tuple[Any, ...], Record | None, Record | None]


def record_modules(is_watched: Callable[[str, str | None], bool]) -> dict[str, Record]:
    """Records by dotted name, as in "accelerate.state.PartialState._shared_state", of the watched (name, file)."""
    found: dict[str, Record] = {}
    for name, module in sys.modules.copy().items():
        if type(name) is str and is_watched(name, module_file(module)):
            for path, value in _attributes(name, module_contents(module)):
                if (record := _record(value, name.partition(".")[0], _DEPTH)) is not None:
                    found[path] = record
    return found


def changes(before: Record | None, after: Record | None) -> Iterator[Change]:
    """The differences of two records of one value: the path of keys, and both records; entries are compared by key."""
    if before == after:
        return
    if before and after and before[:2] == after[:2] and before[0] in ("dict", "object"):
        if isinstance(before[2], tuple) and isinstance(after[2], tuple):
            old, new = dict(before[2]), dict(after[2])
            for key in {**old, **new}:
                for where, one, other in changes(old.get(key), new.get(key)):
                    yield (key, *where), one, other
            return
    yield (), before, after


def is_of_a_rank(where: Sequence[Any], record: Record | None, numbers: frozenset[int]) -> bool:
    """Whether a record contains a value that differs by rank: its number, its device, or its process group.

    `where` is the path of names to the value; `numbers` are the global and the local number of the rank.
    """
    if record is None:
        return False
    if record[0] in ("dict", "object") and isinstance(record[2], tuple):
        return any(is_of_a_rank([*where, key], entry, numbers) for key, entry in record[2])
    if record[0] == "list" and isinstance(record[2], tuple):
        return any(is_of_a_rank((), entry, numbers) for _, entry in record[2])
    if record[0] == "int" and where and isinstance(where[-1], str) and _NAMES_A_RANK.search(where[-1].lower()):
        return record[2] in numbers
    return record[0] == "group" or (record[0] == "device" and record[2].index is not None)


_NAMES_A_RANK = re.compile(r"(^|_)rank|(process|device)_?(index|id)$")


def _attributes(name: str, contents: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """The data of a module, of the classes that it defines, and of its functions."""
    for key, value in contents.copy().items():
        if type(key) is not str or _is_python(key):
            continue
        yield f"{name}.{key}", value
        kind = type if issubclass(type(value), type) else type(value)
        if kind in _ATTRIBUTES_OF and _module_of(value) == name:
            # A metaclass may keep the instances (of a singleton), and every class has its own attributes.
            for attribute, content in list(_ATTRIBUTES_OF[kind](value).items()):
                if type(attribute) is str and not _is_python(attribute):
                    yield f"{name}.{key}.{attribute}", content


def _is_python(name: str) -> bool:
    return (name.startswith("__") and name.endswith("__")) or name.startswith("_abc_")


def _record(value: Any, library: str, depth: int) -> Record | None:
    kind = type(value)
    if kind in _EXACT:
        return kind.__name__, None, value
    if issubclass(kind, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)):
        return None if _is_librarys(value) else ("code", id(value), None)
    if issubclass(kind, _STATELESS):
        return None
    if issubclass(kind, _OF_A_RANK):
        return "group", id(value), None
    if issubclass(kind, enum.Enum):
        return "enum", id(value), None
    if issubclass(kind, torch.Tensor):
        return "tensor", id(value), untouched_version(value)
    for plain, exact in _OF_SUBCLASS.items():
        if issubclass(kind, plain):
            return plain.__name__, None, exact(value)
    if issubclass(kind, dict):
        return _entries("dict", None, partial(dict.items, value), dict.__len__(value), library, depth)
    for container, (iterate, length) in _CONTAINERS.items():
        if issubclass(kind, container):
            return _entries("list", None, partial(enumerate, iterate(value)), length(value), library, depth)
    contents = _contents(value)
    module = _module_of(kind)
    if contents is not None and (module.partition(".")[0] == library or not _is_librarys(kind)):
        return _entries("object", id(value), partial(dict.items, contents), dict.__len__(contents), library, depth)
    return "object", id(value), None


def _entries(
    kind: str, identity: int | None, items: Callable[[], Iterable[Any]], size: int, library: str, depth: int
) -> Record:
    if size > _MAX_ENTRIES or depth == 0:
        return kind, identity, size
    try:
        pairs = list(items())
    except RuntimeError:  # another host thread changes it at this moment
        return kind, identity, size
    plain = (int, str, bytes, type(None))
    keyed = [(key if type(key) in plain else id(key), _record(entry, library, depth - 1)) for key, entry in pairs]
    return kind, identity, tuple((key, record) for key, record in keyed if record is not None)


def _contents(value: Any) -> dict[Any, Any] | None:
    """The attributes of an object, if its class keeps them only in a dictionary."""
    for kind in _CLASSES_OF(type(value)):
        slot = _ATTRIBUTES_OF[type](kind).get("__dict__")
        if slot is not None:
            found = slot.__get__(value) if type(slot) is types.GetSetDescriptorType else None
            return found if issubclass(type(found), dict) else None
    return None


def _module_of(code: Any) -> str:
    """The `__module__` of a class or function; "" for none."""
    while type(code) is types.MethodType:
        code = _FUNCTION_OF(code)
    read = _MODULE_OF.get(type if issubclass(type(code), type) else type(code))
    name = read(code) if read else None
    return name if type(name) is str else ""


def _is_librarys(code: Any) -> bool:
    """Whether a function or a class is of a module that all ranks share, not of the script."""
    name = _module_of(code)
    return name != "__main__" and is_library_file(module_file(sys.modules.get(name)))
