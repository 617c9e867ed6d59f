"""A new lab builds, runs, passes and is proven at once."""

import subprocess
import sys

import pytest

from lablib.cli.main import main
from lablib.course.building.build import check_built, new_lab
from lablib.course.checks.proof import prove
from lablib.course.errors import CourseError
from lablib.course.places import find_lab
from lablib.course.running.execute import run_lab


@pytest.mark.filterwarnings("default")
def test_a_new_lab_builds_runs_and_passes(labs, tmp_path, capsys):
    assert main(["new", "5", "mixed-precision"]) == 0
    lab = find_lab("05", labs)
    assert lab.name == "05_mixed_precision" and "# Lab 05: Mixed precision" in lab.master.read_text()
    check_built([lab])
    for proof in prove(lab, seeds=range(3)):
        assert not proof.findings, proof.findings
    run_lab(lab, {}, instructor=True, out=tmp_path / "runs")
    run_lab(lab, {"ranks": "2"}, out=tmp_path / "runs")
    capsys.readouterr()
    assert main(["prove", "05", "ring_bytes"]) == 0
    assert capsys.readouterr().out.startswith("ring_bytes: proven, 5 answers tried")
    assert main(["list", "05"]) == 0
    assert "together" in capsys.readouterr().out


def test_a_new_lab_is_formatted_as_the_project_is(labs):
    folder = new_lab(labs, "6", "kernels").folder
    command = [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "120", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("number", "name", "message"),
    [
        ("90", "other", "there is a lab 90_example already"),
        ("5", "example", "there is a lab 90_example already"),
        ("x", "name", "a lab's number must be 0 to 99: got 'x'"),
        ("100", "name", "a lab's number must be 0 to 99"),
        ("5", "../up", "must be words of letters and digits"),
        ("5", "", "must be words of letters and digits"),
    ],
)
def test_what_cannot_be_a_lab_is_one_sentence(labs, number, name, message):
    before = sorted((labs / "masters").iterdir())
    with pytest.raises(CourseError, match=message):
        new_lab(labs, number, name)
    assert sorted((labs / "masters").iterdir()) == before


def test_a_wrong_answer_that_passes_is_found(labs, capsys):
    lab = find_lab("90", labs)
    lab.wrong_answers.write_text(
        lab.wrong_answers.read_text().replace("return sum(values)\n", "return sum(values) / len(values)\n")
    )
    assert main(["prove", "90"]) == 1
    assert "a wrong answer is not rejected, 'forgets to divide'" in capsys.readouterr().out
