"""Every bound in a signature of the techniques is kept: a value outside it is an error that names the argument."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf, nan, nextafter
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.plan import predict
from lablib.plan.arguments import setup_of
from lablib.signature import Bound, NonEmpty, OneOf, PowerOfTwo, Range, checked, fits, hints_of, in_words
from lablib.signature import bounds as aliases
from lablib.signature.fits import without_bounds

PACKAGES = tuple(
    "optim compress batches precision memory data kernels parallel pipeline hardware studies plan figures labs models "
    "record train".split()
)
UNIONS = (Union, types.UnionType)


def is_bounded(hint: Any) -> bool:
    return without_bounds(hint) != hint


def owners() -> Iterator[tuple[str, Any]]:
    """Functions, methods and records with a bound: the name in a message, and the object."""
    for package in PACKAGES:
        root = importlib.import_module(f"lablib.{package}")
        for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            for name, one in vars(importlib.import_module(module.name)).items():
                if name.startswith("_") or getattr(one, "__module__", "") != module.name or one is setup_of:
                    continue
                is_record = inspect.isclass(one) and dataclasses.is_dataclass(one)
                methods = dict(vars(one)) if inspect.isclass(one) else {}
                if is_record:  # without what `dataclass` makes, and defaults that are functions
                    methods = {each: m for each, m in methods.items() if each not in {"__init__", *hints_of(one)}}
                found = [(name, one), *((f"{name}.{each}".removesuffix(".__init__"), m) for each, m in methods.items())]
                for label, owner in found:
                    is_called = inspect.isfunction(owner) or (owner is one and is_record)
                    if is_called and any(map(is_bounded, hints_of(owner).values())):
                        yield label, owner


OWNERS = list(owners())
each_owner = pytest.mark.parametrize("label, owner", OWNERS, ids=[label for label, _ in OWNERS])


def bounded_arguments(owner: Any) -> dict[str, Any]:
    return {name: hint for name, hint in hints_of(owner).items() if is_bounded(hint) and name != "return"}


def inside(hint: Any) -> list[Any]:
    """Values that the annotation takes, those at the ends of its bounds first."""
    origin, of = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [one for one in of[1:] if isinstance(one, Bound)]
        return [one for one in ends(of[0], bounds[0]) if all(bound.holds(one) for bound in bounds)]
    if hint in (int, float, bool, str):
        return [{int: 1, float: 1.0, bool: True, str: "a"}[hint]]
    if origin is Literal:
        return [of[0]]
    if origin in UNIONS:
        return [value for one in of for value in ([None] if one is type(None) else inside(one))]
    if inspect.isclass(origin) and issubclass(origin, tuple) and of[-1] is not Ellipsis:
        return [tuple(inside(one)[0] for one in of)]
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return [{inside(of[0])[0]: one} for one in inside(of[1])]
    if origin is not None and of and not issubclass(origin, Callable):
        return [[one] for one in inside(of[0])]
    return [Mock(spec=hint)] if inspect.isclass(hint) else [lambda *args: None]


def ends(kind: Any, bound: Bound) -> list[Any]:
    if isinstance(bound, OneOf):
        return list(bound.choices)
    if isinstance(bound, NonEmpty):
        return inside(kind)
    if isinstance(bound, PowerOfTwo):
        return [1, 2, np.int64(4), *([bound.le] if bound.le < inf else [1 << 40])]
    assert isinstance(bound, Range)
    low = bound.ge if bound.gt is None else nextafter(bound.gt, inf)
    high = bound.le if bound.lt is None else nextafter(bound.lt, -inf)
    if kind is int:
        low, high = max(low, -(2**62)), min(high, 2**62)
        return [int(low), int(high), np.int64(low)]
    return [low, high, np.float64(low), *(one for one in (0, 1) if low <= one <= high)]


NUMBERS = [nan, inf, -inf, -1, 0, 1, 2, 3, 2**63 - 1, -0.5, 0.5, 1.5, -1e300, 1e300, np.int64(-1), np.float32(nan)]
OTHERS = [True, False, "1", "", "adamv", None, (), 1j, torch.tensor(1), torch.tensor([0.5]), np.bool_(True), object()]
ANY_SCALAR = st.one_of(st.integers(-(2**63) + 1, 2**63 - 1), st.floats(), st.sampled_from([*NUMBERS, *OTHERS]))


def is_inside(value: Any, hint: Any) -> bool:
    """As `fits`, of one value, said again in plain comparisons."""
    origin, of = get_origin(hint), get_args(hint)
    if origin is not Annotated:
        return any(is_inside(value, one) for one in of) if origin in UNIONS else fits(value, hint)
    if not fits(value, of[0]):
        return False
    for bound in of[1:]:
        if isinstance(bound, Range):
            above = value >= bound.ge if bound.gt is None else value > bound.gt
            if not above or not (value <= bound.le if bound.lt is None else value < bound.lt):
                return False
        elif isinstance(bound, OneOf) and value not in bound.choices:
            return False
        elif isinstance(bound, PowerOfTwo) and value not in [0] * bound.or_zero + [
            2**i for i in range(63) if 2**i <= bound.le
        ]:
            return False
        elif isinstance(bound, NonEmpty) and value in ([], (), ""):
            return False
    return True


def outside(hint: Any) -> Iterator[Any]:
    """Values that the annotation refuses; in a list, a tuple or a dict, one item of it."""
    origin, of = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        refused = (value for one in of if is_bounded(one) for value in outside(one))
        yield from (value for value in refused if not is_inside(value, hint))
    elif inspect.isclass(origin) and issubclass(origin, tuple) and of[-1] is not Ellipsis:
        for place in (i for i, one in enumerate(of) if is_bounded(one)):
            for wrong in outside(of[place]):
                yield tuple(wrong if i == place else inside(one)[0] for i, one in enumerate(of))
    elif inspect.isclass(origin) and issubclass(origin, Mapping):
        yield from ({inside(of[0])[0]: wrong} for wrong in outside(of[1]))
    elif inspect.isclass(origin) and issubclass(origin, Iterable):
        yield from ([*inside(of[0]), wrong] for wrong in outside(of[0]))
    else:
        beyond = [nextafter(one, to) for one in inside(hint) if isinstance(one, int | float) for to in (inf, -inf)]
        steps = [one + step for one in inside(hint) if isinstance(one, int) for step in (-1, 1)]
        yield from (one for one in (*beyond, *steps, *NUMBERS, *OTHERS) if not is_inside(one, hint))


def make(owner: Any, arguments: dict[str, Any]) -> None:
    """Call it. A record is made field by field: the tests' own type checker would be first in its `__init__`."""
    if not dataclasses.is_dataclass(owner):
        owner(**arguments)
        return
    record: Any = object.__new__(owner)  # pyright: ignore[reportArgumentType]
    for field in dataclasses.fields(owner):
        value = field.default_factory() if callable(field.default_factory) else field.default
        object.__setattr__(record, field.name, arguments.get(field.name, value))
    record.__post_init__()


