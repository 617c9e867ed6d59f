"""What happens in a run, told to whoever subscribed: records of time and traffic, tensors that move, faults.

    AllJoined    the last member of a collective has come: the data may move
    Matched      a send has met its receive: the data may move
    Transferred  a collective or a message is over, and when it ran is final
    Hung         a fault keeps one from ever ending

The engine emits them and reads nothing back. What a fault changes, it changes in one place: conditions.py.
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
    """`arrived` holds the simulated members in group order; `size` counts all."""

    meeting: Meeting
    kind: str
    root: int
    arrived: Sequence[Joined]
    size: int


@dataclass(slots=True, eq=False)
class Matched:
    """The data of `send` may move to where `receive` wants it."""

    send: Message
    receive: Message


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part in a communication.

    Attributes:
        rank: global rank.
        stream: what of it was busy.
        name: what it did, for people: "all_reduce", "send to 3".
        phase, source: what its program was doing when it made the call, and the line.
        issue_s: when it made the call.
        place: in the group; of a message, 0 for the sender and 1 for the receiver.
    """

    rank: int
    stream: str
    name: str
    phase: str
    source: Any
    issue_s: float
    place: int


@dataclass(frozen=True, slots=True)
class Transferred:
    """A communication is over.

    Attributes:
        number: of its run, from 0, in the order in which communications ended.
        group: label of its group.
        name: "all_reduce", ...; "send" for a message.
        parts: one for each rank that takes part and is simulated.
        ranks: all who take part, in group order; the sender first.
        cost: what it cost alone.
        size_bytes: S of the cost model.
        start_s, end_s: when it ran.
        dtype: of its data; "" where there are several, or none.
    """

    number: int
    group: str
    name: str
    parts: tuple[Part, ...]
    ranks: tuple[int, ...]
    cost: CollectiveCost
    size_bytes: float
    start_s: float
    end_s: float
    dtype: str


@dataclass(frozen=True, slots=True)
class Hung:
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


class Events:
    """Who wants to be told of what."""

    def __init__(self) -> None:
        self._subscribers: defaultdict[type, list[Callable[[Any], None]]] = defaultdict(list)
        self._num_transfers = 0

    def subscribe(self, kind: type, subscriber: Callable[[Any], None]) -> None:
        """From now on `subscriber` is called with each event of this kind, in the order of subscription."""
        self._subscribers[kind].append(subscriber)

    def emit(self, event: object) -> None:
        for subscriber in self._subscribers[type(event)]:
            subscriber(event)

    def next_number(self) -> int:
        """The number of the next communication that ends."""
        self._num_transfers += 1
        return self._num_transfers - 1
