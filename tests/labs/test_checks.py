"""Every check is proven: its solution passes, its stub is "not attempted", and wrong answers are told apart.

A check that lets a wrong answer through, or says of two mistakes the same, is worse than none; so each has at least two
plausible wrong answers (the lab's `wrong_answers.py`), and each of them must get a message of its own.
"""

import pytest

from lablib.course.check import exercises_of
from lablib.course.master import Cell, Master
from lablib.course.places import Lab
from lablib.course.proof import WrongAnswer, try_solution, try_stub, try_wrong

# Labs run in notebooks, where a warning of a library is printed and no error.
pytestmark = pytest.mark.filterwarnings("default")

WrongAnswers = dict[str, list[WrongAnswer]]
FEWEST_WRONG = 2
FEWEST_EXERCISES = 3


def pair(master: Master, name: str) -> tuple[Cell, Cell]:
    return next(pair for pair in master.exercises if pair[1].check_name == name)


def test_the_solution_passes(master: Master, exercise_name: str):
    try_solution(master, *pair(master, exercise_name)).require()


def test_the_stub_is_not_attempted(master: Master, exercise_name: str):
    result = try_stub(master, *pair(master, exercise_name))
    assert result.status == "not attempted", result.message


def test_wrong_answers_are_rejected_each_with_its_own_message(
    master: Master, exercise_name: str, wrong_answers: WrongAnswers
):
    wrongs = wrong_answers.get(exercise_name, [])
    assert len(wrongs) >= FEWEST_WRONG, f"{exercise_name} needs {FEWEST_WRONG} wrong answers: it has {len(wrongs)}"
    label_of: dict[tuple[str, str, str], str] = {}
    for wrong in wrongs:
        result = try_wrong(master, *pair(master, exercise_name), wrong)
        assert result.status == "failed", f"{wrong.label}: {result.message}"
        assert wrong.message in result.message, f"{wrong.label}: expected {wrong.message!r} in\n{result.message}"
        said = (result.rule, result.saw, result.expected)
        assert said not in label_of, f"{wrong.label!r} and {label_of[said]!r} get the same message:\n{result.message}"
        label_of[said] = wrong.label


def test_every_check_and_every_wrong_answer_is_used(lab: Lab, master: Master, wrong_answers: WrongAnswers):
    used = {check.check_name for _, check in master.exercises}
    declared = {exercise.name for exercise in exercises_of(lab)}
    assert used == declared, "exercises of the master and of its file of checks must be the same"
    assert set(wrong_answers) <= used, "wrong answers to exercises that do not exist"
    assert len(used) >= FEWEST_EXERCISES


def test_every_exercise_has_hints(lab: Lab):
    assert all(exercise.hints and exercise.title for exercise in exercises_of(lab))
