"""Checks as a notebook sees them: whatever a learner's code does, the lab goes on and the message helps."""

import json
from pathlib import Path

import pytest
import torch

from lablib.course import checks_for
from lablib.course.checks.exercise import exercise
from lablib.course.checks.trial import run_check
from lablib.course.errors import CourseError
from lablib.text.files import write_text


def stub(values: list[float]) -> float:
    raise NotImplementedError("your turn")


def right(values: list[float]) -> float:
    return sum(values) / len(values)


def test_a_right_answer_passes_with_what_was_measured(labs: Path):
    result = checks_for("90").mean(right)
    assert result.status == "passed" and result
    assert "passes over the values: 1 pass, at most 1 pass" in result.message
    assert result.require() is result


def test_a_wrong_answer_fails_with_rule_saw_expected_and_the_next_step(labs: Path):
    result = checks_for("90").mean(lambda values: sum(values))
    assert (result.status, bool(result)) == ("failed", False)
    assert (result.rule, result.saw, result.expected) == ("the mean of 1, 2, 6", "9", "3")
    assert "check.mean.hint() gives a hint (3 left)" in result.message


def test_a_budget_fails_an_answer_whose_value_is_right(labs: Path):
    def two_passes(values: list[float]) -> float:
        return sum(v for v in values) / sum(1 for _ in values)

    result = checks_for("90").mean(two_passes)
    assert (result.rule, result.saw) == ("passes over the values", "2 passes, 2 times the budget")
    assert "held" in result.message  # what was right already


def nbgrader_stub(values: list[float]) -> float:
    raise NotImplementedError()


def nothing_but_dots(values: list[float]) -> float:
    """The mean."""
    ...


def nothing_but_pass(values: list[float]) -> None:
    pass


STUBS = [stub, nbgrader_stub, None, ..., lambda values: ..., nothing_but_dots, nothing_but_pass]


def test_an_answer_that_switches_gradients_off_spoils_no_other(labs: Path):
    def without_gradients(values: list[float]) -> float:
        torch.set_grad_enabled(False)
        return right(values)

    checks_for("90").mean(without_gradients)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("answer", STUBS)
def test_a_stub_is_not_attempted(labs: Path, answer: object):
    assert checks_for("90").mean(answer).status == "not attempted"


def test_a_function_that_returns_nothing_is_attempted(labs: Path):
    def returns(values: list[float]) -> None:
        return

    assert checks_for("90").mean(returns).status == "failed"


def test_no_answer_at_all_is_not_attempted(labs: Path):
    assert checks_for("90").mean().status == "not attempted"


def test_a_library_that_does_not_implement_something_is_no_stub(labs: Path):
    def unsupported(values: list[float]) -> float:
        raise NotImplementedError("'aten::foo' is not implemented for 'Half'")

    assert checks_for("90").mean(unsupported).status == "failed"


def test_an_exception_is_shown_with_the_learners_own_line(labs: Path):
    def broken(values: list[float]) -> float:
        return values.average()  # type: ignore[attr-defined]

    result = checks_for("90").mean(broken)
    assert result.rule == "your code runs without an exception"
    assert "AttributeError: 'Counted' object has no attribute 'average'" in result.saw
    assert "in broken: return values.average()" in result.trace
    assert "lab_90.py" not in result.message and "check.py" not in result.message


def test_a_value_the_check_cannot_use_is_the_answers_fault(labs: Path):
    @exercise("A length")
    def length(expect, answer):
        expect.equal("the length", answer.size, 3)

    result = run_check("90", length, 5)
    assert result.rule == "your code returns what the exercise asks for"
    assert "'int' object has no attribute 'size'" in result.saw


