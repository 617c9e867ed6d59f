"""Fork server: a process that imports libraries once and forks worker processes on request.

Importing torch takes more than a second of a core, in each process. A process that has imported it forks each child in
a few milliseconds, and the children share the memory of the libraries until they write to it.

    launcher              server                   its children
       |  -- Start ------->  |  -- fork ---------->  |    each leads a session, writes to files, calls one function
       |  <- Ended --------  |  <- SIGCHLD --------  |    processes that it has started end with it
       |  -- End --------->  |  -- SIGKILL ------->  |

A forked child inherits the server's libraries, with the environment variables that they read at import. So a server is
valid for one environment (real/workers/processes.py). A fork keeps one thread, so if a library starts threads
at import, or a fork after an import is unsafe (CUDA, macOS), a child executes a new interpreter.

Similar to the `forkserver` of Python's multiprocessing, which offers its children neither sessions nor files. It is
independent of ranks. Only the server waits for its children, so it never signals a process id that has been reused.
"""

import contextlib
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

from lablib.process.lifetime import die_with_parent

_LONGEST_WAIT_S = 1.0  # then check for dead children, in case a signal was lost
_ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class Child:
    """A child's complete environment, and the files that its output is appended to."""

    environment: dict[str, str]
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start a set of children with this number, in that folder. Each calls `function` of `module` with `args`.

    `imports` names modules that children may need, too: the server imports those that it can, before it forks. `limits`
    and `cores` are the launcher's current ones, which may have changed since it started the server.
    """

    number: int
    children: tuple[Child, ...]
    folder: str
    module: str
    function: str
    args: tuple[str, ...]
    imports: tuple[str, ...] = ()
    limits: dict[int, tuple[int, int]] = field(default_factory=dict)  # of resources, as from `resource.getrlimit`
    cores: tuple[int, ...] = ()  # allowed cores; empty: all that the server may use


@dataclass(frozen=True, slots=True)
class End:
    """End the running children of a set."""

    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A child has ended. `code` is its exit code, or the negative number of the signal that ended it.

    `error` is the reason if it could not be started.
    """

    number: int
    child: int
    code: int
    error: str = ""


def code_of(function: str, *args: object) -> str:
    """Code for a new interpreter (`python -P -c`) that calls a function of this module."""
    path = f"import sys; sys.path.append({_ROOT!r})"
    return f"{path}; from lablib.process.fork_server import {function}; {function}(*{args!r})"


def serve(descriptor: int, parent: int, does_imports: bool) -> NoReturn:
    """Start and end children until None arrives or the other end is closed; then end those that still run.

    `descriptor` is one end of a pair of Unix sockets, which this process inherited; the process `parent` has the other.
    Without `does_imports` each child is a new interpreter.
    """
    die_with_parent(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # the launcher's blocked signals are inherited
    _Server(Connection(descriptor), does_imports).run()
    os._exit(0)


class _Server:
    def __init__(self, connection: Connection, does_imports: bool):
        self._connection, self._does_imports = connection, does_imports
        self._running: dict[int, tuple[int, int]] = {}  # process id: number of the set, and of the child in it
        self._woken, self._waking = socket.socketpair()
        for end in (self._woken, self._waking):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler is needed for the signal to be written to the socket
        signal.set_wakeup_fd(self._waking.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        try:
            while True:
                ready = wait([self._connection, self._woken], _LONGEST_WAIT_S)
                if self._woken in ready:
                    self._woken.recv(4096)
                with contextlib.suppress(ChildProcessError):
                    while (found := _dead_child()) != (0, 0):
                        pid, status = found
                        if pid in self._running:  # otherwise started by an import
                            self._connection.send(Ended(*self._running.pop(pid), os.waitstatus_to_exitcode(status)))
                if self._connection in ready:
                    message = self._connection.recv()
                    if message is None:
                        break
                    self._start(message) if isinstance(message, Start) else self._end(message.number)
        except (EOFError, OSError):
            pass
        for number in {number for number, _ in self._running.values()}:
            self._end(number)

    def _start(self, start: Start) -> None:
        server = os.getpid()
        is_ready = self._does_imports and self._import(start)
        for index, child in enumerate(start.children):
            try:
                pid = os.fork()
            except OSError as error:
                self._connection.send(Ended(start.number, index, 1, str(error)))
                continue
            if pid == 0:
                self._become(child, start, server, is_ready)
            self._running[pid] = start.number, index

    def _import(self, start: Start) -> bool:
        """Import the modules of these children. Returns whether they can be forked with them."""
        for name in start.imports:
            if name not in sys.modules:
                with contextlib.suppress(Exception):  # optional
                    importlib.import_module(name)
        try:
            importlib.import_module(start.module)
        except BaseException:  # a new interpreter fails in the same way, and writes the error to its file
            return False
        gc.freeze()  # otherwise a collection in a child would write to every shared page
        tasks = Path("/proc/self/task")  # threads of libraries, too; a fork keeps only one
        return (len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()) == 1

    def _end(self, number: int) -> None:
        for pid, (its_number, _) in self._running.items():
            if its_number == number:
                _end_session(pid)
                os.kill(pid, signal.SIGKILL)

    def _become(self, child: Child, start: Start, server: int, is_ready: bool) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._connection, self._woken, self._waking):
                end.close()
            os.setsid()
            die_with_parent(server)
            for path, descriptor in (child.stdout, 1), (child.stderr, 2):
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(file, descriptor)
                os.close(file)
            _take_over(start)
            if not is_ready:
                words = [sys.executable, "-P", "-c", code_of("call", start.module, start.function, start.args)]
                os.execve(sys.executable, words, child.environment)
            _set_environment(child.environment)
            call(start.module, start.function, start.args)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _dead_child() -> tuple[int, int]:
    """The process id and status of a dead child, after its session has been ended; zeros if there is none."""
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13: its id may be reused before the session is ended
        found = os.waitpid(-1, os.WNOHANG)
        _end_session(found[0])
        return found
    dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if dead is None:
        return 0, 0
    _end_session(dead.si_pid)
    return os.waitpid(dead.si_pid, 0)


def _end_session(leader: int) -> None:
    """End all processes that a child has started, unless they have left its session."""
    if leader == 0:
        return
    with contextlib.suppress(OSError):  # not yet a session leader; or on macOS a zombie
        os.killpg(leader, signal.SIGKILL)


def _take_over(start: Start) -> None:
    """Set the launcher's current folder, limits and cores."""
    with contextlib.suppress(OSError):  # the folder has been removed
        os.chdir(start.folder)
    for number, limit in start.limits.items():
        with contextlib.suppress(OSError, ValueError):  # only root may raise a limit
            resource.setrlimit(number, limit)
    if start.cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, start.cores)


def _set_environment(variables: dict[str, str]) -> None:
    for name in set(os.environ) - set(variables):
        with contextlib.suppress(OSError):  # an entry without a name cannot be deleted
            del os.environ[name]
    for name, value in variables.items():
        with contextlib.suppress(OSError):
            os.environ[name] = value
    time.tzset()


def call(module: str, function: str, args: tuple[str, ...]) -> None:
    """Import a module and call one of its functions."""
    getattr(importlib.import_module(module), function)(*args)
