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
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

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

    local_provisioner.launch_kernel = ForkedKernel().launch  # pyright: ignore[reportPrivateImportUsage]
    words = ["-c", os.devnull, "--rootdir", os.path.dirname(notebook), "-p", "no:cacheprovider", "-q", notebook]
    sys.exit(pytest.main([*words, "--nbval-lax", "--nbval-current-env"], plugins=[Outputs()]))


class ForkedKernel:
    """A kernel's process, with the methods of `subprocess.Popen` that Jupyter uses.

    It is forked before pytest starts threads, since a fork keeps one thread, and waits for its command.
    """

    stdin = stdout = stderr = None

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self._status: int | None = None
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._writing)
            self._become_kernel(reading, parent)
        os.close(reading)

    def launch(self, command: list[str], *, env: Mapping[str, str], cwd: str, **_: Any) -> "ForkedKernel":
        with os.fdopen(self._writing, "w") as file:
            json.dump([command, dict(env), cwd], file)
        return self

    def poll(self) -> int | None:
        return self.wait(os.WNOHANG)

    def wait(self, options: int = 0) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @staticmethod
    def _become_kernel(reading: int, parent: int) -> NoReturn:
        os.setsid()
        die_with_parent(parent)
        with os.fdopen(reading) as file:
            text = file.read()
        if not text:  # pytest ended before a cell ran
            sys.exit()
        command, environment, folder = json.loads(text)
        become(environment, folder)
        from ipykernel.kernelapp import launch_new_instance

        sys.exit(launch_new_instance(argv=command[command.index("-f") :]))


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
