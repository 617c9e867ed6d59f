"""Deterministic scheduler of ranks in the order of virtual time, with deadlock detection.

A rank runs until it must wait (a collective, a receive, a barrier). Then the runnable rank with the smallest virtual
clock runs, ties to the lowest rank. If a network event comes before that clock (network.py), the event is processed
first: a rank that runs later can only start transfers after it. Consequences:

    deterministic    the order depends only on the program, not on the host
    no locks         only one rank's code runs at a time
    deadlock seen    no runnable rank and not all finished *is* a deadlock

A rank that polls (`while not work.is_completed()`) also gives up its turn. When all remaining ranks poll, no poll can
come true, and that is a deadlock as well.

This file runs no rank and blocks no thread. The host of the ranks reports the actions of the current one (`wait`,
`poll`, `yield_turn`, `finish`), asks for the `next`, and runs it: threads that pass a baton
(lablib/sim/ranks/turns.py), or processes that send a request and read the answer at their turn.
"""

import heapq
from collections.abc import Callable, Sequence
from math import inf

from lablib.engine.network import Network
from lablib.engine.rank_clock import RankClock
from lablib.errors import Wait
from lablib.text.units import plural

_AT_ONCE, _YIELDING = 0, 1  # at equal clocks: ranks that continue, then those that yield
_MAX_IDLE_POLLS = 10_000  # consecutive polls without progress that count as a deadlock


class _RankState:
    __slots__ = ("clock", "has_finished", "is_polling", "joins", "time_is_up", "until_s", "waiting")

    def __init__(self, clock: RankClock):
        self.clock = clock
        self.waiting: Callable[[], Wait] | None = None
        self.until_s = inf
        self.time_is_up = False
        self.is_polling = False
        self.joins = True
        self.has_finished = False