@each_owner
def test_a_value_outside_a_bound_is_refused_with_rule_value_and_remedy(label: str, owner: Any):
    parameters = inspect.signature(owner).parameters.values()
    hints = hints_of(owner)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one.name for one in parameters if one.default is one.empty and one.kind not in several]
    for argument, hint in bounded_arguments(owner).items():
        # Arguments are looked at in their order in the call: the others after it, or, of a record, they are valid.
        others = {name: inside(hints.get(name, object))[0] for name in needed if name != argument}
        for value in outside(hint):
            with pytest.raises(ValueError) as error:
                make(owner, {argument: value} | others)
            text = str(error.value)  # without the name of a record
            for name in ("name", "metric"):
                text = text.replace(f"{label} {others.get(name)!r}:", f"{label}:", 1)
            assert text.startswith(f"{label}: {argument} must be {in_words(hint)}: got "), (value, text)
            assert text.partition(": got ")[2].rpartition("; ")[2]


PREDICTS = [name for name in bounded_arguments(setup_of) if name not in ("parallel", "derating")]


@pytest.mark.parametrize("argument", PREDICTS)
def test_predict_keeps_the_bounds_of_its_setup(argument: str):
    hint = hints_of(setup_of)[argument]
    for value in outside(hint):
        if not fits(tuple(value) if isinstance(value, list) else value, hint):
            with pytest.raises(ValueError) as error:
                predict("gpt2", "dgx-a100", **{argument: value})  # pyright: ignore[reportArgumentType]
            assert str(error.value).startswith(f"predict: {argument} must be {in_words(hint)}: got ")


