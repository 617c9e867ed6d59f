"""The processor cores of one node, where its ranks are processes that share them: more ranks than cores take turns.

A rank that computes needs a core. So does a communication of processes: gloo's bytes are moved, and its threads woken,
by the processor, and while it does that nobody computes on that core. Work that is ready takes what is left of the core
on which it is done first:

    core 0     |aaaaaa|bbbb|
    core 1     |ccccc|  |ddd|
    new work         |==|   |==|                  4 units on core 1: done before core 0 is free for as long

Four ranks that compute w seconds each on two cores are done after 2 w, as under any scheduler that leaves no core idle
while somebody could use it; and so is everybody who waits for them.

Cost: the time that all of it takes is at least (all work) / (number of cores), and at least what one rank needs.
Source: R. L. Graham, "Bounds for certain multiprocessing anomalies", Bell System Technical Journal 45 (1966): list
scheduling. That an all_reduce of gloo keeps a core busy for each of its ranks was measured:
benchmarks/reconcile/README.md.
Simplified: the engine runs one rank until it must wait, so a rank keeps its core that long, where an operating system
changes after some milliseconds; a change costs nothing; of work that is cut by a gap no part changes its core.
"""

from bisect import bisect_right

from lablib.engine.port import Port


class Cores:
    """The cores of one node and when they are busy.

    Arguments:
        count: how many, 1 or more.
        ranks: how many share them.
    """

    def __init__(self, count: int, ranks: int = 1):
        if count < 1:
            raise ValueError(f"a node has 1 core or more: got {count}; give 1")
        self.count, self.ranks = count, ranks
        self._cores = [_Core() for _ in range(count)]

    def work(self, start_s: float, work_s: float) -> float:
        """Take a core for `work_s` seconds of work that is ready at `start_s`. Returns when it is done."""
        if not work_s > 0:
            return start_s
        core = min(self._cores, key=lambda one: one.end_s(start_s, work_s))
        end_s = core.end_s(start_s, work_s)
        core.occupy(start_s, end_s)  # it leaves no gap in between
        return end_s

    def work_together(self, start_s: float, work_s: float, processes: int) -> float:
        """`work_s` seconds of as many cores as there are, one a process at most. Returns when the last is done."""
        return max(self.work(start_s, work_s) for _ in range(min(processes, self.count)))

    def message(self, start_s: float, time_s: float) -> float:
        """A message that takes `time_s` where all ranks send one: it has its share of the cores. Returns its end."""
        return max(start_s + time_s, self.work(start_s, time_s * min(1.0, self.count / self.ranks)))


class _Core(Port):
    """One core: like a port it remembers when it was busy, but work may be cut into several gaps."""

    def end_s(self, start_s: float, work_s: float) -> float:
        """When work that fills all gaps from `start_s` on is done."""
        i = bisect_right(self._ends, start_s)
        while i < len(self._starts):
            gap_s = max(0.0, self._starts[i] - start_s)
            if work_s <= gap_s:
                break
            work_s -= gap_s
            start_s = self._ends[i]
            i += 1
        return start_s + work_s
