"""Busy intervals of a port, the end of a link, which carries one message at a time.

Ranks run one after another, so a message is often planned later than one that travels after it in virtual time. A port
therefore keeps its busy intervals, and a message takes the first gap that is long enough instead of the end of a queue:

    busy          |####|      |######|
    new message      |--wait--|         does not fit before it is ready
                       |==|             fits here
"""

from bisect import bisect_left, bisect_right


class Port:
    """The busy intervals of one output or input: sorted, disjoint, and merged where they touch."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def first_gap(self, from_s: float, time_s: float) -> float:
        """The earliest start, at `from_s` or later, of `time_s` seconds in which the port is free."""
        i = bisect_right(self._ends, from_s)
        while i < len(self._starts) and self._starts[i] < from_s + time_s:
            from_s = self._ends[i]
            i += 1
        return from_s

    def occupy(self, start_s: float, end_s: float) -> None:
        """Mark an interval as busy."""
        first, last = bisect_left(self._ends, start_s), bisect_right(self._starts, end_s)
        if first < last:  # it touches earlier or later busy intervals
            start_s, end_s = min(start_s, self._starts[first]), max(end_s, self._ends[last - 1])
        self._starts[first:last] = [start_s]
        self._ends[first:last] = [end_s]


def first_common_gap(a: Port, b: Port, from_s: float, time_s: float) -> float:
    """The earliest start of `time_s` seconds in which both ports are free."""
    while True:
        start_s = b.first_gap(a.first_gap(from_s, time_s), time_s)
        if a.first_gap(start_s, time_s) == start_s:
            return start_s
        from_s = start_s
