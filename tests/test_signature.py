"""`checked` binds arguments as `inspect.Signature.bind` does, without its cost."""

from __future__ import annotations

import inspect
from abc import ABC
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib.signature import WrongType, checked, fits
from lablib.signature.call import _Takes


def plain(a: int, b: int = 2, /, c: int = 3, *, d: int, e: int = 5) -> tuple[int, ...]:
    return a, b, c, d, e


def many(a: int, *rest: int, **more: int) -> tuple[object, ...]:
    return a, rest, more


def no_parameters() -> None: ...


names = st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 9), max_size=5)


@given(st.sampled_from([plain, many, no_parameters]), st.lists(st.integers(0, 9), max_size=6).map(tuple), names)
def test_a_call_binds_as_python_binds_it(function, args, kwargs):
    try:
        inspect.signature(function).bind(*args, **kwargs)
        is_bound = True
    except TypeError:
        is_bound = False
    if _Takes.of(inspect.signature(function)).binds(args, kwargs):
        assert is_bound
    if is_bound:
        assert checked(function)(*args, **kwargs) == function(*args, **kwargs)
    else:
        with pytest.raises(WrongType, match=function.__name__):
            checked(function)(*args, **kwargs)


@given(st.data())
def test_each_argument_is_held_to_its_own_type(data):
    wrong = data.draw(st.sampled_from("abcde"))
    values: dict[str, Any] = {name: "text" if name == wrong else 1 for name in "abcde"}
    with pytest.raises(WrongType, match=f"plain: {wrong} must be a whole number: got 'text'"):
        checked(plain)(values.pop("a"), values.pop("b"), **values)


KINDS = (type, object, str, list, Path, Tensor, nn.Module, ABC, Enum)


@given(st.sampled_from(KINDS), st.sampled_from((None, 1, "a", [], {}, Path(), nn.Identity(), *KINDS)))
def test_a_class_takes_its_instances(kind, value):
    assert fits(value, kind) == isinstance(value, kind)
