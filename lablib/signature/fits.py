"""The test of an annotation: whether a value has the type and is within the bounds.

Whole numbers are below 2**63, numbers below 1e308. True is not a number; a list is accepted as a tuple. NaN and
infinity are numbers, which the bounds of an annotation refuse.
"""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache, partial
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from lablib.signature.bounds import Bound
from lablib.signature.hints import Named, hints_of

MAX_WHOLE = 2**63 - 1


def fits(value: Any, hint: Any) -> bool:
    """Whether the value has the type that the annotation names; True for annotations that name none."""
    return _test_of(hint)(value)


@cache
def _test_of(hint: Any) -> Callable[[Any], bool]:
    """The test of an annotation, cached: it is built once for many calls."""
    if hint is Any or isinstance(hint, TypeVar):
        return _anything
    if inspect.isclass(hint) and issubclass(hint, Named):
        return lambda value: hint.__name__ in {kind.__name__ for kind in type(value).__mro__}
    origin, of = get_origin(hint), get_args(hint)
    if origin is Annotated:
        tests = [_test_of(of[0]), *(one.test() for one in of[1:] if isinstance(one, Bound))]
        if len(tests) != 2:
            return lambda value: all(test(value) for test in tests)
        first, second = tests
        return lambda value: first(value) and second(value)
    if origin is None:
        return _simple_test(hint)
    if origin in (Union, types.UnionType):
        tests = [_test_of(one) for one in of]
        return lambda value: any(test(value) for test in tests)
    if origin is Literal:
        return lambda value: any(type(value) is type(one) and value == one for one in of)
    if not inspect.isclass(origin):
        return _anything
    if origin in (type, Callable) or issubclass(origin, Callable):
        return partial(_takes, len(of[0])) if of and isinstance(of[0], list) else callable
    if issubclass(origin, tuple):
        tests = [_test_of(one) for one in of if one is not Ellipsis]
        if of[-1:] == (Ellipsis,):
            return lambda value: isinstance(value, (tuple, list)) and all(map(tests[0], value))
        return lambda value: (
            isinstance(value, (tuple, list))
            and len(value) == len(tests)
            and all(test(one) for test, one in zip(tests, value, strict=True))
        )
    if issubclass(origin, Mapping):
        of_key, of_value = map(_test_of, of)
        return lambda value: isinstance(value, Mapping) and all(of_key(k) and of_value(v) for k, v in value.items())
    return _items_test(origin, of[0] if of else Any)


@cache
def tests_of(function: Callable[..., Any]) -> Mapping[str, Callable[[Any], bool]]:
    """The test of each argument."""
    return {name: _test_of(hint) for name, hint in hints_of(function).items()}


@cache
def without_bounds(hint: Any) -> Any:
    """The annotation without bounds, also in items and in the parts of a union."""
    origin, of = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return without_bounds(of[0])
    if origin in (Union, types.UnionType):
        return Union[tuple(map(without_bounds, of))]  # noqa: UP007
    if origin in (Literal, None) or not of or any(isinstance(one, list) for one in of):
        return hint
    return origin[tuple(map(without_bounds, of))] if origin is not Callable else hint


def _anything(value: Any) -> bool:
    return True


def _simple_test(hint: Any) -> Callable[[Any], bool]:
    if hint is None:
        return lambda value: value is None
    if hint is bool:
        return lambda value: isinstance(value, bool) or _is_of_numpy(value, "bool", "bool_")
    if hint is int:
        return _is_whole
    if hint is float:
        return _is_number
    if hint in (Callable, callable):
        return callable
    if array := getattr(hint, "array_type", None):  # jaxtyping: its shapes are for readers, and for tests
        return lambda value: isinstance(value, array)
    if getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False):
        asked = [name for name in dir(hint) if not name.startswith("_")] + list(hint.__annotations__)
        return lambda value: not isinstance(value, type) and all(hasattr(value, name) for name in asked)
    if not inspect.isclass(hint):
        return _anything
    return cast("Callable[[Any], bool]", partial(type(hint).__instancecheck__, hint))  # in C, as there are many items


def _takes(num_arguments: int, value: Any) -> bool:
    """Whether it accepts this number of arguments; True without a signature, as for some C functions."""
    if not callable(value):
        return False
    try:
        signature = inspect.signature(value)
    except Exception:  # a user's object may do anything here
        return True
    try:
        signature.bind(*range(num_arguments))
    except TypeError:
        return False
    return True


def _is_whole(value: Any) -> bool:
    if type(value) is int:
        return -MAX_WHOLE <= value <= MAX_WHOLE
    return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) <= MAX_WHOLE


def _is_number(value: Any) -> bool:
    if type(value) is float:
        return True
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return not isinstance(value, Integral) or abs(int(value)) < 10**308


def _items_test(origin: type, item: Any) -> Callable[[Any], bool]:
    """A sequence, set or other iterable of `item`. Iterators pass unread."""
    test, asks_sequence, asks_set = _test_of(item), issubclass(origin, Sequence), issubclass(origin, Set)
    may_be_array = issubclass(origin, (Sequence, Iterable))

    def holds(value: Any) -> bool:
        if isinstance(value, (str, bytes)) or getattr(value, "ndim", 1) == 0:  # a tensor of one number has `__iter__`
            return False
        if may_be_array and _is_of_numpy(value, "ndarray"):
            return value.ndim == 1 and all(map(test, value.tolist()))
        is_list = isinstance(value, (list, tuple, Sequence, Set, Mapping))
        if not (is_list or hasattr(value, "__iter__")) or (asks_sequence and not _is_sequence(value)):
            return False
        if asks_set and not isinstance(value, Set):
            return False
        return not is_list or test is _anything or all(map(test, value))

    return holds


def _is_of_numpy(value: Any, *names: str) -> bool:
    """Test by name, so that `lab --help` does not import numpy."""
    return type(value).__module__ == "numpy" and type(value).__name__ in names


def _is_sequence(value: Any) -> bool:
    if isinstance(value, Mapping):
        return False
    return isinstance(value, Sequence) or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))