class Scheduler:
    """The order of the ranks of one run. At first all are runnable, and no rank has the turn.

    `clocks`: one for each rank, in rank order. `current`: the rank that has the turn; -1 before the first.
    """

    def __init__(self, clocks: Sequence[RankClock], network: Network):
        self._network = network
        self._states = {clock.rank: _RankState(clock) for clock in clocks}
        # A heap of (virtual clock, order, rank). Polling ranks come last, in the order of their polls.
        self._runnable = [(clock.clock_s, _AT_ONCE, clock.rank) for clock in clocks]
        heapq.heapify(self._runnable)
        self._num_polls = _YIELDING
        self._num_bystanders = 0  # ranks that wait for data and keep their own clock, perhaps an early one
        self._num_idle_polls = 0
        self._num_patient = 0  # ranks that wait with a timeout
        self.current: int = -1

    # ---- actions of the current rank: each ends its turn ----

    def wait(self, describe: Callable[[], Wait], joins: bool = True) -> None:
        """Wait until `wake_up` is called for this rank.

        Args:
            describe: describes the wait, for a deadlock error.
            joins: whether the rank's clock moves to the end of the wait.
        """
        state = self._states[self.current]
        state.waiting, state.joins = describe, joins
        self._num_bystanders += not joins

    def poll(self, describe: Callable[[], Wait], until_s: float = inf) -> bool:
        """Continue when every other runnable rank has had a turn.

        Args:
            describe: describes the wait, for a deadlock error.
            until_s: virtual time of the rank's timeout. See `time_is_up`.

        Returns False if the poll can never come true: all ranks have only polled for long.
        """
        state = self._states[self.current]
        self._num_polls += 1
        self._num_idle_polls += 1
        state.waiting, state.is_polling, state.until_s, state.time_is_up = describe, True, until_s, False
        if self._num_idle_polls > _MAX_IDLE_POLLS and all(self._states[rank].is_polling for *_, rank in self._runnable):
            return False
        last_clock_s = max((clock_s for clock_s, *_ in self._runnable), default=0.0)
        heapq.heappush(self._runnable, (max(state.clock.clock_s, last_clock_s), self._num_polls, state.clock.rank))
        self._num_patient += until_s < inf
        return True

    def yield_turn(self, at_s: float) -> None:
        """Continue when every rank has run as far as it can before `at_s`."""
        heapq.heappush(self._runnable, (at_s, _YIELDING, self.current))

    def finish(self) -> None:
        """Mark the current rank as finished."""
        self._states[self.current].has_finished = True

    # ---- effects on other ranks ----

    def wake_up(self, rank: int, at_s: float = 0.0) -> None:
        """Make a waiting rank runnable. The caller keeps the turn.

        `at_s`: virtual end of the wait; a rank that joins it continues with that clock.
        """
        state = self._states[rank]
        clock_s = max(state.clock.clock_s, at_s) if state.joins else state.clock.clock_s
        heapq.heappush(self._runnable, (clock_s, _AT_ONCE, rank))

    def progress(self) -> None:
        """Reset the count of idle polls: a polling rank may see a change."""
        self._num_idle_polls = 0

    # ---- the next rank ----

    def next(self) -> int | None:
        """Advance virtual time and give the turn to the next rank. None: all have finished or wait."""
        self._pass_time()
        if not self._runnable:
            return None
        self.current = rank = heapq.heappop(self._runnable)[2]
        state = self._states[rank]
        if state.waiting is not None:
            self._stop_waiting(state)
        return rank

    def _stop_waiting(self, state: _RankState) -> None:
        if not state.is_polling:
            self._num_bystanders -= not state.joins
        elif state.until_s < inf or state.time_is_up:
            self._num_patient -= 1
        state.waiting, state.is_polling, state.until_s = None, False, inf

    def time_is_up(self, until_s: float) -> bool:
        """Whether the running rank continues because its poll has timed out at `until_s`.

        No rank can then act before that time, and the rank's clock is moved there.
        """
        state = self._states[self.current]
        if state.time_is_up:
            state.clock.clock_s = max(state.clock.clock_s, until_s)
        return state.time_is_up

    @property
    def is_over(self) -> bool:
        """Whether all ranks have finished."""
        return all(state.has_finished for state in self._states.values())

    def clock_s(self, rank: int) -> float:
        """Virtual time that a rank has reached."""
        return self._states[rank].clock.clock_s

    # ---- virtual time ----

    def _pass_time(self) -> None:
        """Process the network events that no rank can change any more, and the timeouts of polls."""
        while True:
            next_s = self._network.next_s if self._network.events else None
            until_s = min(state.until_s for state in self._states.values()) if self._num_patient else inf
            if until_s < inf and until_s <= (inf if next_s is None else next_s):
                if self._is_hopeless(until_s):
                    self._give_up_waiting(next(state for state in self._states.values() if state.until_s == until_s))
                return
            if next_s is None or not self._is_settled(next_s):
                return
            self._network.advance()

    def _is_hopeless(self, at_s: float) -> bool:
        """Whether no rank can act before `at_s` in a way that a poll with that timeout would see."""
        busy = [clock_s for clock_s, order, _ in self._runnable if order <= _YIELDING]
        have_looked = self._num_idle_polls >= len(self._runnable) - len(busy)
        return have_looked and (not busy or (min(busy) >= at_s and not self._num_bystanders))

    def _give_up_waiting(self, state: _RankState) -> None:
        """Time out a poll: the rank goes on at that time, before all polling ranks."""
        self._runnable = [entry for entry in self._runnable if entry[2] != state.clock.rank]
        heapq.heapify(self._runnable)
        heapq.heappush(self._runnable, (state.until_s, _AT_ONCE, state.clock.rank))
        state.until_s, state.time_is_up = inf, True

    def _is_settled(self, at_s: float) -> bool:
        """Whether no rank can start a transfer before `at_s`, or none can before this event is processed."""
        if not self._runnable:
            return True
        clock_s, order, _ = self._runnable[0]
        if order > _YIELDING:
            return self._num_idle_polls >= len(self._runnable)  # all have polled without progress
        in_time = at_s < clock_s if self._network.lets_ranks_go_first else at_s <= clock_s
        return in_time and not self._num_bystanders

    # ---- deadlock ----

    def stuck(self) -> tuple[str, list[Wait]]:
        """Describe a deadlock: a headline, and the wait of each rank."""
        waits = []
        for rank, state in self._states.items():
            if state.waiting is not None:
                waits.append(state.waiting())
            elif state.has_finished:
                waits.append(Wait(rank, "has finished"))
        num_stuck = sum(not state.has_finished for state in self._states.values())
        finished = len(self._states) - num_stuck
        headline = f"{num_stuck} of {plural(len(self._states), 'ranks')} {'waits' if num_stuck == 1 else 'wait'} "
        headline += "and none can go on"
        return headline + (f"; {finished} returned without joining them" if finished else ""), waits
