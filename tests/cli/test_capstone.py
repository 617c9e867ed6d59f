"""`lab capstone`, from a new report to the board."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lablib.capstone import read_report
from lablib.cli.main import main
from tests.capstone.finished import BRIEF_TOML
from tests.course.test_answers import solved


def lab(*words: str | Path) -> int:
    return main(["capstone", *map(str, words)])


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report on the tiny brief with predictions, not locked."""
    monkeypatch.chdir(tmp_path)
    Path("briefs").mkdir()
    Path("briefs/tiny.toml").write_text(BRIEF_TOML)
    assert lab("new", "briefs/tiny.toml", "report.toml") == 0
    path = Path("report.toml")
    text = path.read_text().replace("[small]  # at most 2 ranks and 20 steps\nnum_steps = 20", "[small]\nnum_steps = 4")
    text = re.sub(r"num_warmup = 10", "num_warmup = 1", text).replace("batch_size = 16\n", "batch_size = 4\n")
    text = re.sub(r"^# (\w+ = .*)$", r"\1", text, flags=re.MULTILINE).split("changes = ")[0]
    path.write_text(text)
    return path


def test_a_report_from_new_to_the_board(report: Path, capsys: pytest.CaptureFixture[str]):
    assert lab("lock", report) == 0 and "digest" in capsys.readouterr().out
    assert lab("run", report, "--backend", "sim") == 0
    out = capsys.readouterr().out
    assert "a step of the large run" in out and "Explain the errors" in out
    assert lab("check", report) == 1  # the reasons are missing
    out = capsys.readouterr().out
    assert "missing: each choice must have a reason" in out and "of 60 points" in out
    assert lab("render", report, "--no-simulation") == 1 and report.with_suffix(".html").read_text().startswith("<!doc")
    assert lab("render", report, "--out", "page.md", "--no-simulation") == 1
    assert Path("page.md").read_text().startswith("# ...")
    capsys.readouterr()
    assert lab("board", ".", "--no-simulation") == 0
    assert "does not count as" in capsys.readouterr().out


def test_a_lock_names_what_cannot_be_corrected_after_the_runs(report: Path, capsys: pytest.CaptureFixture[str]):
    text = report.read_text()
    plan = '[[alternatives]]\nchanges = ["parallel.tensor=3"]\nstep_s = 1.0\nmemory_bytes = 1e9\n'
    report.write_text(re.sub(r"gpu_hours = .*", "gpu_hours = 1e9", text) + plan)
    assert lab("lock", report) == 0
    out = capsys.readouterr().out
    assert "Correct these now" in out and "predicted.gpu_hours must be" in out and "alternative 1: parallel" in out


def test_a_new_report_is_within_the_sizes_of_its_brief(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from lablib.capstone import brief_names, findings

    monkeypatch.chdir(tmp_path)
    for name in brief_names():
        assert lab("new", name, f"{name}.toml") == 0
        report = read_report(f"{name}.toml")
        assert (report.large.model.num_heads % 4, report.large.model.num_layers % 4) == (0, 0)
        found = findings(report, simulate=False)
        assert not [each for each in found if "billion parameters" in each.text or each.kind == "consistency"]


def test_predict_prints_numbers_for_a_report(report: Path, capsys: pytest.CaptureFixture[str]):
    assert lab("predict", report, "parallel.tensor=2") == 0
    out = capsys.readouterr().out
    assert "tensor 2" in out and re.search(r"^step_s = [0-9.e-]+$", out, re.MULTILINE)


def test_briefs_are_listed(capsys: pytest.CaptureFixture[str]):
    assert lab("briefs") == 0
    assert "64 GPUs of dgx-h100" in capsys.readouterr().out


def test_the_learners_answers_run_and_the_report_names_them(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress.json"))
    folder = tmp_path / "answers"
    folder.mkdir()
    solved(folder, ["04", "08", "09"])
    assert lab("lock", report) == 0
    for words, names, left_out in (
        (["--mine", folder], ("all_reduce",), ["small.optimizer.schedule", "one of all_reduce and average_gradients"]),
        (["--no-mine"], (), []),
        ([], (), []),
    ):
        capsys.readouterr()
        assert lab("run", report, "--backend", "sim", "--only", "small", *words) == 0
        out = capsys.readouterr().out
        assert f"The learner's own code: {', '.join(names) or 'none; the library trains'}." in out
        assert all(each in out for each in left_out)
        run = read_report(report).small_run
        assert run is not None and run.own_code == names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new", "one-billion"], "lab capstone new takes BRIEF FILE.toml"),
        (["new", "one-bilion", "x.toml"], "unknown brief 'one-bilion'"),
        (["check"], "lab capstone check takes FILE.toml: got nothing"),
        (["check", "none.toml"], "none.toml cannot be read"),
        (["board", "none"], "needs a folder with reports"),
        (["run", "report.toml"], "locked predictions: got no lock"),
        (["lock", "unpredicted.toml"], "locked with all its predictions"),
        (["predict", "report.toml", "parallel.tensr=2"], "did you mean parallel.tensor"),
        (["predict", "report.toml", "parallel.tensor=3"], "axes with the product 4"),
        (["render", "report.toml", "--out", "page.pdf"], "--out must be a .html or .md file"),
        (["new", "one-billion", "report.toml"], "must be a new file"),
        (["run", "locked.toml", "--mine", "briefs"], "a folder of answers must have a notebook of 04_batches"),
        (["dance"], "invalid choice: 'dance'"),
    ],
)
def test_an_invalid_request_is_one_sentence(
    report: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert lab("new", "one-billion", "unpredicted.toml") == 0
    Path("locked.toml").write_bytes(report.read_bytes())
    assert lab("lock", "locked.toml") == 0
    capsys.readouterr()
    assert lab(*words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("lab: ") and message in error


@pytest.mark.parametrize("action", ["predict", "lock", "run", "check", "render"])
@pytest.mark.parametrize("text", [None, "title = 3", "[broken"])
def test_a_missing_or_broken_report_is_an_error_without_torch(action: str, text: str | None, tmp_path: Path):
    """In a process where torch cannot be imported: importing it takes seconds."""
    path = tmp_path / "report.toml"
    if text is not None:
        path.write_text(text)
    code = "import sys; sys.modules['torch'] = None; from lablib.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "capstone", action, path], capture_output=True, text=True)
    assert done.returncode and "Traceback" not in done.stderr, done.stderr
    assert str(path) in done.stderr
