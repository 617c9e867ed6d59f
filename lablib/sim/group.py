"""A process group as its members share it: where they meet, what moves, and when.

Collectives. Members meet by counting calls (call.py). When the last one joins, the tensors can move (delivery.py), and
the network is told what is under way on which wires (network.py), which says later when it was over:

    start = max over members of (when it issued the call, when its stream of this group is free)
    end   = start + cost of the collective (lablib/cost); later, when something else uses the same wires

Point to point. A send and a receive are a rendezvous: the bytes move when both are posted, as in NCCL and in gloo. A
blocking `send` returns when the receiver has its message, as gloo's does. With NCCL the host goes on at once and only
the GPU's stream waits; so where every rank sends first, the program hangs there at a large message or at the next
synchronization, and here at the send. A receive matches the sends of its source and tag in the order in
which receives were posted. One message occupies the sender's output port and the receiver's input port of its level
(NVLink, NIC) for alpha + S beta: the one-port model, full duplex.

    start = the first moment after both were issued from which both ports are free for so long (port.py); of messages
            that could start at one moment, those that their rank issued first

What is planned in that way is pushed back when a collective on the same wires slows a message down.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Protocol

from torch import Tensor

from lablib.cost import CollectiveCost, GroupNetwork, collective_cost
from lablib.cost.routes import Route
from lablib.errors import CollectiveMismatchError, Wait
from lablib.run import Transfer
from lablib.sim.call import Call, Joined
from lablib.sim.delivery import RECEIVER, SENDER, Move, PerMember
from lablib.sim.event import Event
from lablib.sim.network import Flow, Network
from lablib.sim.rank import Rank
from lablib.sim.scheduler import Scheduler
from lablib.sim.source import Source
from lablib.sim.wires import collective_wires, pair_wires

ANY_SOURCE = -1
WHOSE_RANKS = (
    "Is `group` given to every call? `group_dst` and `group_src` take ranks of the group, `dst` and `src` those of the "
    "world."
)
_SAME_FOR_ALL = ("all_reduce", "broadcast", "all_gather")  # every rank receives the same


@dataclass(slots=True, eq=False)
class Message(Event):
    """One posted send or receive. `peer` is a group rank, or ANY_SOURCE."""

    kind: str
    rank: Rank
    member: int
    peer: int
    tag: int
    tensor: Tensor | None  # until it has met its other side
    issue_s: float
    phase: str
    source: Source
    peer_label: str
    group_label: str
    matched: int = ANY_SOURCE
    turn: int = 0  # of a send: how many its rank issued before it

    @property
    def title(self) -> str:
        return f"{self.kind} of group {self.group_label}"

    def describe(self, rank: int, source: Source, verb: str = "waits in") -> Callable[[], Wait]:
        def wait() -> Wait:
            direction = "to" if self.kind == "send" else "from"
            other = "recv" if self.kind == "send" else "send"
            text = (
                f"{verb} {self.kind} {direction} {self.peer_label} (tag {self.tag}) of group {self.group_label}; "
                f"{self.stopped or f'no matching {other} is posted'}"
            )
            return Wait(rank, text, str(source))

        return wait


@dataclass(frozen=True, slots=True)
class Stopped:
    """A communication that somebody has begun and nobody has ended.

    Attributes:
        group: its label.
        name: what was called.
        ranks: global ranks that take part.
        joined: (rank, when it made its call, in which phase), for those that did.
        start_s: when it began to move bytes; inf: somebody did not come.
    """

    group: str
    name: str
    ranks: tuple[int, ...]
    joined: tuple[tuple[int, float, str], ...]
    start_s: float = inf


class Faults(Protocol):
    """What a group asks of the faults of a run (sim/faults.py)."""

    def cost(self, name: str, size_bytes: float, net: GroupNetwork, root: int = 0) -> CollectiveCost: ...

    def stop(
        self, what: str, name: str, algorithm: str, ranks: tuple[int, ...], root: int, start_s: float, end_s: float
    ) -> str: ...


@dataclass(slots=True, eq=False)
class _Collective:
    """A collective whose tensors have moved, on its way over the wires."""

    call: Call
    kind: str
    root: int
    cost: CollectiveCost
    size_bytes: float
    wires: int
    issues_s: tuple[float, ...]
    phases: tuple[str, ...]
    sources: tuple[Source, ...]
    dtype: str


class Group:
    """What the members of one process group share.

    Args:
        label: "world", the description given to `new_group`, or the list of ranks.
        ranks: the members, in group order.
        network: their edges on the cluster.
        wires: what else is under way on the same wires.
        scheduler: to wake those who wait.
        transfers: where finished communications are written down.
        faults: those of the run, if it has any.
    """

    def __init__(
        self,
        label: str,
        ranks: Sequence[Rank],
        network: GroupNetwork,
        wires: Network,
        scheduler: Scheduler,
        transfers: list[Transfer],
        faults: Faults | None = None,
    ):
        self.label = label
        self.members = list(ranks)
        self.network = network
        self.global_ranks = tuple(member.rank for member in ranks)
        self._wires = wires
        self._scheduler = scheduler
        self._transfers = transfers
        self._calls: dict[int, Call] = {}
        self._num_calls = [0] * len(ranks)
        self._stream: deque[_Collective] = deque()  # the first is under way
        self._stream_free_s = 0.0
        self._sends: list[list[Message]] = [[] for _ in ranks]  # by receiver
        self._receives: list[list[Message]] = [[] for _ in ranks]  # by receiver
        self._costs: dict[tuple[str, float, int], CollectiveCost] = {}
        self._wire_sets: dict[tuple[str, str, int], int] = {}
        self._faults = faults
        self._price = faults.cost if faults else collective_cost
        self._stopped: list[Stopped] = []

    # ---- collectives ----

    def join(
        self,
        member: int,
        newcomer: Joined,
        move: Move,
        misfit: Callable[[list[Joined]], CollectiveMismatchError | None] | None,
        size_bytes: Callable[[list[Joined]], float],
        kind: str,
        root: int = 0,
    ) -> Call:
        """One member joins its next call. When the last has come, the tensors can move."""
        index = self._num_calls[member]
        self._num_calls[member] += 1
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = Call(self.label, self.global_ranks, newcomer.name, index)
        if mismatch := call.join(member, newcomer):
            self._scheduler.fail(mismatch)
        if len(call.joined) == len(self.members):
            del self._calls[index]
            arrived = [call.joined[i] for i in range(len(self.members))]
            if misfit and (reason := misfit(arrived)):
                self._scheduler.fail(reason)
            sent, received = [joined.sent for joined in arrived], [joined.received for joined in arrived]
            call.delivery.load(sent, received, move, is_alike=kind in _SAME_FOR_ALL)
            call.joined.clear()
            self._issue(call, arrived, kind, size_bytes(arrived), root)
        return call

    def _issue(self, call: Call, arrived: list[Joined], kind: str, size_bytes: float, root: int) -> None:
        """All have joined: the collective follows the others of this group, on their communication streams."""
        cost = self._cost(kind, size_bytes, root)
        self._stream.append(
            _Collective(
                call,
                kind,
                root,
                cost,
                size_bytes,
                self._wire_set(kind, cost.algorithm, root),
                issues_s=tuple(joined.issue_s for joined in arrived),
                phases=tuple(joined.phase for joined in arrived),
                sources=tuple(joined.source for joined in arrived),
                dtype=_dtype([*arrived[0].sent, *arrived[0].received]),
            )
        )
        if len(self._stream) == 1:
            self._start_next()
        self._wake_for_data(call)

    def _start_next(self) -> None:
        first = self._stream[0]
        cost = first.cost
        start_s = max(self._stream_free_s, *first.issues_s)
        # What has no bytes does not use the wires, whatever rounding leaves of the difference.
        transfer_s = max(0.0, cost.transfer_s) if first.size_bytes else 0.0
        self._wires.start(Flow(start_s, cost.time_s, transfer_s, first.wires, self._finish))

    def _finish(self, start_s: float, end_s: float) -> None:
        done = self._stream.popleft()
        self._stream_free_s = end_s
        if self._stream:
            self._start_next()
        if not self._stops(done, start_s, end_s):
            self._record(done, start_s, end_s)
            self._wake_for_end(done.call, end_s)

    def _record(self, done: _Collective, start_s: float, end_s: float) -> None:
        name, stream = done.call.name, f"comm:{self.label}"
        last_s = max(done.issues_s)
        for member, issue_s, phase, source in zip(self.members, done.issues_s, done.phases, done.sources, strict=True):
            member.wait(self.label, name, phase, issue_s, last_s, source)
            member.communicate(stream, name, phase, start_s, end_s, done.size_bytes, source)
        self._transfers.append(
            Transfer(
                self.label,
                name,
                self.global_ranks,
                done.cost.algorithm,
                done.size_bytes,
                done.cost.sent_bytes,
                start_s,
                end_s,
                done.issues_s,
                done.dtype,
                done.cost.route,
            )
        )

    def _cost(self, kind: str, size_bytes: float, root: int) -> CollectiveCost:
        key = (kind, size_bytes, root)
        if key not in self._costs:
            cost = self._price(kind, size_bytes, self.network, root=root)
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
        """Post a send; it meets the first posted receive that it fits."""
        message.turn = message.rank.count_send()
        for receive in self._receives[message.peer]:
            if _fits(message, receive):
                self._receives[message.peer].remove(receive)
                return self._transfer(message, receive)
        self._sends[message.peer].append(message)

    def post_receive(self, message: Message) -> None:
        """Post a receive; it meets the first posted send that fits it; one from anyone the send issued first."""
        if message.peer == ANY_SOURCE:
            self._let_earlier_senders_come(message)
        fitting = self._fitting_sends(message)
        if not fitting:
            self._receives[message.member].append(message)
            return
        # Posting follows the order in which ranks had their turns; virtual time decides between different senders.
        send = min(fitting, key=_issue_s) if message.peer == ANY_SOURCE else fitting[0]
        self._sends[message.member].remove(send)
        self._transfer(send, message)

    def _let_earlier_senders_come(self, receive: Message) -> None:
        """Give up the turn until no rank can send anything that is issued before the first send that is there."""
        at_s = receive.issue_s
        while True:
            self._scheduler.give_way(at_s)
            first_s = min(map(_issue_s, self._fitting_sends(receive)), default=at_s)
            if first_s <= at_s:
                return
            at_s = first_s

    def _fitting_sends(self, receive: Message) -> list[Message]:
        return [send for send in self._sends[receive.member] if _fits(send, receive)]

    def _transfer(self, send: Message, receive: Message) -> None:
        """Both are posted: the bytes move, and travel when both ports are free."""
        sent, received = send.tensor, receive.tensor
        assert sent is not None and received is not None
        if sent.dtype != received.dtype or sent.numel() != received.numel():
            self._scheduler.fail(_message_mismatch(send, receive))
        send.delivery.join(receive.delivery)
        receive.delivery = send.delivery
        send.delivery.load([[sent], []], [[], [received]], _move_message)
        send.tensor = receive.tensor = None
        receive.matched = send.member
        sender, receiver, cluster = send.rank, receive.rank, self.network.cluster
        edge = cluster.edge(sender.rank, receiver.rank)
        out_port, in_port = sender.port(f"{edge.level}:out"), receiver.port(f"{edge.level}:in")
        time_s = edge.transfer_s(sent.nbytes)
        ready_s = max(send.issue_s, receive.issue_s)
        wires = self._wires.wires.number(pair_wires(cluster, [(sender.rank, receiver.rank)]))
        on_end = partial(self._deliver, send, receive, sent.nbytes, _dtype([sent]))
        transfer_s = max(0.0, time_s - edge.latency_s) if sent.nbytes else 0.0
        flow = Flow(ready_s, time_s, transfer_s, wires, on_end, (out_port, in_port))
        self._wires.start_in_turn(flow, send.turn)
        for message in (send, receive):
            self._wake_for_data(message)

    def _deliver(
        self, send: Message, receive: Message, size_bytes: float, dtype: str, start_s: float, end_s: float
    ) -> None:
        if self._stops_message(send, receive, start_s, end_s):
            return
        sender, receiver = send.rank, receive.rank
        for message, name in ((send, f"send to {receiver.rank}"), (receive, f"recv from {sender.rank}")):
            stream, last_s = f"comm:{self.label}:{message.kind}", max(send.issue_s, receive.issue_s)
            message.rank.wait(self.label, name, message.phase, message.issue_s, last_s, message.source)
            message.rank.communicate(stream, name, message.phase, start_s, end_s, size_bytes, message.source)
        self._transfers.append(
            Transfer(
                self.label,
                "send",
                (sender.rank, receiver.rank),
                "direct",
                size_bytes,
                (float(size_bytes), 0.0),
                start_s,
                end_s,
                (send.issue_s, receive.issue_s),
                dtype,
            )
        )
        for message in (send, receive):
            self._wake_for_end(message, end_s)

    # ---- faults ----

    def _stops(self, done: _Collective, start_s: float, end_s: float) -> bool:
        """Whether a fault keeps a collective from ever ending. Those who wait are not woken."""
        if self._faults is None:
            return False
        call = done.call
        what = f"{call.name} #{call.index} of group {self.label}"
        call.stopped = self._faults.stop(
            what, done.kind, done.cost.algorithm, self.global_ranks, done.root, start_s, end_s
        )
        if call.stopped:
            joined = tuple(zip(self.global_ranks, done.issues_s, done.phases, strict=True))
            self._stopped.append(Stopped(self.label, call.name, self.global_ranks, joined, start_s))
        return bool(call.stopped)

    def _stops_message(self, send: Message, receive: Message, start_s: float, end_s: float) -> bool:
        if self._faults is None:
            return False
        pair = (send.rank.rank, receive.rank.rank)
        what = f"the message from rank {pair[0]} to rank {pair[1]} (tag {send.tag}) of group {self.label}"
        send.stopped = receive.stopped = self._faults.stop(what, "send", "direct", pair, 0, start_s, end_s)
        if send.stopped:
            joined = tuple((message.rank.rank, message.issue_s, message.phase) for message in (send, receive))
            self._stopped.append(Stopped(self.label, "send", pair, joined, start_s))
        return bool(send.stopped)

    @property
    def has_unmet_messages(self) -> bool:
        """Is there a send without its receive, or a receive without its send?"""
        return any(self._sends) or any(self._receives)

    def unfinished(self) -> list[Stopped]:
        """What members have begun and nobody has ended."""
        calls = [
            Stopped(
                self.label, c.name, self.global_ranks, tuple((j.rank, j.issue_s, j.phase) for j in c.joined.values())
            )
            for c in self._calls.values()
        ]
        messages = [self._unmet(m) for queue in (*self._sends, *self._receives) for m in queue]
        return [*self._stopped, *calls, *messages]

    def _unmet(self, message: Message) -> Stopped:
        rank = message.rank.rank
        peers = () if message.peer == ANY_SOURCE else (self.global_ranks[message.peer],)
        return Stopped(self.label, message.kind, (rank, *peers), ((rank, message.issue_s, message.phase),))

    # ---- waking those who wait ----

    def _wake_for_data(self, event: Event) -> None:
        event.is_done = True
        for rank in event.data_waiters:
            self._scheduler.wake_up(rank)
        event.data_waiters.clear()
        self._scheduler.progress()

    def _wake_for_end(self, event: Event, end_s: float) -> None:
        event.end_s, event.is_final = end_s, True
        for rank in event.end_waiters:
            self._scheduler.wake_up(rank, end_s)
        event.end_waiters.clear()
        self._scheduler.progress()


def _move_message(sent: PerMember, received: PerMember) -> None:
    buffer = received[RECEIVER][0]
    buffer.copy_(sent[SENDER][0].reshape(buffer.shape))


def _dtype(tensors: Sequence[Tensor]) -> str:
    """That of all of them; "" where they differ, and of none."""
    found = {tensor.dtype for tensor in tensors}
    return str(found.pop()).removeprefix("torch.") if len(found) == 1 else ""


def _issue_s(message: Message) -> float:
    return message.issue_s


def _fits(send: Message, receive: Message) -> bool:
    return receive.peer in (send.member, ANY_SOURCE) and receive.tag == send.tag


def _message_mismatch(send: Message, receive: Message) -> CollectiveMismatchError:
    def text(message: Message, direction: str) -> Wait:
        assert message.tensor is not None
        what = f"{str(message.tensor.dtype).removeprefix('torch.')}{list(message.tensor.shape)}"
        return Wait(message.rank.rank, f"{message.kind}s {what} {direction} {message.peer_label}", str(message.source))

    headline = f"a send and its receive (tag {send.tag}) of group {send.group_label} disagree on dtype or size."
    headline += f" {WHOSE_RANKS}" if send.group_label != "world" else ""
    return CollectiveMismatchError(headline, [text(send, "to"), text(receive, "from")])
