"""Proving checks, shown on the example lab."""

import runpy
from pathlib import Path

import pytest

from lablib.course.errors import CourseError
from lablib.course.master import Cell, Master, read_master
from lablib.course.places import Lab
from lablib.course.proof import WrongAnswer, names, needed_cells, try_solution, try_stub, try_wrong

WRONG = runpy.run_path(str(Path(__file__).parent / "example/labs/masters/90_example/wrong_answers.py"))["WRONG_ANSWERS"]


def test_solutions_pass_and_stubs_are_not_attempted(lab: Lab):
    master = read_master(lab)
    for exercise, check in master.exercises:
        assert try_solution(master, exercise, check).require()
        assert try_stub(master, exercise, check).status == "not attempted"


def test_wrong_answers_are_rejected_each_with_its_own_message(lab: Lab):
    master = read_master(lab)
    for exercise, check in master.exercises:
        results = [
            (try_wrong(master, exercise, check, wrong), wrong)
            for wrong in (WrongAnswer(*w) for w in WRONG[check.check_name])
        ]
        assert all(result.status == "failed" and wrong.message in result.message for result, wrong in results)
        assert len({result.message for result, _ in results}) == len(results) >= 2


def test_nothing_is_recorded(lab: Lab, tmp_path: Path):
    master = read_master(lab)
    try_solution(master, *master.exercises[0])
    assert not (tmp_path / "progress.json").exists()


@pytest.mark.parametrize(
    ("source", "bound", "used"),
    [
        ("import math as m\nfrom a import b", {"m", "b"}, set()),
        ("def area(r):\n    s = m.pi\n    return s * scale(r)", {"area"}, {"m", "scale"}),
        ("for i in range(n):\n    x = i", {"i", "x"}, {"range", "n", "i"}),
        ("y = [x for x in xs]", {"y"}, {"xs"}),
        ("with a() as b:\n    c += 1", {"b", "c"}, {"a", "c"}),
        ("class A(B):\n    def f(self):\n        return g(self)", {"A"}, {"B", "g"}),
    ],
)
def test_names_bound_and_used_are_read_from_the_source(source: str, bound: set[str], used: set[str]):
    found_bound, found_used = names(source)
    assert found_bound == bound and used <= found_used


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
    with pytest.raises(CourseError, match=r"lab.py:41: a check must be given its answer by name"):
        try_wrong(master, *master.exercises[0], WrongAnswer("any", len, ""))
