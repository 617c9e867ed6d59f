"""A worker that dies: named with its number and exit code, and the epoch goes on where the loop was.

torch's DataLoader notices that a worker has gone (out of memory, a crash in a decoder) and raises a RuntimeError with
its process id, which is of no use once the process is gone. It may do so anywhere in the loop, also during a step: the
signal of the dead child arrives when it arrives. Before it the loop may meet a batch that the worker had sent: its
numbers lie in shared memory that the worker hands out, so taking it ends in an EOFError or a ConnectionError that names
nobody. So the whole loop stands in a block:

    while sampler.epoch == epoch:
        try:
            with named_workers(DataLoader(data, batch_sampler=sampler, num_workers=4)) as loader:
                for batch in sampler.used(loader):
                    ...
        except WorkerDiedError as error:
            print(error)

Batches that workers had loaded and the loop had not taken are loaded again: the sampler counts what the loop has. A
batch whose step was interrupted counts as used: the loop has had it.

Cost: nothing until a worker dies; then what was prefetched, k P batches, is loaded twice.
Source: torch 2.13, `torch/csrc/DataLoader.cpp`: the handler of SIGCHLD, and its messages.
Simplified: the reason is not known, only the exit code or the signal (9: mostly the kernel, out of memory).
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from lablib.signature import checked

_OF_A_DEATH = (RuntimeError, EOFError, ConnectionError, FileNotFoundError)  # the last one: its socket is gone
_WAIT_S = 5.0
_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


class WorkerDiedError(RuntimeError):
    """Workers of a loader died. `workers` are their numbers, `exit_codes` theirs: -9 is signal 9."""

    def __init__(self, workers: list[int], exit_codes: list[int], num_workers: int):
        self.workers, self.exit_codes = workers, exit_codes
        parts = [f"worker {worker} (exit code {code})" for worker, code in zip(workers, exit_codes, strict=True)]
        super().__init__(
            f"{' and '.join(parts)} of {num_workers} died while loading: what the loop has had is counted; iterate "
            "again to go on after it, with num_workers=0 to see the error in this process."
        )


@checked
@contextmanager
def named_workers(loader: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """The loader's batches of one epoch; a worker that dies inside the block ends it with an error that names it.

    Raises:
        WorkerDiedError: a worker died.
    """
    batches = iter(loader)
    try:
        yield batches
    except (RuntimeError, EOFError, OSError) as error:
        if isinstance(error, RuntimeError) and not _DIED.search(str(error)):
            raise
        processes = getattr(batches, "_workers", [])
        dead = _dead_workers(processes, _WAIT_S if isinstance(error, _OF_A_DEATH) else 0.0)
        if not dead:
            raise
        raise WorkerDiedError(list(dead), list(dead.values()), len(processes)) from error


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
