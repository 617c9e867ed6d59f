"""Workers are forked from one process that has imported torch: as torchrun would start them, and gone in every case."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from lablib.errors import WorkerError
from lablib.process import fork_server
from lablib.process.fork_server import Child, Ended, Start
from lablib.real import run_real
from lablib.real.workers import processes
from lablib.real.workers.pools import pools
from lablib.real.workers.processes import Processes
from tests.real.ended import assert_all_end
from tests.torchrun_environment import assert_given

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only, and reads /proc")


def total_and_parent():
    x = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    return x[0].item(), os.getppid()


@pytest.fixture
def new_workers():
    """From the server that runs, if one does."""
    for pool in pools()._pools.values():
        pool.end()
    pools()._pools.clear()


@pytest.fixture
def new_server(monkeypatch):
    """With torch alone: the libraries of all tests before take longer."""
    pools().end()  # and the servers
    monkeypatch.setattr(processes, "_LIBRARIES", ())


@pytest.fixture
def new_interpreters(new_workers, monkeypatch):
    """Workers as on "nccl": not forked with their imports done."""
    monkeypatch.setattr(processes, "_does_imports", lambda backend: False)


@linux_only
def test_pools_of_all_sizes_come_from_one_process_with_one_thread():
    found = {run_real(total_and_parent, ranks=ranks, backend="gloo").values[0] for ranks in (1, 2, 3)}
    assert {total for total, _ in found} == {1.0, 3.0, 6.0}
    (server,) = {parent for _, parent in found}
    assert len(os.listdir(f"/proc/{server}/task")) == 1
    assert "torch" in Path(f"/proc/{server}/maps").read_text()


def test_a_new_interpreter_that_cannot_import_says_so(new_interpreters, monkeypatch):
    monkeypatch.setattr(processes, "_WORKER", "no_such_module")
    with pytest.raises(WorkerError, match="No module named 'no_such_module'"):
        run_real(int, ranks=2, backend="gloo")


def test_what_the_server_cannot_import_is_said_by_the_workers(new_workers, monkeypatch):
    """It goes on without, and each worker finds the same."""
    monkeypatch.setattr(processes, "_WORKER", "no_such_module")
    with pytest.raises(WorkerError, match="No module named 'no_such_module'"):
        run_real(int, ranks=3, backend="gloo")


def test_a_server_that_cannot_start_is_an_error_and_no_hang(new_interpreters, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(WorkerError, match="the process that starts workers cannot be started: .*python"):
        run_real(int, ranks=2, backend="gloo")


@linux_only
def test_workers_end_with_the_server_and_the_next_launches_have_a_new_one(new_workers):
    """Also a launch right after, before its death is seen."""
    (_, server), (_, again) = run_real(total_and_parent, ranks=2, backend="gloo").values
    assert server == again
    pids = run_real(os.getpid, ranks=2, backend="gloo").values
    os.kill(server, signal.SIGKILL)
    found = {run_real(total_and_parent, ranks=ranks, backend="gloo").values[0] for ranks in (3, 2)}
    assert {total for total, _ in found} == {3.0, 6.0} and server not in {new for _, new in found}
    assert_all_end([server, *pids], within_s=5)


@linux_only
def test_a_server_that_dies_while_a_program_runs_is_named():
    def program():
        if dist.get_rank() == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        dist.barrier()
        time.sleep(60)

    with pytest.raises(WorkerError, match="while the program ran"):
        run_real(program, ranks=2, backend="gloo")
    assert run_real(int, ranks=2, backend="gloo").values == [0, 0]


@linux_only
def test_new_workers_have_what_this_process_has_now(new_workers, monkeypatch):
    """Not what it had when it started the server: folder, cores, limits."""

    def program():
        return os.getcwd(), os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_CORE)

    run_real(program, ranks=2, backend="gloo")
    cores, limit = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_CORE)
    monkeypatch.chdir("/")
    try:
        os.sched_setaffinity(0, {min(cores)})
        resource.setrlimit(resource.RLIMIT_CORE, (0, limit[1]))
        found = run_real(program, ranks=3, backend="gloo").values
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limit)
        os.sched_setaffinity(0, cores)
    assert found == [("/", {min(cores)}, (0, limit[1]))] * 3


@linux_only
@pytest.mark.parametrize(
    "variables", [{"PYTHONPROFILEIMPORTTIME": "1"}, {"LAB_FORK": "off"}], ids=lambda variables: next(iter(variables))
)
def test_a_server_that_writes_much_and_workers_that_are_not_forked(monkeypatch, variables):
    """Each has a server of its own. String hashes differ where each worker is a new interpreter, as under torchrun."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)

    def program():
        return hash("a name"), *total_and_parent()

    (first, total, server), (second, _, _) = run_real(program, ranks=2, backend="gloo").values
    is_forked = "LAB_FORK" not in variables
    assert total == 3.0 and (first == second) == is_forked
    assert ("torch" in Path(f"/proc/{server}/maps").read_text()) == is_forked


