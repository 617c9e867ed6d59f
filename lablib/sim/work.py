"""The handle of a communication under way: `wait` gives up the turn until it is done, then joins the streams.

Waiting has two sides. The *data* is there when the last rank has joined; until then `wait` lets other ranks run. The
*time* is the virtual end of the communication; `wait` moves this rank's clock to it. A future (`get_future`) is handed
out once the data is there, without moving the clock: what the program does meanwhile overlaps; the first operation
that touches the result joins the streams (rank.pending).

Simplified: torch waits for a future outside Python, where no other rank could have a turn, so none is handed out early.
A rank that takes the future of a call, and only then sends what others need in order to join it, is told a deadlock.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.sim.rank import Rank
from lablib.sim.scheduler import Scheduler
from lablib.sim.source import Source, program_line


class Event(Protocol):
    """What can be waited for: a call, or a posted message."""

    is_done: bool
    end_s: float
    waiters: list[int]

    def describe(self, rank: int, source: Source, verb: str = ...) -> Any: ...


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
        self._wait_for_data(joins=True)
        for event in self.events:
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
            self._rank.join(max(event.end_s for event in self.events))
        return is_completed

    def is_success(self) -> bool:
        return all(event.is_done for event in self.events)

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        self._wait_for_data()
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
        self._wait_for_data()
        end_s = max((event.end_s for event in self.events), default=0.0)
        for tensor in self.results:
            storage = tensor.untyped_storage()._cdata
            self._rank.pending[storage] = max(end_s, self._rank.pending.get(storage, 0.0))
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self.results)
        return future

    def _wait_for_data(self, joins: bool = False) -> None:
        for event in self.events:
            if not event.is_done:
                event.waiters.append(self._rank.rank)
                self._scheduler.wait(event.describe(self._rank.rank, program_line()), joins)
            self._scheduler.check()
