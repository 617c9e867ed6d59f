"""`lab sim`: exit codes, files, and what is said in the terminal."""

import io
import json
import subprocess
import sys
import time

import pytest

from lablib.cli.main import main
from lablib.cli.sim import progress
from lablib.script import simulate_script
from lablib.script.run import Script

pytestmark = pytest.mark.usefixtures("everything_is_given_back")
PROGRAM = """
import argparse, os, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
for step in range(args.steps):
    x = torch.ones(1000, device="cuda") * 2
    dist.all_reduce(x)
    print("step", step, "rank", dist.get_rank())
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.py"
    path.write_text(PROGRAM, "utf-8")
    return path


def test_a_run_writes_timeline_summary_and_output_and_ends_with_0(script, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["sim", "--ranks", "3", "--cluster", "dgx-a100", "--out", str(out), str(script), "--steps", "2"]) == 0
    printed = capsys.readouterr().out
    assert "step 1 rank 0" in printed and "rank 1\n" not in printed
    summary = (out / "summary.txt").read_text("utf-8")
    assert summary in printed
    assert "small.py: 3 ranks on dgx-a100" in summary and "2 communications" in summary and "Makespan" in summary
    events = json.loads((out / "timeline.json").read_text("utf-8"))["traceEvents"]
    assert sum(event.get("name") == "all_reduce" and event["ph"] == "X" for event in events) == 6
    # In the second step the x of the first (4 kB) is still there while ones and their double are made.
    memory = (out / "memory.txt").read_text("utf-8")
    assert (
        memory.startswith("rank 0: the peak is 12 kB, at ") and "made in aten.mul" in memory and "small.py:9" in memory
    )
    page = (out / "timeline.html").read_text("utf-8")
    assert page.startswith("<!doctype html>") and "Plotly.newPlot" in page and 'src="http' not in page
    for rank in range(3):
        assert (out / f"rank{rank}.txt").read_text("utf-8") == f"step 0 rank {rank}\nstep 1 rank {rank}\n"


def test_without_out_the_report_is_in_runs_under_the_scripts_name(script, tmp_path, capsys):
    assert main(["sim", "--ranks", "2", "--quiet", str(script)]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("small-20") and (folder / "summary.txt").exists()
    assert "step 0" not in capsys.readouterr().out


def test_arguments_after_the_script_are_the_scripts_own(script, capsys):
    assert main(["sim", "--ranks", "1", str(script), "--help"]) == 0
    assert "--steps STEPS" in capsys.readouterr().out


def test_a_script_that_fails_ends_with_1_a_traceback_and_its_output(script, tmp_path, capsys):
    script.write_text(
        "import os\nprint('before')\nif os.environ['RANK'] == '1':\n    raise ValueError('broken')\n", "utf-8"
    )
    assert main(["sim", "--ranks", "2", "--out", str(tmp_path / "out"), str(script)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lab: rank 1 of small.py failed.\nTraceback") and "line 4, in <module>" in error
    assert "ValueError: broken" in error and "lablib" not in error
    assert (tmp_path / "out" / "rank1.txt").read_text("utf-8") == "before\n"


def test_a_deadlock_ends_with_1_and_names_the_line(script, capsys):
    script.write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nif dist.get_rank():\n    dist.barrier()\n",
        "utf-8",
    )
    assert main(["sim", "--ranks", "2", str(script)]) == 1
    assert "small.py:4: dist.barrier()" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.py"], "nowhere.py does not exist"),
        (["--ranks", "0", "small.py"], "ranks must be a whole number, 1 or more"),
        (["--ranks", "two", "small.py"], "invalid int value: 'two'"),
        (["--cluster", "dgx-h10", "small.py"], "unknown cluster 'dgx-h10': did you mean 'dgx-h100'"),
        (["--timeout", "-1", "small.py"], "--timeout must be positive seconds"),
        ([], "the following arguments are required: SCRIPT; `lab sim"),
    ],
)
def test_nonsense_ends_with_2_and_one_sentence(script, tmp_path, capsys, words, says):
    assert main(["sim", *words]) == 2
    error = capsys.readouterr().err
    assert says in error and error.startswith("lab: ") and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_progress_is_shown_on_a_terminal_only(script):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    waiting = Script(script)
    with progress(waiting, file), progress(waiting, terminal, every_s=0.01):
        while "virtual time" not in terminal.getvalue():
            time.sleep(0.01)
    assert file.getvalue() == "" and terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": 5}, "path must be"),
        ({"path": None}, "path must be"),
        ({"path": ""}, "a script must be a Python file"),
        ({"args": "--steps 10"}, "args must be a list of words: got '--steps 10'"),
        ({"ranks": "2"}, "ranks must be a whole number"),
        ({"ranks": 0}, "ranks must be a whole number, 1 or more: got 0; try ranks=8"),
        ({"ranks": 16_385}, "at most 16,384"),
        ({"cluster": "dgx-h10"}, "unknown cluster"),
        ({"timeout_s": "soon"}, "timeout_s must be positive seconds"),
        ({"timeout_s": float("nan")}, "timeout_s must be positive seconds"),
        ({"trace": "no"}, "trace must be True or False: got 'no'"),
    ],
)
def test_nonsense_in_a_call_is_one_sentence(tmp_path, options, says):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises((ValueError, TypeError), match=says):
        simulate_script(**{"path": tmp_path / "empty.py", "ranks": 1} | options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "100000"], "--ranks on sim are threads of one process, at most 16,384: got 100000"),
        (["--ranks", "16385"], "at most 16,384"),
        (["--ranks", "0"], "ranks must be a whole number, 1 or more: got 0"),
        (["--nnodes=2", "--nproc-per-node", "8"], "try --ranks 16"),
        (["--nproc_per_node", "100000"], "try --ranks 16"),
    ],
)
def test_a_wrong_number_of_ranks_is_refused_before_torch_is_imported(script, words, message):
    code = "import sys; from lablib.cli.main import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", f"{code}; sys.exit(code)", "sim", *words, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and message in done.stderr
