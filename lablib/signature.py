"""A call is held to the types of its own signature, where users call: a sentence instead of an error from our insides.

    @checked
    def figure_traffic(traffic: Traffic, num_ranks: int) -> go.Figure: ...

    figure_traffic(run, 4)     TypeError: figure_traffic: traffic must be a Traffic: got Run(...)

`check_fields(self)` in the `__post_init__` of a record does the same for its fields. It is for what a notebook calls,
not for inner loops: a call costs some microseconds, and a list a look at each of its items.

A whole number is one below 2**63, a number one below 1e308: beyond that nothing can be counted. NaN and infinity are
numbers; whoever cannot use them says so. True is no number, and a list stands for a tuple. What is annotated with a
class that only type checkers import is known by that class's name.
"""

from __future__ import annotations

import builtins
import inspect
import reprlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

F = TypeVar("F", bound=Callable[..., Any])
MAX_WHOLE = 2**63 - 1
MAX_LETTERS = 120  # of a value in a message
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "True or False", type(None): "None"}
_EXAMPLES = {int: "8", float: "2.0", str: '"name"', bool: "True"}


class WrongType(TypeError, ValueError):
    """An argument that has not the type of its annotation: a TypeError, and what a user chose, so a ValueError too."""


def checked(function: F) -> F:
    """The function, with its arguments held to their annotations.

    Raises (when it is called):
        WrongType: an argument that is missing, too many or not of its type.
    """
    signature, name = inspect.signature(function), function.__qualname__

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongType(f"{name}: {error}") from None
        hints = hints_of(function)
        for argument, value in bound.arguments.items():
            kind = signature.parameters[argument].kind
            several = {inspect.Parameter.VAR_POSITIONAL: value, inspect.Parameter.VAR_KEYWORD: ()}.get(kind, (value,))
            for one in several:
                check_type(f"{name}: {argument}", one, hints.get(argument, Any))
        return function(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


def check_fields(record: Any) -> None:
    """Hold a record (a dataclass) to the types of its fields. Raises WrongType."""
    kind = type(record)
    hints = hints_of(kind)
    for field in fields(record):
        check_type(f"{kind.__name__}: {field.name}", getattr(record, field.name), hints.get(field.name, Any))


def check_types(function: str, arguments: Iterable[tuple[str, Any, Any]]) -> None:
    """Hold some (argument, value, type) to their types; for functions that look themselves before they ask."""
    for argument, value, hint in arguments:
        check_type(f"{function}: {argument}", value, hint)


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise WrongType where the value has not the type; `name` begins the sentence."""
    if type(value) is hint and hint in (float, str):  # most of a figure's many labels
        return
    if not fits(value, hint):
        if isinstance(value, Integral) and not isinstance(value, bool) and fits(0, hint):
            raise WrongType(f"{name} must be a number that can be counted with, below 2**63: got {shown(value)}")
        example = next((f"; give {text}" for kind, text in _EXAMPLES.items() if kind in (hint, *get_args(hint))), "")
        raise WrongType(f"{name} must be {in_words(hint)}: got {shown(value)}{example}")


def shown(value: object) -> str:
    """The value for a message: shortened, and whatever its own `repr` does."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 3, MAX_LETTERS, MAX_LETTERS, 60
    try:
        text = short.repr(value)
    except Exception:  # a user's object may do anything here
        text = ""
    return text[:MAX_LETTERS] or f"an object of class {type(value).__name__}"


def whole_number(
    name: str, value: Any, minimum: int = 1, example: object = 8, of: str = "", maximum: float = MAX_WHOLE
) -> int:
    """A count as Python's int; one of numpy is one, too, True is none.

    Args:
        name: the argument's, for the message; what stands before a space in it is whose: "gpipe: num_stages".
        example: what to try instead.
        of: whose it is, for the message: " for 'gpt2'".
        maximum: infinity where the caller says what is too many.

    Raises:
        ValueError: not a whole number, below the minimum, or more than can be counted with.
    """
    remedy = f"got {shown(value)}{of}; try {name.split()[-1]}={example}"
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"{name} must be a whole number, {minimum} or more: {remedy}")
    if int(value) > maximum:
        raise ValueError(f"{name} must be below 2**63: {remedy}")
    return int(value)


