"""A script closes its streams, prints what the terminal cannot show, is stuck, or meets a full disk."""

import errno
import io
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lablib.text.files
from lablib import LaunchError, simulate_script
from lablib.cli.main import main
from lablib.script.own import Output

pytestmark = pytest.mark.usefixtures("everything_is_given_back")


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.py"
    path.write_text("import os\nprint('rank', os.environ['RANK'], '\\u00e9\\u4e2d')\n", "utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("sys.stderr.close()", "before\n"),
        ("sys.stdout.close()", "before\n"),
        ("sys.stdout = sys.stderr = None", "before\n"),
        ("sys.stdout = open(os.devnull, 'w'); print('lost'); sys.stdout.close()", "before\n"),
        ("os.close(2); os.close(1); print('after')", "before\nafter\n"),
        ("null = os.open(os.devnull, os.O_WRONLY); os.dup2(null, 2); os.dup2(null, 1); os.close(null)", "before\n"),
        ("sys.excepthook = None; sys.stdin = None", "before\n"),
    ],
)
def test_a_script_may_close_its_streams_and_closes_nobody_elses(simulated, lines, says):
    streams, hook = (sys.stdout, sys.stderr), sys.excepthook
    open_files = [os.fstat(fd).st_ino for fd in (0, 1, 2)]
    run = simulated(f"import os, sys\nprint('before')\n{lines}\n")
    assert run.stdout == [says] * 2
    assert (sys.stdout, sys.stderr) == streams and sys.excepthook is hook
    assert [os.fstat(fd).st_ino for fd in (0, 1, 2)] == open_files


def test_a_stream_that_was_closed_takes_no_more(simulated):
    with pytest.raises(LaunchError, match="I/O operation on closed file"):
        simulated("import sys\nsys.stdout.close()\nprint('x')\n")


@pytest.mark.parametrize("stuck", ["time.sleep(7)", "while True: pass", "threading.Event().wait()"])
def test_after_a_stuck_rank_the_streams_are_the_processs_own(simulated, stuck):
    streams, threads = (sys.stdout, sys.stderr, sys.excepthook), threading.active_count()
    with pytest.raises(LaunchError):
        simulated(f"import sys, threading, time\nprint('x')\nprint('y', file=sys.stderr)\n{stuck}\n", timeout_s=0.5)
    assert (sys.stdout, sys.stderr, sys.excepthook) == streams
    for thread in threading.enumerate():
        if thread.name.startswith("sim rank"):
            thread.join(10)
    assert (sys.stdout, sys.stderr, sys.excepthook) == streams
    assert threading.active_count() <= threads + (stuck == "threading.Event().wait()")


def test_a_terminal_gets_what_it_can_show_and_the_file_everything():
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    output = Output(narrow)
    output.write("\u00e9\n")
    assert output.getvalue() == "\u00e9\n"
    assert narrow.buffer.getvalue() == b"\\xe9\n"  # pyright: ignore[reportAttributeAccessIssue]
    narrow.close()
    output.write("more")  # a terminal that is gone
    assert output.getvalue() == "\u00e9\nmore"


def test_letters_beyond_ascii_on_an_ascii_terminal_are_no_error(script, tmp_path):
    command = [sys.executable, "-m", "lablib.cli", "sim", "--ranks", "1", "--out", "out", str(script)]
    source = "import sys; from lablib.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", source, *command[3:]], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 \\xe9\\u4e2d" in done.stdout
    assert (tmp_path / "out" / "rank0.txt").read_text("utf-8") == "rank 0 \u00e9\u4e2d\n"


@pytest.mark.parametrize("fails", ["timeline.html", "rank1.txt", "summary.txt", "timeline.json", ""])
def test_a_full_disk_leaves_whole_files_only_and_says_which_are_missing(script, tmp_path, monkeypatch, capsys, fails):
    replace = os.replace

    def full(source, target):
        if fails in Path(target).name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(lablib.text.files.os, "replace", full)
    assert main(["sim", "--ranks", "2", "--out", "out", str(script)]) == 1
    printed = capsys.readouterr()
    assert f"the report is incomplete: {fails}" in printed.err and "No space left on device" in printed.err
    assert "Makespan" in printed.out
    names = {"rank0.txt", "rank1.txt", "summary.txt", "timeline.html", "timeline.json"}
    left = {path.name for path in (tmp_path / "out").iterdir()} - {"memory.txt"}
    assert left == {name for name in names if fails not in name}


def test_a_limit_on_the_size_of_files_keeps_the_small_ones(script, tmp_path, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        assert main(["sim", "--ranks", "1", "--quiet", "--out", "out", str(script)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "the report is incomplete: timeline.html of out could not be written" in capsys.readouterr().err
    assert (tmp_path / "out" / "rank0.txt").exists() and not (tmp_path / "out" / "timeline.html").exists()


def test_a_run_that_fails_on_a_full_disk_says_both(script, tmp_path, monkeypatch, capsys):
    script.write_text("print(1)\nraise ValueError('broken')\n", "utf-8")

    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lablib.text.files.os, "replace", full)
    assert main(["sim", "--ranks", "1", "--out", "out", str(script)]) == 1
    error = capsys.readouterr().err
    assert "ValueError: broken" in error and "rank0.txt of out could not be written: No space left" in error


def test_output_that_nobody_reads_is_no_error_of_the_script(script):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert simulate_script(script, ranks=1, show=Gone()).values == [0]
