"""Programs that do their worst on real processes: one clear error or a right result, and the next launch works."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from lablib.errors import LaunchError, LaunchTimeoutError, RankError
from lablib.real import run_real
from lablib.real.workers import capture
from lablib.real.workers.channel import Channel
from lablib.real.workers.private import is_own_user


class Wordless(Exception):
    """One that cannot be put into words."""

    def __str__(self):
        raise SystemExit(0)

    __repr__ = __str__


class Unsendable(Exception):
    def __reduce__(self):
        raise KeyboardInterrupt("not to be pickled")


class Value:
    """One that raises when it is pickled."""

    def __reduce__(self):
        raise SystemExit(0)


class Revenge:
    """One that raises when it is rebuilt, in the process that launched."""

    def __reduce__(self):
        return sys.exit, (0,)


def assert_the_next_launch_works(ranks=2):
    def program():
        x = torch.ones(1)
        dist.all_reduce(x)
        print("said")
        return x.item()

    run = run_real(program, ranks=ranks, backend="gloo")
    assert run.values == [ranks] * ranks and run.stdout == ["said\n"] * ranks


def on_rank_0(action):
    def program():
        return action() if dist.get_rank() == 0 else "other"

    return program


def raising(error_class, *args):
    def program():
        raise error_class(*args)

    return on_rank_0(program)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (raising(Wordless), "rank 0 raised Wordless: <a Wordless whose __str__ raised SystemExit>"),
        (raising(Unsendable, "no"), "rank 0 raised Unsendable: no"),
        (on_rank_0(Value), r"the Value that rank 0 returned is not \(SystemExit: 0\); return plain data"),
        (on_rank_0(lambda: (x for x in "ab")), "the generator that rank 0 returned is not .*return plain data"),
    ],
    ids=["no words", "no pickle", "no pickle of a value", "a generator"],
)
def test_what_a_rank_raises_or_returns_is_one_clear_error_whatever_its_class_does(program, says):
    with pytest.raises(RankError, match=says) as caught:
        run_real(program, ranks=1, backend="gloo")
    assert "exit code" not in str(caught.value)
    assert_the_next_launch_works(ranks=1)


def test_a_value_that_raises_when_it_is_rebuilt_does_not_end_the_notebook():
    with pytest.raises(RankError, match="must be one that pickle can rebuild: .* rank 0 raised SystemExit: 0; return"):
        run_real(on_rank_0(Revenge), ranks=2, backend="gloo")
    assert_the_next_launch_works()


def close_descriptors():
    print("before")
    os.close(1)
    os.close(2)
    return 5


def close_streams():
    print("before")
    sys.stdout.close()
    sys.stderr.close()
    return 5


def detach_stream():
    print("before", end="")
    getattr(sys.stdout, "detach")()  # noqa: B009 - its stub leaves it out
    return 5


def delete_streams():
    print("before")
    del sys.stdout, sys.stderr
    return 5


@pytest.mark.parametrize("action", [close_descriptors, close_streams, detach_stream, delete_streams])
def test_a_program_may_close_its_output(action):
    run = run_real(on_rank_0(action), ranks=2, backend="gloo")
    assert run.values == [5, "other"] and run.stdout[0].strip() == "before"
    assert_the_next_launch_works()


def leave_a_thread():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return os.getpid()


def leave_a_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    return os.getpid()


def come_back_twice():
    pid = os.getpid()
    if os.fork() == 0:
        return "no rank"
    time.sleep(0.2)
    return pid


@pytest.mark.parametrize("leave", [leave_a_thread, leave_a_process])
def test_what_runs_on_after_a_program_does_not_meet_the_next(leave):
    before = run_real(on_rank_0(leave), ranks=2, backend="gloo").values[0]
    assert_the_next_launch_works()
    assert before not in run_real(os.getpid, ranks=2, backend="gloo").values


def test_a_forked_child_that_comes_back_is_no_rank():
    before = run_real(on_rank_0(come_back_twice), ranks=2, backend="gloo").values[0]
    assert isinstance(before, int)
    assert_the_next_launch_works()


def hold_the_interpreter():
    sum(iter(int, 1))


def stop_itself():
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore_the_end():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)


@pytest.mark.parametrize("action", [hold_the_interpreter, stop_itself, ignore_the_end])
def test_a_time_limit_returns_to_the_notebook_whatever_a_rank_does(action):
    started = time.monotonic()
    with pytest.raises(LaunchTimeoutError, match="of 1 rank, 0 had not returned and were ended"):
        run_real(on_rank_0(action), ranks=1, backend="gloo", timeout_s=0.5)
    assert time.monotonic() - started < 30
    assert_the_next_launch_works(ranks=1)


def test_a_rank_that_prints_without_end_is_ended_before_the_disk_is_full(monkeypatch):
    def program():
        while True:
            print("x" * 1000)

    monkeypatch.setattr(capture, "MAX_BYTES", 1_000_000)
    with pytest.raises(LaunchError, match="rank 0 wrote more, so all ranks were ended; print less") as caught:
        run_real(on_rank_0(program), ranks=2, backend="gloo", timeout_s=60)
    assert not isinstance(caught.value, LaunchTimeoutError)


def test_a_message_that_stops_in_its_middle_is_not_waited_for_without_end():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert is_own_user(theirs)
        channel = Channel(ours, patience_s=0.05)
        theirs.sendall(bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        with pytest.raises(TimeoutError):
            channel.receive(timeout_s=0.05)
        with pytest.raises(TimeoutError):
            channel.send(bytes(10_000_000))  # nobody takes it
