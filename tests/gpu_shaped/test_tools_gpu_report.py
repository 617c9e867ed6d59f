"""`make test-gpu` without a GPU: what it would do, what is missing, what it writes, and that its steps can run."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.cuda import nccl

from lablib.course.building.master import read_master
from lablib.course.building.parameters import check_values, read_parameters
from lablib.course.places import find_labs
from lablib.real.gpu.sharing import SHARE_VARIABLE

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("gpu_report", ROOT / "tools" / "gpu_report.py")
assert _spec and _spec.loader
tool: Any = importlib.util.module_from_spec(_spec)
sys.modules["gpu_report"] = tool
_spec.loader.exec_module(tool)

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing on a machine without GPUs")
LABS = ["lab 00", "lab 01", "lab 03", "lab 08", "lab 09", "lab 10", "lab 11", "lab 12", "lab 13", "lab 14"]
STEPS = ["tests", "doctor", "calibrate", "compare", *LABS]


class Ran:
    """Runs nothing; ends with the exit code that a step is given."""

    def __init__(self, codes: dict[str, int] | None = None):
        self.codes, self.commands = codes or {}, list[str]()

    def __call__(self, command: Sequence[str]) -> tuple[int, str]:
        self.commands.append(" ".join(command))
        code = next((code for word, code in self.codes.items() if word in command), 0)
        return code, f"one line\nthe last line of {Path.home()}/lablib and {ROOT}/labs\n"


@no_gpu
def test_without_a_gpu_nothing_runs_and_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]):
    ran = Ran()
    assert tool.main([], ran) == 2 and not ran.commands
    told = capsys.readouterr().err
    assert "nothing was run: " in told and "CUDA" in told and "--dry-run shows the steps" in told


@no_gpu
def test_a_dry_run_shows_every_step_and_what_each_lacks(capsys: pytest.CaptureFixture[str]):
    ran = Ran()
    assert tool.main(["--dry-run"], ran) == 0 and not ran.commands
    told = capsys.readouterr().out
    assert told.startswith("missing here: ") and told.endswith("nothing was run.\n") and str(ROOT) not in told
    assert [line.partition(":")[0] for line in told.splitlines()[1:-1] if not line.startswith(" ")] == STEPS
    assert told.count("cannot run: ") == len(STEPS) - 1, "`lab doctor` needs no GPU"


def test_make_test_gpu_is_this_command():
    made = subprocess.run(["make", "-n", "test-gpu", "ARGS=--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert "python tools/gpu_report.py --dry-run" in made.stdout


def test_a_step_that_fails_does_not_keep_the_next_from_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ran, out = Ran({"calibrate": 1, "08": 2}), tmp_path / "new" / "report.json"
    assert tool.main(["--stand-in", "--out", str(out)], ran) == 1
    assert len(ran.commands) == len(STEPS) and all("--backend gloo" in c for c in ran.commands if " run " in c)
    report = json.loads(out.read_text())
    states = {step["name"]: step["state"] for step in report["steps"]}
    assert states == {name: "failed" if name in ("calibrate", "lab 08") else "passed" for name in STEPS}
    failed = next(step for step in report["steps"] if step["name"] == "lab 08")
    assert failed["said"].endswith("the last line of ~/lablib and ./labs") and "exit code 2" in failed["said"]
    assert str(ROOT) not in out.read_text() and str(Path.home()) + "/" not in out.read_text()
    assert "failed: calibrate, lab 08" in capsys.readouterr().out


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H100", total_memory=80 * 2**30, major=9, minor=0)
    for name, answer in {
        "is_available": True,
        "device_count": 4,
        "is_initialized": True,
        "get_device_name": "NVIDIA H100",
        "get_device_properties": properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, answer=answer: answer)
    monkeypatch.setattr(nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)


def test_with_gpus_every_step_runs_on_as_many_ranks_and_the_report_can_be_committed(
    four_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    ran = Ran()
    assert tool.main([], ran) == 0
    assert all("--ranks 4" in command for command in ran.commands if "--ranks" in command)
    assert sum("--backend nccl" in command for command in ran.commands) == len(LABS) + 1
    (path,) = tmp_path.glob("4-x-nvidia-h100-*.json")
    report = json.loads(path.read_text())
    tool.check_report(report)
    assert report["about"]["nccl"] == "2.29.7" and report["about"]["compute_capability"] == "9.0"
    for wrong in ({**report, "is_gpu": False}, {**report, "about": {}}, {**report, "format": 2}, {}, None, []):
        with pytest.raises(ValueError):
            tool.check_report(wrong)


def test_one_gpu_runs_every_step_and_labs_share_it_between_two_ranks(
    four_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    out, ran = tmp_path / "report.json", Ran()
    assert tool.main(["--out", str(out)], ran) == 0
    assert {step["state"] for step in json.loads(out.read_text())["steps"]} == {"passed"}
    labs = [command for command in ran.commands if " run " in command]
    assert len(labs) == len(LABS) and all(command.startswith("env LABLIB_SHARE_GPUS=1 ") for command in labs)
    assert {word for command in labs for word in re.findall("ranks ([0-9]+)", command)} == {"2"}
    (calibrate,) = (command for command in ran.commands if " calibrate " in command)
    assert "--ranks 1" in calibrate and tool.SHARE_VARIABLE == SHARE_VARIABLE


@pytest.mark.parametrize("number", tool.labs_with_backend())
def test_a_lab_accepts_the_flags_that_any_number_of_gpus_gives_it(number: str):
    """The command's own check, and the lab's, in the cells around its parameters."""
    (lab,) = (lab for lab in find_labs(ROOT / "labs") if lab.number == number)
    cells = [cell for cell in read_master(lab).cells if cell.kind == "code"]
    (at,) = (place for place, cell in enumerate(cells) if cell.tagged("parameters"))
    parameters, namespace = read_parameters(cells[at].source), dict[str, Any]()
    names = [parameter.name for parameter in parameters]
    exec(cells[0].source, namespace)  # its imports
    for gpus in range(1, 17):
        words = iter(word for word in tool.lab_flags(names, "nccl", gpus) if word != "-p")
        given = {name.removeprefix("--"): value for name, value in zip(words, words, strict=True)}
        values = check_values(parameters, given)
        assert {"ranks", "real_ranks"} & set(names) <= values.keys() and values["backend"] == "nccl"
        exec(cells[at].source, namespace)
        namespace.update(values)
        exec(_up_to_the_last_check(cells[at + 1].source), namespace)


def _up_to_the_last_check(source: str) -> str:
    """The statements of a cell up to the last one that refuses a number of ranks."""
    body = ast.parse(source).body
    checks = [
        place for place, one in enumerate(body) if isinstance(one, ast.Assert | ast.If) and "rank" in ast.unparse(one)
    ]
    return "\n".join(ast.unparse(one) for one in body[: checks[-1] + 1]) if checks else ""


@given(st.sets(st.sampled_from(["tests", "doctor", "calibrate", "compare", "labs"]), min_size=1), st.booleans())
def test_some_of_the_steps_are_those_that_were_named(chosen: set[str], stand_in: bool):
    options = tool._options(["--only", *sorted(chosen), *["--stand-in"] * stand_in])
    names = [step.name for step in tool.steps_of(options, Path("scratch"))]
    assert names == [name for name in STEPS if name in chosen or ("labs" in chosen and name.startswith("lab "))]


def test_pytests_own_count_is_in_the_report(tmp_path: Path):
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="0" skipped="2"/></testsuites>'
    )
    said = tool._tests_text(["pytest", f"--junitxml={tmp_path / 'tests.xml'}"])
    assert said == "9 tests, 1 failures, 0 errors, 2 skipped"


@pytest.mark.slow
def test_the_programs_are_predicted_and_measured_by_two_processes(tmp_path: Path):
    """The step itself, as a process, with gloo in NCCL's place."""
    out = tmp_path / "report.json"
    assert tool.main(["--stand-in", "--only", "compare", "--out", str(out)]) == 0
    compared = json.loads(out.read_text())["compared"]
    assert list(compared) == ["sums", "products", "step of a GPT"]
    for one in compared.values():
        assert one["about"]["ranks"] == "2" and one["rows"][-1]["measured_s"] > 0 and one["rows"][-1]["predicted_s"] > 0
    assert {row["measured_calls"] for row in compared["sums"]["rows"] if row["name"] == "all_reduce"} == {1}


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "gpu").glob("*.json")), ids=lambda path: path.stem)
def test_every_report_that_was_sent_is_complete(path: Path):
    tool.check_report(json.loads(path.read_text("utf-8")))
