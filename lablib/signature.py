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
from dataclasses import dataclass, fields
from functools import cache, partial, wraps
from itertools import chain
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
    kinds = {parameter.kind: parameter.name for parameter in signature.parameters.values()}
    several, by_name = kinds.get(inspect.Parameter.VAR_POSITIONAL), kinds.get(inspect.Parameter.VAR_KEYWORD)
    takes = _Takes.of(signature)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given: Iterable[tuple[str, Any]]
        if takes.binds(args, kwargs):
            given = chain(zip(takes.places, args, strict=False), kwargs.items())
        else:
            try:
                given = signature.bind(*args, **kwargs).arguments.items()
            except TypeError as error:
                raise WrongType(f"{name}: {error}") from None
        tests = _tests_of(function)
        for argument, value in given:
            if argument == by_name or argument not in tests:
                continue
            for one in value if argument == several else (value,):
                if not tests[argument](one):
                    check_type(f"{name}: {argument}", one, hints_of(function)[argument])
        return function(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class _Takes:
    """The parameters of a function, for calls that bind plainly: `Signature.bind` takes six times as long."""

    places: tuple[str, ...]  # parameters that may be given by position
    names: frozenset[str]  # by name
    required: frozenset[str]
    is_plain: bool  # no *args, no **kwargs

    @classmethod
    def of(cls, signature: inspect.Signature) -> _Takes:
        each = signature.parameters.values()
        by_place = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        by_name = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        return cls(
            tuple(one.name for one in each if one.kind in by_place),
            frozenset(one.name for one in each if one.kind in by_name),
            frozenset(one.name for one in each if one.default is one.empty),
            all(one.kind in by_place | by_name for one in each),
        )

    def binds(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether each argument belongs to one parameter, and each required parameter has one."""
        if not self.is_plain or len(args) > len(self.places):
            return False
        placed = self.places[: len(args)]
        return self.names.issuperset(kwargs) and not kwargs.keys() & placed and self.required <= {*placed, *kwargs}


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
    return _test_of(hint)(value)


@cache
def _test_of(hint: Any) -> Callable[[Any], bool]:
    """What `fits` asks of a value: an annotation is taken apart once, and calls are many."""
    if hint is Any or isinstance(hint, TypeVar):
        return _anything
    if inspect.isclass(hint) and issubclass(hint, _Named):
        return lambda value: hint.__name__ in {kind.__name__ for kind in type(value).__mro__}
    origin, of = get_origin(hint), get_args(hint)
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
def _tests_of(function: Callable[..., Any]) -> Mapping[str, Callable[[Any], bool]]:
    return {name: _test_of(hint) for name, hint in hints_of(function).items()}


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
    return (lambda value: isinstance(value, hint)) if inspect.isclass(hint) else _anything


def _takes(num_arguments: int, value: Any) -> bool:
    """Whether it can be called with so many arguments. Of what does not say, such as some of C's functions, yes."""
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
    """A sequence, set or other iterable of `item`. An iterator is not used up by looking."""
    test, asks_sequence, asks_set = _test_of(item), issubclass(origin, Sequence), issubclass(origin, Set)
    may_be_array = issubclass(origin, (Sequence, Iterable))

    def holds(value: Any) -> bool:
        if isinstance(value, (str, bytes)):
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
        if not of or not isinstance(of[0], list):
            return "a function"
        return f"a function of {len(of[0])} argument{'s' * (len(of[0]) != 1)}"
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
