"""Whatever goes wrong on a rank ends all of them, is raised with its cause, and the next launch starts afresh."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lablib.errors import LaunchTimeoutError, RankError, WorkerError
from lablib.real import run_real
from lablib.real.workers.pool import Pool
from tests.real.ended import assert_all_end, is_running


class BrokenModel(Exception):
    """An exception that no worker can import."""


class NeedsTwo(Exception):
    """One that pickle can write and not read."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_an_exception_comes_with_rank_cause_and_traceback_and_the_next_launch_is_new():
    def program():
        print("before")
        if dist.get_rank() == 1:
            inner()
        dist.barrier()  # rank 0 would wait for ever

    def inner():
        try:
            {}["missing"]
        except KeyError as error:
            raise BrokenModel("no layer 3") from error

    pids = run_real(os.getpid, ranks=2, backend="gloo").values
    with pytest.raises(RankError, match="rank 1 raised BrokenModel: no layer 3") as caught:
        run_real(program, ranks=2, backend="gloo")
    error = caught.value
    assert error.rank == 1 and type(error.__cause__) is BrokenModel
    assert "in inner" in error.rank_traceback and "KeyError: 'missing'" in error.rank_traceback
    assert "lablib" not in error.rank_traceback and 'raise BrokenModel("no layer 3")' in error.rank_traceback
    assert error.__notes__ == ["rank 1 had printed:\nbefore"]
    assert_all_end(pids)
    assert not set(run_real(os.getpid, ranks=2, backend="gloo").values) & set(pids)


def test_an_error_inside_a_collective_shows_the_programs_line_and_not_the_recorders():
    def program():
        dist.all_reduce(torch.ones(2).to_sparse(), op=dist.ReduceOp.MAX)

    with pytest.raises(RankError) as caught:
        run_real(program, ranks=1, backend="gloo")
    assert "dist.all_reduce(torch.ones(2)" in caught.value.rank_traceback
    assert "record_and_go_on" not in caught.value.rank_traceback and "redispatch" not in caught.value.rank_traceback


def test_an_exception_that_cannot_be_rebuilt_keeps_its_name_and_text():
    def program():
        raise NeedsTwo("one", "two")

    with pytest.raises(RankError, match="raised NeedsTwo: one and two") as caught:
        run_real(program, ranks=1, backend="gloo")
    assert caught.value.__cause__ is None


def test_a_value_that_cannot_be_sent_back_is_one_clear_error():
    def program():
        return threading.Lock()

    with pytest.raises(RankError, match="the lock that rank 0 returned is not .*return plain data") as caught:
        run_real(program, ranks=1, backend="gloo")
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("die", "how"),
    [
        (lambda: os._exit(3), "ended with exit code 3"),
        (lambda: __import__("ctypes").string_at(0), "was ended by SIGSEGV"),
    ],
)
def test_a_dead_worker_is_named_and_not_the_rank_that_lost_its_peer(die, how):
    def program():
        dist.barrier()
        if dist.get_rank() == 1:
            die()
        dist.all_reduce(torch.ones(1000))  # rank 0: connection closed by peer

    with pytest.raises(WorkerError, match=f"rank 1 .* {how} while the program ran") as caught:
        run_real(program, ranks=2, backend="gloo")
    if "SEGV" in how:
        assert "Segmentation fault" in str(caught.value)


def test_a_timeout_names_the_ranks_still_running_and_their_lines():
    def program():
        if dist.get_rank() == 1:
            dist.recv(torch.empty(2), src=0)  # never sent
        return dist.get_rank()

    pids = run_real(os.getpid, ranks=2, backend="gloo").values
    with pytest.raises(LaunchTimeoutError, match="of 2 ranks, 1 had not returned") as caught:
        run_real(program, ranks=2, backend="gloo", timeout_s=0.5)
    assert "dist.recv(torch.empty(2), src=0)  # never sent" in str(caught.value)
    assert "rank 0 was at" not in str(caught.value) and "worker.py" not in str(caught.value)
    assert_all_end(pids)


def test_an_interrupt_ends_the_workers_and_is_passed_on(tmp_path):
    def sleeps() -> None:
        (tmp_path / os.environ["RANK"]).touch()
        time.sleep(60)

    def interrupts() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    pids = run_real(os.getpid, ranks=2, backend="gloo").values
    thread = threading.Thread(target=interrupts, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_real(sleeps, ranks=2, backend="gloo")
    thread.join()
    assert_all_end(pids)


class PressesStop:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_comes_in_a_finalizer_is_not_lost(monkeypatch):
    pids = run_real(os.getpid, ranks=2, backend="gloo").values
    receive = Pool._receive

    def receive_and_drop(pool: Pool, timeout_s: float, deadline: float = float("inf")):
        if deadline < float("inf"):  # of a program with a time limit
            PressesStop()  # its KeyboardInterrupt is printed and dropped by Python
        return receive(pool, timeout_s, deadline)

    monkeypatch.setattr(Pool, "_receive", receive_and_drop)
    with pytest.raises(KeyboardInterrupt):
        run_real(lambda: time.sleep(60), ranks=2, backend="gloo", timeout_s=30)
    assert_all_end(pids)


def test_a_worker_that_died_between_launches_is_replaced_without_a_word():
    pids = run_real(os.getpid, ranks=2, backend="gloo").values
    os.kill(pids[0], signal.SIGKILL)
    assert_all_end(pids[:1])
    assert not set(run_real(os.getpid, ranks=2, backend="gloo").values) & set(pids)
    assert_all_end(pids)


@pytest.mark.parametrize("without_kernel_signal", [False, True], ids=["signal", "closed connection alone"])
def test_no_worker_outlives_a_killed_parent(tmp_path, without_kernel_signal):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import ctypes, os, time
            from lablib.real import run_real

            def program():
                if {without_kernel_signal}:
                    ctypes.CDLL(None).prctl(1, 0)
                path = {str(tmp_path)!r} + "/pid" + os.environ["RANK"]
                with open(path + ".part", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(path + ".part", path)
                time.sleep(120)

            run_real(program, ranks=2, backend="gloo")
            """
        )
    )
    root = Path(__file__).parents[2]
    (tmp_path / "scratch").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path / "scratch")}
    parent = subprocess.Popen([sys.executable, script], cwd=root, env=environment)
    try:
        files = [tmp_path / f"pid{rank}" for rank in range(2)]
        deadline = time.monotonic() + 60
        while not all(file.exists() for file in files) and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = [int(file.read_text()) for file in files]
        assert all(map(is_running, pids))
    finally:
        parent.kill()
        parent.wait()
    assert_all_end(pids)
    assert not list((tmp_path / "scratch").iterdir()), "nothing stays on disk either"


def test_workers_end_with_an_interpreter_that_exits(tmp_path):
    script = "import os; from lablib.real import run_real; print(*run_real(os.getpid, ranks=2, backend='gloo').values)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2 and done.stderr == ""
    assert_all_end(pids)
