"""The `Work` handle of a communication: `wait` gives up the turn, then joins the streams.

Waiting has two steps (lablib/engine/communication.py). The *data* is available when the last rank has joined; until
then `wait` lets other ranks run. The *end* is final when no rank can change it; `wait` moves this rank's clock to it.
Only then are the rank's buffers filled (delivery.py).

A future (`get_future`) is returned once the data is available, without moving the clock: later work of the program
overlaps with the transfer; the future's `wait`, and the first operation that touches the result, join the streams
(pending.py). Callbacks of the future run on a separate stream (future.py).

Simplified: torch waits for a future outside Python, where no other rank could have a turn, so futures return only when
done, and buffers are filled when it is. A rank that takes the future of a call, and only then sends a message that
others need in order to join it, gets a deadlock error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.engine.communication import Communication
from lablib.sim.communication.future import SimFuture
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.turns import Turns
from lablib.sim.source import Here, ProgramLine, program_line


@dataclass(slots=True, eq=False)
class IssuedWork:
    """A communication that one rank has issued."""

    event: Communication  # the communication, shared by all participants
    member: int  # this rank's number in it (delivery.py)
    source: ProgramLine
    is_own: bool  # whether the program made the call; torch drops its own handles when it knows that they have ended
    blocks: bool = False  # whether the call waits before it returns, so that this rank does nothing in between


class SimWork(dist.Work):
    """Work of one rank: one or several communications (several after coalescing).

    `results`: tensors that they write on this rank. `is_barrier`: whether the host waits for it, not only its stream.
    """

    def __init__(self, rank: Rank, turns: Turns, issued: Sequence[IssuedWork], results: Sequence[Tensor]):
        super().__init__()
        self._rank = rank
        self._turns = turns
        self.issued = list(issued)
        self.results = list(results)
        self.is_barrier = False
        self._polled_at_s: float | None = None

    def wait(self, timeout: Any = None) -> bool:
        self._turns.check(self._rank.rank)
        for issued in self.issued:
            self._wait_for(issued, joins=True)
            self._rank.join(issued.event.end_s)
        if self.is_barrier:
            self._rank.host_waits()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended in virtual time.

        A poll takes no time, so a loop of polls would never see the end: its second poll returns True. A single poll of
        an unfinished communication returns False, as on real processes.
        """
        self._turns.check(self._rank.rank)
        for issued in self.issued:
            if not issued.event.has_data:
                # Give the others a turn: only they can complete it.
                self._turns.poll(partial(issued.event.describe, self._rank.rank, program_line(), "polls for"))
        if not self.is_success():
            return False
        if not all(issued.event.is_final for issued in self.issued):
            self._turns.yield_turn(self._rank.clock_s)  # the end is known when all ranks have come this far
        if not self.is_over() and self._polled_at_s != self._rank.clock_s:
            self._polled_at_s = self._rank.clock_s
            return False
        # A poll that succeeds has seen the end of the communication.
        return self.wait()

    def is_success(self) -> bool:
        return all(issued.event.has_data for issued in self.issued)

    def is_over(self) -> bool:
        """Whether `wait` would return at once in virtual time."""
        events = [issued.event for issued in self.issued]
        return all(event.is_final and event.end_s <= self._rank.clock_s for event in events)

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        self._turns.check(self._rank.rank)
        for issued in self.issued:
            self._wait_for(issued, joins=False)
        if not self.is_over():
            # Without the results, which would keep a dropped tensor alive.
            end = SimWork(self._rank, self._turns, self.issued, [])
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
        """Group rank of the sender matched by a `recv` from any source."""
        return getattr(self.issued[0].event, "matched", -1)

    def get_future(self) -> torch.futures.Future:
        value = self.result()
        return SimFuture(self._rank, SimWork(self._rank, self._turns, self.issued, []), value)

    def _wait_for(self, issued: IssuedWork, joins: bool) -> None:
        """Let others run until the data is available (or, to join, until the end is final). Then fill the buffers."""
        event, rank = issued.event, self._rank
        is_unwaited = issued in rank.unwaited
        if rank.in_flight is not None:
            rank.in_flight.waited_again = not (is_unwaited or issued.blocks)
            if is_unwaited:
                rank.in_flight.remove(issued)
        event.payload.waiting.add(issued.member)
        if not (event.is_final if joins else event.has_data):
            (event.end_waiters if joins else event.data_waiters).append(rank.rank)
            self._turns.wait(partial(event.describe, rank.rank, Here()), joins)
        self._turns.check()
        if issued.member in event.payload.owed:
            event.payload.fill(issued.member)
        if is_unwaited:
            rank.unwaited.pop(issued, None)