def test_strict_mode_raises_on_what_is_not_passed(labs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAB_STRICT", "1")
    check = checks_for("90")
    assert check.mean(right)
    for answer in (stub, sum):
        with pytest.raises(AssertionError, match="lab 90, mean: "):
            check.mean(answer)


def test_an_interrupt_is_not_caught(labs: Path):
    def interrupted(values: list[float]) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checks_for("90").mean(interrupted)


def test_hints_come_one_at_a_time_and_the_count_is_kept_between_kernels(labs: Path):
    first = checks_for("90").mean.hint()
    assert first.shown == ("What is a mean?",) and first.left == 2 and "2 left" in repr(first)
    check = checks_for("90")  # another kernel
    assert "(2 left)" in check.mean(stub).message
    assert check.hint("mean").shown[-1] == "`sum` adds, `len` counts."
    assert check.mean.hint().left == 0
    assert "that was the last one" in repr(check.mean.hint())
    assert ".hint()" not in check.mean(stub).message


def test_the_solution_follows_the_last_hint(labs: Path):
    check = checks_for("90")
    for left in (3, 2, 1):
        said = repr(check.mean.solution())
        assert f"({left} left)" in said and "sum(values)" not in said
        check.mean.hint()
    assert "check.mean.solution() shows the solution" in check.mean(lambda values: sum(values)).message
    assert "    return sum(values) / len(values)" in repr(check.mean.solution())
    assert "SOLUTION" not in repr(check.mean.solution()) and "<details open>" in check.mean.solution()._repr_html_()
    check.size(40)
    assert "size_bytes = 10 * 4" in repr(check.size.solution())  # passed: no hint is needed


@pytest.mark.parametrize("copy", ["an assignment", "without masters", "graded by nbgrader"])
def test_a_copy_without_solutions_says_so(labs: Path, monkeypatch: pytest.MonkeyPatch, copy: str):
    if copy == "without masters":
        (labs / "masters" / "90_example" / "lab.py").unlink()
        write_text(labs / "90_example.ipynb", "{}")
    if copy == "graded by nbgrader":
        monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    check = checks_for("90", solutions=copy != "an assignment")
    for _ in check.mean.exercise.hints:
        check.mean.hint()
    assert repr(check.mean.solution()).startswith("this copy of the lab has no solutions")
    assert "solution()" not in check.mean(lambda values: sum(values)).message


def test_hints_advance_where_nothing_can_be_saved(labs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAB_PROGRESS", "off")
    check = checks_for("90")
    assert [check.mean.hint().left for _ in range(4)] == [2, 1, 0, 0]


def test_an_unknown_check_has_the_nearest_names(labs: Path):
    with pytest.raises(AttributeError, match="unknown check of lab 90 'maen': did you mean 'mean'"):
        checks_for("90").maen  # noqa: B018


def test_an_unknown_lab_has_the_nearest_numbers(labs: Path):
    with pytest.raises(CourseError, match="unknown lab with checks '91': did you mean '90'"):
        checks_for("91")


def test_the_checks_of_a_lab_can_be_listed_and_completed(labs: Path):
    check = checks_for(90)
    assert check.names == ["mean", "size"] and {"mean", "size", "hint"} <= set(dir(check))
    check.mean(right)
    assert "The mean (passed)" in repr(check) and "(not attempted)" in repr(check)
    assert "The mean" in (check.mean.__doc__ or "")


def test_progress_is_saved_and_a_pass_stays(labs: Path, tmp_path: Path):
    check = checks_for("90")
    check.mean(stub)
    check.mean(sum)
    check.mean(right)
    check.mean(sum)
    entry = json.loads((tmp_path / "progress.json").read_text())["labs"]["90"]["mean"]
    assert entry["attempts"] == 3 and entry["status"] == "failed" and entry["passed_at"]


def test_a_folder_that_cannot_be_written_to_is_a_note_and_no_error(labs: Path, monkeypatch: pytest.MonkeyPatch):
    (labs / "file").write_text("in the way")
    monkeypatch.setenv("LAB_PROGRESS", str(labs / "file" / "progress.json"))
    result = checks_for("90").mean(right)
    assert result.status == "passed" and "progress could not be saved" in result.message


def test_a_check_needs_a_name_of_its_own_and_a_list_of_hints():
    with pytest.raises(ValueError, match="must not be called 'hint'"):

        @exercise("A")
        def hint(expect):
            pass

    with pytest.raises(ValueError, match="hints must be a list"):
        exercise("A", hints="one")


def test_what_holds_on_every_rank_is_said_once():
    def of_ranks(expect, answer) -> None:
        for _ in range(3):
            expect.that("the input stays as it was", True, "as it was", "as it was")
        expect.equal("the value", answer, 1)

    declared = exercise("Ranks", ["a hint"])(of_ranks)
    assert len(run_check("90", declared, 1).measured) == 2
    assert run_check("90", declared, 2).message.count("the input stays") == 1
