"""A process group: matching of collectives, sends and receives, and the times of their transfers.

Collectives. Members are matched by call count (communication.py). When the last one joins, the data may move, and the
transfer is added to the network, which reports its final end (network.py):

    start = max over members of (time of its call, time at which its stream of this group is free)
    end   = start + cost of the collective (lablib/cost); later, if other transfers use the same wires

Point to point. A send and a receive are a rendezvous: the bytes move when both are posted, as in NCCL and in gloo. A
blocking `send` returns when the receiver has its message, as gloo's does. With NCCL the host continues at once and only
the GPU's stream waits. So if every rank sends first, the program hangs with NCCL at a large message or at the next
synchronization, and here at the send. A receive matches the sends of its source and tag in the order in which receives
were posted. One message occupies the sender's output port and the receiver's input port of its level (NVLink, NIC) for
alpha + S beta: the one-port model, full duplex.

    start = the first time after both were issued at which both ports are free for that long (port.py); of messages that
            could start at the same time, the one issued first by its rank

A collective on the same wires delays a message and those planned after it.

Phantoms. Some ranks of a group may not be simulated. These phantoms are assumed to do the same at the same time: a
collective begins when its last simulated member has joined, and moves the bytes of the whole group over its whole
network; each message of an all-to-all is then as large as the messages of its fullest simulated member. If the ranks of
a group are replicas, the result equals a simulation of all of them. A message to or from a phantom has no
partner: the host of the ranks must reject it (`is_phantom`).

No call here blocks: `has_data` and `is_final` say whether a rank must wait, and the scheduler wakes it.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lablib.cost.collective import CollectiveCost
from lablib.cost.collectives import COLLECTIVES
from lablib.cost.exchange import ExchangeRoute
from lablib.cost.network import GroupNetwork
from lablib.cost.routes import Route
from lablib.engine.communication import ANY_SOURCE, Communication, Joined, Meeting, Message
from lablib.engine.conditions import Conditions
from lablib.engine.events import AllJoined, Events, Hung, Matched, RankPart, Transferred
from lablib.engine.network import Flow, Network
from lablib.engine.rank_clock import RankClock
from lablib.engine.scheduler import Scheduler
from lablib.engine.wires import collective_wires, level_wires, pair_wires
from lablib.errors import CollectiveMismatchError

WHOSE_RANKS = (
    "Is `group` given to every call? `group_dst` and `group_src` take ranks of the group, `dst` and `src` ranks of the "
    "world."
)
FindMismatch = Callable[[Mapping[int, Joined]], CollectiveMismatchError | None]


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A collective that all members have joined."""

    meeting: Meeting
    kind: str
    root: int
    cost: CollectiveCost
    size_bytes: float
    wires: int
    arrived: Sequence[Joined]


