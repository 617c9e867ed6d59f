"""The words of a check: what holds is measured, what does not is said as rule, saw, expected."""

import math
import pickle
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lablib.course.checks.comparison import difference
from lablib.course.checks.expect import Expect, NotAttempted, RuleBroken
from lablib.course.checks.formatting import short_repr


def broken(word: str, *arguments: object, **options: object) -> RuleBroken:
    with pytest.raises(RuleBroken) as raised:
        getattr(Expect(), word)("the rule", *arguments, **options)
    assert raised.value.rule == "the rule"
    return raised.value


ARANGE = torch.arange(4.0)


def test_a_rule_that_held_keeps_what_was_expected_where_what_was_seen_has_words_for_a_failure_or_nothing():
    """ "different data on every rank: []" says nothing, and "ranks 0 and 2 have the same" what is not so."""
    expect = Expect()
    for saw in ([], "", (), {}, None, 0, "two"):
        expect.that("different data on every rank", True, saw, "no two alike")
    assert [one.text for one in expect.measured] == [*["no two alike"] * 5, "0", "no two alike"]


@pytest.mark.parametrize(
    ("saw", "expected"),
    [
        (3, 3),
        ("a", "a"),
        (ARANGE, torch.arange(4.0)),
        ([ARANGE, ARANGE], [ARANGE, ARANGE]),
        ({"w": ARANGE, "n": 1}, {"n": 1, "w": ARANGE}),
        (torch.tensor(3), 3),
        (torch.tensor([math.inf]), torch.tensor([math.inf])),
        (np.arange(3), np.arange(3)),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        (torch.zeros(0), torch.zeros(0)),
        (None, None),
    ],
)
def test_equal_things_are_equal(saw: object, expected: object):
    expect = Expect()
    expect.equal("the rule", saw, expected)
    assert [measured.rule for measured in expect.measured] == ["the rule"]


@pytest.mark.parametrize(
    ("saw", "expected", "said"),
    [
        (2, 3, ("2", "3")),
        (None, ARANGE, ("None", "float32 [4]: 0, 1, 2, 3")),
        (ARANGE[:3], ARANGE, ("float32 [3]: 0, 1, 2", "float32 [4]: 0, 1, 2, 3")),
        (ARANGE.double(), ARANGE, ("float64 [4]: 0, 1, 2, 3", "type float32: float32 [4]: 0, 1, 2, 3")),
        (ARANGE + torch.tensor([0, 0, 5, 1]), ARANGE, ("7 at [2], 2 of 4 elements differ", "2")),
        ([ARANGE, ARANGE + 1], [ARANGE, ARANGE], ("1 at [1][0], 4 of 4 elements differ", "0")),
        ([1], [1, 2], ("1 item: [1]", "2 items: [1, 2]")),
        ({"a": 1}, {"b": 1}, ("keys ['a']", "keys ['b']")),
        ({"a": 1}, {"a": 2}, ("1 at ['a']", "2")),
        (5, [1], ("5", "a list of 1")),
        (torch.tensor([math.nan]), torch.tensor([1.0]), ("nan at [0]", "1")),
        (torch.tensor(2.0), torch.tensor(1.0), ("2", "1")),
    ],
)
def test_the_first_difference_is_named_with_its_place(saw: object, expected: object, said: tuple[str, str]):
    error = broken("equal", saw, expected)
    assert (error.saw, error.expected) == said


def test_close_forgives_what_it_says_and_no_more():
    Expect().close("the rule", 1.0 + 1e-10, 1.0)
    Expect().close("the rule", torch.tensor([1.0 + 1e-4]), torch.tensor([1.0]), rtol=1e-3)
    Expect().close("the rule", torch.tensor([1]), torch.tensor([1.0]))
    Expect().close("the rule", 1e-12, 0.0, atol=1e-9)
    broken("close", 1.0 + 1e-8, 1.0)
    broken("close", 1e-12, 0.0)
    for saw, wanted in ((math.nan, 1.0), ("1.0", 1.0), (None, 1.0), (1e300, math.inf)):
        broken("close", saw, wanted)
    broken("close", torch.tensor([math.nan, 1.0]), torch.ones(2), rtol=1e9)
    broken("close", torch.tensor([1e30, 1.0]), torch.tensor([math.inf, 1.0]))
    broken("close", torch.ones(2, 2), torch.ones(4))


