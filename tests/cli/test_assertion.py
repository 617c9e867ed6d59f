"""`--assert`: what is parsed, what is refused, and what is said of each comparison."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cli.assertion import Assertion

NAMES = ("step_s", "peak_bytes", "mfu")
VALUES = {"step_s": 0.25, "peak_bytes": 8e9, "mfu": float("nan")}
numbers = st.integers(0, 99) | st.floats(0, 99).map(lambda value: round(value, 3))
terms = st.recursive(
    numbers.map(str) | st.sampled_from(["step_s", "peak_bytes"]),
    lambda each: st.tuples(each, st.sampled_from("+-*"), each).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=4,
)
comparisons = st.tuples(terms, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), terms).map(" ".join)
expressions = st.recursive(
    comparisons,
    lambda each: (
        st.tuples(each, st.sampled_from(["and", "or"]), each).map(lambda parts: f"({' '.join(parts)})")
        | each.map(lambda text: f"(not {text})")
    ),
    max_leaves=6,
)


@given(expressions)
def test_an_expression_has_the_value_that_python_gives_it(text: str):
    holds, lines = Assertion(text, NAMES).check(VALUES)
    assert holds is bool(eval(text, {"__builtins__": {}}, dict(VALUES)))
    assert len(lines) == 1 + len(re.findall(r"<|>|==|!=", text))


def test_each_comparison_is_shown_with_its_values():
    holds, lines = Assertion("step_s < 0.2 and not peak_bytes / 1e9 > 80 or 0 < step_s < 1e-1", NAMES).check(VALUES)
    assert not holds
    assert lines == [
        "assertion BROKEN: step_s < 0.2 and not peak_bytes / 1e9 > 80 or 0 < step_s < 1e-1",
        "  step_s < 0.2: FALSE, step_s is 0.25",
        "  peak_bytes / 1e9 > 80: FALSE, peak_bytes / 1e9 is 8",
        "  0 < step_s: true, step_s is 0.25",
        "  step_s < 1e-1: FALSE, step_s is 0.25",
    ]


@pytest.mark.parametrize("text", ["mfu < 1", "mfu >= 0", "mfu == mfu", "step_s / 0 - step_s / 0 == 0"])
def test_a_comparison_with_an_unknown_number_does_not_hold(text: str):
    holds, lines = Assertion(text, NAMES).check(VALUES)
    assert not holds and "not known" in lines[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "invalid syntax"),
        ("step_s <", "invalid syntax"),
        ("step_s", "step_s is no comparison"),
        ("1 + (step_s < 2) < 3", "step_s < 2 is no number"),
        ("step_s in peak_bytes", "is no comparison of numbers"),
        ("step_s is 3", "is no comparison of numbers"),
        ("exit() < 3", r"exit\(\) is no number"),
        ("step_s.real < 3", "step_s.real is no number"),
        ("(lambda: 3) < 3", "lambda: 3 is no number"),
        ("step_s ** 9 < 3", r"step_s \*\* 9 is no number"),
        ("'a' < 'b'", "'a' is no number"),
        ("step_s < True", "True is no number"),
        ("(" * 300 + "step_s < 1" + ")" * 300, "too many nested"),
        ("not " * 300 + "step_s < 1", "longer than 1000"),
    ],
)
def test_anything_else_is_refused_with_the_names(text: str, reason: str):
    with pytest.raises(ValueError, match=reason) as raised:
        Assertion(text, NAMES)
    assert "must be comparisons of numbers and of step_s, peak_bytes, mfu" in str(raised.value)


def test_an_unknown_name_has_the_nearest_and_all():
    with pytest.raises(ValueError, match="'peak_byte': did you mean 'peak_bytes'.* Valid: step_s, peak_bytes, mfu"):
        Assertion("step_s < 2 and peak_byte < 3", NAMES)
