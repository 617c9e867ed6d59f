"""Pool of warm worker processes of one backend and size, and the launch of one program on them.

Starting a process takes a tenth of a second of a core, and a second more if it imports torch itself (processes.py);
sending a function to a waiting one takes milliseconds. So workers stay after a program, and prepare the next one's
process groups in advance. They stay only while nothing fails: an exception, a death, a timeout or an interrupt ends the
whole pool, and the next launch starts a new one.
"""

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from lablib.errors import WorkerError
from lablib.process.interrupts import kept_interrupts
from lablib.real.gpu.sharing import Environment
from lablib.real.workers.capture import STREAMS, Outputs
from lablib.real.workers.channel import Channel
from lablib.real.workers.failure import Death, endless_error, failure_error, timeout_error
from lablib.real.workers.messages import Failed, Finished, Go, Hello, Job, Ready, Signal, Whereabouts, WorkerSetup
from lablib.real.workers.peers import interference
from lablib.real.workers.private import PrivateFolder, is_own_user
from lablib.real.workers.processes import Processes

_START_TIMEOUT_S = 180.0  # importing torch from a cold disk, on a busy machine
_RESET_TIMEOUT_S = 10.0  # open communication of a program can block the end of its groups; then a new pool is faster
_CONSEQUENCE_S = 2.0  # after "connection closed by peer": wait for the failure that caused it
_COMPANY_S = 0.05  # after an exception: wait for an earlier one on another rank
_ANSWER_TIMEOUT_S = 1.0  # for a rank to report its stack
_END_TIMEOUT_S = 5.0  # for the workers to end
_LONGEST_WAIT_S = 1.0  # then check that the workers live, and the size of their output
_STALL_S = 20.0  # a worker that reads nothing of a message for so long was stopped
_SHORTEST_S = 0.05
_LEAD_NS = 2_000_000  # lead time of the common start


class PoolIsStale(Exception):
    """The idle workers cannot run another program, or their starter is gone; nothing was started."""


