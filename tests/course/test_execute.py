"""Running a lab with papermill: notebook and page, a failing cell, a full disk, and no runs of nonsense."""

import ast
import errno
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

import nbformat
import pytest

from lablib.course.building.build import build
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import Lab
from lablib.course.running import execute
from lablib.course.running.execute import run_lab
from lablib.course.work import update


def outputs(path: Path) -> str:
    """All text a run notebook shows."""
    texts = []
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            texts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(texts)


def test_a_run_has_its_parameters_a_notebook_and_a_page(lab: Lab, tmp_path: Path):
    build([lab])
    before = lab.notebook.read_bytes()
    notebook, page = run_lab(lab, {"ranks": "2", "scale": "2"})
    assert notebook.parent == tmp_path / "runs" and notebook.name.startswith("90_example-2")
    assert sorted(path.name for path in notebook.parent.iterdir()) == [page.name, notebook.name]
    shown = outputs(notebook)
    assert "2 ranks on dgx-h100 (sim), scale 2.0" in shown and shown.count("not attempted") == 2
    assert "interactive = False" in notebook.read_text() and "An example" in page.read_text()
    assert "application/vnd.jupyter.widget-state+json" not in notebook.read_text()
    assert str(tmp_path) not in notebook.read_text()
    assert lab.notebook.read_bytes() == before


def test_the_learners_copy_is_what_runs_and_in_its_folder(lab: Lab):
    update(lab)
    notebook = nbformat.read(lab.work, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("import os\nprint('in', os.path.basename(os.getcwd()))"))
    nbformat.write(notebook, lab.work)
    ran, _ = run_lab(lab, {})
    assert "in work" in outputs(ran)
    assert "in work" not in outputs(run_lab(lab, {}, instructor=True)[0])


def test_an_instructor_run_passes_every_check_and_records_nothing(lab: Lab, tmp_path: Path):
    notebook, _ = run_lab(lab, {}, instructor=True, out=tmp_path / "elsewhere")
    assert outputs(notebook).count("passed") == 2 and notebook.parent == tmp_path / "elsewhere"
    assert not (tmp_path / "progress.json").exists()


def test_a_failing_cell_is_named_and_the_notebook_kept(lab: Lab, tmp_path: Path):
    text = lab.master.read_text()
    lab.master.write_text(text.replace("    return sum(values) / len(values)", "    return 0.0"))
    with pytest.raises(CourseFailure) as raised:
        run_lab(lab, {}, instructor=True)
    message = str(raised.value)
    assert raised.value.exit_code == 1
    assert "failed in cell In [" in message and "`check.mean(mean)`: AssertionError: lab 90, mean: " in message
    [kept] = (tmp_path / "runs").iterdir()
    assert str(kept) in message and "AssertionError" in kept.read_text()


def test_a_dead_kernel_is_said_and_the_notebook_kept(lab: Lab, tmp_path: Path):
    lab.master.write_text(lab.master.read_text() + "\n# %%\nimport os\n\nos._exit(1)\n")
    with pytest.raises(CourseFailure, match="the kernel died, perhaps for want of memory") as raised:
        run_lab(lab, {})
    [kept] = (tmp_path / "runs").iterdir()
    assert str(kept) in str(raised.value) and "not attempted" in outputs(kept)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ranks": "four"}, "ranks must be an int: got 'four'; try --ranks 4"),
        ({"cluster": "dgx-h10"}, "unknown cluster 'dgx-h10': did you mean 'dgx-h100'"),
        ({"rnaks": "4"}, "unknown parameter 'rnaks': did you mean 'ranks'"),
    ],
)
def test_a_wrong_parameter_stops_before_anything_runs(lab: Lab, tmp_path: Path, values: dict[str, str], message: str):
    with pytest.raises(CourseError) as raised:
        run_lab(lab, values)
    assert message in str(raised.value) and raised.value.exit_code == 2
    assert not (tmp_path / "runs").exists()


