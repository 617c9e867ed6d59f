"""Events of a run and their subscribers: records of time and traffic, tensors that move, faults.

    AllJoined    the last member of a collective has joined: the data may move
    Matched      a send and its receive are matched: the data may move
    Transferred  a collective or a message has ended, and its times are final
    Hung         a fault keeps a communication from ending

The engine emits events and reads nothing back. Faults change the run through conditions.py only.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from lablib.cost.collective import CollectiveCost
from lablib.engine.communication import Joined, Meeting, Message


@dataclass(slots=True, eq=False)
class AllJoined:
    """All simulated members have joined: `arrived` holds them in group order; `size` counts all members."""

    meeting: Meeting
    kind: str
    root: int
    arrived: Sequence[Joined]
    size: int


@dataclass(slots=True, eq=False)
class Matched:
    """The data of `send` may move to the buffer of `receive`."""

    send: Message
    receive: Message


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part in a communication."""

    rank: int
    stream: str  # the stream that was busy
    name: str  # its name in messages: "all_reduce", "send to 3"
    phase: str  # phase, source: phase of the program at the call, and source line
    source: Any
    issue_s: float  # time of the call
    place: int  # place in the group; for a message, 0 for the sender and 1 for the receiver


@dataclass(frozen=True, slots=True)
class Transferred:
    """A communication has ended."""

    number: int  # its number in the run, from 0, in order of ends
    group: str  # label of its group
    name: str  # "all_reduce", ...; "send" for a message
    parts: tuple[RankPart, ...]  # one for each simulated participant
    ranks: tuple[int, ...]  # all participants, in group order; the sender first
    cost: CollectiveCost  # its cost without contention
    size_bytes: float  # S of the cost model
    start_s: float  # start_s, end_s: its times
    end_s: float
    dtype: str  # dtype of its data; "" for several or none


@dataclass(frozen=True, slots=True)
class Hung:
    """A communication that has begun and has not ended."""

    group: str  # label of its group
    name: str  # the function called
    ranks: tuple[int, ...]  # global ranks of the participants
    joined: tuple[tuple[int, float, str], ...]  # (rank, time of its call, phase) for each that joined
    start_s: float = inf  # time at which bytes began to move; inf if a participant did not join


class Events:
    """The subscribers of each kind of event."""

    def __init__(self) -> None:
        self._subscribers: defaultdict[type, list[Callable[[Any], None]]] = defaultdict(list)
        self._num_transfers = 0

    def subscribe(self, kind: type, subscriber: Callable[[Any], None]) -> None:
        """Call `subscriber` with each later event of this kind, in the order of subscription."""
        self._subscribers[kind].append(subscriber)

    def emit(self, event: object) -> None:
        for subscriber in self._subscribers[type(event)]:
            subscriber(event)

    def next_number(self) -> int:
        """Number of the next communication that ends."""
        self._num_transfers += 1
        return self._num_transfers - 1
