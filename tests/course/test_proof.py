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


def test_one_wrong_answer_of_each_message_and_two_right_ones_can_be_enough(lab: Lab):
    """A proof of many minutes is run whole at night (`make test-all`); the first of each message always."""
    right = answers_of(lab).right["size"][0]
    added = f'RIGHT_ANSWERS["size"] += [{right!r}] * 2 + [("is wrong", "size_bytes = 41")]'
    lab.wrong_answers.write_text(f"{lab.wrong_answers.read_text()}\n{added}\n")
    wrong = answers_of(lab).wrong["mean"]
    again = [replace(one, label=f"{one.label}, again") for one in wrong]
    assert _one_of_each([*wrong, *again]) == wrong and _one_of_each(again[:1] * 2) == again[:1] * 2
    for whole, short in zip(prove(lab), prove(lab, every_answer=False), strict=True):
        assert not short.findings and short.tried <= whole.tried
        assert len(whole.findings) == (whole.exercise == "size")


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


@pytest.mark.parametrize("before", ["half = 0.5\n", "half = 0.5; ", "half = 'é' and 0.5; "])
def test_what_a_needed_cell_ends_in_is_not_evaluated(lab: Lab, before: str):
    _, parameters, first, *_ = read_master(lab).cells
    check = read_master(lab).exercises[1][1]
    ends = replace(first, source=f"{before}draw_figure(\n    half)")
    exercise = replace(first, source="size_bytes = int(half * 80)")
    master = Master(lab, (parameters, first, ends, exercise, check))
    assert try_answer(master, exercise, check, exercise.source).status == "passed"


def test_a_check_must_be_given_its_answer_by_name(lab: Lab):
    master = read_master(lab)
    lab.master.write_text(lab.master.read_text().replace("check.mean(mean)", "check.mean(lambda v: mean(v))"))
    master = read_master(lab)
    with pytest.raises(CourseError, match=r"lab.py:44: a check must be given its answer by name"):
        try_answer(master, *master.exercises[0], len)
