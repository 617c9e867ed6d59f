"""Values for fuzzing: anything at all, and, for an annotation, what has its type, hostile values of it included.

`anything()` is any value of any type. `like(hint)` draws of the type `hint`: numbers that are zero, negative, huge, NaN
or infinite, text that is empty or nobody's name, empty and long lists; of the records of lablib, whole ones.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import torch
from hypothesis import strategies as st

NUMBERS = (0, 1, 2, 3, 4, 7, 8, -1, 64, 10**6, 2**31, 2**63, 10**40, -(10**40))
REALS = (
    *(0.0, -0.0, 0.5, 1.0, 2.0, -1.0, 1e-3, 1e-9, 1e9, 1e12, 5e-324, 1e308),
    *(float("nan"), float("inf"), -float("inf")),
)
TEXTS = ("", "8", "nan", "1e400", "x", "\x00", "\ud800", "<b>", "no such name", "9" * 40, "None", "../..", "%s{0}")
NAMES = (
    *("sim", "gloo", "nccl", "dgx-h100", "dgx-a100", "laptop", "gpt3-13b", "gpt3-175b", "tiny", "llama2-7b"),
    *("ring", "tree", "direct", "hierarchical", "all_reduce", "all_gather", "broadcast", "send", "values", "shapes"),
    *("float32", "bfloat16", "float16", "none", "full", "selective", "1f1b", "gpipe", "zb-v", "adamw", "torch"),
    *("forward", "backward", "setup", "compute", "comm:world", "intra", "inter", "nan", "inf", "bit flip", "B", "s"),
)  # fmt: skip


def _odd_things() -> list[Any]:
    return [
        *(object(), object, int, len, lambda: 1, lambda *_, **__: 1, Ellipsis, NotImplemented, math_like(), b"8"),
        *(complex(1, 2), Decimal("NaN"), Decimal(3), Fraction(1, 3), range(3), range(0), Path("no such file.toml")),
        *(np.float64("nan"), np.int64(4), np.bool_(True), np.array([]), np.array(3.0), np.arange(6.0).reshape(2, 3)),
        *(np.array(["a", None], dtype=object), torch.tensor(4), torch.ones(3), torch.empty(0), torch.float32),
        *(ValueError("x"), slice(1), memoryview(b"8"), types.SimpleNamespace(rank=0), frozenset(), iter([1, 2])),
    ]


def math_like() -> Any:
    """An object that answers every attribute with itself, as a mock does, and none of the operators."""

    class Mock:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return self

    return Mock()


@cache  # a strategy is checked when it is first drawn from, which takes longer than many draws
def scalars() -> st.SearchStrategy[Any]:
    """None, booleans, numbers and text."""
    simple = [None, True, False, *NUMBERS, *REALS, *TEXTS, *NAMES]
    return st.one_of(st.sampled_from(simple), st.integers(), st.floats(), st.text(max_size=8))


@cache
def anything() -> st.SearchStrategy[Any]:
    """Any value of any type: scalars, objects of every kind, and containers of them, also nested deeply."""
    things = st.builds(lambda i: _odd_things()[i], st.integers(0, len(_odd_things()) - 1))
    one = st.one_of(scalars(), scalars(), things)
    hashable = scalars().filter(lambda value: value == value)
    return st.one_of(
        one,
        one,
        st.lists(one, max_size=3),
        st.lists(one, max_size=3).map(tuple),
        st.dictionaries(hashable, one, max_size=3),
        st.lists(hashable, max_size=3).map(frozenset),
        st.lists(st.lists(one, max_size=2), max_size=2),
        st.just(_deep_list()),
    )


def _deep_list() -> list[Any]:
    deep: list[Any] = []
    for _ in range(1500):
        deep = [deep]
    return deep


Samples = Mapping[type, Callable[[], list[Any]]]


def like(hint: Any, samples: Samples) -> st.SearchStrategy[Any]:
    """Values of the type that an annotation names; `anything()` where it names none that is known.

    Arguments:
        hint: a type, resolved (no text).
        samples: examples of classes that are not simple.
    """
    if hint is None or hint is type(None):
        return st.none()
    if hint in (Any, inspect.Parameter.empty):
        return anything()
    simple: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.one_of(st.sampled_from(NUMBERS[:9]), st.sampled_from(NUMBERS)),
        float: st.one_of(st.sampled_from(REALS), st.sampled_from(NUMBERS), st.sampled_from((0.5, 1.0, 2.0))),
        str: st.one_of(st.sampled_from(NAMES), st.sampled_from(TEXTS)),
        Path: st.sampled_from([Path("a.toml"), Path("."), Path("/dev/null/x"), Path("\x00")]),
    }
    if hint in simple:
        return simple[hint]
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([like(one, samples) for one in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return st.tuples(*(like(one, samples) for one in arguments))
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return st.dictionaries(
            like(arguments[0], samples).filter(_is_hashable), like(arguments[1], samples), max_size=3
        )
    if origin is Callable or hint is Callable or getattr(origin, "__name__", "") == "Callable":
        return st.sampled_from([lambda *_, **__: None, lambda: 1, len, print])
    if inspect.isclass(origin) and hasattr(origin, "__iter__") and arguments:
        return st.lists(like(arguments[0], samples), max_size=4)
    for known, make in samples.items():
        if inspect.isclass(hint) and (hint in known.__mro__ or known.__name__ == hint.__name__):
            return st.builds(lambda i, make=make: make()[i % len(make())], st.integers(0, 7))
    return anything()


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return value == value


def change_one_value(data: Any, tree: Any, values: st.SearchStrategy[Any]) -> None:
    """Replace one drawn value, a leaf or a whole branch, in nested lists and dicts."""
    place = tree
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.integers(0, 3)) == 0:
            break
        place = place[key]
    place[key] = data.draw(values)
