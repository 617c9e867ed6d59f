"""Tensors on their way: the buffers of a rank are filled when that rank waits, and not before.

On real processes a buffer holds garbage until the `wait` of its own work, and what is sent may be read until then. A
program that reads too early, or writes too early, must not get right values here. So a communication moves as late as
the rules allow:

    the last member joins     `load`: all that is needed is there; nothing moves
    a first member waits      `fill`: what all receive is computed, straight into the buffers of those who wait by then,
                              and into memory of its own for the others
    any other member waits    `fill`: its buffers get what was kept for it

A collective that blocks finds every member waiting, so nothing is kept and nothing is copied twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from lablib.engine.events import AllJoined, Events, Matched
from lablib.torch_compat import DisableTorchDispatch, DisableTorchFunction

PerMember = Sequence[Sequence[Tensor]]
SENDER, RECEIVER = 0, 1  # the two members of a message
_SAME_FOR_ALL = ("all_reduce", "broadcast", "all_gather")  # every rank receives the same
Move = Callable[[PerMember, PerMember], None]  # what each member gave in -> what each member wants filled


@contextmanager
def unseen_by_torch() -> Iterator[None]:
    """torch's own bookkeeping (autograd, function and dispatch modes) must not see the simulator's copies.

    Inference mode, as tensors made in it may not be written outside.
    """
    with torch.inference_mode(), DisableTorchFunction(), DisableTorchDispatch():
        yield


class Tensors(NamedTuple):
    """What one member brings to a collective: what it gives, what it wants filled, and how the one becomes the other.

    All members bring the same `move`. `fills_in` says whether phantoms are taken to give what the first simulated
    member gives; else what they give is not known, and `move` does not need it (process_group.py refuses what would).
    """

    sent: Sequence[Tensor]
    received: Sequence[Tensor]
    move: Move
    fills_in: bool = False


class Delivery:
    """What one communication moves. Members are numbered as in its group, phantoms with them; of a message, SENDER and
    RECEIVER.

    Attributes:
        waiting: the members that wait: their buffers may be filled at any time.
        owed: those whose buffers are still to be filled, once all have come.
    """

    __slots__ = ("_kept", "_loaded", "owed", "waiting")

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.owed: set[int] = set()
        self._loaded: tuple[PerMember, PerMember, Move, bool] | None = None
        self._kept: dict[int, tuple[Sequence[Tensor], Sequence[Tensor]]] = {}

    def load(self, sent: PerMember, received: PerMember, move: Move, is_alike: bool = False) -> None:
        """All members have come.

        Args:
            sent: the tensors that each gives in.
            received: those that each wants filled; none for a member that receives nothing.
            move: computes the one from the other.
            is_alike: whether every member that receives anything receives the same.
        """
        if not _have_values(sent, received):
            return
        self._loaded = sent, received, move, is_alike
        self.owed = set(range(len(received)))

    def join(self, other: "Delivery") -> None:
        """Two sides of a message have met: those who wait for the other wait for this one."""
        self.waiting |= other.waiting

    def fill(self, member: int) -> None:
        """This member has waited: fill its buffers. Later calls do nothing."""
        self.waiting.add(member)
        if member not in self.owed:
            return
        with unseen_by_torch():
            if self._loaded is not None:
                self._move()
            self.owed.discard(member)
            for buffer, result in zip(*self._kept.pop(member, ((), ())), strict=True):
                buffer.copy_(result)

    def _move(self) -> None:
        assert self._loaded is not None
        sent, received, move, is_alike = self._loaded
        self._loaded = None
        self.owed = set(range(len(received))) - self.waiting
        into = list(received)
        results: dict[object, list[Tensor]] = {}
        for member, buffers in enumerate(received):
            if buffers and member not in self.waiting:
                key = tuple(t.shape for t in buffers) if is_alike else member
                if key not in results:
                    results[key] = [torch.empty_like(t) for t in buffers]
                into[member] = results[key]
                self._kept[member] = buffers, results[key]
        move(sent, into)


def follow(events: Events) -> None:
    """Load what moves whenever the engine says that all who take part have come."""
    events.subscribe(AllJoined, _load_collective)
    events.subscribe(Matched, _load_message)


def _load_collective(event: AllJoined) -> None:
    brought: list[Tensors] = [joined.tensors for joined in event.arrived]
    if event.meeting.payload is None:  # a group of one
        event.meeting.payload = Delivery()
    sent, received = [each.sent for each in brought], [each.received for each in brought]
    if len(brought) < event.size and _have_values(sent, received):
        places = event.meeting.members
        sent = _by_place(sent, places, event.size, sent[0] if brought[0].fills_in else ())
        received = _by_place(received, places, event.size, ())
    event.meeting.payload.load(sent, received, brought[0].move, is_alike=event.kind in _SAME_FOR_ALL)
    for joined in event.arrived:
        joined.tensors = None  # what the program drops must not live on while it travels


def _have_values(sent: PerMember, received: PerMember) -> bool:
    """Whether there is anything to move: shapes have no values, and who receives may be a phantom."""
    return any(received) and not any(tensor.is_meta for tensors in (*sent, *received) for tensor in tensors)


def _by_place(of_arrived: PerMember, places: Iterable[int], size: int, of_phantom: Sequence[Tensor]) -> PerMember:
    """What every member of a group brings, in group order, of what its simulated members do."""
    members = [of_phantom] * size
    for place, tensors in zip(places, of_arrived, strict=True):
        members[place] = tensors
    return members


def _load_message(event: Matched) -> None:
    """The two sides share one delivery from now on."""
    send, receive = event.send, event.receive
    send.payload.join(receive.payload)
    receive.payload = send.payload
    send.payload.load([[send.tensors], []], [[], [receive.tensors]], _move_message)
    send.tensors = receive.tensors = None


def _move_message(sent: PerMember, received: PerMember) -> None:
    buffer = received[RECEIVER][0]
    buffer.copy_(sent[SENDER][0].reshape(buffer.shape))
