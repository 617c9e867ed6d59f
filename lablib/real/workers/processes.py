"""Worker processes of one pool, as seen by the launching process: started and ended by a fork server.

Each worker has the environment of torchrun (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, ...), so a program
for torchrun finds its variables. A worker that has ended is not restarted: a program that lost a rank has failed.

On gloo, workers are forked from a process that has imported torch (lablib/process/fork_server.py), so it is imported
once in the life of a notebook; so are the other libraries that the notebook has imported by then. On "nccl", and on
systems other than Linux, each is a new interpreter: the state of CUDA and of macOS libraries does not survive a fork.

Forked workers share the seed of Python's string hashes, unlike new interpreters. So a set of names has the same order
on all ranks, and a program that orders its communication by one works here and hangs under torchrun. With LAB_FORK=off
in the environment each worker is a new interpreter (or each has PYTHONHASHSEED, if that is set).

Some variables are read only once: NCCL_* when NCCL makes its first communicator, CUDA_VISIBLE_DEVICES when CUDA is
initialised, others when Python, torch and their math libraries are loaded. Workers started under other values keep
those, so these variables are part of the key of a pool (pools.py) and of a server, and a launch under changed values
gets new ones.

Simplified: one machine. For several, `torchrun` itself is the launcher (for its open ports see docs/security.md).
"""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

from lablib.errors import WorkerError
from lablib.inside import RANK_VARIABLE
from lablib.process.fork_server import Child, End, Ended, Start, code_of
from lablib.process.torchrun import free_port, worker_environment
from lablib.real.workers.capture import STREAMS
from lablib.text.messages import error_text
from lablib.torch_compat import COMPILER

