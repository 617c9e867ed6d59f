"""Guesses that are locked before the answer shows."""

import math

import pytest

from lablib.widgets import guess


@pytest.mark.parametrize("interactive", [True, False])
def test_an_answer_shows_only_after_the_guesses_are_locked(interactive: bool):
    asked = guess(["days", "dollars"], None, interactive)
    assert repr(asked) == "guesses: days: ?; dollars: ?"
    assert not asked.is_locked and "after your guess" in repr(asked.reveal("answer"))
    with pytest.raises(ValueError, match="not locked"):
        _ = asked.values
    asked.lock(0.5, 4.5)
    assert asked.reveal("answer") == "answer" and asked.reveal(lambda a, b: a + b) == 5.0
    assert repr(asked) == "guesses: days: 0.5; dollars: 4.5"
    with pytest.raises(ValueError, match="locked once"):
        asked.lock(1, 2)
    assert guess(["days"], [5], interactive).values == [5]


@pytest.mark.parametrize(
    "given", [(), (1.0,), (1.0, 0.0), (1.0, -2), (1.0, math.nan), (True, 2.0), (1.0, "2"), (1, 2, 3)]
)
def test_a_guess_is_one_number_above_zero_for_each_question(given):
    with pytest.raises(ValueError, match="2 numbers above 0, one for each question: got"):
        guess(["days", "dollars"]).lock(*given)


def test_the_button_locks_the_fields_or_says_why_not():
    asked = guess(["days", "dollars"])
    panel = asked._panel()
    *fields, row = panel.children
    button, said = row.children
    button.click()
    assert not asked.is_locked and "above 0" in said.value
    for field in fields:
        field.value = 2.5
    button.click()
    assert asked.values == [2.5, 2.5] and said.value == "Locked." and all(each.disabled for each in (*fields, button))
