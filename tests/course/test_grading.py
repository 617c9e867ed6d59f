"""Settings for nbgrader, and notebooks with answers that cannot be judged."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook, new_output

from lablib.course.errors import CourseFailure
from lablib.course.grading.settings import reason_not_graded, write_config

KINDS = {
    "answer": {"solution": True, "locked": False, "grade": False},
    "locked": {"solution": False, "locked": True, "grade": False},
    "check": {"solution": False, "locked": True, "grade": True},
    "the learner's own": {},
}


def cell(kind: str, *errors: str):
    outputs = [new_output("error", ename=name, evalue="reason", traceback=[]) for name in errors]
    return new_code_cell("first = 1\nsecond = 2", metadata={"nbgrader": KINDS[kind]}, outputs=outputs)


def test_a_new_course_folder_gets_settings_and_an_existing_file_stays(tmp_path: Path):
    assert "written" in write_config(tmp_path)
    path = tmp_path / "nbgrader_config.py"
    written = path.read_text()
    compile(written, "nbgrader_config.py", "exec")
    assert "cell_timeout_s=600" in written
    path.write_text(written.replace("600", "900"))
    assert "up to date" in write_config(tmp_path) and "900" in path.read_text()
    path.write_text("c = get_config()\n")
    said = write_config(tmp_path)
    assert "left as it is" in said and "from lablib.course.grading.settings import configure" in said
    assert path.read_text() == "c = get_config()\n"


def test_a_config_that_is_no_text_file_is_one_error(tmp_path: Path):
    (tmp_path / "nbgrader_config.py").mkdir()
    with pytest.raises(CourseFailure, match="nbgrader_config.py"):
        write_config(tmp_path)


@given(
    before=st.lists(st.sampled_from(["answer", "check", "the learner's own"]), max_size=4), error=st.text(min_size=1)
)
def test_an_error_in_a_locked_cell_is_a_reason_wherever_it_is(before: list[str], error: str):
    cells = [cell(kind, "NameError") for kind in before]
    assert reason_not_graded(new_notebook(cells=cells)) == ""
    reason = reason_not_graded(new_notebook(cells=[*cells, cell("locked", error), cell("check", "NameError")]))
    assert reason.startswith(f"locked cell {len(cells) + 1}, `first = 1`, ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_that_a_timeout_stopped_is_a_reason(kind: str):
    stopped = new_notebook(cells=[cell(kind, "KeyboardInterrupt", "CellTimeoutError")])
    assert "was stopped by a timeout" in reason_not_graded(stopped)


def test_a_check_that_a_busy_machine_stopped_is_a_reason():
    busy = cell("check", "AssertionError")
    busy.outputs[0].evalue = "lab 90, mean: not checked: The mean\n  rule  your code comes to its end"
    reason = reason_not_graded(new_notebook(cells=[busy]))
    assert reason == "check cell 1, `first = 1`, raised AssertionError: lab 90, mean: not checked: The mean"


@pytest.mark.parametrize(
    ("kind", "error", "is_reason"),
    [
        ("answer", "SyntaxError", False),
        ("the learner's own", "ZeroDivisionError", False),
        ("check", "AssertionError", False),  # not passed
        ("check", "NameError", False),  # the answer's cell did not run
        ("check", "OSError", True),  # the check itself failed
        ("locked", "NameError", True),
    ],
)
def test_an_error_counts_by_the_kind_of_its_cell(kind: str, error: str, is_reason: bool):
    assert bool(reason_not_graded(new_notebook(cells=[cell(kind, error)]))) is is_reason
