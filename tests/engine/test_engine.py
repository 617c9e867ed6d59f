"""The engine by itself: ranks are generators of numbers here, without torch, threads or tensors."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cost.collective import CollectiveCost, collective_cost
from lablib.cost.network import GroupNetwork
from lablib.engine.communication import ANY_SOURCE, Communication, Joined, Message
from lablib.engine.conditions import Conditions
from lablib.engine.events import AllJoined, Events, Matched, Transferred
from lablib.engine.group import Group
from lablib.engine.network import Network
from lablib.engine.rank_clock import RankClock
from lablib.engine.scheduler import Scheduler
from lablib.errors import CollectiveMismatchError
from lablib.hardware import find_cluster

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"]
Body = Callable[["Rig", int], Iterator[Communication]]
SECONDS = st.floats(0, 2, allow_subnormal=False)


class Clock(RankClock):
    def join(self, end_s: float) -> None:
        self.clock_s = max(self.clock_s, end_s)

    def advance(self, time_s: float) -> None:
        self.clock_s += time_s


class Rig:
    """Runs generators on the engine: each yields what it waits for. The smallest thing that can run ranks."""

    def __init__(self, num_ranks: int, cluster: str = "dgx-h100", conditions: Conditions | None = None):
        self.cluster = find_cluster(cluster)
        self.clocks = [Clock(rank) for rank in range(num_ranks)]
        self.network, self.events = Network(), Events()
        self.scheduler = Scheduler(self.clocks, self.network)
        self.conditions = conditions or Conditions()
        self.log: list[object] = []
        self.turns: list[int] = []
        for kind in (AllJoined, Matched, Transferred):
            self.events.subscribe(kind, self.log.append)
        self.world = self.group(range(num_ranks))

    def group(self, ranks: Sequence[int]) -> Group:
        members = {rank: self.clocks[rank] for rank in ranks if rank < len(self.clocks)}
        network = GroupNetwork(self.cluster, tuple(ranks))
        return Group("world", members, network, self.network, self.scheduler, self.events, self.conditions)

    def join(self, rank: int, name: str, size_bytes: float, group: Group | None = None, **agreed: object):
        group = group or self.world
        brought = Joined(
            rank, name, tuple(agreed.items()), size_bytes, size_bytes, self.clocks[rank].clock_s, "", f"line of {rank}"
        )
        return group.join(group.global_ranks.index(rank), brought, name)

    def message(self, rank: int, kind: str, peer: int, size_bytes: int, tag: int = 0) -> Message:
        clock = self.clocks[rank]
        return Message(
            kind, clock, rank, peer, tag, size_bytes, "float32", (size_bytes,), clock.clock_s, "", "", None, ""
        )

    def send(self, rank: int, to: int, size_bytes: int) -> Message:
        message = self.message(rank, "send", to, size_bytes)
        self.world.post_send(message)
        return message

    def receive(self, rank: int, source: int, size_bytes: int) -> Message:
        message = self.message(rank, "recv", source, size_bytes)
        self.world.post_receive(message)
        return message

    def run(self, body: Body) -> list[Transferred]:
        """Until nobody can go on. Returns what was transferred, in the order in which it ended."""
        programs = [body(self, rank) for rank in range(len(self.clocks))]
        awaited: dict[int, Communication] = {}
        while (rank := self.scheduler.next()) is not None:
            self.turns.append(rank)
            if rank in awaited:
                self.clocks[rank].join(awaited.pop(rank).end_s)
            for communication in programs[rank]:
                if not communication.is_final:
                    awaited[rank] = communication
                    communication.end_waiters.append(rank)
                    self.scheduler.wait(partial(communication.describe, rank, ""))
                    break
                self.clocks[rank].join(communication.end_s)
            else:
                self.scheduler.finish()
        return [event for event in self.log if isinstance(event, Transferred)]


def test_the_engine_imports_neither_torch_nor_what_draws():
    code = "import sys, lablib.engine.group; print([m for m in ('torch', 'plotly', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.integers(2, 20), st.sampled_from(KINDS), st.integers(0, 10**8), st.data())
def test_a_collective_begins_with_its_last_member_and_takes_what_the_cost_model_says(n, kind, size_bytes, data):
    works = data.draw(st.lists(SECONDS, min_size=n, max_size=n))

    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        rig.clocks[rank].advance(works[rank])
        yield rig.join(rank, kind, size_bytes)

    rig = Rig(n)
    (event,) = rig.run(body)
    whole = size_bytes * n if kind in ("all_gather", "gather", "scatter") else size_bytes
    cost = collective_cost(kind, whole, rig.world.network)
    assert (event.start_s, event.end_s) == (max(works), max(works) + cost.time_s)
    assert event.cost.sent_bytes == cost.sent_bytes and event.size_bytes == whole
    assert [part.issue_s for part in event.parts] == works
    assert rig.scheduler.is_over and {clock.clock_s for clock in rig.clocks} == {event.end_s}


@given(st.integers(2, 9), st.lists(st.tuples(SECONDS, st.integers(0, 10**7)), min_size=1, max_size=6))
def test_collectives_of_one_group_follow_one_another_while_their_ranks_compute(n, steps):
    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        issued = []
        for work_s, size_bytes in steps:
            rig.clocks[rank].advance(work_s * (rank + 1))
            issued.append(rig.join(rank, "all_reduce", size_bytes))
        yield from issued

    rig = Rig(n)
    issue_s = free_s = 0.0
    for event, (work_s, size_bytes) in zip(rig.run(body), steps, strict=True):
        issue_s += work_s * n  # the last rank is the slowest
        assert event.start_s == max(issue_s, free_s)
        free_s = event.start_s + collective_cost("all_reduce", size_bytes, rig.world.network).time_s
        assert event.end_s == free_s


@given(st.integers(2, 12), st.integers(1, 10**8))
def test_a_chain_of_messages_takes_their_sum(n, size_bytes):
    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        if rank > 0:
            yield rig.receive(rank, rank - 1, size_bytes)
        if rank < n - 1:
            yield rig.send(rank, rank + 1, size_bytes)

    rig = Rig(n)
    events = rig.run(body)
    assert [event.ranks for event in events] == [(rank, rank + 1) for rank in range(n - 1)]
    edges = [rig.cluster.edge(rank, rank + 1) for rank in range(n - 1)]
    assert rig.clocks[-1].clock_s == pytest.approx(sum(edge.transfer_s(size_bytes) for edge in edges), rel=1e-12)


@given(st.integers(2, 8), st.data())
def test_a_rank_that_does_not_come_is_a_deadlock_that_names_who_waits_for_whom(n, data):
    absent = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))

    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        if rank not in absent:
            yield rig.join(rank, "all_reduce", 8)

    rig = Rig(n)
    assert rig.run(body) == [] and not rig.scheduler.is_over
    headline, waits = rig.scheduler.stuck()
    num_stuck = n - len(absent)
    assert headline.startswith(f"{num_stuck} of {n} ranks wait{'s' * (num_stuck == 1)} and none can go on")
    for wait in waits:
        assert wait.text == "has finished" if wait.rank in absent else set(wait.for_ranks) == absent


@given(st.integers(2, 8), st.data())
def test_the_rank_with_the_smallest_clock_goes_on_and_ties_go_to_the_lowest(n, data):
    works = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))

    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        rig.clocks[rank].advance(works[rank])
        yield rig.join(rank, "barrier", 0, group=rig.group([rank]))
        goes_on.append(rank)

    rig, goes_on = Rig(n), []
    rig.run(body)
    assert goes_on == sorted(range(n), key=lambda rank: (works[rank], rank))


@given(st.integers(2, 6), st.integers(1, 10**6), st.data())
def test_a_receive_from_anyone_takes_the_send_that_was_issued_first(n, size_bytes, data):
    works = data.draw(st.lists(st.integers(1, 50), min_size=n - 1, max_size=n - 1, unique=True))

    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        if rank == 0:
            for _ in range(n - 1):
                rig.clocks[0].advance(1000)  # by then all have sent
                yield rig.join(0, "barrier", 0, group=alone[0])
                received.append(rig.receive(0, ANY_SOURCE, size_bytes))
                yield received[-1]
        else:
            rig.clocks[rank].advance(works[rank - 1])
            yield rig.send(rank, 0, size_bytes)

    rig, received = Rig(n), []
    alone = [rig.group([0])]
    rig.run(body)
    assert [message.matched for message in received] == sorted(range(1, n), key=lambda rank: works[rank - 1])


def test_members_that_disagree_are_told_at_the_call_with_both_lines():
    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        yield rig.join(rank, "all_reduce", 8, dtype=f"float{32 << (rank == 2)}", shape=(2,))

    with pytest.raises(
        CollectiveMismatchError, match="ranks disagree on the dtype of call #0 of group world"
    ) as caught:
        Rig(4).run(body)
    assert [(call.rank, call.source) for call in caught.value.calls] == [(0, "line of 0"), (2, "line of 2")]


def test_a_send_and_a_receive_of_different_sizes_are_a_mismatch():
    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        yield rig.send(0, 1, 8) if rank == 0 else rig.receive(1, 0, 16)

    with pytest.raises(CollectiveMismatchError, match="disagree on dtype or size"):
        Rig(2).run(body)


@given(st.integers(2, 6), st.floats(1, 5), st.integers(1, 10**7))
def test_a_condition_changes_the_price_of_every_collective(n, factor, size_bytes):
    class Slow(Conditions):
        def cost(self, kind: str, size_bytes: float, network: GroupNetwork, root: int = 0) -> CollectiveCost:
            cost = super().cost(kind, size_bytes, network, root)
            return CollectiveCost(cost.algorithm, factor * cost.time_s, cost.sent_bytes, cost.latency_s)

    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        yield rig.join(rank, "all_reduce", size_bytes)

    (slow,), (healthy,) = (Rig(n, conditions=conditions).run(body) for conditions in (Slow(), None))
    assert slow.end_s == factor * healthy.end_s


def test_what_a_condition_stops_never_ends_and_says_why():
    class Cut(Conditions):
        def stops(self, what: str, kind: str, algorithm: str, ranks, root, start_s, end_s) -> str:
            return f"{what} lies on a cut" if 1 in ranks else ""

    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        if rank < 2:
            yield rig.send(0, 1, 8) if rank == 0 else rig.receive(1, 0, 8)
        else:
            yield rig.send(2, 3, 8) if rank == 2 else rig.receive(3, 2, 8)

    rig = Rig(4, conditions=Cut())
    (event,) = rig.run(body)
    assert event.ranks == (2, 3)
    (hung,) = rig.world.unfinished()
    assert (hung.name, hung.ranks, hung.start_s) == ("send", (0, 1), 0.0)
    _, waits = rig.scheduler.stuck()
    assert ["lies on a cut" in wait.text for wait in waits] == [True, True, False, False]


@given(st.integers(2, 8), st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 10**6)), max_size=5))
def test_everything_is_told_once_in_order_and_the_same_again(n, calls):
    def body(rig: Rig, rank: int) -> Iterator[Communication]:
        for i, (kind, size_bytes) in enumerate(calls):
            rig.clocks[rank].advance(((rank * 7 + i) % 5) * 1e-6)
            yield rig.join(rank, kind, size_bytes)
        if rank < 2:
            yield rig.send(0, 1, 16) if rank == 0 else rig.receive(1, 0, 16)

    rigs = [Rig(n), Rig(n)]
    first, second = (rig.run(body) for rig in rigs)
    assert [event.number for event in first] == list(range(len(calls) + 1))
    assert [(e.name, e.start_s, e.end_s, e.ranks) for e in first] == [
        (e.name, e.start_s, e.end_s, e.ranks) for e in second
    ]
    kinds = [type(event) for event in rigs[0].log]
    assert kinds == [AllJoined, Transferred] * len(calls) + [Matched, Transferred]
    assert rigs[0].turns == rigs[1].turns
