"""Detection of a dead DataLoader worker: an error with its number and exit code, after which the epoch can go on.

torch's DataLoader notices that a worker has died (out of memory, a crash in a decoder) and raises a RuntimeError with
its process id, which is of no use once the process is gone. It raises wherever the loop is when the signal of the dead
child arrives: in the middle of a step, or of the queues' own code, which then closes a file twice. Or the loop meets a
batch that the worker had sent before: its numbers lie in shared memory that the worker hands out, so taking it ends in
an EOFError or a ConnectionError without a name. So the whole loop runs in a block, in which the signal is handled
between two batches and while the loop waits for one:

    while sampler.epoch == epoch:
        try:
            with named_workers(DataLoader(data, batch_sampler=sampler, num_workers=4)) as loader:
                for batch in sampler.used(loader):
                    ...
        except WorkerDiedError as error:
            print(error)

Batches that workers had loaded and the loop had not taken are loaded again: the sampler counts the batches of the loop.

Cost: nothing until a worker dies; then the prefetched batches, k P of them, are loaded twice.
Source: torch 2.13, `torch/csrc/DataLoader.cpp`: the handler of SIGCHLD, and its messages.
Simplified: the reason is not known, only the exit code or the signal (9: mostly the kernel, out of memory).
"""

import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer, current_thread, get_ident, main_thread
from traceback import walk_tb
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from lablib.signature import checked
from lablib.torch_compat import loader_workers, shut_down_workers

_OF_A_DEATH = (RuntimeError, EOFError, ConnectionError, FileNotFoundError)  # the last one: its socket is gone
_WAIT_S = 5.0
_AGAIN_S = 0.05
_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


class WorkerDiedError(RuntimeError):
    """Workers of a loader died. `workers` are their numbers, `exit_codes` theirs: -9 is signal 9."""

    def __init__(self, workers: list[int], exit_codes: list[int], num_workers: int):
        self.workers, self.exit_codes = workers, exit_codes
        parts = [f"worker {worker} (exit code {code})" for worker, code in zip(workers, exit_codes, strict=True)]
        super().__init__(
            f"{' and '.join(parts)} of {num_workers} died while loading: batches that the loop took are counted; "
            "iterate again to go on after them, with num_workers=0 to see the error in this process."
        )


@checked
@contextmanager
def named_workers(loader: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """The loader's batches of one epoch; a worker that dies inside the block raises a WorkerDiedError that names it."""
    batches: Iterator[Any] | None = None
    signals = _Signals()
    try:
        signals.take()
        batches = iter(loader)
        signals.take()  # torch takes them itself, when the process makes its first workers
        yield signals.between(batches)
    except (RuntimeError, EOFError, OSError) as error:
        if isinstance(error, RuntimeError) and not _DIED.search(str(error)):
            raise
        made: Any = batches or _half_made(error)
        processes = loader_workers(made)
        dead = _dead_workers(processes, _WAIT_S if isinstance(error, _OF_A_DEATH) else 0.0)
        if not dead:
            raise
        shut_down_workers(made)  # now: the error keeps it alive, and a garbage collector would close its files twice
        raise WorkerDiedError(list(dead), list(dead.values()), len(processes)) from error
    finally:
        signals.give_back()


class _Signals:
    """Between torch and the signal of a dead child: torch is asked only where an error breaks nothing."""

    def __init__(self) -> None:
        self._torchs: Any = None
        self._is_late = False
        self._again: Timer | None = None

    def take(self) -> None:
        """In the main thread: no other gets signals, and there torch looks every 5 seconds whether the workers live."""
        handler = signal.getsignal(signal.SIGCHLD)
        if getattr(handler, "__module__", "").startswith("torch.") and current_thread() is main_thread():
            self._torchs = signal.signal(signal.SIGCHLD, self._arrived)

    def give_back(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._torchs is not None:
            signal.signal(signal.SIGCHLD, self._torchs)

    def _arrived(self, _: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_globals.get("__name__") == "selectors":  # the loop waits for a batch
            return self._ask()
        self._is_late = True
        self._again = Timer(_AGAIN_S, signal.pthread_kill, (get_ident(), signal.SIGCHLD))
        self._again.start()

    def _ask(self) -> None:
        self._is_late = False
        self._torchs(signal.SIGCHLD, None)

    def between(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; a signal that arrived since the last one is handled before the next."""
        while True:
            if self._is_late:
                self._ask()
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch


def _half_made(error: BaseException) -> Any:
    """The loader's iterator, where a worker died while it was being made; None where it was not."""
    frames = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    return next((one for one in frames if loader_workers(one)), None)


def _dead_workers(processes: Sequence[Any], wait_s: float) -> dict[int, int]:
    """Number and exit code of the workers that ended with an error; waits for the first one, if it is still ending."""
    end_s = time.monotonic() + wait_s
    while True:
        try:  # to ask for an exit code takes the dead process away: then its signal, if it is late, raises no more
            dead = {number: process.exitcode for number, process in enumerate(processes) if process.exitcode}
            if dead or time.monotonic() >= end_s:
                return dead
            time.sleep(0.01)
        except RuntimeError as error:  # the signal, just now
            if not _DIED.search(str(error)):
                raise
