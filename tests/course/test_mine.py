"""The learner's package work/mine: answers that passed, each with what it needs, and never a broken file."""

import importlib
import linecache
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lablib.course import checks_for
from lablib.course.answers import own_answers
from lablib.course.checks.exercise import exercise
from lablib.course.checks.result import Result
from lablib.course.mine import save_answer, saved_answer, saved_path
from lablib.course.places import Lab
from lablib.course.running.execute import run_lab

RIGHT = "def mean(values):\n    return sum(values) / len(values)\n"
_NUMBERS = count(1)


def run_cell(source: str, notebook: dict[str, Any]) -> None:
    """Run a cell as IPython does: its source can be found under its file name."""
    name = f"<cell {next(_NUMBERS)} of test_mine>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), notebook)


def checked(*cells: str, name: str = "mean") -> Result:
    """The result of check.mean for `name`, after these cells of a notebook."""
    notebook: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        run_cell(cell, notebook)
    return checks_for("90").mean(notebook[name])


@pytest.fixture
def work(labs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The learner's folder, from which a notebook imports `mine`."""
    monkeypatch.syspath_prepend(tmp_path / "work")
    yield tmp_path / "work"
    for name in [each for each in sys.modules if each.split(".")[0] == "mine"]:
        del sys.modules[name]


def test_an_answer_that_passes_is_saved_and_can_be_imported(work: Path, lab: Lab):
    result = checked(RIGHT)
    assert result.notes == ("saved: `from mine import mean` in work/",)
    text = saved_path(lab, "mean").read_text()
    assert text.startswith('"""The mean: the answer of lab 90 that passed on 2') and text.endswith(f"\n\n\n{RIGHT}")
    mine = importlib.import_module("mine")
    assert mine.mean([1.0, 2.0]) == 1.5 and dir(mine) == ["mean"]
    with pytest.raises(AttributeError, match="mine has no median: it has mean"):
        _ = mine.median


def test_a_script_in_work_imports_it_without_lablib(work: Path):
    checked(RIGHT)
    program = "import sys; from mine import mean; print(mean([4.0]), 'lablib' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=work, capture_output=True, text=True, check=True)
    assert run.stdout == "4.0 False\n"


def test_it_has_the_imports_helpers_classes_and_literals_that_it_uses(work: Path, lab: Lab):
    result = checked(
        "import math, os\nimport functools as ft\nfrom operator import truediv as divide\nunused = object()\n",
        "START = (0.0, 'start')\n",
        "class Sum:\n    def of(self, values):\n        return ft.reduce(add, values, START[0])\n",
        "def twice(function):\n    return function\n\n@twice\ndef add(a, b):\n    return math.fsum([a, b])\n",
        "count = lambda values: len(values)\n",
        "def my_mean(values, kind=Sum):\n    unused = kind().of(values)\n    return divide(unused, count(values))\n",
        name="my_mean",
    )
    assert result.status == "passed" and result.notes[0].startswith("saved")
    text = saved_path(lab, "mean").read_text()
    assert "import os" not in text and "unused = object" not in text
    imports = [line for line in text.splitlines() if line.startswith(("import", "from"))]
    assert imports == ["import functools as ft", "import math", "from _operator import truediv as divide"]
    assert text.endswith("\n\n\nmean = my_mean\n")
    assert saved_answer(lab, "mean")([1.0, 5.0]) == 3.0


def test_an_answer_of_two_functions_or_of_a_literal_is_saved_too(work: Path, lab: Lab):
    notebook: dict[str, Any] = {"__name__": "__main__"}
    run_cell("def save(run):\n    return 1\n\ndef resume(run, saved):\n    return save\n", notebook)

    @exercise("A pair", hints=[])
    def pair(expect: object, *answer: object) -> None: ...

    assert save_answer(lab, pair, "passed", (notebook["save"], notebook["resume"]))[0].startswith("saved")
    one, other = saved_answer(lab, "pair")
    assert one(None) == 1 and other(None, None) is one
    assert checks_for("90").size(40).notes[0].startswith("saved") and saved_answer(lab, "size") == 40


def test_an_answer_that_needs_a_tensor_of_the_notebook_is_not_saved_and_the_note_says_so(work: Path, lab: Lab):
    result = checked("import torch\nscale = torch.ones(1)\n", RIGHT.replace("len(", "float(scale) / len("))
    (note,) = result.notes
    assert result.status == "passed" and "is not saved" in note and "literals of the notebook: got scale, " in note
    assert not saved_path(lab, "mean").exists()


def test_after_a_failed_check_the_last_answer_that_passed_is_kept(work: Path, lab: Lab):
    assert checked("def mean(values):\n    return 0.0\n").notes == ()
    checked(RIGHT)
    before = saved_path(lab, "mean").read_text()
    result = checked("def mean(values):\n    return 0.0\n")
    assert result.notes == ("mine/lab90_mean.py keeps your last answer that passed",)
    assert saved_path(lab, "mean").read_text() == before
    checked("def mean(values):\n    return sum(values, 0.0) / len(values)\n")
    assert "sum(values, 0.0)" in saved_path(lab, "mean").read_text()


def test_a_better_answer_replaces_the_imported_one_in_the_same_kernel(work: Path):
    checked(RIGHT)
    mine = importlib.import_module("mine")
    first = mine.mean
    checked(RIGHT)
    assert mine.mean is not first and mine.mean([3.0]) == 3.0


def test_of_two_labs_with_one_name_the_later_lab_has_it(work: Path):
    checked(RIGHT)
    (work / "mine" / "lab08_mean.py").write_text("def mean(values):\n    return 'of lab 08'\n")
    mine = importlib.import_module("mine")
    assert mine.mean([2.0]) == 2.0 and importlib.import_module("mine.lab08_mean").mean([]) == "of lab 08"


def test_what_an_answer_imports_from_the_package_is_copied(work: Path, lab: Lab):
    checked("HALF = 0.5\n", "def mean(values):\n    return HALF * 2 * sum(values) / len(values)\n")
    checked("from mine import mean as earlier\n", "def mean(values):\n    return earlier(values)\n")
    assert "import mine" not in saved_path(lab, "mean").read_text()
    assert saved_answer(lab, "mean")([1.0, 2.0]) == 1.5


def test_nothing_is_saved_without_progress_or_of_code_that_is_not_the_notebooks(
    work: Path, monkeypatch: pytest.MonkeyPatch
):
    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    assert checks_for("90").mean(mean).notes == ()
    monkeypatch.setenv("LAB_PROGRESS", "off")
    assert checked(RIGHT).notes == () and not work.exists()


def test_no_solution_gets_into_the_package(work: Path, lab: Lab, tmp_path: Path):
    run_lab(lab, {}, instructor=True, out=tmp_path / "runs")
    check = checks_for("90")
    for _ in range(4):
        check.mean.hint()
    assert "return sum" in check.mean.solution().text and not work.exists()


def test_concurrent_checks_leave_whole_files(work: Path, lab: Lab):
    answers: list[dict[str, Any]] = [{"__name__": "__main__"} for _ in range(8)]
    for number, notebook in enumerate(answers):
        run_cell(f"def mean(values):\n    {'pass;' * 200 * number} return {number}\n", notebook)

    @exercise("The mean", hints=[])
    def mean(expect: object, answer: object) -> None: ...

    def save(notebook: dict[str, Any]) -> Any:
        notes = [save_answer(lab, mean, "passed", (notebook["mean"],)) for _ in range(5)]
        return saved_answer(lab, "mean")([]), notes

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(save, answers))
    assert all(value in range(8) and all(note[0].startswith("saved") for note in notes) for value, notes in found)
    assert sorted(path.name for path in (work / "mine").iterdir()) == ["__init__.py", "lab90_mean.py"]


def test_a_folder_that_cannot_be_written_is_a_note(work: Path, tmp_path: Path):
    work.write_text("a file")
    (note,) = checked(RIGHT).notes
    assert note.startswith("this answer is not saved in ") and "cannot be written" in note


def test_a_saved_answer_is_taken_if_it_passes_today_and_otherwise_named(work: Path, lab: Lab):
    wanted = {"mean": ("90", "mean")}
    assert own_answers(wanted) == ({}, [])
    checked(RIGHT)
    found, notes = own_answers(wanted)
    assert found["mean"]([2.0, 4.0]) == 3.0 and notes == []
    for text, reason in [
        (
            "def mean(values):\n    return 0.0\n",
            "mean of lab 90 is left out, as its check does not pass: failed: The mean",
        ),
        ("import no_such_module\n", "mean of lab 90 is left out: No module named 'no_such_module'"),
        ("def other(): ...\n", "mean of lab 90 is left out, as its check does not pass: not attempted: The mean"),
    ]:
        saved_path(lab, "mean").write_text(text)
        found, (note,) = own_answers(wanted)
        assert found == {} and note.startswith(reason)
