"""A process group as its members share it: where they meet, what moves, and when.

Collectives. Members meet by counting calls (call.py). When the last one joins, the tensors move (exchange.py) and the
time is fixed:

    start = max over members of (when it issued the call, when its stream of this group is free)
    end   = start + cost of the collective (lablib/cost)

Point to point. A send and a receive are a rendezvous: the bytes move when both are posted, as in NCCL and in gloo
(whose sender waits until the receiver is ready). A receive matches the sends of its source and tag in the order in
which receives were posted. One message occupies the sender's output port and the receiver's input port of its level
(NVLink, NIC) for alpha + S beta: the one-port model, full duplex.

    start = the first moment after both were issued from which both ports are free for so long (port.py)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

import torch
from torch import Tensor

from lablib.cost import CollectiveCost, GroupNetwork, collective_cost
from lablib.cost.routes import Route
from lablib.errors import CollectiveMismatchError, Wait
from lablib.run import Transfer
from lablib.sim.call import Call, Joined
from lablib.sim.port import first_common_gap
from lablib.sim.rank import Rank
from lablib.sim.scheduler import Scheduler
from lablib.sim.source import Source

ANY_SOURCE = -1


@dataclass(slots=True, eq=False)
class Message:
    """One posted send or receive. `peer` is a group rank, or ANY_SOURCE."""

    kind: str
    rank: Rank
    member: int
    peer: int
    tag: int
    tensor: Tensor
    issue_s: float
    phase: str
    source: Source
    peer_label: str
    group_label: str
    is_done: bool = False
    end_s: float = 0.0
    matched: int = ANY_SOURCE
    waiters: list[int] = field(default_factory=list)
    stopped: str = ""

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


class Group:
    """What the members of one process group share.

    Args:
        label: "world", the description given to `new_group`, or the list of ranks.
        ranks: the members, in group order.
        network: their edges on the cluster.
        scheduler: to wake those who wait.
        transfers: where finished communications are written down.
        faults: those of the run, if it has any.
    """

    def __init__(
        self,
        label: str,
        ranks: Sequence[Rank],
        network: GroupNetwork,
        scheduler: Scheduler,
        transfers: list[Transfer],
        faults: Faults | None = None,
    ):
        self.label = label
        self.members = list(ranks)
        self.network = network
        self.global_ranks = tuple(member.rank for member in ranks)
        self._scheduler = scheduler
        self._transfers = transfers
        self._calls: dict[int, Call] = {}
        self._num_calls = [0] * len(ranks)
        self._stream_free_s = [0.0] * len(ranks)
        self._sends: list[list[Message]] = [[] for _ in ranks]  # by receiver
        self._receives: list[list[Message]] = [[] for _ in ranks]  # by receiver
        self._costs: dict[tuple[str, float, int], CollectiveCost] = {}
        self._faults = faults
        self._price = faults.cost if faults else collective_cost
        self._stopped: list[Stopped] = []

    # ---- collectives ----

    def join(
        self,
        member: int,
        newcomer: Joined,
        move: Callable[[list[Joined]], None],
        size_bytes: Callable[[list[Joined]], float],
        kind: str,
        root: int = 0,
    ) -> Call:
        """One member joins its next call. The last to come moves the tensors and fixes the time."""
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
            # torch's own bookkeeping (autograd, dispatch modes) must not see the simulator's copies. Inference mode, as
            # tensors made in it may not be written outside.
            with torch.inference_mode(), torch._C._DisableTorchDispatch():
                move(arrived)
            self._finish(call, arrived, kind, size_bytes(arrived), root)
        return call

    def _finish(self, call: Call, arrived: list[Joined], kind: str, size_bytes: float, root: int) -> None:
        cost = self._cost(kind, size_bytes, root)
        start_s = max(max(j.issue_s, free_s) for j, free_s in zip(arrived, self._stream_free_s, strict=True))
        call.end_s = end_s = start_s + cost.time_s
        if self._faults and self._stops(call, arrived, kind, cost.algorithm, root, start_s, end_s):
            return
        self._stream_free_s = [end_s] * len(arrived)
        stream = f"comm:{self.label}"
        for member, joined in zip(self.members, arrived, strict=True):
            member.communicate(stream, call.name, joined.phase, start_s, end_s, size_bytes, joined.source)
        self._transfers.append(
            Transfer(
                self.label,
                call.name,
                self.global_ranks,
                cost.algorithm,
                size_bytes,
                cost.sent_bytes,
                start_s,
                end_s,
                tuple(joined.issue_s for joined in arrived),
                cost.route,
            )
        )
        self._complete(call)

    def _cost(self, kind: str, size_bytes: float, root: int) -> CollectiveCost:
        key = (kind, size_bytes, root)
        if key not in self._costs:
            cost = self._price(kind, size_bytes, self.network, root=root)
            self._costs[key] = replace(cost, route=Route(kind, cost.algorithm, self.network, size_bytes, root))
        return self._costs[key]

    # ---- point to point ----

    def post_send(self, message: Message) -> None:
        """Post a send; it meets the first posted receive that it fits."""
        for receive in self._receives[message.peer]:
            if _fits(message, receive):
                self._receives[message.peer].remove(receive)
                return self._transfer(message, receive)
        self._sends[message.peer].append(message)

    def post_receive(self, message: Message) -> None:
        """Post a receive; it meets the first posted send that fits it; one from anyone the send issued first."""
        fitting = [send for send in self._sends[message.member] if _fits(send, message)]
        if not fitting:
            self._receives[message.member].append(message)
            return
        # Posting follows the order in which ranks had their turns; virtual time decides between different senders.
        send = min(fitting, key=lambda send: send.issue_s) if message.peer == ANY_SOURCE else fitting[0]
        self._sends[message.member].remove(send)
        self._transfer(send, message)

    def _transfer(self, send: Message, receive: Message) -> None:
        if send.tensor.dtype != receive.tensor.dtype or send.tensor.numel() != receive.tensor.numel():
            self._scheduler.fail(_message_mismatch(send, receive))
        with torch.inference_mode(), torch._C._DisableTorchDispatch():
            receive.tensor.copy_(send.tensor.reshape(receive.tensor.shape))
        sender, receiver = send.rank, receive.rank
        edge = self.network.cluster.edge(sender.rank, receiver.rank)
        out_port, in_port = sender.port(f"{edge.level}:out"), receiver.port(f"{edge.level}:in")
        size_bytes = send.tensor.nbytes
        time_s = edge.transfer_s(size_bytes)
        start_s = first_common_gap(out_port, in_port, max(send.issue_s, receive.issue_s), time_s)
        end_s = start_s + time_s
        if self._faults and self._stops_message(send, receive, start_s, end_s):
            return
        out_port.occupy(start_s, end_s)
        in_port.occupy(start_s, end_s)
        stream = f"comm:{self.label}"
        sender.communicate(
            f"{stream}:send", f"send to {receiver.rank}", send.phase, start_s, end_s, size_bytes, send.source
        )
        receiver.communicate(
            f"{stream}:recv", f"recv from {sender.rank}", receive.phase, start_s, end_s, size_bytes, receive.source
        )
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
            )
        )
        receive.matched = send.member
        for message in (send, receive):
            message.end_s = end_s
            self._complete(message)

    # ---- faults ----

    def _stops(
        self, call: Call, arrived: list[Joined], kind: str, algorithm: str, root: int, start_s: float, end_s: float
    ) -> bool:
        """Whether a fault keeps the call from ever ending. Those who wait are not woken."""
        assert self._faults is not None
        what = f"{call.name} #{call.index} of group {self.label}"
        call.stopped = self._faults.stop(what, kind, algorithm, self.global_ranks, root, start_s, end_s)
        if call.stopped:
            joined = tuple((j.rank, j.issue_s, j.phase) for j in arrived)
            self._stopped.append(Stopped(self.label, call.name, self.global_ranks, joined, start_s))
        return bool(call.stopped)

    def _stops_message(self, send: Message, receive: Message, start_s: float, end_s: float) -> bool:
        assert self._faults is not None
        pair = (send.rank.rank, receive.rank.rank)
        what = f"the message from rank {pair[0]} to rank {pair[1]} (tag {send.tag}) of group {self.label}"
        send.stopped = receive.stopped = self._faults.stop(what, "send", "direct", pair, 0, start_s, end_s)
        if send.stopped:
            joined = tuple((message.rank.rank, message.issue_s, message.phase) for message in (send, receive))
            self._stopped.append(Stopped(self.label, "send", pair, joined, start_s))
        return bool(send.stopped)

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

    def _complete(self, event: Call | Message) -> None:
        event.is_done = True
        for rank in event.waiters:
            self._scheduler.wake_up(rank, event.end_s)
        event.waiters.clear()
        self._scheduler.progress()


def _fits(send: Message, receive: Message) -> bool:
    return receive.peer in (send.member, ANY_SOURCE) and receive.tag == send.tag


def _message_mismatch(send: Message, receive: Message) -> CollectiveMismatchError:
    def text(message: Message, direction: str) -> Wait:
        what = f"{str(message.tensor.dtype).removeprefix('torch.')}{list(message.tensor.shape)}"
        return Wait(message.rank.rank, f"{message.kind}s {what} {direction} {message.peer_label}", str(message.source))

    headline = f"a send and its receive (tag {send.tag}) of group {send.group_label} disagree on dtype or size."
    return CollectiveMismatchError(headline, [text(send, "to"), text(receive, "from")])