def test_a_number_cannot_say_itself_how_close_it_is():
    class Liar(float):
        def __eq__(self, other: object) -> bool:
            return True

        def __sub__(self, other: float) -> float:
            return 0.0

        __hash__ = float.__hash__

    broken("close", Liar(2.0), 1.0)
    Expect().close("the rule", Liar(1.0), 1.0)


PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.frozensets(st.integers())
)
NESTED = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(value=NESTED, rtol=st.sampled_from([None, 0.0, 1e-6]))
def test_a_value_has_no_difference_from_itself_and_what_equals_everything_differs_from_each(value, rtol):
    assert difference(value, value, rtol, 0.0) is None
    assert difference(ANY, value, rtol, 0.0) is not None
    for one in ([value], (value,), {"key": value}):
        forged = {"key": ANY} if isinstance(one, dict) else type(one)([ANY])
        assert difference(forged, one, rtol, 0.0) is not None


@pytest.mark.parametrize("value", [torch.float64, 1j, {1, 2}, range(3), math.inf, torch.device("cpu"), b"bytes"])
def test_other_values_are_equal_to_their_like_and_not_to_what_says_so(value):
    assert difference(value, value, None, 0.0) is None
    assert difference(ANY, value, None, 0.0) is not None


def test_a_budget_is_measured_in_its_unit():
    expect = Expect()
    expect.budget("bytes sent", 6 * 2**20, at_most=6 * 2**20, unit="B")
    assert expect.measured[0].text == "6.291 MB, at most 6.291 MB"
    error = broken("budget", 2e-3, at_most=1e-3, unit="s")
    assert (error.saw, error.expected) == ("2 ms, 2 times the budget", "at most 1 ms")
    assert broken("budget", math.nan, at_most=1.0).saw.startswith("nan")
    assert broken("budget", 1, at_most=0, unit="sends").expected == "at most 0 sends"


@given(number=st.floats(1e-6, 1e6), off=st.floats(1e-12, 1e-2))
def test_numbers_that_differ_are_told_apart(number: float, off: float):
    assume(number * (1 + off) != number)
    for wrap in (lambda x: x, lambda x: [x], lambda x: torch.tensor([x], dtype=torch.float64)):
        error = broken("equal", wrap(number * (1 + off)), wrap(number))
        assert float(error.saw.split(" at ")[0]) != float(error.expected)
    if off > 1e-8:  # rounding is forgiven
        error = broken("budget", number * (1 + off), number, "s")
        saw, times = error.saw.rsplit(", ", 1)
        assert error.expected != f"at most {saw}" and not times.startswith("1 times")


def test_raises_returns_the_error_and_lets_others_pass():
    def fail() -> None:
        raise KeyError("a")

    assert isinstance(Expect().raises("the rule", LookupError, fail), KeyError)
    assert broken("raises", KeyError, lambda: 3).saw == "no error, and the value 3"
    with pytest.raises(KeyError):
        Expect().raises("the rule", ValueError, fail)


@pytest.mark.parametrize("saw", [..., [1, ...]])
def test_an_ellipsis_is_a_stub(saw: object):
    with pytest.raises(NotAttempted):
        Expect().equal("the rule", saw, 1)
    with pytest.raises(NotAttempted):
        Expect().that("the rule", False, saw, 1)


def test_a_broken_rule_travels_from_a_worker_process():
    error = pickle.loads(pickle.dumps(RuleBroken("rule", "saw", "expected")))
    assert (error.rule, error.saw, error.expected) == ("rule", "saw", "expected")


def test_values_are_written_briefly():
    assert len(short_repr("x" * 1000)) < 200 and "without values" in short_repr(torch.ones(3, device="meta"))
    assert short_repr(torch.arange(9)) == "int64 [9]: 0, 1, 2, 3, 4, 5, ..."


def test_rules_that_hold_in_many_runs_are_shown_as_one():
    expect = Expect()
    with expect.grouped("so it is on 3 ranks", "values and bytes"):
        for rank in range(3):
            expect.equal(f"rank {rank} holds the sum", 6, 6)
    assert [(held.rule, held.text) for held in expect.measured] == [("so it is on 3 ranks", "values and bytes")]


def test_a_rule_broken_among_them_says_which():
    expect = Expect()
    with pytest.raises(RuleBroken, match="rank 1"), expect.grouped("so it is on 3 ranks", ""):
        for rank in range(3):
            expect.equal(f"rank {rank} holds the sum", 6 + rank, 6)


@pytest.mark.parametrize("saw", ["3", "nan", None, True, [1.0], 1j])
def test_what_is_no_number_has_no_budget(saw: object):
    assert broken("budget", saw, at_most=4.0).expected == "a number"
