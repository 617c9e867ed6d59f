"""Processes for labs, forked from one that has imported the libraries of labs and has run nothing.

    python -m tests.labs.forks torch pandas ...      imports these modules, and then forks one process per line of input

Importing torch, pandas, plotly and Jupyter takes four seconds in each process, and a notebook in nbval has two: pytest
and the kernel. A line of input has the name of a function of this file, its arguments, a file for its output, and its
environment; a line of output is the exit code of the process.
"""

import gc
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

from lablib.process.lifetime import die_with_parent

ROOT = Path(__file__).parents[2]


class Forks:
    """A test's end of the forking process."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def run(self, function: str, *args: str, output: Path) -> str:
        """Call the function in a new process. Returns "", or its exit code and output if it failed."""
        assert self._process.stdin and self._process.stdout
        request = json.dumps([function, args, str(output), dict(os.environ)])
        print(request, file=self._process.stdin, flush=True)
        status = self._process.stdout.readline().strip()
        return "" if status == "0" else f"ended with {status or 'the process that forks it'}: {output.read_text()}"


@contextmanager
def forks(*imports: str) -> Iterator[Forks]:
    """A process that has imported these modules, until the block ends."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "tests.labs.forks", *imports]
    with subprocess.Popen(command, start_new_session=True, cwd=ROOT, **pipes) as process:
        try:
            yield Forks(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with the cells of a lab whose time was up


def run_on_gpu(name: str) -> None:
    """Run the cells of a lab on the stand-in for GPUs, with 2 ranks, which is not the default of most labs."""
    from lablib.course.building.master import read_master
    from lablib.course.places import find_lab, find_labs_folder
    from lablib.course.running.on_gpu import cells_on_gpu

    fork_server_of_workers()
    refused = list(cells_on_gpu(read_master(find_lab(name, find_labs_folder())), ranks=2))
    sys.exit("\n\n".join(refused) or 0)


def run_in_nbval(notebook: str, outputs: str) -> None:
    """Run a notebook in nbval, without the project's settings of pytest (`-c`), and write the outputs of its cells.

    nbval keeps no outputs; so one run shows that it passes and what the cells printed.
    """
    import pytest
    from jupyter_client.provisioning import local_provisioner

    class Outputs:
        def pytest_sessionfinish(self, session: pytest.Session) -> None:
            items: list[Any] = [item for item in session.items if hasattr(item, "test_outputs")]  # nbval's
            cells = [{"tags": item.cell.metadata.get("tags", []), "outputs": item.test_outputs} for item in items]
            Path(outputs).write_text(json.dumps(cells, default=str))

    local_provisioner.launch_kernel = Forked(become_kernel).launch  # pyright: ignore[reportPrivateImportUsage]
    words = ["-c", os.devnull, "--rootdir", os.path.dirname(notebook), "-p", "no:cacheprovider", "-q", notebook]
    sys.exit(pytest.main([*words, "--nbval-lax", "--nbval-current-env"], plugins=[Outputs()]))


def run_in_papermill(number: str, folder: str, mine: str) -> None:
    """Run the learner's copy of a lab as `lab run` does, with their own functions if `mine` is not empty."""
    from jupyter_client.provisioning import local_provisioner

    local_provisioner.launch_kernel = Forked(become_kernel).launch  # pyright: ignore[reportPrivateImportUsage]
    from lablib.course.places import find_lab, find_labs_folder
    from lablib.course.running.execute import run_lab

    run_lab(find_lab(number, find_labs_folder()), {}, out=Path(folder), mine=bool(mine))


class Forked:
    """A process that waits for its task, with methods of `subprocess.Popen`. Fork it before any thread is started."""

    stdin = stdout = stderr = None

    def __init__(self, run: Callable[[Any, list[int]], None]):
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._status: int | None = None
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self._ours.close()
            os.setsid()
            die_with_parent(parent)
            with theirs:
                message, descriptors, *_ = socket.recv_fds(theirs, 1 << 20, 2)
            if message:  # otherwise the other process ended before it had a task
                task, environment, folder = json.loads(message)
                become(environment, folder)
                run(task, descriptors)
            sys.exit()
        theirs.close()

    def launch(self, task: Any, *, env: Mapping[str, str], cwd: str = "", fds: Sequence[int] = (), **_: Any) -> Any:
        with self._ours:
            socket.send_fds(self._ours, [json.dumps([task, dict(env), cwd or os.getcwd()]).encode()], fds)
        return self

    def wait(self, options: int = 0) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # another thread has just waited for it
                return self._status or 0
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def send_signal(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    kill, poll = send_signal, partialmethod(wait, os.WNOHANG)


def become_kernel(command: list[str], _: list[int]) -> None:
    fork_server_of_workers()
    from ipykernel.kernelapp import launch_new_instance

    sys.exit(launch_new_instance(argv=command[command.index("-f") :]))


def become_server(task: tuple[str, int], descriptors: list[int]) -> None:
    """Run this code, which knows the first descriptor by its number; the second one is stderr."""
    code, number = task
    os.dup2(descriptors[1], 2)
    os.dup2(descriptors[0], number)
    for other in set(descriptors) - {number}:  # of which a worker would get a copy
        os.close(other)
    exec(code, {})


def fork_server_of_workers() -> None:
    """Fork the server of this process's first real workers, which would be a new interpreter and import torch."""
    servers = [Forked(become_server)]

    class Popen(subprocess.Popen):
        def __new__(cls, command: Any, *_: Any, pass_fds: Sequence[int] = (), **options: Any) -> Any:
            if not servers or not re.search(r"import serve; .*True", str(command[-1])):
                return super().__new__(cls)
            fds = [*pass_fds, options["stderr"].fileno()]
            return servers.pop().launch([command[-1], *pass_fds], fds=fds, **options)

    subprocess.Popen = Popen


def become(environment: Mapping[str, str], folder: str) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def serve(imports: list[str]) -> None:
    for name in imports:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection would touch every page, and so copy it
    for line in sys.stdin:
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        function, args, output, environment = json.loads(line)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(2, 1)
        become(environment, os.getcwd())
        globals()[function](*args)
        sys.exit()


if __name__ == "__main__":
    serve(sys.argv[1:])
