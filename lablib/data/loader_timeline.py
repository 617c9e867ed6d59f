"""A training loop fed by a loader, as a timeline: who waits for whom, and why the device has nothing to do.

Each batch is ordered, loaded by a worker, taken by the loop, copied to the device, and computed with:

    order of i    when batch i - k P is taken: k workers, P orders each (`prefetch`); the first k P at the start
    load of i     from max(its order, the last load of its worker ends), for L seconds with jitter
    take of i     at max(load of i ends, the loop is back from the batch before)
    copy of i     from max(take of i, the stream is free), for C = bytes / bandwidth seconds
    step of i     from max(copy of i ends, step of i - 1 ends), for S seconds

    worker 0  [load 0 ][load 2 ][load 4 ]            k = 2, L = 2 S: both workers together keep up with the device
    worker 1  [load 1 ][load 3 ][load 5 ]
    compute            [0  ][1  ][2  ][3  ]

Copies. From pageable memory the host waits for the device and then for the copy. From pinned memory the loop goes on,
and the copy is in the stream of compute, or on a stream of its own, issued during the step before.
A gap is the time before a step in which the device does not compute. Every second of it has one cause: workers start;
else the batch is not loaded; else it is not copied.

Cost: a step in steady state, if L, C and S are constant (`steady_step_s`), k >= 1:
    pageable, or pinned in the stream of compute   max(S + C, L / k)
    pinned on a stream of its own                  max(S, C, L / k)
    no workers, pageable, the loss read            S + C + L
`prefetch` is not in it: it only hides jitter, at k P batches of host memory.
Source: torch 2.13, `torch/utils/data/dataloader.py`: `_try_put_index` gives orders to workers in turn, one for each
batch that is taken. Copies: NVIDIA, CUDA Runtime API, "API synchronization behavior".
Simplified: workers do not slow each other down; pinning (a copy in the host's memory) is part of L; the loop is at most
one step ahead of the device where it does not read the loss. Workers start side by side, each in `start_s`. Without
order, the next free worker takes the next order; torch gives it to the next worker in turn that has room.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from lablib.record.timeline import Span, Timeline
from lablib.signature import check_fields, checked


class Copy(Enum):
    """How a batch gets from the host's memory to the device's."""

    PAGEABLE = "pageable"
    PINNED = "pinned, in the stream of compute"
    OWN_STREAM = "pinned, on a stream of its own"


class Jitter(Enum):
    """How times spread around their mean."""

    NONE = "none"
    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"


class Cause(Enum):
    """Why the device does not compute."""

    START = "workers start"
    LOAD = "batch not loaded"
    COPY = "batch not copied"


@dataclass(frozen=True, slots=True)
class Loader:
    """How batches get to the device.

    Attributes:
        workers: processes that load; 0: the loop loads by itself.
        prefetch: orders that each worker has at most, batches loaded and not taken included (torch's prefetch_factor).
        keeps_order: batches are taken in the order of their numbers; else the first that is loaded.
        persistent: workers live from one epoch to the next.
        start_s: seconds until a new worker begins its first load.
        copy: from which memory, on which stream.
        batch_bytes: bytes of a batch.
        copy_bytes_per_s: bandwidth between host and device.
        reads_loss: the loop waits for the end of each step (`loss.item()`); else it is one step ahead.
    """

    workers: int = 0
    prefetch: int = 2
    keeps_order: bool = True
    persistent: bool = False
    start_s: float = 0.0
    copy: Copy = Copy.PAGEABLE
    batch_bytes: float = 0.0
    copy_bytes_per_s: float = 25e9
    reads_loss: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.workers < 0 or self.prefetch < 1:
            raise ValueError(
                "a loader needs workers >= 0 and prefetch >= 1 order for each: "
                f"got {self.workers} and {self.prefetch}; try 2 and 2."
            )
        if not (0 <= self.start_s < math.inf and 0 <= self.batch_bytes < math.inf and self.copy_bytes_per_s > 0):
            raise ValueError(
                "start_s and batch_bytes must be finite and at least 0, copy_bytes_per_s above 0: "
                f"got {self.start_s}, {self.batch_bytes} and {self.copy_bytes_per_s}."
            )

    @property
    def copy_s(self) -> float:
        """Seconds C to copy a batch."""
        return self.batch_bytes / self.copy_bytes_per_s


class BatchTimes(NamedTuple):
    """When one batch was where, in seconds. `worker` is -1 for the loop itself."""

    worker: int
    load_start_s: float
    load_end_s: float
    copy_start_s: float
    copy_end_s: float
    step_start_s: float
    step_end_s: float


class Gap(NamedTuple):
    """Seconds before the step of a batch in which the device did not compute, for one cause."""

    batch: int
    cause: Cause
    start_s: float
    end_s: float


@dataclass(frozen=True)
class LoadedRun:
    """What the loop did.

    Attributes:
        loader: its settings.
        batches: in the order in which they were computed with.
        starts: (first, last) second in which new workers started, epoch by epoch.
    """

    loader: Loader
    batches: tuple[BatchTimes, ...]
    starts: tuple[tuple[float, float], ...] = ()

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the first epoch to the end of the last step."""
        return self.batches[-1].step_end_s

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """Every second in which the device did not compute, by its cause."""
        return tuple(gap for number, before_s in enumerate(self._ends_s()) for gap in self._gaps(number, before_s))

    def _ends_s(self) -> Iterator[float]:
        """When the step before each batch's ended."""
        yield 0.0
        yield from (batch.step_end_s for batch in self.batches[:-1])

    def _gaps(self, number: int, start_s: float) -> Iterator[Gap]:
        batch = self.batches[number]
        started_s = max((end_s for first_s, end_s in self.starts if first_s <= batch.load_start_s), default=0.0)
        edges = [start_s]
        for edge_s in (started_s, batch.load_end_s, batch.step_start_s):
            edges.append(min(max(edge_s, edges[-1]), batch.step_start_s))
        for cause, (first_s, last_s) in zip(Cause, pairwise(edges), strict=True):
            if first_s < last_s:
                yield Gap(number, cause, first_s, last_s)

    @property
    def idle_share(self) -> float:
        """Part of all seconds in which the device did not compute, in [0, 1]."""
        return self._idle_share(0, 0.0)

    def idle_share_from(self, batch: int) -> float:
        """The same from the start of the step of `batch` on; 0 leaves out the wait for the first batch.

        Raises:
            ValueError: the run has no such batch.
        """
        if not 0 <= batch < len(self.batches):
            raise ValueError(f"batch must be from 0 to {len(self.batches) - 1}: got {batch}.")
        return self._idle_share(batch, self.batches[batch].step_start_s)

    def _idle_share(self, batch: int, first_s: float) -> float:
        busy_s = math.fsum(one.step_end_s - one.step_start_s for one in self.batches[batch:])
        total_s = self.makespan_s - first_s
        return max(0.0, 1 - busy_s / total_s) if total_s else 0.0

    def idle_s(self, cause: Cause) -> float:
        """Seconds in which the device did not compute for this cause."""
        return math.fsum(gap.end_s - gap.start_s for gap in self.gaps if gap.cause is cause)

    @cached_property
    def timeline(self) -> Timeline:
        """The run as spans of rank 0, on the streams "compute", "comm:copy" and "loader 0", "loader 1", ..."""
        spans = []
        for number, batch in enumerate(self.batches):
            spans.append(Span(0, "compute", f"step {number}", "compute", batch.step_start_s, batch.step_end_s))
            if self.loader.copy_s:
                start_s, end_s, size_bytes = batch.copy_start_s, batch.copy_end_s, self.loader.batch_bytes
                spans.append(Span(0, "comm:copy", "copy", "copy", start_s, end_s, size_bytes=size_bytes))
            spans.append(Span(0, loader_stream(batch.worker), "load", "load", batch.load_start_s, batch.load_end_s))
        for start_s, end_s in self.starts:
            if start_s < end_s:
                for worker in range(self.loader.workers):
                    spans.append(Span(0, loader_stream(worker), "start", "start", start_s, end_s))
        return Timeline.of(spans, 1)


def loader_stream(worker: int) -> str:
    """The stream of a worker; -1 is the loop itself."""
    return f"loader {worker}" if worker >= 0 else "loop"


@checked
def draw_times(
    mean_s: float, num: int, jitter: Jitter = Jitter.NONE, spread: float = 0.5, seed: int = 0
) -> list[float]:
    """Times with this mean, in seconds.

    Arguments:
        mean_s: at least 0.
        num: how many.
        jitter: their distribution.
        spread: of a lognormal one, the standard deviation over the mean; that of an exponential one is 1.
        seed: of the draw; one seed is one list, and the first of a longer one.

    Raises:
        ValueError: a mean or a spread below 0 or endless, or a negative number of times.
    """
    if not (0 <= mean_s < math.inf and 0 <= spread < math.inf and num >= 0):
        raise ValueError(f"mean_s, spread and num must be at least 0 and finite: got {mean_s}, {spread} and {num}.")
    draw = random.Random(seed)
    if jitter is Jitter.NONE:
        return [float(mean_s)] * num
    if jitter is Jitter.EXPONENTIAL:
        return [mean_s * draw.expovariate(1.0) for _ in range(num)]
    # exp(N(m, v)) has mean exp(m + v / 2) and (deviation / mean)^2 = exp(v) - 1.
    variance = math.log1p(spread**2)
    return [mean_s * draw.lognormvariate(-variance / 2, math.sqrt(variance)) for _ in range(num)]


@checked
def run_loop(
    loader: Loader, load_times_s: Sequence[float], step_times_s: Sequence[float], epochs: int = 1
) -> LoadedRun:
    """The loop over some epochs, event by event.

    Arguments:
        load_times_s: seconds to load each batch, of all epochs one after another.
        step_times_s: seconds of each step, as many.
        epochs: how many epochs these are; each ends before the next begins.

    Raises:
        ValueError: no batch, not one step for each, or batches that are no whole number of epochs.
    """
    num_batches = len(load_times_s)
    if not num_batches or len(step_times_s) != num_batches or epochs < 1 or num_batches % epochs:
        raise ValueError(
            "a loop needs one step for each batch, at least one batch, and as many in each epoch: "
            f"got {num_batches} load times, {len(step_times_s)} step times and {epochs} epochs."
        )
    if not all(0 <= time_s < math.inf for times in (load_times_s, step_times_s) for time_s in times):
        raise ValueError("load and step times must be finite and at least 0 seconds: got another; leave it out.")
    size = num_batches // epochs
    device, starts, begin_s = _Device(loader), [], 0.0
    for first in range(0, num_batches, size):
        is_new = loader.workers > 0 and (first == 0 or not loader.persistent)
        ready_s = begin_s + loader.start_s * is_new
        if is_new and loader.start_s:
            starts.append((begin_s, ready_s))
        workers = _Workers(loader, load_times_s[first : first + size], ready_s)
        begin_s = device.run_epoch(workers, step_times_s[first : first + size], begin_s)
    return LoadedRun(loader, tuple(device.batches), tuple(starts))


class _Workers:
    """The orders of one epoch, and who loads which."""

    def __init__(self, loader: Loader, times_s: Sequence[float], ready_s: float):
        self._loader, self._times_s = loader, times_s
        self._free_s = [ready_s] * loader.workers
        self._ordered = 0
        self._loads: list[tuple[float, int, float, float, int]] = []  # the one to be taken next first
        for _ in range(loader.workers * loader.prefetch):
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
        # Before it takes a batch the loop has waited for the end of the step so many before. On a stream of its own the
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
def steady_step_s(loader: Loader, load_s: float, step_s: float) -> float:
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


@checked
def idle_share(
    load_s: float,
    step_s: float,
    workers: int,
    prefetch: int,
    spread: float = 0.0,
    num_batches: int = 600,
    seed: int = 0,
) -> float:
    """Part of the time in which the device waits for batches, after the first: a run with lognormal loads.

    Arguments:
        load_s: mean seconds of a load; `workers / load_s` batches a second is the loader's rate.
        step_s: seconds of a step.
        workers, prefetch: as of `Loader`.
        spread: of load times, their standard deviation over their mean.
        num_batches, seed: how long the run is, and of its draw.
    """
    jitter = Jitter.LOGNORMAL if spread else Jitter.NONE
    loads_s = draw_times(load_s, num_batches, jitter, spread, seed)
    return run_loop(Loader(workers, prefetch), loads_s, [float(step_s)] * num_batches).idle_share_from(0)


@checked
def smallest_prefetch(
    load_times_s: Sequence[float],
    step_s: float,
    workers: int = 1,
    max_idle_share: float = 0.0,
    max_prefetch: int = 1024,
) -> int | None:
    """The least orders a worker with which the device waits no more than this share; None: no number up to the most.

    The wait for the first batch is left out, as nothing hides it. More prefetch never makes a batch later, so the
    search halves the range. One slow load of X seconds among quick ones is hidden by P >= X / (k S): it is ordered when
    the device takes the batch k P before it, and meanwhile the device has k P steps to do.

    Arguments:
        load_times_s: seconds to load each batch, such as a measured trace.
        step_s: seconds S of a step.
        workers: k, at least 1.
        max_idle_share: of the time from the start of the first step on.
        max_prefetch: the most that is tried.

    Raises:
        ValueError: no worker, without which nothing is loaded ahead, or nothing to try.
    """
    if workers < 1 or max_prefetch < 1:
        raise ValueError(
            f"workers and max_prefetch must be at least 1: got {workers} and {max_prefetch}; without a worker nothing "
            "is loaded ahead."
        )
    steps_s = [float(step_s)] * len(load_times_s)

    def is_enough(prefetch: int) -> bool:
        run = run_loop(Loader(workers=workers, prefetch=prefetch), load_times_s, steps_s)
        return run.idle_share_from(0) <= max_idle_share + 1e-9  # sums of times are off by roundings

    if not is_enough(max_prefetch):
        return None
    too_few, enough = 0, max_prefetch
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough
