"""The learner's functions in later labs: they are what runs, and they give the library's results."""

import itertools
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell
from torch import nn

from lablib import launch, parallel
from lablib.course.building.master import read_master
from lablib.course.building.notebook import Version, make_notebook
from lablib.course.building.solution import without_markers
from lablib.course.checks.exercise import exercises_of
from lablib.course.places import find_lab, find_labs_folder
from lablib.labs.mine import stand_ins
from lablib.parallel import Mesh
from lablib.parallel.data.bucketed import BUCKET_BYTES
from lablib.pipeline.schedules import SCHEDULES
from lablib.precision.loss_scaling import LossScaler, ScaleRule, ScaleState
from tests.labs.forks import Forks

ROWS = stand_ins()


def solution(lab: str, name: str) -> Any:
    """The master's answer, as a learner would have written it."""
    master = read_master(find_lab(lab, find_labs_folder()))
    source = next(cell.source for cell, check in master.exercises if check.check_name == name)
    names: dict[str, Any] = {"torch": torch, "dist": torch.distributed, "math": math, "parallel": parallel}
    exec(without_markers(source), names)
    return names[name]


def library(name: str) -> Any:
    """The library's function of a row."""
    row = next(row for row in ROWS if row.name == name)
    found: Any = import_module(f"lablib.{row.module}")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def adapted(name: str) -> Any:
    """The master's answer in place of it."""
    row = next(row for row in ROWS if row.name == name)
    return row.adapt(solution(row.lab, row.exercise), library(name))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_of_an_exercise_and_of_later_labs(row: Any):
    lab = find_lab(row.lab, find_labs_folder())
    assert row.exercise in [exercise.name for exercise in exercises_of(lab)]
    assert callable(library(row.name)) or row.name == "SCHEDULES"
    for later in row.labs.split():
        assert find_lab(later, find_labs_folder()).number == later > row.lab


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 400))
def test_buckets_are_the_librarys(sizes: list[int], bucket_bytes: int):
    params = [torch.empty(size) for size in sizes]
    for arguments in [(params, bucket_bytes), (params,), (params, BUCKET_BYTES)]:
        assert BUCKETS(*arguments) == library("plan_buckets")(*arguments)
    assert BUCKETS(params, bucket_bytes=bucket_bytes) == library("plan_buckets")(params, bucket_bytes)
    assert BUCKETS([*params, torch.empty(3, dtype=torch.float64)], bucket_bytes)  # several dtypes: the library's


BUCKETS = adapted("plan_buckets")


def test_schedules_are_the_librarys():
    schedules = adapted("SCHEDULES")
    for stages, microbatches in itertools.product(range(1, 6), range(1, 9)):
        assert schedules["1f1b"].plan(stages, microbatches) == SCHEDULES["1f1b"].plan(stages, microbatches)
    assert {name: each for name, each in schedules.items() if each != SCHEDULES[name]}.keys() == {"1f1b"}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_the_slowest_piece_of_a_cut_is_as_fast_as_the_librarys(costs: list[int], data: st.DataObject):
    pieces = data.draw(st.integers(1, len(costs)))
    cuts = [cut(costs, pieces) for cut in (CUT, library("balanced_cut"))]
    assert [i for piece in cuts[0] for i in piece] == list(range(len(costs))) and len(cuts[0]) == pieces
    slowest = [max(sum(costs[i] for i in piece) for piece in cut) for cut in cuts]
    assert slowest[0] == slowest[1]


CUT = adapted("balanced_cut")


def test_groups_are_the_librarys():
    group_of = adapted("Mesh.group_of")
    for sizes in itertools.product((1, 2, 3), repeat=3):
        mesh = Mesh(data=sizes[0], expert=sizes[1], tensor=sizes[2])
        for axes in [*((axis,) for axis in mesh.axes), ("data", "tensor")]:
            assert all(group_of(mesh, r, *axes) == mesh.group_of(r, *axes) for r in range(mesh.num_ranks))
        for wrong in [(0, "data", "data"), (0, "context"), (0,), (mesh.num_ranks, "data")]:
            with pytest.raises(ValueError):
                group_of(mesh, *wrong)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name == "average_gradients"], ids=lambda row: row.exercise)
