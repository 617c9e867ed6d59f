"""Timeline of a training loop with a loader: the times of each batch, and the cause of each gap of the device.

    gap before step i    from the end of step i - 1 to the start of step i; every second of it has one cause
    cause                workers start, until the first of them can load; then "not loaded", until the batch's load
                         ends; then "not copied"

        step i - 1 ]  workers start  |  not loaded  |  not copied  [ step i

The simulation (loader_timeline.py) and the measurement (measured_loop.py) make the same record.

Cost: seven numbers per batch.
Source: idle time by its cause, as in J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", 2021,
arXiv 2007.06775; its fetch and prep stalls are both "not loaded" here.
Simplified: one device.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from lablib.data.loading.loader import Loader
from lablib.record.timeline import Span, Timeline
from lablib.text.units import format_quantity, plural


class Cause(Enum):
    """Cause of a gap, in which the device does not compute."""

    START = "workers start"
    LOAD = "batch not loaded"
    COPY = "batch not copied"


class BatchTimes(NamedTuple):
    """Times of one batch in seconds. `worker` is -1 for the loop itself."""

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


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A run of the loop."""

    loader: Loader  # its settings
    batches: tuple[BatchTimes, ...]  # in the order in which they were computed with
    starts: tuple[tuple[float, float], ...] = ()  # (first, last) second in which new workers started, epoch by epoch

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the first epoch to the end of the last step."""
        return self.batches[-1].step_end_s

    @property
    def step_time_s(self) -> float:
        """Mean seconds from the start of one step to the start of the next; of a single one, until its end."""
        first, last = self.batches[0], self.batches[-1]
        num = len(self.batches) - 1
        return (last.step_start_s - first.step_start_s) / num if num else first.step_end_s - first.step_start_s

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """Every second in which the device did not compute, by its cause."""
        before_s = [0.0, *(batch.step_end_s for batch in self.batches[:-1])]
        return tuple(gap for number, start_s in enumerate(before_s) for gap in self._gaps(number, start_s))

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
        """Share of all seconds in which the device did not compute, in [0, 1]."""
        return self._idle_share(0, 0.0)

    def idle_share_from(self, batch: int) -> float:
        """The same from the start of the step of `batch` on; 0 leaves out the wait for the first batch."""
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

    def __repr__(self) -> str:
        batches, seconds = plural(len(self.batches), "batches"), format_quantity(self.makespan_s, "s")
        return f"LoadedRun({batches} in {seconds}, the device waits {self.idle_share:.1%} of it)"


def loader_stream(worker: int) -> str:
    """The stream of a worker; -1 is the loop itself."""
    return f"loader {worker}" if worker >= 0 else "loop"
