"""Delivery of tensors: the buffers of a rank are filled when that rank waits, not before.

On real processes a buffer holds garbage until the `wait` of its work, and an input may be read until then. A program
that reads or writes too early must not get correct values here. So data moves as late as the rules allow:

    the last member joins     `load`: all inputs are available; nothing moves
    the first member waits    `fill`: all results are computed, straight into the buffers of the members that wait by
                              then, and into separate memory for the others
    another member waits      `fill`: its buffers receive the stored results

In a collective that blocks every member is waiting, so nothing is stored and nothing is copied twice.
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
Move = Callable[[PerMember, PerMember], None]  # (inputs of each member, buffers of each member) -> fill the buffers


@contextmanager
def unseen_by_torch() -> Iterator[None]:
    """Hide the simulator's copies from torch's bookkeeping (autograd, function and dispatch modes).

    Inference mode is needed because tensors made in it may not be written to outside.
    """
    with torch.inference_mode(), DisableTorchFunction(), DisableTorchDispatch():
        yield


class Tensors(NamedTuple):
    """One member's input tensors, its output buffers, and the function that computes outputs from inputs.

    All members give the same `move`. `fills_in`: phantoms are assumed to give the same input as the first simulated
    member. Otherwise their input is unknown, and `move` does not need it (collectives.py rejects calls that would).
    """

    sent: Sequence[Tensor]
    received: Sequence[Tensor]
    move: Move
    fills_in: bool = False


class Delivery:
    """The data of one communication. Members are numbered as in its group, with phantoms; in a message: SENDER,
    RECEIVER.

    Attributes:
        waiting: the members that wait: their buffers may be filled at any time.
        owed: the members with buffers still to be filled, once all have joined.
    """

    __slots__ = ("_kept", "_loaded", "owed", "waiting")

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.owed: set[int] = set()
        self._loaded: tuple[PerMember, PerMember, Move, bool] | None = None
        self._kept: dict[int, tuple[Sequence[Tensor], Sequence[Tensor]]] = {}

    def load(self, sent: PerMember, received: PerMember, move: Move, is_alike: bool = False) -> None:
        """Take the tensors of all members.

        Args:
            sent: inputs of each member.
            received: output buffers of each member; empty for a member that receives nothing.
            move: computes outputs from inputs.
            is_alike: whether all members that receive anything receive the same.
        """
        if not _have_values(sent, received):
            return
        self._loaded = sent, received, move, is_alike
        self.owed = set(range(len(received)))

    def join(self, other: "Delivery") -> None:
        """Match two sides of a message: the waiting members of the other wait for this one."""
        self.waiting |= other.waiting

    def fill(self, member: int) -> None:
        """Fill the buffers of a member that waits. Later calls do nothing."""
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
    """Load the data of each communication when the engine reports that all participants have joined."""
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
        joined.tensors = None  # free the tensors that the program drops during the transfer


def _have_values(sent: PerMember, received: PerMember) -> bool:
    """Whether there is data to move: meta tensors have none, and a receiver may be a phantom."""
    return any(received) and not any(tensor.is_meta for tensors in (*sent, *received) for tensor in tensors)


def _by_place(of_arrived: PerMember, places: Iterable[int], size: int, of_phantom: Sequence[Tensor]) -> PerMember:
    """The tensors of every member in group order: of simulated members as given, of phantoms `of_phantom`."""
    members = [of_phantom] * size
    for place, tensors in zip(places, of_arrived, strict=True):
        members[place] = tensors
    return members


def _load_message(event: Matched) -> None:
    """Let the two sides share one delivery."""
    send, receive = event.send, event.receive
    send.payload.join(receive.payload)
    receive.payload = send.payload
    send.payload.load([[send.tensors], []], [[], [receive.tensors]], _move_message)
    send.tensors = receive.tensors = None


def _move_message(sent: PerMember, received: PerMember) -> None:
    buffer = received[RECEIVER][0]
    buffer.copy_(sent[SENDER][0].reshape(buffer.shape))
