"""Measurement of the loop of loader_timeline.py: torch's DataLoader with loads and steps of given length.

A load is a sleep in a worker process, a step a sleep of the loop. The measurement shows the DataLoader's overhead:
starting processes, sending batches between them, waking up. A batch on its way from its worker to the loop counts as
"not copied". The result is the same record as the simulation's, for plots and comparisons:

    measured = measure_loop(loader, load_times_s, step_times_s)
    predicted = run_loop(loader, load_times_s, step_times_s)
    measured.idle_share, predicted.idle_share

Cost: the seconds of the loop; a process for each worker.
Source: torch 2.13, `torch.utils.data.DataLoader`. A sleep lasts at least as long as asked.
Simplified: no device and so no copies: the loop takes its place, and always waits for the end of its step. All
processes have one clock (CLOCK_MONOTONIC).
"""

import time
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lablib.data.loading.loaded_run import BatchTimes, LoadedRun
from lablib.data.loading.loader import Loader
from lablib.data.loading.loader_timeline import batches_per_epoch
from lablib.signature import Count, NonNegative, checked


class SleepyBatches(Dataset[Tensor]):
    """Batches that take a given time to load. One is (worker, second its load began, second it ended)."""

    def __init__(self, load_times_s: Sequence[float]):
        self._load_times_s = load_times_s

    def __len__(self) -> int:
        return len(self._load_times_s)

    def __getitem__(self, number: int) -> Float64[Tensor, " 3"]:
        start_s = time.monotonic()
        time.sleep(self._load_times_s[number])
        info = get_worker_info()
        return torch.tensor([info.id if info else -1, start_s, time.monotonic()], dtype=torch.float64, device="cpu")


@checked
def measure_loop(
    loader: Loader, load_times_s: Sequence[NonNegative], step_times_s: Sequence[NonNegative], epochs: Count = 1
) -> LoadedRun:
    """The loop with torch's DataLoader, timed.

    Arguments:
        loader: workers, prefetch, keeps_order and persistent count; `start_s` is measured.
        load_times_s, step_times_s: seconds of each batch of all epochs, as for `run_loop`; load times are equal in all
            epochs, as a data set does not know the epoch.

    Raises ValueError: a copy to a device, or times that do not fit the epochs.
    """
    if loader.copy_s:
        raise ValueError(f"no copy to a device is measured: got batch_bytes of {loader.batch_bytes}; try 0.0.")
    size = batches_per_epoch(load_times_s, step_times_s, epochs)
    if list(load_times_s) != list(load_times_s[:size]) * epochs:
        raise ValueError("every epoch must have the load times of the first: got others; try times * epochs.")
    with_workers = {"prefetch_factor": loader.prefetch, "persistent_workers": loader.persistent}
    batches = DataLoader(
        SleepyBatches(load_times_s[:size]),
        batch_size=None,  # an item is a batch
        num_workers=loader.workers,
        in_order=loader.keeps_order,
        **(with_workers if loader.workers else {}),
    )
    origin_s = time.monotonic()
    begins, times = [], []
    for epoch in range(epochs):
        begins.append(time.monotonic() - origin_s)
        for number, loaded in enumerate(batches):
            start_s = time.monotonic()
            time.sleep(step_times_s[epoch * size + number])
            worker, *load = loaded.tolist()
            seconds = (*load, start_s, start_s, start_s, time.monotonic())  # there is no copy
            times.append(BatchTimes(int(worker), *(second - origin_s for second in seconds)))
    return LoadedRun(loader, tuple(times), _starts(loader, begins, times, size))


def _starts(
    loader: Loader, begins: Sequence[float], times: Sequence[BatchTimes], size: int
) -> tuple[tuple[float, float], ...]:
    """From each start of new workers until the first of them loads."""
    if not loader.workers:
        return ()
    epochs = range(1 if loader.persistent else len(begins))
    firsts = [min(batch.load_start_s for batch in times[epoch * size : (epoch + 1) * size]) for epoch in epochs]
    return tuple(zip(begins, firsts, strict=False))