@linux_only
def test_a_signal_that_this_process_blocks_is_heard_by_the_server(new_server):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        with pytest.raises(WorkerError, match="rank 1 .* ended with exit code 7"):
            run_real(lambda: os._exit(7) if dist.get_rank() else time.sleep(60), ranks=2, backend="gloo")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def test_whatever_stops_the_server_from_starting_is_an_error(new_server, monkeypatch):
    def no_memory(*args: object, **options: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(processes.subprocess, "Popen", no_memory)
    with pytest.raises(WorkerError, match="cannot be started: MemoryError: none left"):
        run_real(int, ranks=2, backend="gloo")
    monkeypatch.undo()
    assert run_real(int, ranks=2, backend="gloo").values == [0, 0]


@linux_only
def test_the_stop_button_does_not_wait_for_the_imports_of_the_server(new_server, tmp_path, monkeypatch):
    """Pressed twice, and nothing stays on the disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    timers = [threading.Timer(delay_s, signal.raise_signal, (signal.SIGINT,)) for delay_s in (0.4, 0.45)]
    for timer in timers:
        timer.start()
    caught = 0
    try:
        try:
            run_real(int, ranks=2, backend="gloo")
        except KeyboardInterrupt:
            caught += 1
        for timer in timers:
            timer.join()
        time.sleep(0.01)
    except KeyboardInterrupt:
        caught += 1
    assert caught and not list(tmp_path.glob("lablib-*"))
    deadline = time.monotonic() + 10
    while any(server.is_alive for server in processes.servers()._servers.values()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@linux_only
def test_an_interrupt_in_the_middle_of_a_message_ends_the_server_and_the_next_launch_has_a_new_one(
    new_workers, monkeypatch
):
    (_, before), *_ = run_real(total_and_parent, ranks=2, backend="gloo").values
    send = Connection.send

    def half(connection: Connection, message: object) -> None:
        os.write(connection.fileno(), b"\0\0\1\0half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "send", half)
    with pytest.raises(KeyboardInterrupt):
        run_real(int, ranks=3, backend="gloo")
    monkeypatch.setattr(Connection, "send", send)
    assert_all_end([before], within_s=5)
    (total, after), *_ = run_real(total_and_parent, ranks=2, backend="gloo").values
    assert total == 3.0 and after != before


@linux_only
def test_variables_that_libraries_read_once_have_a_server_of_their_own(monkeypatch):
    """And the one before ends when its last workers have."""

    def program():
        return os.getppid(), time.tzname

    (before, _), *_ = run_real(program, ranks=2, backend="gloo").values
    monkeypatch.setenv("TZ", "JST-9")
    (changed, zone), *_ = run_real(program, ranks=2, backend="gloo").values  # ends the pool of that size
    assert before != changed and zone == ("JST", "JST")
    run_real(int, ranks=3, backend="gloo")
    monkeypatch.delenv("TZ")
    (back, _), *_ = run_real(program, ranks=2, backend="gloo").values
    assert back != changed


def test_a_worker_whose_child_holds_its_connection_is_found_dead_while_the_others_live():
    def program():
        if dist.get_rank() == 1:
            if os.fork() == 0:
                os.setsid()  # out of reach of the rank's end
                time.sleep(20)
                os._exit(0)
            os._exit(7)
        time.sleep(60)

    with pytest.raises(WorkerError, match="rank 1 .* ended with exit code 7"):
        run_real(program, ranks=3, backend="gloo")


def test_what_a_worker_has_started_ends_with_it(tmp_path):
    def program():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (tmp_path / f"{dist.get_rank()}").write_text(str(child.pid))
        dist.barrier()
        raise ValueError("over")

    with pytest.raises(Exception, match="over"):
        run_real(program, ranks=2, backend="gloo")
    assert_all_end([int((tmp_path / str(rank)).read_text()) for rank in range(2)], within_s=5)


@pytest.mark.parametrize("end", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_what_a_worker_has_started_ends_with_it_also_when_the_worker_ends_first(tmp_path, end):
    def program():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (tmp_path / "child").write_text(str(child.pid))
        end()

    with pytest.raises(WorkerError):
        run_real(program, ranks=1, backend="gloo")
    assert_all_end([int((tmp_path / "child").read_text())], within_s=5)


def test_a_child_that_cannot_be_forked_is_reported_and_told(monkeypatch):
    """As where a user may have no more processes: root, who tests, may always have them."""

    def no_more() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    ours, theirs = Pipe()
    server = fork_server._Server.__new__(fork_server._Server)
    server._connection, server._does_imports, server._running = theirs, False, {}
    monkeypatch.setattr(fork_server.os, "fork", no_more)
    child = Child({}, "/dev/null", "/dev/null")
    server._start(Start(1, (child, child), "/", "no_such_module", "main", ()))
    workers = Processes.__new__(Processes)
    workers.ends = {end.child: end for end in (ours.recv(), ours.recv(), Ended(1, 2, -40))}
    for rank in (0, 1):
        assert "Resource temporarily unavailable" in workers.cause_of_death(rank)
    assert workers.cause_of_death(2) == "was ended by signal 40" and not server._running


def test_children_have_the_environment_that_torchrun_gives(tmp_path):
    for rank, child in enumerate(processes._children(2, tmp_path)):
        assert_given(child.environment, rank, but=frozenset({"ROLE_NAME"}))


@linux_only
def test_a_module_that_this_process_has_imported_is_imported_once_for_all_new_workers(new_workers):
    import torch._dynamo
    import torch.distributed.tensor  # noqa: F401

    def program():
        return [name in sys.modules for name in ("torch.distributed.tensor", "torch._dynamo", "lablib.figures")]

    assert run_real(program, ranks=2, backend="gloo").values == [[True, True, False]] * 2


@linux_only
def test_a_library_that_has_started_a_thread_is_not_forked(monkeypatch, tmp_path):
    """A fork would be without it: then each worker is a new interpreter. Nor does a process that it starts confuse."""
    (tmp_path / "with_thread.py").write_text(
        "import subprocess, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "subprocess.Popen(['true'])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "with_thread", ModuleType("with_thread"))  # as if it were imported here
    monkeypatch.setattr(processes, "_LIBRARIES", ("with_thread",))

    def program():
        return "with_thread" in sys.modules, dist.get_rank()

    assert run_real(program, ranks=2, backend="gloo").values == [(False, 0), (False, 1)]