def fits(value: Any, hint: Any) -> bool:
    """Whether the value has the type that the annotation names; True for annotations that name none."""
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if inspect.isclass(hint) and issubclass(hint, _Named):
        return hint.__name__ in {kind.__name__ for kind in type(value).__mro__}
    origin, of = get_origin(hint), get_args(hint)
    if origin is None:
        return _is_simple(value, hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in of)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in of)
    if not inspect.isclass(origin):
        return True
    if origin in (type, Callable) or issubclass(origin, Callable):
        return callable(value)
    if issubclass(origin, tuple):
        if not isinstance(value, (tuple, list)) or (of[-1:] != (Ellipsis,) and len(of) != len(value)):
            return False
        wanted = [of[0]] * len(value) if of[-1] is Ellipsis else of
        return all(fits(one, kind) for one, kind in zip(value, wanted, strict=True))
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(k, of[0]) and fits(v, of[1]) for k, v in value.items())
    return _holds(value, origin, of[0] if of else Any)


def _is_simple(value: Any, hint: Any) -> bool:
    if hint is None:
        return value is None
    if hint is bool:
        return isinstance(value, bool) or _is_of_numpy(value, "bool", "bool_")
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) <= MAX_WHOLE
    if hint is float:
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        return not isinstance(value, Integral) or abs(int(value)) < 10**308
    if hint in (Callable, callable):
        return callable(value)
    if array := getattr(hint, "array_type", None):  # jaxtyping: its shapes are for readers, and for tests
        return isinstance(value, array)
    if getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False):
        asked = [name for name in dir(hint) if not name.startswith("_")] + list(hint.__annotations__)
        return not isinstance(value, type) and all(hasattr(value, name) for name in asked)
    return isinstance(value, hint) if inspect.isclass(hint) else True


def _holds(value: Any, origin: type, item: Any) -> bool:
    """A sequence, set or other iterable of `item`. An iterator is not used up by looking."""
    if isinstance(value, (str, bytes)):
        return False
    if _is_of_numpy(value, "ndarray") and issubclass(origin, (Sequence, Iterable)):
        return value.ndim == 1 and all(fits(one, item) for one in value.tolist())
    is_list = isinstance(value, (Sequence, Set))
    if not (is_list or hasattr(value, "__iter__")) or (issubclass(origin, Sequence) and not _is_sequence(value)):
        return False
    if issubclass(origin, Set) and not isinstance(value, Set):
        return False
    if not is_list or item is Any:
        return True
    if inspect.isclass(item) and item.__module__.startswith("lablib.record."):
        return all(isinstance(one, item) for one in value)  # a run has many spans
    return all(fits(one, item) for one in value)


def _is_of_numpy(value: Any, *names: str) -> bool:
    """Told by its name: `lab --help` does not wait for numpy."""
    return type(value).__module__ == "numpy" and type(value).__name__ in names


def _is_sequence(value: Any) -> bool:
    if isinstance(value, Mapping):
        return False
    return isinstance(value, Sequence) or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))


def in_words(hint: Any) -> str:
    """The annotation as a reader would say it.

    >>> in_words(int | None), in_words(Sequence[float]), in_words(Mapping[str, Sequence[float]])
    ('a whole number or None', 'a list of numbers', 'a dict of text to lists of numbers')
    """
    origin, of = get_origin(hint), get_args(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(one) for one in of)
    if origin is Literal:
        return " or ".join(map(repr, of))
    if origin is Callable or (inspect.isclass(origin) and issubclass(origin, Callable)):
        return "a function"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return f"a dict of {_plural(of[0])} to {_plural(of[1])}"
    if inspect.isclass(origin) and issubclass(origin, tuple) and of[-1:] != (Ellipsis,):
        return "a tuple of " + ", ".join(in_words(one) for one in of)
    if origin is not None and of:
        return f"a list of {_plural(of[0])}"
    name = getattr(hint, "__name__", str(hint))
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def _plural(hint: Any) -> str:
    words = in_words(hint).removeprefix("a ").removeprefix("an ")
    first, of, rest = words.partition(" of ")
    if hint in (str, bool) or " or " in first:
        return words
    return f"{first}s{of}{rest}"


@cache
def hints_of(owner: Any) -> Mapping[str, Any]:
    """The annotations of a function or class, each resolved where its names are known."""
    kinds = reversed(owner.__mro__) if inspect.isclass(owner) else [owner]
    found: dict[str, Any] = {}
    for kind in kinds:
        names = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
        for name, hint in getattr(kind, "__annotations__", {}).items():
            found[name] = _resolved(hint, names)
    return found


class _Named:
    """Stands for a class that only type checkers import."""


class _Names(dict[str, Any]):
    """The names of a module; one that it does not have is a class that only type checkers import."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or type(name, (_Named,), {})


def _resolved(hint: Any, names: Mapping[str, Any]) -> Any:
    """An annotation that is a text as the type it names; of one that cannot be resolved, any value will do."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, {}, _Names(names))  # the source of this package, not a user's text
    except (AttributeError, TypeError):
        return Any
