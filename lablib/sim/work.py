"""The handle of a communication under way: `wait` gives up the turn until it is over, then joins the streams.

Waiting has two sides (event.py). The *data* is there when the last rank has joined; until then `wait` lets other ranks
run. The *end* is final when virtual time has come so far; `wait` moves this rank's clock to it. A future (`get_future`)
is handed out once the data is there, without moving the clock: what the program does meanwhile overlaps; the first
operation that touches the result joins the streams (pending.py).

Simplified: torch waits for a future outside Python, where no other rank could have a turn, so none is handed out early.
A rank that takes the future of a call, and only then sends what others need in order to join it, is told a deadlock.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.sim.event import Event
from lablib.sim.rank import Rank
from lablib.sim.scheduler import Scheduler
from lablib.sim.source import program_line


class SimWork(dist.Work):
    """Work of one rank: one or several events (several after coalescing).

    Args:
        rank, scheduler: who waits, and how.
        events: what for.
        results: tensors that the communication writes on this rank.
    """

    def __init__(self, rank: Rank, scheduler: Scheduler, events: Sequence[Event], results: Sequence[Tensor]):
        super().__init__()
        self._rank = rank
        self._scheduler = scheduler
        self.events = list(events)
        self.results = list(results)

    def wait(self, timeout: Any = None) -> bool:
        for event in self.events:
            self._wait_for(event, joins=True)
            self._rank.join(event.end_s)
        return True

    def is_completed(self) -> bool:
        self._scheduler.check()
        for event in self.events:
            if not event.is_done:
                # Give the others a turn: what this rank polls for can only be done by them.
                self._scheduler.poll(event.describe(self._rank.rank, program_line(), "polls for"))
        is_completed = all(event.is_done for event in self.events)
        if is_completed and self.events:
            # A poll that succeeds has seen the end of the communication.
            self.wait()
        return is_completed

    def is_success(self) -> bool:
        return all(event.is_done for event in self.events)

    def is_over(self) -> bool:
        """Whether `wait` would return at once, in virtual time too."""
        return all(event.is_final and event.end_s <= self._rank.clock_s for event in self.events)

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        for event in self.events:
            self._wait_for(event, joins=False)
        if not self.is_over():
            # Without the results: what is kept of a tensor that the program drops must not keep it alive.
            end = SimWork(self._rank, self._scheduler, self.events, [])
            for tensor in self.results:
                self._rank.pending.add(tensor, end)
        return self.results

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        """Group rank of the sender that a `recv` from any source met."""
        return getattr(self.events[0], "matched", -1)

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self.result())
        return future

    def _wait_for(self, event: Event, joins: bool) -> None:
        """Let others run until the data is there; or, to join it, until its end is final."""
        if not (event.is_final if joins else event.is_done):
            (event.end_waiters if joins else event.data_waiters).append(self._rank.rank)
            self._scheduler.wait(event.describe(self._rank.rank, program_line()), joins)
        self._scheduler.check()
