"""`checked` and `check_fields`: check a call against its signature, a record against the types of its fields.

For functions that a notebook calls, not for inner loops: a call costs some microseconds, plus one test per item of a
list. A class that only type checkers import is compared by name.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from itertools import chain
from math import nan
from numbers import Integral
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from lablib.signature.bounds import Bound, as_written
from lablib.signature.fits import MAX_WHOLE, fits, tests_of, without_bounds
from lablib.signature.hints import hints_of
from lablib.signature.words import in_words, shown

F = TypeVar("F", bound=Callable[..., Any])
_EXAMPLES = {int: "8", float: "2.0", str: '"name"', bool: "True"}


class WrongType(TypeError, ValueError):
    """An argument of the wrong type: a TypeError, and a ValueError because it is invalid user input."""


def checked(function: F) -> F:
    """The function, with its arguments checked against their annotations.

    Raises (when it is called):
        WrongType: an argument that is missing, too many or not of its type.
        ValueError: an argument outside its bounds.
    """
    signature, name = inspect.signature(function), function.__qualname__.removesuffix(".__init__")
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
        tests = tests_of(function)
        for argument, value in given:
            if argument == by_name or argument not in tests:
                continue
            for one in value if argument == several else (value,):
                if not tests[argument](one):
                    default = signature.parameters[argument].default
                    check_type(f"{name}: {argument}", one, hints_of(function)[argument], default)
        return function(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class _Takes:
    """The parameters of a function, for calls without `*args`: `Signature.bind` takes six times as long."""

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


def check_fields(record: Any, name: str = "") -> None:
    """Check a record (a dataclass) against the types and bounds of its fields. Raises WrongType or ValueError.

    `name` identifies the record in the message: "Device 'A100': power_w must be ...".
    """
    kind = type(record)
    label = f"{kind.__name__} {shown(name)}" if name else kind.__name__
    hints = hints_of(kind)
    for field in fields(record):
        value, hint = getattr(record, field.name), hints.get(field.name, Any)
        check_type(f"{label}: {field.name}", value, hint, field.default)


class Checked:
    """Base of a dataclass whose fields are checked when a record is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)


def check_arguments(whose: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check values against the annotations of the parameters with these names; others pass."""
    tests = tests_of(function)
    for name, value in arguments.items():
        if name in tests and not tests[name](value):
            default = inspect.signature(function).parameters[name].default
            check_type(f"{whose}: {name}", value, hints_of(function)[name], default)


def check_types(function: str, arguments: Iterable[tuple[str, Any, Any]]) -> None:
    """Check (argument, value, type) triples; for functions that make a cheaper test of their own first."""
    for argument, value, hint in arguments:
        check_type(f"{function}: {argument}", value, hint)


def check_type(name: str, value: Any, hint: Any, default: Any = MISSING) -> None:
    """Raise WrongType for a value of another type, ValueError for one out of bounds.

    `name` begins the message; `default` is proposed if it is within the bounds.
    """
    if type(value) is hint and hint in (float, str):  # fast path: most labels of a figure
        return
    if fits(value, hint):
        return
    bare = without_bounds(hint)
    if not fits(value, bare):
        if isinstance(value, Integral) and not isinstance(value, bool) and fits(0, bare):
            raise WrongType(f"{name} must be a number below 2**63: got {shown(value)}; give a smaller one")
        rule, kinds = f"{name} must be {in_words(hint)}: got {shown(value)}", (hint, *get_args(hint))
        if bounded := next((one for one in kinds if get_origin(one) is Annotated), None):
            raise WrongType(f"{rule}; {_remedy(name, nan, bounded, hint, default)}")
        raise WrongType(rule + next((f"; give {text}" for kind, text in _EXAMPLES.items() if kind in kinds), ""))
    where, wrong, bounded = _out_of_bounds(value, hint)
    got = f"{shown(wrong)}{where} of {shown(value)}" if where else shown(value)
    raise ValueError(f"{name} must be {in_words(hint)}: got {got}; {_remedy(name, wrong, bounded, hint, default)}")


def _remedy(name: str, value: Any, bounded: Any, hint: Any, default: Any) -> str:
    """The text of the annotation, or the default, or a value that the broken bound proposes."""
    argument, notes = name.split()[-1], get_args(bounded)[1:]
    if texts := [note for note in notes if isinstance(note, str)]:
        return texts[-1]
    bounds = [one for one in notes if isinstance(one, Bound)]
    proposed = next(one for one in bounds if value is nan or not one.holds(value)).remedy(argument, value)
    if proposed.startswith("try") and default is not None and fits(default, hint):
        return f"try {argument}={as_written(default)}"
    return proposed


def _out_of_bounds(value: Any, hint: Any) -> tuple[str, Any, Any]:
    """The part of a value that is out of bounds: its place in words, the part, and its annotation."""
    origin, of = get_origin(hint), get_args(hint)
    if origin is Annotated and fits(value, of[0]):
        return "", value, hint
    if origin is Annotated:
        return _out_of_bounds(value, of[0])
    if origin in (Union, types.UnionType):
        return _out_of_bounds(value, next(one for one in of if fits(value, without_bounds(one))))
    if isinstance(value, Mapping):
        parts = [(f" for {shown(key)}", one, of[1]) for key, one in value.items()]
        parts += [(" as a key", key, of[0]) for key in value]
    else:
        hints = of if issubclass(origin, tuple) and of[-1] is not Ellipsis else (of[0],) * len(value)
        parts = [(f" at index {i}", one, hints[i]) for i, one in enumerate(value)]
    place, part, kind = next(one for one in parts if not fits(one[1], one[2]))
    inner, wrong, bounded = _out_of_bounds(part, kind)
    return inner + place, wrong, bounded


def whole_number(
    name: str, value: Any, minimum: int = 1, example: object = 8, of: str = "", maximum: float = MAX_WHOLE
) -> int:
    """A count as Python's int; numpy integers are accepted, True is not.

    Args:
        name: of the argument, for the message; an owner may precede it: "gpipe: num_stages".
        example: the value that the message proposes.
        of: added after the value in the message: " for 'gpt2'".
        maximum: infinity if the caller checks the upper limit.

    Raises ValueError: not a whole number, below the minimum, or 2**63 and more.
    """
    if type(value) is int and minimum <= value <= maximum:  # fast path: the text of the message takes longest
        return value
    remedy = f"got {shown(value)}{of}; try {name.split()[-1]}={example}"
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"{name} must be a whole number, {minimum} or more: {remedy}")
    if int(value) > maximum:
        raise ValueError(f"{name} must be below 2**63: {remedy}")
    return int(value)