def test_a_mean_by_the_learners_function_is_the_librarys(row: Any):
    def averaged(function: Any, in_pairs: bool) -> list[torch.Tensor]:
        model = nn.Linear(3, 2, dtype=torch.float64)
        for number, param in enumerate(model.parameters()):
            param.grad = torch.full_like(param, number + torch.distributed.get_rank())
        groups = [torch.distributed.new_group(pair) for pair in ([0, 1], [2, 3])]
        function(model, groups[torch.distributed.get_rank() // 2]) if in_pairs else function(model)
        return [param.grad for param in model.parameters() if param.grad is not None]

    expected_of = library("average_gradients")
    own_of = row.adapt(solution(row.lab, row.exercise), expected_of)
    for in_pairs in (False, True):
        own, expected = (launch(averaged, one, in_pairs, ranks=4).values for one in (own_of, expected_of))
        torch.testing.assert_close(own, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("max_norm", [0.1, 100.0, float("inf")])
def test_clipped_gradients_are_the_librarys(max_norm: float):
    own = adapted("clip_grad_norm_")
    clip = library("clip_grad_norm_")

    def clipped(function: Any) -> tuple[float, list[torch.Tensor]]:
        params = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(1))]
        for number, param in enumerate(params[:2], 1):
            param.grad = torch.full_like(param, number)
        return float(function(params, max_norm)), [param.grad for param in params[:2] if param.grad is not None]

    for norm, gradients in launch(clipped, own, ranks=2).values:
        expected_norm, expected = clipped(clip)
        assert norm == pytest.approx(expected_norm, rel=1e-6)
        torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=0)
    assert clipped(own)[0] == pytest.approx(clipped(clip)[0])  # without ranks: the library's


@pytest.mark.parametrize("overflows_on", [None, 1])
@pytest.mark.parametrize("rule", [ScaleRule(1024.0, interval=2), ScaleRule(2.0**24, interval=1), ScaleRule(8.0, 4.0)])
def test_a_loss_scaler_with_the_learners_methods_steps_as_the_librarys(overflows_on: int | None, rule: ScaleRule):
    def stepped(unscale_: Any, update: Any) -> tuple[list[float], list[ScaleState], bool]:
        class Scaler(LossScaler):
            pass

        Scaler.unscale_, Scaler.update = unscale_, update
        scaler, weight = Scaler(rule), nn.Parameter(torch.ones(2))
        optimizer, skipped, states = torch.optim.SGD([weight], lr=1.0), [], []
        for step in range(3):
            weight.grad = torch.full_like(weight, 1024.0)
            if step == 1 and torch.distributed.get_rank() == overflows_on:
                weight.grad[0] = torch.inf
            skipped.append(scaler.unscale_(optimizer))
            scaler.step(optimizer)
            scaler.update()
            states.append(scaler.state)
        return weight.tolist(), states, any(skipped)

    methods = [[each(f"LossScaler.{name}") for name in ("unscale_", "update")] for each in (adapted, library)]
    own, expected = (launch(stepped, *both, ranks=2).values for both in methods)
    assert own == expected
    assert own[0][2] is (overflows_on is not None)


# ---- a learner's life ----


def write_copy(number: str, *starts: str, more: str = "", version: Version = Version.LEARNER) -> None:
    """The learner's copy of a lab: only those code cells in which a line has one of these starts, and one more."""
    lab = find_lab(number, find_labs_folder())
    notebook = make_notebook(read_master(lab), version)
    notebook.cells = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and any(line.startswith(starts) for line in cell.source.splitlines())
    ] + [new_code_cell(more)] * bool(more)
    lab.work.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, lab.work)


def printed(processes: Forks, number: str, folder: Path, mine: bool = False) -> str:
    """Run the copy; the text that it shows."""
    out = folder / f"runs{len(list(folder.iterdir()))}"
    failed = processes.run("run_in_papermill", number, str(out), "mine" * mine, output=folder / "said")
    assert not failed, failed
    (notebook,) = out.glob("*.ipynb")
    outputs = [output for cell in nbformat.read(notebook, as_version=4).cells for output in cell.get("outputs", [])]
    return "\n".join(one.get("text") or one.get("data", {}).get("text/plain", "") for one in outputs)


