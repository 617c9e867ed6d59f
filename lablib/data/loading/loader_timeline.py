"""Simulation of a training loop with a loader, event by event: waits of workers, copies and device.

Each batch is ordered, loaded by a worker, taken by the loop, copied to the device, and computed with:

    order of i    when batch i - k P is taken: k workers, P orders each (`prefetch`); the first k P at the start
    load of i     from max(its order, the last load of its worker ends), for L seconds with jitter
    take of i     at max(load of i ends, the loop is back from the batch before)
    copy of i     from max(take of i, the stream is free), for C = bytes / bandwidth seconds
    step of i     from max(copy of i ends, step of i - 1 ends), for S seconds

    worker 0  [ load 0 ][ load 2 ][ load 4 ]         k = 2, L = 2 S: both workers together keep up with the device
    worker 1  [ load 1 ][ load 3 ][ load 5 ]
    compute             [ 0 ][ 1 ][ 2 ][ 3 ]

Copies. From pageable memory the host waits for the device and then for the copy. From pinned memory the loop goes on,
and the copy is in the stream of compute, or on a separate stream, issued during the step before.
A gap is the time before a step in which the device does not compute; `loaded_run.py` gives the cause of each second.

Cost: a step in steady state, if L, C and S are constant (`steady_step_s`), k >= 1:
    pageable, or pinned in the stream of compute   max(S + C, L / k)
    pinned on a separate stream                    max(S, C, L / k)
    no workers, pageable, the loss read            S + C + L
`prefetch` is not in it: it only hides jitter, at k P batches of host memory.
Source: torch 2.13, `torch/utils/data/dataloader.py`: `_try_put_index` gives orders to workers in turn, one for each
batch that is taken. Copies: NVIDIA, CUDA Runtime API, "API synchronization behavior".
Simplified: workers do not slow each other down; pinning (a copy in the host's memory) is part of L; the loop is at most
one step ahead of the device where it does not read the loss. Workers start side by side, each in `start_s`. Without
order, the next free worker takes the next order; torch gives it to the next worker in turn that has room.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from lablib.data.loading.loaded_run import BatchTimes, LoadedRun
from lablib.data.loading.loader import Copy, Loader
from lablib.signature import Count, NonNegative, checked


@checked
def run_loop(
    loader: Loader, load_times_s: Sequence[NonNegative], step_times_s: Sequence[NonNegative], epochs: Count = 1
) -> LoadedRun:
    """Simulate the loop over some epochs, each of which ends before the next begins.

    `load_times_s`, `step_times_s`: seconds to load each batch and of each step, of all epochs one after another.

    Raises ValueError: no batch, not one step for each, or batches that are no whole number of epochs.
    """
    size = batches_per_epoch(load_times_s, step_times_s, epochs)
    device, starts, begin_s = _Device(loader), [], 0.0
    for first in range(0, len(load_times_s), size):
        is_new = loader.workers > 0 and (first == 0 or not loader.persistent)
        ready_s = begin_s + loader.start_s * is_new
        if is_new and loader.start_s:
            starts.append((begin_s, ready_s))
        workers = _Workers(loader, load_times_s[first : first + size], ready_s)
        begin_s = device.run_epoch(workers, step_times_s[first : first + size], begin_s)
    return LoadedRun(loader, tuple(device.batches), tuple(starts))


def batches_per_epoch(load_times_s: Sequence[float], step_times_s: Sequence[float], epochs: int) -> int:
    """Number of batches in each epoch. Raises ValueError where the times of loads and steps do not fit."""
    num_batches = len(load_times_s)
    if not num_batches or len(step_times_s) != num_batches or num_batches % epochs:
        raise ValueError(
            "a loop needs one step for each batch, at least one batch, and as many in each epoch: "
            f"got {num_batches} load times, {len(step_times_s)} step times and {epochs} epochs."
        )
    return num_batches // epochs


class _Workers:
    """The orders of one epoch, and the worker of each."""

    def __init__(self, loader: Loader, times_s: Sequence[float], ready_s: float):
        self._loader, self._times_s = loader, times_s
        self._free_s = [ready_s] * min(loader.workers, len(times_s))  # more would have no batch
        self._ordered = 0
        self._loads: list[tuple[float, int, float, float, int]] = []  # the one to be taken next first
        for _ in range(min(loader.workers * loader.prefetch, len(times_s))):
            self._order(ready_s)

    def _order(self, at_s: float) -> None:
        """The next batch is ordered. A worker's orders are loaded in turn, so the end of the load is known now."""
        batch = self._ordered
        if batch == len(self._times_s):
            return
        self._ordered += 1
        free_s, keeps = self._free_s, self._loader.keeps_order
        worker = batch % len(free_s) if keeps else min(range(len(free_s)), key=free_s.__getitem__)
        start_s = max(free_s[worker], at_s)
        free_s[worker] = end_s = start_s + self._times_s[batch]
        heappush(self._loads, (float(batch) if keeps else end_s, batch, start_s, end_s, worker))

    def take(self, at_s: float) -> tuple[float, float, int]:
        """The loop asks for a batch: when its load began and ended, and on which worker."""
        if not self._free_s:
            self._ordered += 1
            return at_s, at_s + self._times_s[self._ordered - 1], -1
        _, _, start_s, end_s, worker = heappop(self._loads)
        self._order(max(at_s, end_s))
        return start_s, end_s, worker


