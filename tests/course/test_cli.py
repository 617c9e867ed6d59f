"""`lab` from outside: exit codes, one sentence for each mistake, and no waiting for torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from lablib.cli.main import COMMANDS, main
from lablib.course.places import Lab

ROOT = Path(__file__).parents[2]


def said(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_names_every_command_and_needs_nothing_heavy():
    code = (
        "import sys\n"
        "from lablib.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as leaving: assert not leaving.code\n"
        "heavy = {'torch', 'plotly', 'pandas', 'papermill', 'jupytext', 'nbformat', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first_words = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("    ")]
    assert set(COMMANDS) <= set(first_words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["biuld"], "unknown command 'biuld': did you mean 'build'?"),
        (["build", "--chek"], "unrecognized arguments: --chek; did you mean --check or --help? `lab build --help`"),
        (["run"], "the following arguments are required: LAB; `lab run --help`"),
        (["run", "91"], "unknown lab '91'"),
        (["run", "90", "--ranks", "four"], "ranks must be an int: got 'four'; try --ranks 4"),
        (["run", "90", "--backend", "mpi"], "backend must be one of sim, gloo, nccl: got 'mpi'"),
        (["run", "90", "-p", "scale", "big"], "scale must be a float: got 'big'; try -p scale 0.5"),
        (["run", "90", "-p", "scale"], "expected 2 arguments"),
        (["open", "91"], "unknown lab '91'"),
        (["open", "90", "--port", "x"], "a port must be a number"),
        (["progress", "--reset", "91"], "unknown lab '91'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    labs: Path, capsys: pytest.CaptureFixture, words: list[str], message: str
):
    code, out, err = said(capsys, *words)
    assert (code, out) == (2, "") and message in err
    assert err.startswith("lab: ") and err.count("\n") == 1


def test_no_labs_folder_is_a_mistake_too(labs: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAB_LABS", str(labs / "nowhere"))
    assert said(capsys, "list")[0] == 2


def test_build_check_and_list(lab: Lab, capsys: pytest.CaptureFixture):
    code, _, err = said(capsys, "build", "--check")
    assert code == 1 and "90_example.ipynb is missing; run `lab build 90`" in err
    assert said(capsys, "build")[:2] == (0, "90_example: built\n")
    assert said(capsys, "build", "--check")[:2] == (0, "Up to date with the masters: 1 lab.\n")
    code, out, _ = said(capsys, "list")
    words = " ".join(out.splitlines()[1].split())
    assert (code, words) == (0, "90 An example 7.5 08 0/2 not begun What does a master look like?")


def test_a_master_with_a_syntax_error_is_one_sentence_and_nothing_is_overwritten(
    lab: Lab, capsys: pytest.CaptureFixture
):
    said(capsys, "build")
    before = lab.notebook.read_bytes()
    lab.master.write_text("# %%\nx = = 1\n")
    code, out, err = said(capsys, "build")
    assert (code, out) == (1, "") and f"{lab.master}:2: invalid syntax" in err and err.count("\n") == 1
    assert lab.notebook.read_bytes() == before
    assert said(capsys, "list")[0] == 0  # and the list still works


def test_build_writes_other_versions_on_request(lab: Lab, capsys: pytest.CaptureFixture, tmp_path: Path):
    code, out, _ = said(capsys, "build", "90", "--instructor", str(tmp_path / "i"), "--nbgrader", str(tmp_path / "n"))
    assert code == 0 and out.count(": built") == 2
    assert (tmp_path / "i" / "90_example.ipynb").exists() and not lab.notebook.exists()
    assert (tmp_path / "n" / "source" / "90_example" / "90_example.ipynb").exists()


def test_progress_shows_what_is_done_and_can_be_reset(labs: Path, capsys: pytest.CaptureFixture):
    from lablib.course import checks_for

    checks_for("90").size(40)
    code, out, _ = said(capsys, "progress")
    assert code == 0 and "1 of 2 exercises passed" in out
    assert said(capsys, "progress", "--reset", "90")[1] == "90_example: forgot 1 exercise\n"
    assert "0 of 2 exercises passed" in said(capsys, "progress")[1]


def test_a_damaged_progress_file_is_reported_and_kept(labs: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "progress.json").write_text("{oops")
    code, out, err = said(capsys, "progress")
    assert (code, out) == (1, "") and "is damaged" in err and err.count("\n") == 1
    assert (tmp_path / "progress.json.damaged").read_text() == "{oops"
    assert said(capsys, "progress")[0] == 0


def test_an_interrupt_has_its_usual_exit_code(
    labs: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "list", interrupted)
    assert said(capsys, "list")[0] == 130
