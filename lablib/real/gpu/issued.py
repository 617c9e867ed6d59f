"""Which recorded call an event of the profiler is: the calls of each thread, in the order in which they were made."""

from collections import defaultdict, deque
from collections.abc import Iterable

from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import Event


class Issued:
    """The calls of one rank that the profiler's events have not come to yet.

    Args:
        calls: in the order in which they were made.
    """

    def __init__(self, calls: Iterable[Call]):
        self._queues: dict[tuple[int, str], deque[Call]] = defaultdict(deque)
        for call in calls:
            self._queues[call.thread, "c10d::" + call.op].append(call)

    def next(self, event: Event, phase: str) -> Call | None:
        """The call of a `c10d::` event, which learns its phase and when it was issued; None for one nobody recorded."""
        queue = self._queues.get((event.thread, event.name))
        if not queue:
            return None
        call = queue.popleft()
        call.phase, call.start_ns = phase, event.start_ns
        return call