class Group:
    """The shared state of the members of one process group.

    Args:
        label: "world", the description given to `new_group`, or the list of ranks; unique among the groups of a member.
        clocks: clocks of the simulated members, by global rank.
        network: the edges between all members on the cluster, in group order.
        wires: the transfers of the whole cluster.

    Attributes:
        simulated_ranks: global ranks of the simulated members, in group order.
        has_phantoms: whether some members are not simulated.
        payload: data that the host of the ranks keeps with the group, for all its members.
    """

    def __init__(
        self,
        label: str,
        clocks: Mapping[int, RankClock],
        network: GroupNetwork,
        wires: Network,
        scheduler: Scheduler,
        events: Events,
        conditions: Conditions,
    ):
        self.label = label
        self.network = network
        self.size = network.size
        self.global_ranks = network.ranks
        self._simulated = {place: rank for place, rank in enumerate(network.ranks) if rank in clocks}
        self.simulated_ranks = list(self._simulated.values())
        self.has_phantoms = len(self._simulated) < self.size
        self._cores = Counter(clock.cores for clock in clocks.values() if clock.cores is not None)
        self._wires = wires
        self._scheduler = scheduler
        self._events = events
        self._conditions = conditions
        self._meetings: dict[int, Meeting] = {}
        self._num_calls = dict.fromkeys(self._simulated, 0)
        self._stream: deque[_UnderWay] = deque()  # the first one is on the wires
        self._stream_free_s = 0.0
        self._sends: dict[int, list[Message]] = {place: [] for place in self._simulated}  # by receiver
        self._receives: dict[int, list[Message]] = {place: [] for place in self._simulated}  # by receiver
        self._costs: dict[tuple[str, float, int], CollectiveCost] = {}
        self._wire_sets: dict[tuple[str, str, int], int] = {}
        self._hung: list[Hung] = []
        self.payload: Any = None

    def is_phantom(self, place: int) -> bool:
        """Whether this member is not simulated."""
        return place not in self._simulated

    # ---- collectives ----

    def join(
        self, place: int, joined: Joined, kind: str, root: int = 0, find_mismatch: FindMismatch | None = None
    ) -> Meeting:
        """Join one member to its next collective. When the last has joined, the data may move.

        Args:
            kind: the collective, as named in the cost model.
            root: place of the root, for a collective that has one.
            find_mismatch: finds the error in the calls of all members, by place, or None.

        Raises CollectiveMismatchError: the call does not match the calls of other members.
        """
        index = self._num_calls[place]
        self._num_calls[place] += 1
        meeting = self._meetings.get(index)
        if meeting is None:
            meeting = self._meetings[index] = Meeting(self.label, self._simulated, joined.name, index)
        first = next(iter(meeting.joined.values()), joined)
        if joined.name != first.name or joined.agreement != first.agreement:
            raise meeting.mismatch(first, joined)
        meeting.joined[place] = joined
        if len(meeting.joined) == len(self._simulated):
            del self._meetings[index]
            arrived = [meeting.joined[i] for i in self._simulated]
            if find_mismatch and (error := find_mismatch(dict(zip(self._simulated, arrived, strict=True)))):
                raise error
            meeting.joined.clear()
            self._events.emit(AllJoined(meeting, kind, root, arrived, self.size))
            self._issue(meeting, arrived, kind, root)
        return meeting

    def _issue(self, meeting: Meeting, arrived: Sequence[Joined], kind: str, root: int) -> None:
        """Queue a collective that all have joined after the earlier ones on the group's communication streams."""
        sent, received = [j.sent_bytes for j in arrived], [j.received_bytes for j in arrived]
        size_bytes = COLLECTIVES[kind].payload(sent, received, self.size)
        if (
            kind == "all_to_all"
            and len(arrived) == self.size
            and any(one.uneven is not None or one.sent_bytes != arrived[0].sent_bytes for one in arrived)
        ):
            cost, wires = self._exchange(arrived)
        else:
            cost = self._cost(kind, size_bytes, root)
            wires = self._wire_set(kind, cost.algorithm, root)
        self._stream.append(_UnderWay(meeting, kind, root, cost, size_bytes, wires, arrived))
        if len(self._stream) == 1:
            self._start_next()
        self._wake_for_data(meeting)

    def _start_next(self) -> None:
        first = self._stream[0]
        cost = first.cost
        start_s = max(self._stream_free_s, *[joined.issue_s for joined in first.arrived])
        # Without bytes there is no transfer time, even if rounding leaves a difference.
        transfer_s = max(0.0, cost.transfer_s) if first.size_bytes else 0.0
        time_s = cost.time_s
        for cores, members in self._cores.items():  # processes move the bytes and need cores of their nodes
            time_s = max(time_s, cores.work_together(start_s, cost.time_s, members) - start_s)
        self._wires.start(Flow(start_s, time_s, transfer_s, first.wires, self._finish))

    def _finish(self, start_s: float, end_s: float) -> None:
        done = self._stream.popleft()
        self._stream_free_s = end_s
        if self._stream:
            self._start_next()
        meeting = done.meeting
        what = f"{meeting.name} #{meeting.index} of group {self.label}"
        meeting.stopped = self._conditions.stops(
            what, done.kind, done.cost.algorithm, self.global_ranks, done.root, start_s, end_s
        )
        if meeting.stopped:
            joined = tuple((j.rank, j.issue_s, j.phase) for j in done.arrived)
            self._hung.append(Hung(self.label, meeting.name, self.global_ranks, joined, start_s))
            return
        stream = f"comm:{self.label}"
        parts = [
            RankPart(j.rank, stream, meeting.name, j.phase, j.source, j.issue_s, place)
            for place, j in zip(self._simulated, done.arrived, strict=True)
        ]
        self._tell(
            meeting.name, parts, self.global_ranks, done.cost, done.size_bytes, start_s, end_s, done.arrived[0].dtype
        )
        self._wake_for_end(meeting, end_s)

    def _tell(
        self,
        name: str,
        parts: Sequence[RankPart],
        ranks: tuple[int, ...],
        cost: CollectiveCost,
        size_bytes: float,
        start_s: float,
        end_s: float,
        dtype: str,
    ) -> None:
        number = self._events.next_number()
        self._events.emit(
            Transferred(number, self.label, name, tuple(parts), ranks, cost, size_bytes, start_s, end_s, dtype)
        )

    def _exchange(self, arrived: Sequence[Joined]) -> tuple[CollectiveCost, int]:
        """Cost and wires of an all-to-all with messages of different sizes."""
        alike = [[joined.sent_bytes / self.size] * self.size for joined in arrived]
        rows = [each if joined.uneven is None else joined.uneven for joined, each in zip(arrived, alike, strict=True)]
        cost = self._conditions.exchange_cost(np.array(rows, dtype=float), self.network)
        assert isinstance(cost.route, ExchangeRoute)
        return cost, self._wires.wires.number(level_wires(self.network, cost.route.levels()))

    def _cost(self, kind: str, size_bytes: float, root: int) -> CollectiveCost:
        key = (kind, size_bytes, root)
        if key not in self._costs:
            cost = self._conditions.cost(kind, size_bytes, self.network, root)
            self._costs[key] = replace(cost, route=Route(kind, cost.algorithm, self.network, size_bytes, root))
        return self._costs[key]

    def _wire_set(self, kind: str, algorithm: str, root: int) -> int:
        key = (kind, algorithm, root)
        if key not in self._wire_sets:
            wires = collective_wires(kind, algorithm, self.network, root)
            self._wire_sets[key] = self._wires.wires.number(wires)
        return self._wire_sets[key]

    # ---- point to point ----

    def post_send(self, message: Message) -> None:
        """Post a send and match it to the first posted receive that fits.

        Raises CollectiveMismatchError: send and receive disagree on size or dtype.
        """
        message.turn = message.clock.count_send()
        for receive in self._receives[message.peer]:
            if message.fits(receive):
                self._receives[message.peer].remove(receive)
                return self._transfer(message, receive)
        self._sends[message.peer].append(message)

    def post_receive(self, message: Message) -> None:
        """Post a receive and match it to the first posted send that fits; from any source, to the send issued first.

        Raises CollectiveMismatchError: send and receive disagree on size or dtype.
        """
        fitting = self._fitting_sends(message)
        if not fitting:
            self._receives[message.place].append(message)
            return
        # Posting order follows the order of turns; between different senders, virtual time decides.
        send = min(fitting, key=_issue_s) if message.peer == ANY_SOURCE else fitting[0]
        self._sends[message.place].remove(send)
        self._transfer(send, message)

    def first_send_s(self, receive: Message) -> float:
        """Issue time of the first send that a receive from any source would match now; the receive's own if none.

        It is too early to post the receive while a rank can still send before that time.
        """
        return min(map(_issue_s, self._fitting_sends(receive)), default=receive.issue_s)

    def _fitting_sends(self, receive: Message) -> list[Message]:
        return [send for send in self._sends[receive.place] if send.fits(receive)]

    def _transfer(self, send: Message, receive: Message) -> None:
        """Transfer the bytes of a matched pair when both ports are free."""
        if (send.dtype, send.size_bytes) != (receive.dtype, receive.size_bytes):
            headline = f"a send and its receive (tag {send.tag}) of group {self.label} disagree on dtype or size."
            headline += f" {WHOSE_RANKS}" if self.label != "world" else ""
            raise CollectiveMismatchError(headline, [send.text("to"), receive.text("from")])
        if send.tag != receive.tag:
            headline = (
                f"NCCL ignores tags, and messages meet in the order in which they are posted: in group {self.label} a "
                f"send with tag {send.tag} met a receive with tag {receive.tag}; receive in the order of the sends."
            )
            raise CollectiveMismatchError(headline, [send.text("to"), receive.text("from")])
        receive.matched = send.place
        self._events.emit(Matched(send, receive))
        sender, receiver, cluster = send.clock, receive.clock, self.network.cluster
        edge = cluster.edge(sender.rank, receiver.rank)
        ports = (sender.port(f"{edge.level}:out"), receiver.port(f"{edge.level}:in"))
        time_s = edge.transfer_s(send.size_bytes)
        transfer_s = max(0.0, time_s - edge.latency_s) if send.size_bytes else 0.0
        wires = self._wires.wires.number(pair_wires(cluster, [(sender.rank, receiver.rank)]))
        ready_s = max(send.issue_s, receive.issue_s)
        if sender.cores is not None:
            time_s = max(time_s, sender.cores.message(ready_s, time_s) - ready_s)
        on_end = partial(self._deliver, send, receive)
        self._wires.start_in_turn(Flow(ready_s, time_s, transfer_s, wires, on_end, ports), send.turn)
        for message in (send, receive):
            self._wake_for_data(message)

    def _deliver(self, send: Message, receive: Message, start_s: float, end_s: float) -> None:
        pair = (send.clock.rank, receive.clock.rank)
        what = f"the message from rank {pair[0]} to rank {pair[1]} (tag {send.tag}) of group {self.label}"
        send.stopped = receive.stopped = self._conditions.stops(what, "send", "direct", pair, 0, start_s, end_s)
        if send.stopped:
            joined = tuple((message.clock.rank, message.issue_s, message.phase) for message in (send, receive))
            self._hung.append(Hung(self.label, "send", pair, joined, start_s))
            return
        parts = [
            RankPart(m.clock.rank, f"comm:{self.label}:{m.kind}", name, m.phase, m.source, m.issue_s, place)
            for place, (m, name) in enumerate(((send, f"send to {pair[1]}"), (receive, f"recv from {pair[0]}")))
        ]
        cost = CollectiveCost("direct", end_s - start_s, (float(send.size_bytes), 0.0))
        self._tell("send", parts, pair, cost, send.size_bytes, start_s, end_s, send.dtype)
        for message in (send, receive):
            self._wake_for_end(message, end_s)

    # ---- unfinished communications ----

    @property
    def has_unmet_messages(self) -> bool:
        """Whether a send or a receive is still unmatched."""
        return any(self._sends.values()) or any(self._receives.values())

    def unfinished(self) -> list[Hung]:
        """The communications that members have begun and that have not ended."""
        calls = [
            Hung(self.label, m.name, self.global_ranks, tuple((j.rank, j.issue_s, j.phase) for j in m.joined.values()))
            for m in self._meetings.values()
        ]
        messages = [self._unmet(m) for queue in (*self._sends.values(), *self._receives.values()) for m in queue]
        return [*self._hung, *calls, *messages]

    def _unmet(self, message: Message) -> Hung:
        rank = message.clock.rank
        peers = () if message.peer == ANY_SOURCE else (self.global_ranks[message.peer],)
        return Hung(self.label, message.kind, (rank, *peers), ((rank, message.issue_s, message.phase),))

    # ---- waking waiting ranks ----

    def _wake_for_data(self, communication: Communication) -> None:
        communication.has_data = True
        for rank in communication.data_waiters:
            self._scheduler.wake_up(rank)
        communication.data_waiters.clear()
        self._scheduler.progress()

    def _wake_for_end(self, communication: Communication, end_s: float) -> None:
        communication.end_s, communication.is_final = end_s, True
        for rank in communication.end_waiters:
            self._scheduler.wake_up(rank, end_s)
        communication.end_waiters.clear()
        self._scheduler.progress()


def _issue_s(message: Message) -> float:
    return message.issue_s
