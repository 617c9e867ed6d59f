"""The allocations of one rank as they begin and end, in columns, and the current and peak bytes."""

import itertools
from array import array
from collections.abc import Sequence

import numpy as np

from lablib.record.allocations import NEVER, Allocations
from lablib.sim.ranks.rank import Rank


class AllocationLog:
    """Allocations of one rank, by their numbers: 0, 1, 2, ...

    `rank`: the rank; its clock is read at each event.

    Attributes:
        category: category of each allocation, as a position in CATEGORIES.
        held_bytes: bytes of the allocations that have not ended.
        peak_bytes: its maximum, since the start or since the rank reset the peak.
    """

    def __init__(self, rank: Rank):
        self._rank = rank
        self._events = itertools.count(1)  # several threads may end an allocation: its `next` is atomic
        self._end_of_rank_s: float | None = None
        self.held_bytes = self.peak_bytes = 0
        self.category, self._label = array("B"), array("i")
        self._size, self._start_event, self._end_event = array("q"), array("q"), array("q")
        self._start_s, self._end_s = array("d"), array("d")

    def begin(self, size_bytes: int, category: int, label: int) -> int:
        """Add an allocation. Returns its number."""
        self.category.append(category)
        self._label.append(label)
        self._size.append(size_bytes)
        self._start_s.append(self._rank.clock_s)
        self._end_s.append(0.0)
        self._start_event.append(next(self._events))
        self._end_event.append(NEVER)
        self.held_bytes = held = self.held_bytes + size_bytes
        if held > self.peak_bytes:
            self.peak_bytes = held
        return len(self._size) - 1

    def end(self, allocation: int) -> None:
        """End an allocation; ignored after the end of its rank."""
        if self._end_event[allocation] == NEVER and self._end_of_rank_s is None:
            self._end_event[allocation] = next(self._events)
            self._end_s[allocation] = self._rank.clock_s
            self.held_bytes -= self._size[allocation]

    def size_bytes(self, allocation: int) -> int:
        """The size of an allocation; 0 once it has ended."""
        return self._size[allocation] if self._end_event[allocation] == NEVER else 0

    def leave(self) -> None:
        """End the log with the rank."""
        self._end_of_rank_s = self._rank.clock_s

    def allocations(self, labels: Sequence[tuple[str, str, str]]) -> Allocations:
        """All allocations; open ones end with their rank, or now."""
        end_event = np.array(self._end_event)
        now_s = self._rank.clock_s if self._end_of_rank_s is None else self._end_of_rank_s
        # Copies: an array with a numpy view cannot grow, and the rank may still be running.
        columns = {
            "rank": np.full(len(end_event), self._rank.rank),
            "category": np.array(self.category),
            "size_bytes": np.array(self._size),
            "start_s": np.array(self._start_s),
            "end_s": np.where(end_event == NEVER, now_s, np.array(self._end_s)),
            "start_event": np.array(self._start_event),
            "end_event": end_event,
            "label": np.array(self._label),
        }
        return Allocations(columns, labels)
