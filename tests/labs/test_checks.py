"""The proofs of `lab prove`: solutions and unusual right answers pass, wrong ones have messages of their own."""

import ast

import pytest

from lablib.course.building.master import read_master
from lablib.course.checks.proof import answers_of, prove, try_answer
from lablib.course.places import Lab

# Labs run in notebooks, where a warning of a library is printed and no error.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.each_lab
def test_the_check_is_proven(lab: Lab, exercise_name: str, pytestconfig: pytest.Config):
    """With every answer under `--all`; else with one wrong one for each message, and two right ones."""
    for proof in prove(lab, exercise_name, every_answer=bool(pytestconfig.getoption("--all"))):
        assert not proof.findings, "\n\n".join(proof.findings)


@pytest.mark.each_lab
def test_a_failed_check_shows_an_input_to_paste(lab: Lab, exercise_name: str, pytestconfig: pytest.Config):
    """The call, with each argument that a short line makes; and the line that draws all inputs again.

    Of the first wrong answer, and of the first two under `--all`.
    """
    num_answers = 1 + bool(pytestconfig.getoption("--all"))
    master = read_master(lab)
    exercise, check = next(pair for pair in master.exercises if pair[1].check_name == exercise_name)
    for wrong in answers_of(lab).wrong[exercise_name][:num_answers]:
        result = try_answer(master, exercise, check, wrong.answer, with_input=True)
        assert result.status == "failed"
        for _, line in (row for row in result._rows() if row[0] in ("last call", "seed")):
            ast.parse(line)
        is_read_only = result.rule == "the answer is your own code" or exercise_name == "plan"  # a text, not a function
        assert result.call or result.seed is not None or is_read_only, result.message
