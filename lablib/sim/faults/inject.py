"""Inject the faults of a launch into a run, and report the run that they end.

A fault acts on the quantity that it disturbs:

    SlowRank, DelayStart, KillRank    the rank's clock           (faults/rank.py)
    SlowLink, DropLink                the cost of a transfer     (faults/network.py)
    CorruptGradient                   the rank's backward        (corruption.py)

A transfer of a rank that dies before its end, or over a link that goes down before its end, never ends: no rank gets an
error, and ranks that wait for it keep waiting. When no rank can go on, the scheduler takes the error from here: the
fault that came first, or a deadlock of the program if no fault stopped anything.

The timeline of such a run continues for a tenth of its length after the last event, to show the endless waits.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import inf
from typing import Any, NoReturn, TypeVar

import numpy as np

from lablib.cost import CollectiveCost, GroupNetwork
from lablib.engine.conditions import Conditions
from lablib.engine.events import Hung
from lablib.engine.group import Group
from lablib.errors import DeadlockError, LaunchError, LinkDownError, RankKilledError, Wait
from lablib.faults import CorruptGradient, DelayStart, DropLink, Fault, KillRank, SlowLink, SlowRank
from lablib.hardware.cluster import Cluster
from lablib.record.phase_path import split
from lablib.record.timeline import WAIT
from lablib.run import Span, Transfer
from lablib.sim.faults.corruption import GradientWatch
from lablib.sim.faults.network import DamagedCluster, FaultyNetwork
from lablib.sim.faults.rank import FaultyRank
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.turns import Turns

AFTERWARDS = 0.1
UNFINISHED = "unfinished"

F = TypeVar("F", bound=Fault)


class Faults(Conditions):
    """The faults of one run and their effects so far."""

    turns: Turns

    def __init__(self, faults: Sequence[Fault], cluster: Cluster):
        self._faults = faults
        self._network = FaultyNetwork(cluster, self._of(SlowLink), self._of(DropLink))
        self._dies_at_s = {fault.rank: fault.at_s for fault in self._of(KillRank)}
        self._dead: set[int] = set()
        self._cut: dict[DropLink, str] = {}  # link -> the first operation that it stopped
        self._ranks: list[FaultyRank] = []
        self._watches: dict[int, GradientWatch] = {}

    @property
    def cluster(self) -> Cluster:
        """The cluster with its slow links."""
        return self._network.cluster

    def _of(self, kind: type[F], rank: int | None = None) -> list[F]:
        return [f for f in self._faults if isinstance(f, kind) and rank in (None, getattr(f, "rank", None))]

    # ---- ranks ----

    def rank(self, number: int, *args: Any) -> Rank:
        """The record of a rank: a `FaultyRank` if it has faults, otherwise a `Rank`."""
        slow, starts = self._of(SlowRank, number), self._of(DelayStart, number)
        if not slow and not starts and number not in self._dies_at_s:
            return Rank(number, *args)
        rank = FaultyRank(
            number,
            *args,
            slow=slow,
            dies_at_s=self._dies_at_s.get(number, inf),
            starts_at_s=starts[0].seconds if starts else 0.0,
            die=self._die,
        )
        self._ranks.append(rank)
        return rank

    def begin(self, rank: Rank) -> AbstractContextManager:
        """Called before the program of a rank begins; the returned context is open until the program ends."""
        if isinstance(rank, FaultyRank):
            rank.start()
        corrupt = self._of(CorruptGradient, rank.rank)
        if not corrupt:
            return nullcontext()
        watch = GradientWatch(corrupt, lambda: self.turns.current == rank.rank)
        self._watches[rank.rank] = watch
        return watch

    def _die(self, rank: int) -> NoReturn:
        """Stop the rank here. Its thread stays until the run ends, as waiting threads do."""
        self._dead.add(rank)
        while True:
            self.turns.wait(lambda: Wait(rank, f"died at {_s(self._dies_at_s[rank])}"))

    # ---- transfers ----

    def cost(self, name: str, size_bytes: float, net: GroupNetwork, root: int = 0) -> CollectiveCost:
        return self._network.cost(name, size_bytes, net, root)

    def exchange_cost(self, size_bytes: np.ndarray, network: GroupNetwork) -> CollectiveCost:
        return self._network.exchange_cost(size_bytes, network)

    def stops(
        self, what: str, name: str, algorithm: str, ranks: tuple[int, ...], root: int, start_s: float, end_s: float
    ) -> str:
        """The reason why a transfer that would end at `end_s` never does, or "". `what` is its name in messages."""
        deaths = [(self._dies_at_s[r], 0, r) for r in ranks if self._dies_at_s.get(r, inf) < end_s]
        cuts = [(link.at_s, 1, link) for link in self._network.needs(name, algorithm, ranks, root) if link.at_s < end_s]
        first = min([*deaths, *cuts], key=lambda stop: stop[:2], default=None)
        if first is None:
            return ""
        at_s, _, culprit = first
        if isinstance(culprit, DropLink):
            self._cut.setdefault(culprit, what)
            return _down(culprit)
        self._dead.add(culprit)
        return f"rank {culprit} died in it"

    # ---- the end ----

    def error_of(self, headline: str, waits: Sequence[Wait]) -> LaunchError:
        """The error for a run in which no rank can go on."""
        if not self._dead and not self._cut:
            return DeadlockError(headline, waits)
        alive = [wait for wait in waits if wait.rank not in self._dead and wait.text != "has finished"]
        waiting = [replace(wait, since_s=self.turns.clock_s(wait.rank)) for wait in alive]
        killed = {rank: self._dies_at_s[rank] for rank in sorted(self._dead)}
        links = sorted(self._cut, key=lambda link: link.at_s)
        dead = sorted(killed.items(), key=lambda item: item[1])
        died = [f"rank {rank} died at {_s(at_s)} (KillRank)" for rank, at_s in dead]
        down = [f"{_down(link)} (DropLink): {self._cut[link]} cannot end" for link in links]
        if links and (not dead or links[0].at_s < dead[0][1]):
            headline = f"{'; '.join(down + died)}; {_who(waiting)}."
            return LinkDownError(headline, (links[0].a, links[0].b), links[0].at_s, self._cut[links[0]], waiting)
        return RankKilledError(f"{'; '.join(died + down)}; {_who(waiting)}.", killed, waiting)

    def deaths(self) -> list[tuple[int, float]]:
        """(rank, time) of each death."""
        return [(rank, self._dies_at_s[rank]) for rank in sorted(self._dead)]

    def notes(self) -> list[str]:
        """A sentence for each requested fault that did not happen."""
        notes = [sentence for watch in self._watches.values() for sentence in watch.missed()]
        notes += [
            f"{fault} never came: rank {fault.rank} had ended at {_s(self.turns.clock_s(fault.rank))}"
            for fault in self._of(KillRank)
            if fault.rank not in self._dead
        ]
        notes += [
            f"{fault} never came: the rank computed nothing in that time"
            for rank in self._ranks
            for fault, time_s in zip(rank.slow, rank.slow_for_s, strict=True)
            if not time_s
        ]
        uncut = [drop for drop in self._of(DropLink) if drop not in self._cut]
        notes += [f"{drop} never came: no communication needed that link then" for drop in uncut]
        felt = self.cluster.felt if isinstance(self.cluster, DamagedCluster) else ()
        notes += [f"{f} never came: no communication crossed it" for f in self._of(SlowLink) if f not in felt]
        return notes

    def end(self) -> list[str]:
        """Clean up after the run. Returns the notes."""
        for watch in self._watches.values():
            watch.close()
        return self.notes()

    def unfinished(self, groups: Iterable[Group], end_s: float, first_id: int) -> tuple[list[Span], list[Transfer]]:
        """Spans and transfers of unfinished communications, drawn until shortly after `end_s`, the end of the run.

        The transfers are numbered from `first_id`.
        """
        end_s = max([end_s, *(self._dies_at_s[rank] for rank in self._dead), *(link.at_s for link in self._cut)])
        until_s = end_s * (1 + AFTERWARDS)
        spans: list[Span] = []
        transfers: list[Transfer] = []
        for group in groups:
            for stopped in group.unfinished():
                number = first_id + len(transfers)
                spans += self._open_spans(stopped, until_s, number)
                transfers.append(self._open_transfer(stopped, until_s, number))
        return spans, transfers

    def _open_spans(self, stopped: Hung, until_s: float, number: int) -> list[Span]:
        """A dead rank's span ends with it. Time stopped by a link counts as communication, by a rank as a wait."""
        name = f"{stopped.name} ({UNFINISHED})"
        is_under_way = self._is_under_way(stopped)
        last_s = max(issue_s for _, issue_s, _ in stopped.joined)
        spans = []
        for rank, issue_s, path in stopped.joined:
            phase, outer_phases = split(path)
            end_s = self._dies_at_s[rank] if rank in self._dead else until_s
            waits_until_s = min(last_s, end_s) if is_under_way else end_s
            tie: dict[str, Any] = {
                "transfer_id": number,
                "place": stopped.ranks.index(rank),
                "outer_phases": outer_phases,
            }
            spans.append(Span(rank, f"{WAIT}{stopped.group}", name, phase, issue_s, waits_until_s, **tie))
            if is_under_way:
                start_s = max(issue_s, stopped.start_s)
                spans.append(Span(rank, f"comm:{stopped.group}", name, phase, start_s, end_s, **tie))
        return [span for span in spans if span.start_s < span.end_s]

    def _open_transfer(self, stopped: Hung, until_s: float, number: int) -> Transfer:
        came = {rank: issue_s for rank, issue_s, _ in stopped.joined if rank not in self._dead}
        issued_s = tuple(came.get(rank, inf) for rank in stopped.ranks)
        start_s = min(stopped.start_s, until_s) if self._is_under_way(stopped) else until_s
        nothing = (0.0,) * len(issued_s)
        what = (stopped.group, stopped.name, stopped.ranks, UNFINISHED, 0.0, nothing)
        return Transfer(*what, start_s, until_s, issued_s, id=number)

    def _is_under_way(self, stopped: Hung) -> bool:
        """Whether all have joined and all are alive: the transfer hangs in the network."""
        return stopped.start_s < inf and not self._dead.intersection(stopped.ranks)


def _down(link: DropLink) -> str:
    return f"the link between ranks {link.a} and {link.b} is down since {_s(link.at_s)}"


def _who(waiting: Sequence[Wait]) -> str:
    if not waiting:
        return "no rank waits for it, but a job that has lost a part has failed"
    return f"{len(waiting)} {'rank waits' if len(waiting) == 1 else 'ranks wait'} and cannot go on"


def _s(time_s: float) -> str:
    return f"{time_s:.6g} s"