@pytest.mark.labs
@pytest.mark.timeout(300)
def test_an_answer_of_lab_13_runs_in_lab_14(notebooks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress.json"))
    work = tmp_path / "work"
    parts = ("from lablib.labs", "ranks: int", "check = ", "def one_f_one_b", "check.one_f_one_b")
    write_copy("13", *parts, version=Version.INSTRUCTOR)
    said = printed(notebooks, "13", tmp_path)
    assert "passed: 1F1B" in said and "saved: `from mine import one_f_one_b` in work/" in said
    saved = work / "mine" / "lab13_one_f_one_b.py"
    assert sorted(path.name for path in saved.parent.glob("*.py")) == ["__init__.py", saved.name]

    # Later: the learner's function counts its calls, in its check and then in the lab.
    calls = tmp_path / "calls"
    calls.write_text("")
    counting = f"\n    with open({str(calls)!r}, 'a') as file:\n        file.write('.')\n    ahead ="
    saved.write_text(saved.read_text().replace("\n    ahead =", counting))
    write_copy("14", "from lablib.labs", "cluster: str", "check = ", more=_STEPS.format(calls=str(calls)))
    own = "Your code on simulated ranks: one_f_one_b (lab 13)"
    plain = printed(notebooks, "14", tmp_path)
    assert "calls: False" in plain and "Your code" not in plain and calls.read_text() == ""
    mine = printed(notebooks, "14", tmp_path, mine=True)
    assert "calls: True" in mine and own in mine and mine.split("steps:")[1] == plain.split("steps:")[1]

    # An answer that no longer passes is left out, and the lab runs.
    saved.write_text(saved.read_text().replace("ahead = min(", "ahead = max("))
    broken = printed(notebooks, "14", tmp_path, mine=True)
    assert "calls: False" in broken and "Your code: none, the library's runs" in broken
    assert "one_f_one_b of lab 13 is left out, as its check does not pass: failed: 1F1B" in broken
    assert broken.split("steps:")[1] == plain.split("steps:")[1]


_STEPS = """
before = open({calls!r}).read()
losses, _ = launch(lab14.three_steps, Mesh(pipeline=2), ranks=2).values[0]
print("calls:", open({calls!r}).read() > before)
print("steps:", losses)
"""


@pytest.mark.labs
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", ["11 09 plan_buckets 8", "17 09 average_gradients 20", "17 02 LossScaler 40"])
def test_an_answer_runs_in_later_labs(notebooks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str):
    later, earlier, name, num_calls = case.split()  # on each of 8 ranks; in 10 steps of 2 ranks; a scaler twice in each
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress.json"))
    parts, program = _OF_LAB[later]
    write_copy(
        later,
        "from lablib.labs import",
        *parts,
        more=_COUNTED.format(calls=str(calls := tmp_path / "calls"), of=program),
    )
    calls.write_text("")
    master = read_master(find_lab(earlier, find_labs_folder()))
    source = next(cell.source for cell, check in master.exercises if check.check_name == name)
    saved = tmp_path / "work" / "mine" / f"lab{earlier}_{name}.py"
    saved.parent.mkdir()
    saved.write_text(_COUNTING.format(answer=without_markers(source), name=name, calls=str(calls)))

    plain = printed(notebooks, later, tmp_path)
    assert "calls: 0\n" in plain and "Your code" not in plain and calls.read_text() == ""
    mine = printed(notebooks, later, tmp_path, mine=True)
    assert f"Your code on simulated ranks: {name} (lab {earlier})" in mine
    assert f"calls: {num_calls}\n" in mine
    assert mine.split("steps:")[1] == plain.split("steps:")[1]


_COUNTING = """
import torch
import torch.distributed as dist

{answer}

answer = {name}


def {name}(*given):
    with open({calls!r}, "a") as file:
        file.write(".")
    return answer(*given)
"""
_COUNTED = """
before = open({calls!r}).read()
{of}
print("calls:", len(open({calls!r}).read()) - len(before))
print("steps:", steps)
"""
_OF_LAB = {
    "11": (
        ("backend: str", "from functools", "my_guess_exposed", "def step(make_reduce)"),
        "steps = launch(step, lambda: parallel.all_reduce_average, **there).timeline.makespan_s",
    ),
    "17": (
        ("ranks: int", "class Loader", "class Training"),
        "def ten_steps():\n    run = Training(seed=1)\n    return [run.step() for _ in range(10)]\n\n\n"
        "steps = lab17.launch(ten_steps, ranks=2, cluster=cluster).values",
    ),
}