_WORKER = "lablib.real.workers.worker"
_THREAD = "lablib-fork-server"
_STARTER = "the process that starts workers"
_EXIT_S = 1.0  # for the server to end when this process ends
_LAST_WORDS_BYTES = 20_000
_LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
# Loopback, even if the user's environment names an interface for several machines: a launch must not be reachable from
# outside. Connections are made at once, so that they can be checked (peers.py).
_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": _LOOPBACK_INTERFACE,
    "NCCL_SOCKET_IFNAME": _LOOPBACK_INTERFACE,
    "TORCH_GLOO_LAZY_INIT": "0",
    "KINETO_LOG_LEVEL": "99",  # hide the profiler's own log lines
}
# Variables that a library reads once.
_PREFIXES = (
    *("CUDA_", "NCCL_", "PYTORCH_", "NVIDIA_", "GLOO_", "TORCH_", "KINETO_", "CUBLAS_"),
    *("PYTHON", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "LD_", "MALLOC_"),
    *("GOMP_", "GLIBC_", "LC_", "LANG", "TZ", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_"),
)
FixedEnvironment = tuple[tuple[str, str], ...]
# Libraries of programs that take long to import. Not torch._inductor and lablib.data: they start processes.
_LIBRARIES = (
    *("torch.distributed.", "torch.utils."),
    *(f"lablib.{name}" for name in "models parallel pipeline compress precision optim memory".split()),
)
# Threads that a library starts at import (OpenBLAS, for numpy) would be missing in a fork.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def fixed_environment(variables: Mapping[str, str] | None = None) -> FixedEnvironment:
    """The variables that a worker keeps for its life, sorted; by default from this process."""
    variables = os.environ if variables is None else variables
    return tuple(sorted((name, value) for name, value in variables.items() if name.startswith(_PREFIXES)))


class Processes:
    """One set of workers, which report at a socket path.

    `directory` holds their output (capture.py) and the rendezvous file.
    """

    def __init__(self, backend: str, ranks: int, address: str, directory: Path):
        self.ranks, self._directory = ranks, directory
        self.ends: dict[int, Ended] = {}  # of the workers that have ended, by rank
        self._server = servers().of(backend)
        self._number = self._server.start(self, _children(ranks, directory), (address, str(directory / "store")))

    def ended(self) -> set[int]:
        """The ranks with a process that has ended or was not started."""
        return set(self.ends) if self._server.is_alive else set(range(self.ranks))

    @property
    def is_served(self) -> bool:
        """Whether the process that starts and ends them lives."""
        return self._server.is_alive

    def end(self) -> None:
        self._server.end(self._number)

    def give_up(self) -> None:
        """Like `end`, if none has reported: a server that imports only for them is killed, as it reads no messages."""
        self._server.give_up(self._number)

    def wait(self, timeout_s: float) -> None:
        """Wait until all have ended, at most `timeout_s` seconds."""
        self._server.wait_for(self._number, timeout_s)

    def cause_of_death(self, rank: int) -> str:
        """The end of a worker, as far as known: "was ended by SIGKILL", "ended with exit code 3"."""
        end = self.ends.get(rank)
        if end is None:
            return "ended for a reason that is not known" if self._server.is_alive else f"ended with {_STARTER}"
        if end.error:
            return f"could not be started ({end.error})"
        if end.code >= 0:
            return f"ended with exit code {end.code}"
        try:
            return f"was ended by {signal.Signals(-end.code).name}"
        except ValueError:  # without a name in Python
            return f"was ended by signal {-end.code}"

    def early_errors(self) -> str:
        """The workers' stderr before they reported, and the reasons why some could not be started."""
        logs = (log.read_text(errors="replace") for log in sorted(self._directory.glob("rank*.stderr")))
        errors = dict.fromkeys(end.error for end in list(self.ends.values()))
        server = () if self._server.is_alive else (f"{_STARTER} has ended", self._server.last_words)
        return "\n".join(filter(None, (text.strip() for text in (*logs, *errors, *server))))


def _children(ranks: int, directory: Path) -> tuple[Child, ...]:
    """Environment and output files of each worker: this process's environment, with torchrun's variables."""
    port, run_id, children = free_port(), uuid.uuid4().hex, []
    for rank in range(ranks):
        own = worker_environment(rank, ranks, rank, ranks, 0, 1, port, run_id, "lablib")
        variables = {**os.environ, **own, **_ENVIRONMENT, RANK_VARIABLE: str(rank)}
        children.append(Child(variables, *(str(directory / f"rank{rank}.{stream}") for stream in STREAMS)))
    return tuple(children)


class _Server:
    """The launcher's end of a fork server. The server ends with this process, however that ends.

    Without `does_imports` each worker is a new interpreter.
    """

    def __init__(self, does_imports: bool):
        self.last_words = ""  # its stderr, once it has ended
        self._is_over = False
        self._running: dict[int, Processes] = {}
        self._num_sets = 0
        self._known: set[str] = set()  # libraries already sent to the server for import
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._start_error: BaseException | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        self._connection = Connection(ours.detach())
        started = threading.Event()
        # In a thread that lasts as long as this process: the server ends with the thread that started it.
        self._thread = threading.Thread(
            target=self._listen, args=(theirs, does_imports, started), name=_THREAD, daemon=True
        )
        self._thread.start()
        started.wait()
        if self._start_error is not None:
            raise WorkerError(f"{_STARTER} cannot be started: {error_text(self._start_error)}")

    @property
    def is_alive(self) -> bool:
        """Whether it still serves; may be wrong for a moment after its death."""
        return not self._is_over and self._process is not None and self._process.poll() is None

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(self, workers: Processes, children: tuple[Child, ...], args: tuple[str, ...]) -> int:
        """Start one worker per child. Returns the number of the set."""
        with self._changed:
            self._num_sets += 1
            self._running[self._num_sets] = workers
            # Libraries that this process has imported, programs may use, and the server lacks; in order of import.
            public = [name for name in list(sys.modules) if name.startswith(_LIBRARIES) and "._" not in name]
            public += [COMPILER] if COMPILER in sys.modules else []  # by the first optimizer: 1.4 s of a core
            libraries = tuple(name for name in public if name not in self._known)
            self._known.update(libraries)
            self._send(Start(self._num_sets, children, _folder(), _WORKER, "main", args, libraries, *_allowed()))
            return self._num_sets

    def end(self, number: int) -> None:
        with self._changed:
            if number in self._running:
                self._send(End(number))

    def give_up(self, number: int) -> None:
        """End a set that has not reported; kill the server too, if it has no other set."""
        with self._changed:
            if set(self._running) == {number} and self._process is not None:
                self._process.kill()
        self.end(number)

    def wait_for(self, number: int, timeout_s: float) -> None:
        """Wait until a set has ended, at most that many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: number not in self._running, timeout_s)

    def close(self) -> None:
        """End the server, and every worker that still runs."""
        self._send(None)

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended, at most that many seconds."""
        self._thread.join(timeout_s)

    def _send(self, message: Start | End | None) -> None:
        try:
            self._connection.send(message)
        except OSError:
            pass  # it has ended, as the listening thread finds
        except BaseException:  # an interrupt: after half a message the next one is unreadable
            if self._process is not None:
                self._process.kill()
            raise

    def _listen(self, theirs: socket.socket, does_imports: bool, started: threading.Event) -> None:
        """Start the server, and receive the ends of workers, until it ends itself."""
        command = [sys.executable, "-P", "-c", code_of("serve", theirs.fileno(), os.getpid(), does_imports)]
        environment = {**os.environ, **_ENVIRONMENT, **_ONE_THREAD}
        try:
            with theirs, self._connection, tempfile.TemporaryFile() as stderr:
                process = self._process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # a terminal's interrupt is for this process only
                )
                theirs.close()
                started.set()
                with contextlib.suppress(EOFError, OSError):
                    while True:
                        self._note(self._connection.recv())
                process.wait()
                size_bytes = os.fstat(stderr.fileno()).st_size
                last = os.pread(stderr.fileno(), _LAST_WORDS_BYTES, max(0, size_bytes - _LAST_WORDS_BYTES))
                self.last_words = last.decode(errors="replace")
        except BaseException as error:  # raised in the thread that waits for the start
            self._start_error = error
        finally:
            with self._changed:
                self._is_over = True
                self._running.clear()
                self._changed.notify_all()
            started.set()

    def _note(self, end: Ended) -> None:
        with self._changed:
            if (workers := self._running.get(end.number)) is not None:
                workers.ends[end.child] = end
                if len(workers.ends) == workers.ranks:
                    del self._running[end.number]
            self._changed.notify_all()