class Pool:
    """Worker processes that can run programs. Not for use by two threads at the same time.

    `environments`: additions to the environment of each rank.

    WorkerError: the workers could not be started, or could not connect to each other. PoolIsStale: the process that
    starts them has died.
    """

    def __init__(self, backend: str, environments: list[Environment]):
        self.ranks = len(environments)
        self.is_alive = True
        self._folder = PrivateFolder()
        self._processes: Processes | None = None
        self._channels: dict[int, Channel] = {}
        self._pids: dict[int, int] = {}
        self._outputs: Outputs | None = None
        self._unready = set(range(self.ranks))
        self._selector = selectors.DefaultSelector()
        try:
            self._start(backend, environments)
        except BaseException:
            self.end()
            raise

    def launch(self, job: Job, timeout_s: float | None) -> list[Finished]:
        """Run one program on all ranks. Returns the reports in rank order. `timeout_s` counts from its start.

        PoolIsStale: a worker died or hung while idle. The pool has been ended; the program did not start. RankError,
        WorkerError, LaunchTimeoutError: as in `run_real`. The pool has been ended.
        """
        try:
            try:
                self._await_ready(_RESET_TIMEOUT_S)
            except WorkerError as error:
                raise PoolIsStale(str(error)) from error
            if dead := self._dead():  # the process that started them has ended, and they are about to end with it
                raise PoolIsStale(f"the workers of ranks {sorted(dead)} ended while they waited for a program")
            if not self._send_all(replace(job, timeout_s=timeout_s)):
                raise PoolIsStale(f"a worker took nothing of its program for {_STALL_S:.0f} s")
            with kept_interrupts() as raise_lost:
                finished = self._run(timeout_s, raise_lost)
            self._unready = set(range(self.ranks))
            self._send_all(Signal.RESET)
            return finished
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End all workers of this pool, and remove its files. May be called twice.

        Urgent steps come first: another interrupt may follow.
        """
        self.is_alive = False
        try:
            if self._processes is not None:
                self._processes.end() if self._channels else self._processes.give_up()
            for channel in self._channels.values():
                channel.close()  # ends a worker that is still starting
            self._channels.clear()
            self._selector.close()
            if self._outputs is not None:
                self._outputs.close()
            if self._processes is not None:
                self._processes.wait(_END_TIMEOUT_S)
        finally:
            self._folder.remove()

    # ---- starting ----

    def _start(self, backend: str, environments: list[Environment]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        with self._folder.listen(self.ranks) as listener:
            listener.settimeout(0.1)
            self._processes = Processes(backend, self.ranks, self._folder.address, self._folder.path)
            while len(self._channels) < self.ranks:
                if not self._processes.is_served:
                    raise PoolIsStale(self._start_error(self._processes))
                if self._processes.ended() - set(self._channels) or time.monotonic() > deadline:
                    raise WorkerError(self._start_error(self._processes))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                self._welcome(connection)
        self._outputs = Outputs(self._folder.path, self.ranks)
        self._folder.remove()  # from here on nothing stays on disk
        for rank, channel in self._channels.items():
            self._selector.register(channel, selectors.EVENT_READ, rank)
            channel.send(WorkerSetup(backend, environments[rank]))
        self._await_ready(deadline - time.monotonic())

    def _welcome(self, connection: socket.socket) -> None:
        if not is_own_user(connection):
            connection.close()
            return
        connection.setblocking(True)  # on macOS it is inherited from the listener
        channel = Channel(connection, _STALL_S)
        try:
            hello: Hello = channel.receive(_STALL_S)
        except (EOFError, OSError):  # it has ended, as the server will report
            channel.close()
            return
        self._channels[hello.rank], self._pids[hello.rank] = channel, hello.pid

    def _start_error(self, processes: Processes) -> str:
        missing = [rank for rank in range(self.ranks) if rank not in self._channels]
        said = processes.early_errors()
        return f"the worker processes of ranks {missing} did not start" + (f"; they said:\n{said}" if said else "")

    def _await_ready(self, timeout_s: float) -> None:
        """Wait until the groups of all ranks are made. Raises WorkerError if they cannot be."""
        deadline = time.monotonic() + timeout_s
        # Once more when all are ready: one may have died since.
        while (messages := self._receive(0.1 if self._unready else 0.0)) or self._unready:
            for rank, message in messages:
                said = self._said(rank, "stderr").strip()
                if message is None:
                    raise WorkerError(f"the worker of rank {rank} ended while it waited for a program. {said}".rstrip())
                assert isinstance(message, Ready)
                if message.error:
                    raise WorkerError(f"rank {rank} could not make its process group: {message.error}\n{said}".rstrip())
                self._unready.discard(rank)
            if time.monotonic() > deadline:
                others = interference(self._pids.values())
                raise WorkerError(
                    f"ranks {sorted(self._unready)} were not ready after {timeout_s:.0f} s" + (others and f"; {others}")
                )

    # ---- running ----

    def _run(self, timeout_s: float | None, raise_lost: Callable[[], None]) -> list[Finished]:
        """From the sent job to the last report. Raises the error that ended the program, after ending the pool."""
        armed: set[int] = set()
        finished: dict[int, Finished] = {}
        failures: dict[int, Failed | Death] = {}
        deadline, settled = _after(timeout_s), inf
        while len(finished) < self.ranks:
            heard = self._receive(min(deadline, settled) - time.monotonic(), deadline)
            raise_lost()
            if not heard:  # a child of a dead worker may hold its socket open
                heard = [(rank, None) for rank in self._dead() - set(finished) - set(failures)]
            for rank, message in heard:
                if message is Signal.ARMED:
                    armed.add(rank)
                    if len(armed) == self.ranks:
                        self._send_all(Go(time.time_ns() + _LEAD_NS))
                        deadline = _after(timeout_s)
                elif isinstance(message, Finished):
                    finished[rank] = message
                elif isinstance(message, Failed) or message is None:
                    failures[rank] = message or Death(time.time_ns())
                    patience_s = _CONSEQUENCE_S if all(f.lost_peer for f in failures.values()) else _COMPANY_S
                    settled = min(settled, time.monotonic() + patience_s)
            if self._outputs is not None and (endless := self._outputs.endless()):
                raise endless_error(*endless)
            if failures and time.monotonic() >= settled:
                raise self._failed(failures)
            if not failures and time.monotonic() >= deadline:
                raise self._timed_out(timeout_s or 0.0, set(range(self.ranks)) - set(finished))
        return [finished[rank] for rank in range(self.ranks)]

    def _dead(self) -> set[int]:
        return self._processes.ended() if self._processes is not None else set()

    def _failed(self, failures: dict[int, Failed | Death]) -> Exception:
        """The error for the failure that came first. Ends the pool, which makes the exit codes known."""
        stdout, stderr = ({rank: self._said(rank, stream) for rank in failures} for stream in STREAMS)
        self.end()
        assert self._processes is not None
        causes = {rank: self._processes.cause_of_death(rank) for rank in failures}
        return failure_error(failures, self._pids, causes, stdout, stderr)

    def _said(self, rank: int, stream: str) -> str:
        return self._outputs.read(rank, stream) if self._outputs is not None else ""

    def _timed_out(self, timeout_s: float, running: set[int]) -> Exception:
        """The error with the ranks still running, and the stack of each."""
        found: dict[int, Whereabouts] = {}
        self._send_all(Signal.WHERE)
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while not running <= set(found) and time.monotonic() < deadline:
            for rank, message in self._receive(0.1):
                if isinstance(message, Whereabouts):
                    found[rank] = message
        reports = {rank: found.get(rank, Whereabouts("")) for rank in sorted(running)}
        stderr = {rank: self._said(rank, "stderr") for rank in reports}
        return timeout_error(timeout_s, self.ranks, reports, stderr, interference(self._pids.values()))

    # ---- messages ----

    def _send_all(self, message: Any) -> bool:
        """Send to all ranks. Returns whether all read it. A worker that is gone is noticed on receive."""
        for channel in self._channels.values():
            try:
                channel.send(message)
            except TimeoutError:
                return False
            except OSError:
                continue
        return True

    def _receive(self, timeout_s: float, deadline: float = inf) -> list[tuple[int, Any]]:
        """The messages that have arrived, waiting for one up to `timeout_s`; None for a worker that is gone.

        A message that has begun may take until `deadline` (of `time.monotonic`); after that its worker is ignored.
        """
        received: list[tuple[int, Any]] = []
        for key, _ in self._selector.select(max(0.0, min(timeout_s, _LONGEST_WAIT_S))):
            patience_s = None if deadline == inf else max(_SHORTEST_S, deadline - time.monotonic())
            try:
                received.append((key.data, self._channels[key.data].receive(patience_s)))
            except TimeoutError:
                self._selector.unregister(key.fileobj)
            except Exception:  # its end, or an invalid message: a child of the program may hold the socket
                self._selector.unregister(key.fileobj)
                received.append((key.data, None))
        return received


def _after(timeout_s: float | None) -> float:
    return inf if timeout_s is None else time.monotonic() + timeout_s