@each_owner
def test_a_value_at_the_end_of_a_bound_is_taken(label: str, owner: Any):
    for hint in bounded_arguments(owner).values():
        for value in inside(hint):
            assert fits(value, hint), (value, hint)


FORMATS = ("e4m3", "e5m2")
ALIASES = [name for name, one in vars(aliases).items() if get_origin(one) is Annotated]


@pytest.mark.parametrize("alias", ALIASES)
@given(value=ANY_SCALAR)
def test_a_bound_tests_what_its_words_say(alias: str, value: Any):
    hint = vars(aliases)[alias]

    def identity(x):
        return x

    identity.__annotations__["x"] = hint
    if is_inside(value, hint):
        assert checked(identity)(value) is value
    else:
        with pytest.raises(ValueError, match=r"x must be (a|one of) .*: got .*; try x="):
            checked(identity)(value)


@pytest.mark.parametrize(
    "hint, value, message",
    [
        (aliases.Count, 0, "x must be a whole number, 1 or more: got 0; try x=1"),
        (aliases.Count, True, "x must be a whole number, 1 or more: got True; try x=1"),
        (aliases.Count | None, 0, "x must be a whole number, 1 or more, or None: got 0; try x=1"),
        (Annotated[aliases.Count, "give the tokens"], 0, "x must be a whole number, 1 or more: got 0; give the tokens"),
        (aliases.Positive, inf, "x must be a finite number, above 0: got inf; try x=1.0"),
        (aliases.Positive, "2", "x must be a finite number, above 0: got '2'; try x=1.0"),
        (aliases.FractionBelow1, 1.0, "x must be a number, at least 0 and below 1: got 1.0; try x=0.5"),
        (Annotated[int, Range(ge=0, le=99)], 100, "x must be a whole number, 0 to 99: got 100; try x=99"),
        (Annotated[int, PowerOfTwo(le=64)], 3, "x must be a power of two up to 64: got 3; try x=4"),
        (Annotated[str, OneOf(FORMATS)], "e5m3", "one of e4m3, e5m2: got 'e5m3'; did you mean 'e5m2' or 'e4m3'?"),
        (Annotated[str, OneOf(FORMATS)], "zzzz", "x must be one of e4m3, e5m2: got 'zzzz'; try x='e4m3'"),
        (Annotated[Sequence[str], NonEmpty()], [], "a list of text, not empty: got []; give at least one item"),
        (
            tuple[aliases.Count | None, bool],
            (0, True),
            "x must be a tuple of (a whole number, 1 or more, or None), True or False: got 0 at index 0 of (0, True); "
            "try x=1",
        ),
        (Sequence[aliases.Count], [2, 0], "each 1 or more: got 0 at index 1 of [2, 0]; try x=1"),
        (Mapping[str, aliases.Positive], {"a": 0}, "each above 0: got 0 for 'a' of {'a': 0}; try x=1.0"),
    ],
)  # fmt: skip
def test_messages(hint: Any, value: Any, message: str):
    def identity(x):
        return x

    identity.__annotations__["x"] = hint
    with pytest.raises(ValueError) as error:
        checked(identity)(value)
    assert str(error.value).endswith(message)
