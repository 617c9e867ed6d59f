"""Guesses that are locked before the answer shows, or when it shows, and their score."""

import math
import sys
from typing import Any

import pytest

from lablib.course import guess


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


def said_by(asked: Any, answer: Any, capsys: Any) -> str:
    capsys.readouterr()
    asked.reveal(answer)
    return " ".join(capsys.readouterr().out.split())


ANSWERED = {
    "size: you guessed 12 MB; the answer is 16 MB: 25% too low guesses: 0 of 1 within 20%": ("12 MB", "MB", 16),
    "size: you guessed 3 times; the answer is 1.5 times: 2 times too high guesses: 0 of 1": (3, "times", 1.5),
    "size: you guessed -0.1 nats; the answer is 0.2 nats: 0.3 nats too low": ("-0.1", "nats", 0.2),
    "size: you guessed 28, 3; the answer is 28, 3.2: exact, 6.2% too low": ((28, 3), "count", [28.0, 3.2]),
    "size: you guessed Muon, SGD; the answer is muon, sgd: right guesses: 1": (["Muon", "SGD"], "", {"sgd", "muon"}),
    "size: you guessed sgd, muon; the answer is muon, sgd: different": ("sgd, muon", "", ["muon", "sgd"]),
    'size: "apples" is not read as 2 numbers in MB; the answer is 1 MB, 2 MB': ("apples", "MB", [1, 2]),
    "size: no guess was given; the answer is 30%": (None, "%", 30),
    "size: you guessed large": ("large", "", None),
}


@pytest.mark.parametrize("said", ANSWERED)
def test_the_answer_stands_next_to_the_guess_and_says_how_far_off_it_is(said: str, capsys):
    given, unit, answer = ANSWERED[said]
    asked = guess("size (of all)", given, False, unit)
    first = said_by(asked, answer, capsys)
    assert first.startswith(said) and said_by(asked, answer, capsys) == first  # a second time counts nothing


@pytest.mark.parametrize(("given", "score"), [(0.015, "1 of 1"), (-0.022, "1 of 1"), (0.019, "0 of 1")])
def test_a_guess_near_an_answer_of_nearly_zero_is_right_within_an_amount(given: float, score: str, capsys):
    asked = guess("loss", given, False, "nats", within=0.02)
    said = said_by(asked, -0.002, capsys)
    assert said.endswith(f"; right within 0.02 nats guesses: {score} within 20% or the stated amount")
    assert asked.panel().children[1].children[1].value.startswith("nats (right within 0.02 nats; locks")


def test_a_field_locks_when_the_answer_shows_and_later_text_changes_nothing(capsys):
    asked = guess("size", None, False, "MB")
    assert "instead of None" in capsys.readouterr().out
    field, note = asked.panel().children[1].children
    field.value = "many"
    assert note.value == '"many" is not read as numbers in MB'
    field.value = "0.012 GB"
    assert note.value == "12 MB" and not field.disabled
    assert "you guessed 12 MB" in said_by(asked, 12, capsys) and field.disabled and note.value == "locked"
    field.value = "99"
    assert "you guessed 12 MB" in said_by(asked, 12, capsys)


def test_guesses_of_several_questions_count_in_the_same_score(monkeypatch: pytest.MonkeyPatch, capsys):
    names = vars(sys.modules["__main__"])
    monkeypatch.setitem(names, "one", guess("one", 10, False, "count"))
    names["one"].reveal(10)
    asked = guess(["large step, s", "memory, GB"], [0.3, 40], False)
    capsys.readouterr()
    asked.compare(0.29, 20.0)
    first, *said = capsys.readouterr().out.splitlines()
    assert first.startswith("large step: you guessed 300 ms; the answer is 290 ms: 3.4% too high")
    assert said == ["memory: you guessed 40 GB; the answer is 20 GB: 2 times too high", "guesses: 2 of 3 within 20%"]
    with pytest.raises(ValueError, match="not locked"):
        guess(["days"], None, False).compare(3.0)


def test_the_score_counts_the_notebooks_guesses_and_a_question_asked_again_keeps_its_guess(
    monkeypatch: pytest.MonkeyPatch, capsys
):
    names = vars(sys.modules["__main__"])
    for name, mine, answer in (("a", 10, 11), ("b", 10, 20), ("c", None, 5)):
        monkeypatch.setitem(names, name, guess(name, mine, False, "count"))
        said = said_by(names[name], answer, capsys)
    assert said == "c: no guess was given; the answer is 5"
    assert "guesses: 1 of 2" in said_by(names["b"], 20, capsys)
    assert guess("b", 20, False, "count") is names["b"] and guess("c", 5, False, "count") is names["c"]
    assert "c: ? (locked: the answer was shown; restart the kernel" in capsys.readouterr().out
