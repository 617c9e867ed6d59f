"""What ranks can wait for: a collective that members join, or a message that is posted. Either happens twice.

    data    the last rank has joined: the bytes can move (what they are, the engine does not know: `payload`)
    end     virtual time has come so far that nothing can change the moment any more at which the transfer is over

Ranks meet in a collective by counting: a rank's seventh call on a group meets the others' seventh. They must agree on
the operation and on everything that all must give alike (dtype, shape, root, reduction); the first that does not is
told at once, with the line of each side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lablib.engine.rank_clock import RankClock
from lablib.errors import CollectiveMismatchError, Wait
from lablib.record.rank_text import ranks_in_words

ANY_SOURCE = -1

# What all ranks must give alike, as (label, value) pairs: (("dtype", torch.float32), ("shape", (4,)), ...)
Agreement = tuple[tuple[str, Any], ...]


@dataclass(slots=True, eq=False, kw_only=True)
class Communication:
    """A communication as those who wait for it see it.

    Attributes:
        payload: what moves; whoever runs the ranks knows what that is.
        has_data: whether all who take part have come.
        is_final: whether `end_s` is known.
        stopped: why it never ends, where a fault sees to that.
        data_waiters, end_waiters: global ranks to wake then.
    """

    payload: Any = None
    has_data: bool = False
    is_final: bool = False
    end_s: float = 0.0
    stopped: str = ""
    data_waiters: list[int] = field(default_factory=list)
    end_waiters: list[int] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What it is, whoever waits: "all_reduce of group world"."""
        raise NotImplementedError

    def describe(self, rank: int, source: Any, verb: str = "waits in") -> Wait:
        """What to say of a rank that waits for this."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Joined:
    """What one rank brought to a collective.

    Attributes:
        rank: global rank.
        name: what it called, as in `torch.distributed`.
        agreement: what all must give alike.
        sent_bytes, received_bytes: of all that it gives, and of all that it wants.
        issue_s: when it made the call.
        phase, source: what its program was doing, and the line.
        handling: the error that it was handling, in words; "" for none.
        dtype: of what it brought; "" where there are several, or none.
        tensors: what it brought, for whoever moves it; until all have come.
        uneven: of an all-to-all, the bytes to each member in group order; None where they are all alike.
    """

    rank: int
    name: str
    agreement: Agreement
    sent_bytes: float
    received_bytes: float
    issue_s: float
    phase: str
    source: Any
    handling: str = ""
    dtype: str = ""
    tensors: Any = None
    uneven: Sequence[float] | None = None

    def text(self) -> str:
        given = ", ".join(f"{label} {_plain(value)}" for label, value in self.agreement)
        return f"called {self.name}({given}){self.handling}"


@dataclass(slots=True, eq=False)
class Meeting(Communication):
    """One collective call of a group.

    Attributes:
        name: the collective, as in `torch.distributed`.
        index: how many calls of the group came before.
        members: those that are simulated: place in the group -> global rank.
        joined: by place in the group, until all have.
    """

    group_label: str
    members: Mapping[int, int]
    name: str
    index: int
    joined: dict[int, Joined] = field(default_factory=dict)

    def mismatch(self, first: Joined, second: Joined) -> CollectiveMismatchError:
        """The error for two that do not agree."""
        what = "operation"
        if first.name == second.name:
            pairs = zip(first.agreement, second.agreement, strict=True)
            what = next(label for (label, one), (_, other) in pairs if one != other)
        headline = (
            f"ranks disagree on the {what} of call #{self.index} of group {self.group_label}: "
            "every rank of a group must make the same calls in the same order."
        )
        calls = [Wait(joined.rank, joined.text(), str(joined.source)) for joined in (first, second)]
        return CollectiveMismatchError(headline, calls)

    @property
    def title(self) -> str:
        return f"{self.name} of group {self.group_label}"

    def describe(self, rank: int, source: Any, verb: str = "waits in") -> Wait:
        missing = tuple(r for i, r in self.members.items() if i not in self.joined)
        who = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {ranks_in_words(missing)} are"
        what = f"{verb} {self.name} #{self.index} of group {self.group_label}"
        why, whom = (self.stopped, ()) if self.stopped else (f"{who} not there", missing)
        return Wait(rank, what, str(source), why, whom, self.name, self.group_label)


@dataclass(slots=True, eq=False)
class Message(Communication):
    """One posted send or receive.

    Attributes:
        kind: "send" or "recv".
        clock: the rank that posted it.
        place: that rank's place in the group.
        peer: the place of the other side, or ANY_SOURCE.
        size_bytes, dtype: of the message; both sides must give the same.
        shape: of the tensor that holds it.
        tensors: that tensor, for whoever moves it; until the two sides have met.
        peer_rank: its global rank; None: anyone's.
        matched: the place of the other side, once they have met.
        turn: of a send, how many its rank issued before it.
        is_in_order: whether messages between two ranks meet in the order in which they are posted, whatever their tags.
    """

    kind: str
    clock: RankClock
    place: int
    peer: int
    tag: int
    size_bytes: int
    dtype: str
    shape: tuple[int, ...]
    issue_s: float
    phase: str
    source: Any
    peer_rank: int | None
    group_label: str
    tensors: Any = None
    matched: int = ANY_SOURCE
    turn: int = 0
    is_in_order: bool = False

    def text(self, direction: str) -> Wait:
        """What this side gives or wants."""
        peer = "any rank" if self.peer_rank is None else f"rank {self.peer_rank}"
        what = f"{self.kind}s {self.dtype}{list(self.shape)} {direction} {peer}"
        return Wait(self.clock.rank, what, str(self.source))

    def fits(self, receive: "Message") -> bool:
        """Whether this send is what a posted receive waits for."""
        return receive.peer in (self.place, ANY_SOURCE) and (self.is_in_order or receive.tag == self.tag)

    @property
    def title(self) -> str:
        return f"{self.kind} of group {self.group_label}"

    def describe(self, rank: int, source: Any, verb: str = "waits in") -> Wait:
        direction = "to" if self.kind == "send" else "from"
        other = "recv" if self.kind == "send" else "send"
        peer = "any rank" if self.peer_rank is None else f"rank {self.peer_rank}"
        what = f"{verb} {self.kind} {direction} {peer} (tag {self.tag}) of group {self.group_label}"
        why = self.stopped or f"no matching {other} is posted"
        whom = () if self.peer_rank is None else (self.peer_rank,)
        return Wait(rank, what, str(source), why, whom, self.kind, self.group_label)


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(v) for v in value) + "]"
    return str(value).removeprefix("torch.").removeprefix("RedOpType.")