class _Servers:
    """The fork servers of this process: one per environment that a library has read, while in use."""

    def __init__(self) -> None:
        self._servers: dict[tuple[bool, FixedEnvironment], _Server] = {}

    def of(self, backend: str) -> _Server:
        """The server for workers of a backend, started on demand; unused ones are ended."""
        key = does_imports, _ = _does_imports(backend), fixed_environment()
        for other, server in list(self._servers.items()):
            if not server.is_alive or (other != key and server.is_idle):
                self._servers.pop(other).close()
        if key not in self._servers:
            self._servers[key] = _Server(does_imports)
        return self._servers[key]

    def end(self) -> None:
        ended = list(self._servers.values())
        self._servers.clear()
        for server in ended:
            server.close()
        for server in ended:
            server.join(_EXIT_S)


def _does_imports(backend: str) -> bool:
    return backend == "gloo" and sys.platform == "linux" and os.environ.get("LAB_FORK") != "off"


def servers() -> _Servers:
    """The servers of this process; a forked one has its own."""
    return _servers_of(os.getpid())


@cache
def _servers_of(_pid: int) -> _Servers:
    return _Servers()


def _allowed() -> tuple[dict[int, tuple[int, int]], tuple[int, ...]]:
    """The resource limits of this process, and its allowed cores, if the system reports them."""
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    cores = tuple(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()
    return {number: resource.getrlimit(number) for number in numbers}, cores


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
