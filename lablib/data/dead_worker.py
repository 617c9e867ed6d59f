"""A worker that dies: named with its number and exit code, and the epoch goes on where the loop was.

torch's DataLoader notices that a worker has gone (out of memory, a crash in a decoder) and raises a RuntimeError with
its process id, which is of no use once the process is gone. It may do so anywhere in the loop, also during a step: the
signal of the dead child arrives when it arrives. So the whole loop stands in a block:

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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from lablib.signature import checked

_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


class WorkerDiedError(RuntimeError):
    """Workers of a loader died. `workers` are their numbers, `exit_codes` theirs: -9 is signal 9."""

    def __init__(self, workers: list[int], exit_codes: list[int | None], num_workers: int):
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
    except RuntimeError as error:
        found = _DIED.search(str(error))
        if found is None:
            raise
        processes = getattr(batches, "_workers", [])
        pids = [int(pid) for pid in found.group(1).split(",")]
        dead = [(number, process) for number, process in enumerate(processes) if process.pid in pids]
        for _, process in dead:
            process.join(timeout=5)  # so that its exit code is known
        codes = [process.exitcode for _, process in dead]
        raise WorkerDiedError([number for number, _ in dead], codes, len(processes)) from error
