"""Processor cores of one node, shared by ranks that are processes: more ranks than cores take turns.

A rank that computes needs a core. So does a communication between processes: with gloo the processor moves the bytes
and wakes the threads, and that core computes nothing in that time. New work takes the free time of the core that
finishes it first:

    core 0     |aaaaaa|bbbb|
    core 1     |ccccc|  |ddd|
    new work         |==|   |==|                  4 units on core 1: done before core 0 is free for as long

Four ranks that compute w seconds each on two cores are done after 2 w, as under any scheduler that leaves no core idle
while work is ready.

Cost: the total time is at least (all work) / (number of cores), and at least the work of any one rank.
Source: R. L. Graham, "Bounds for certain multiprocessing anomalies", Bell System Technical Journal 45 (1966): list
scheduling. Measured: an all_reduce of gloo keeps one core busy per rank (benchmarks/reconcile/README.md).
Simplified: the engine runs one rank until it must wait, so a rank keeps its core that long; an operating system
switches after some milliseconds. A switch costs nothing. Work that is split by a gap stays on its core.
"""

from bisect import bisect_right

from lablib.engine.port import Port


class Cores:
    """The cores of one node and their busy intervals.

    Arguments:
        count: number of cores, 1 or more.
        ranks: number of ranks that share them.
    """

    def __init__(self, count: int, ranks: int = 1):
        if count < 1:
            raise ValueError(f"a node has 1 core or more: got {count}; give 1")
        self.count, self.ranks = count, ranks
        self._cores = [_Core() for _ in range(count)]

    def work(self, start_s: float, work_s: float) -> float:
        """Occupy a core for `work_s` seconds of work that is ready at `start_s`. Returns the end time."""
        if not work_s > 0:
            return start_s
        core = min(self._cores, key=lambda one: one.end_s(start_s, work_s))
        end_s = core.end_s(start_s, work_s)
        core.occupy(start_s, end_s)  # leaves no gap in between
        return end_s

    def work_together(self, start_s: float, work_s: float, processes: int) -> float:
        """Occupy as many cores as there are, at most one per process, for `work_s` seconds each. Returns the end."""
        return max(self.work(start_s, work_s) for _ in range(min(processes, self.count)))

    def message(self, start_s: float, time_s: float) -> float:
        """Occupy a share of the cores for a message that takes `time_s` when all ranks send. Returns its end time."""
        return max(start_s + time_s, self.work(start_s, time_s * min(1.0, self.count / self.ranks)))


class _Core(Port):
    """One core: a port (busy intervals) in which work may be split over several gaps."""

    def end_s(self, start_s: float, work_s: float) -> float:
        """End time of work that fills all gaps from `start_s` on."""
        i = bisect_right(self._ends, start_s)
        while i < len(self._starts):
            gap_s = max(0.0, self._starts[i] - start_s)
            if work_s <= gap_s:
                break
            work_s -= gap_s
            start_s = self._ends[i]
            i += 1
        return start_s + work_s
