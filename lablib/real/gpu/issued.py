"""Match profiler events to recorded calls: the calls of each thread in order."""

from collections import defaultdict, deque
from collections.abc import Iterable

from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import Event


class Issued:
    """The calls of one rank not yet matched to a profiler event.

    Args:
        calls: in the order in which they were made.
    """

    def __init__(self, calls: Iterable[Call]):
        self._queues: dict[tuple[int, str], deque[Call]] = defaultdict(deque)
        for call in calls:
            self._queues[call.thread, "c10d::" + call.op].append(call)

    def next(self, event: Event, phase: str) -> Call | None:
        """The call of a `c10d::` event, with its phase and issue time filled in; None if it was not recorded."""
        queue = self._queues.get((event.thread, event.name))
        if not queue:
            return None
        call = queue.popleft()
        call.phase, call.start_ns = phase, event.start_ns
        return call