class _Device:
    """The loop and the device's two streams."""

    def __init__(self, loader: Loader):
        self._loader = loader
        self._copies_end_s = 0.0
        self.batches: list[BatchTimes] = []
        # Before it takes a batch the loop has waited for the end of the step so many before. On a separate stream the
        # copy is issued during the step before.
        self._behind = (1 if loader.reads_loss else 2) + (loader.copy is Copy.OWN_STREAM)

    def run_epoch(self, workers: _Workers, steps_s: Sequence[float], begin_s: float) -> float:
        """One epoch from `begin_s` on; returns when its last step ends."""
        loader, first, host_s = self._loader, len(self.batches), begin_s
        ends_s = begin_s  # of the last step
        for step_s in steps_s:
            earlier = len(self.batches) - self._behind
            host_s = max(host_s, self.batches[earlier].step_end_s if earlier >= first else begin_s)
            load_start_s, load_end_s, worker = workers.take(host_s)
            host_s = max(host_s, load_end_s)
            free_s = self._copies_end_s if loader.copy is Copy.OWN_STREAM else ends_s
            copy_start_s = max(host_s, free_s)
            copy_end_s = self._copies_end_s = copy_start_s + loader.copy_s
            if loader.copy is Copy.PAGEABLE:
                host_s = copy_end_s
            start_s = max(copy_end_s, ends_s)
            ends_s = start_s + step_s
            times = (load_start_s, load_end_s, copy_start_s, copy_end_s, start_s, ends_s)
            self.batches.append(BatchTimes(worker, *times))
        return ends_s


@checked
def steady_step_s(loader: Loader, load_s: NonNegative, step_s: NonNegative) -> float:
    """Seconds of a step in steady state, where each load takes `load_s` and each step `step_s`: the closed form."""
    copy_s, in_line = loader.copy_s, loader.copy is not Copy.OWN_STREAM
    busy_s = step_s + copy_s if in_line else max(step_s, copy_s)
    if loader.workers:
        return max(busy_s, load_s / loader.workers)
    if not in_line:  # the loop is one or two steps ahead, and comes by again when all three have been done once
        return max(busy_s, load_s, (load_s + copy_s + step_s) / (2 if loader.reads_loss else 3))
    if loader.reads_loss:
        return load_s + busy_s
    return copy_s + max(load_s, step_s) if loader.copy is Copy.PAGEABLE else max(load_s, busy_s)
