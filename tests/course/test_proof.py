"""Proving checks, shown on the example lab."""

from dataclasses import replace
from pathlib import Path

import pytest

from lablib.course.building.master import Cell, Master, read_master
from lablib.course.checks.proof import _one_of_each, answers_of, needed_cells, prove, try_answer
from lablib.course.errors import CourseError
from lablib.course.places import Lab


def test_a_lab_is_proven_with_any_seed(lab: Lab):
    proofs = list(prove(lab, seeds=(0, 1)))
    assert [(proof.exercise, proof.findings) for proof in proofs] == [("mean", []), ("size", [])]


def test_one_wrong_answer_of_each_message_can_be_enough(lab: Lab):
    """A proof of many minutes is run whole at night (`make test-all`); the first of each message always."""
    wrong = answers_of(lab).wrong["mean"]
    again = [replace(one, label=f"{one.label}, again") for one in wrong]
    assert _one_of_each([*wrong, *again]) == wrong and _one_of_each(again[:1] * 2) == again[:1] * 2
    for whole, short in zip(prove(lab), prove(lab, every_answer=False), strict=True):
        assert not short.findings and short.tried <= whole.tried


def test_nothing_is_recorded(lab: Lab, tmp_path: Path):
    master = read_master(lab)
    exercise, check = master.exercises[0]
    try_answer(master, exercise, check, exercise.source)
    assert not (tmp_path / "progress.json").exists()


def cells(lab: Lab, *sources: str) -> Master:
    return Master(lab, tuple(Cell("code", source, (), 1.0, line) for line, source in enumerate(sources)))


def test_only_needed_cells_run_before_an_exercise(lab: Lab):
    master = cells(
        lab,
        "import math",
        "raise RuntimeError('not needed: binds nothing')",
        "factor = math.pi",
        "unused = 1",
        "def helper(x):\n    return factor * x",
        "def answer(x):\n    return helper(x)",
        "check.a(answer)",
        "later = 1",
    )
    *_, exercise, check, _ = master.cells
    assert [cell.line for cell in needed_cells(master, exercise, check)] == [0, 2, 4]


def test_a_check_must_be_given_its_answer_by_name(lab: Lab):
    master = read_master(lab)
    lab.master.write_text(lab.master.read_text().replace("check.mean(mean)", "check.mean(lambda v: mean(v))"))
    master = read_master(lab)
    with pytest.raises(CourseError, match=r"lab.py:44: a check must be given its answer by name"):
        try_answer(master, *master.exercises[0], len)
