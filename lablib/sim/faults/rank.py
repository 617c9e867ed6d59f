"""A rank that is slow, starts late, or dies: `SlowRank`, `DelayStart` and `KillRank`.

Slow. A window [from_s, until_s) slows work by `factor`: w healthy seconds of work done inside take w * factor. An
operator that lies across the edge of a window is slowed only for the part of its work that is done inside.

Dead. The rank lives while its clock is below `at_s`. An operator that would end later is cut off there, with its FLOPs
and bytes in proportion. Then the rank's thread waits and is unwound when the run ends: a dead process runs none of its
`finally` blocks, and this one runs them only after all other ranks are done.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NoReturn

from lablib.faults import SlowRank
from lablib.sim.ranks.rank import Rank


class FaultyRank(Rank):
    """A rank with faults.

    Args:
        slow: windows and factors by which its compute is slowed.
        dies_at_s: time of its death; inf: never.
        starts_at_s: start of its clock.
        die: called when it dies; does not return.
    """

    def __init__(
        self, *args: Any, slow: Sequence[SlowRank], dies_at_s: float, starts_at_s: float, die: Callable[[int], NoReturn]
    ):
        super().__init__(*args)
        self.dies_at_s = dies_at_s
        self.clock_s = self.host_s = starts_at_s
        self.slow = tuple(slow)
        self.slow_for_s = [0.0] * len(slow)
        self._die = die

    def start(self) -> None:
        """Called before the program begins, and after each step of the clock: die if the time has come."""
        if self.clock_s >= self.dies_at_s:
            self._die(self.rank)

    def compute(
        self,
        name: str,
        time_s: float,
        flops: float,
        size_bytes: float,
        *more: Any,
        launch_s: float = 0.0,
        **others: Any,
    ) -> None:
        start_s = max(self.clock_s, self.host_s + launch_s)
        if start_s >= self.dies_at_s:  # during the host's launch
            self.clock_s = self.dies_at_s
            self.start()
        work_s = self._slowed_s(time_s - launch_s, start_s)
        left_s = max(self.dies_at_s - start_s, 0.0)
        share = left_s / work_s if work_s > left_s else 1.0
        spent_s = launch_s + min(work_s, left_s)
        super().compute(name, spent_s, flops * share, size_bytes * share, *more, launch_s=launch_s, **others)
        if work_s > left_s:
            self.clock_s = self.dies_at_s  # remove the rounding error of the sum
        self.start()

    def join(self, end_s: float) -> None:
        super().join(end_s)
        self.start()

    def _slowed_s(self, time_s: float, start_s: float) -> float:
        """Seconds that `time_s` of healthy work take from `start_s` on, window by window."""
        if not self.slow or not time_s:
            return time_s
        now_s, work_s, total_s = start_s, time_s, 0.0
        while True:
            factor, edge_s = self._window(now_s)
            room_s = edge_s - now_s
            if work_s * factor <= room_s:
                self._note(now_s, work_s * factor)
                return total_s + work_s * factor
            self._note(now_s, room_s)
            total_s, work_s, now_s = total_s + room_s, work_s - room_s / factor, edge_s

    def _window(self, now_s: float) -> tuple[float, float]:
        """The slowdown factor now, and the end of its validity."""
        factor, edge_s = 1.0, inf
        for fault in self.slow:
            if fault.from_s <= now_s < fault.until_s:
                factor, edge_s = factor * fault.factor, min(edge_s, fault.until_s)
            elif now_s < fault.from_s:
                edge_s = min(edge_s, fault.from_s)
        return factor, edge_s

    def _note(self, now_s: float, time_s: float) -> None:
        for number, fault in enumerate(self.slow):
            if fault.from_s <= now_s < fault.until_s:
                self.slow_for_s[number] += time_s