def full(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_while_running_leaves_nothing(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("papermill.iorw.LocalHandler.write", full)
    with pytest.raises(CourseFailure, match="no space left on device; nothing half-written was left") as raised:
        run_lab(lab, {})
    assert "\n" not in str(raised.value) and list((tmp_path / "runs").iterdir()) == []


def execute_nothing(lab: Lab, notebook: nbformat.NotebookNode, parameters: dict, path: Path) -> str:
    notebook.metadata["papermill"] = {}
    nbformat.write(notebook, path)
    return ""


def test_a_disk_that_is_full_at_the_page_keeps_the_notebook(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(execute, "_execute", execute_nothing)
    monkeypatch.setattr(execute, "_write_page", full)
    with pytest.raises(CourseFailure, match="The notebook is kept"):
        run_lab(lab, {})
    assert [path.suffix for path in (tmp_path / "runs").iterdir()] == [".ipynb"]


def test_a_folder_that_cannot_be_made_is_said_before_the_run(lab: Lab, tmp_path: Path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(CourseFailure, match=r"cannot write .*runs"):
        run_lab(lab, {})
    assert (tmp_path / "runs").read_text() == "a file"


def test_a_broken_notebook_is_refused_with_the_remedy(lab: Lab):
    lab.work.parent.mkdir()
    lab.work.write_text("{")
    with pytest.raises(CourseFailure, match="lab reset 90"):
        run_lab(lab, {})
    assert lab.work.read_text() == "{"


def test_a_run_never_takes_the_name_of_an_older_one(lab: Lab, tmp_path: Path, instant: None):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "90_example-20260102-030405.html").write_text("")
    assert run_lab(lab, {})[0].name == "90_example-20260102-030405-2.ipynb"


def test_runs_that_begin_in_one_second_write_files_of_their_own(
    lab: Lab, tmp_path: Path, instant: None, monkeypatch: pytest.MonkeyPatch
):
    parse, turn = ast.parse, Lock()

    def parse_in_turn(*args: Any, **options: Any) -> ast.AST:
        with turn:  # several threads at once cannot parse in CPython 3.11.7 and older (python/cpython, issue 106905)
            return parse(*args, **options)

    monkeypatch.setattr(ast, "parse", parse_in_turn)
    with ThreadPoolExecutor(8) as pool:
        written = [path for run in [pool.submit(run_lab, lab, {}) for _ in range(8)] for path in run.result()]
    assert len(set(written)) == 16
    assert sorted((tmp_path / "runs").iterdir()) == sorted(written)


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs take no time, and all begin in the same second."""

    class Clock:
        @staticmethod
        def now() -> datetime:
            return datetime(2026, 1, 2, 3, 4, 5)

    def write_page(notebook: nbformat.NotebookNode, path: Path) -> Path:
        path.write_text("page")
        return path

    monkeypatch.setattr(execute, "datetime", Clock)
    monkeypatch.setattr(execute, "_execute", execute_nothing)
    monkeypatch.setattr(execute, "_write_page", write_page)


def test_saving_takes_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch):
    now_s, saved_s = 0.0, []

    def save() -> None:
        nonlocal now_s
        saved_s.append(now_s)
        now_s += 1.0

    monkeypatch.setattr(execute.time, "perf_counter", lambda: now_s)
    save_now_and_then = execute._seldom(save)
    while now_s < 50:
        save_now_and_then()
        now_s += 0.5
    assert saved_s == [0.0, 20.0, 40.0]


def test_an_output_that_never_arrives_is_no_error_of_the_disk(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import papermill
    from nbclient.exceptions import CellTimeoutError

    def late(*args: object, iopub_timeout: int, **options: object) -> None:
        Path(str(args[1])).write_text(
            '{"cells": [], "metadata": {"papermill": {}}, "nbformat": 4, "nbformat_minor": 5}'
        )
        raise CellTimeoutError(f"after {iopub_timeout} s")

    monkeypatch.setattr(papermill, "execute_notebook", late)
    with pytest.raises(CourseFailure, match="output did not arrive within two minutes"):
        run_lab(lab, {}, out=tmp_path / "runs")
