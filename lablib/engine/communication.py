"""Communications that ranks wait for: a collective or a message. Each has two steps:

    data    the last rank has joined: the data can move (the engine treats it as an opaque `payload`)
    end     the end time is final: no rank can start a transfer that would change it

Members of a collective are matched by call count: the seventh call of a rank on a group matches the seventh call of the
others. All must agree on the operation and on every common argument (dtype, shape, root, reduction). The first mismatch
raises at once, with the source line of each side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lablib.engine.rank_clock import RankClock
from lablib.errors import CollectiveMismatchError, Wait
from lablib.record.rank_text import ranks_in_words

ANY_SOURCE = -1

# Arguments that must be equal on all ranks, as (label, value) pairs: (("dtype", torch.float32), ("shape", (4,)), ...)
Agreement = tuple[tuple[str, Any], ...]


@dataclass(slots=True, eq=False, kw_only=True)
class Communication:
    """A communication as seen by the ranks that wait for it."""

    payload: Any = None  # the data; opaque to the engine
    has_data: bool = False  # whether all participants have joined
    is_final: bool = False  # whether `end_s` is known
    end_s: float = 0.0
    stopped: str = ""  # the fault that keeps it from ending; "" for none
    # data_waiters, end_waiters: global ranks to wake at that step
    data_waiters: list[int] = field(default_factory=list)
    end_waiters: list[int] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its name in messages: "all_reduce of group world"."""
        raise NotImplementedError

    def describe(self, rank: int, source: Any, verb: str = "waits in") -> Wait:
        """Describe a rank that waits for this, for an error message."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Joined:
    """One rank's call of a collective."""

    rank: int
    name: str  # the function called, as in `torch.distributed`
    agreement: Agreement  # the arguments that must be equal on all ranks
    sent_bytes: float  # sent_bytes, received_bytes: sizes of all inputs and of all outputs
    received_bytes: float
    issue_s: float  # time of the call
    phase: str  # phase, source: phase of the program, and source line of the call
    source: Any
    handling: str = ""  # the exception being handled at the call, in words; "" for none
    dtype: str = ""  # dtype of the inputs; "" for several or none
    tensors: Any = None  # inputs and outputs, for the host that moves them; kept until all members have joined
    # for an all-to-all, the bytes to each member in group order; None if all are equal
    uneven: Sequence[float] | None = None

    def text(self) -> str:
        given = ", ".join(f"{label} {_plain(value)}" for label, value in self.agreement)
        return f"called {self.name}({given}){self.handling}"


@dataclass(slots=True, eq=False)
class Meeting(Communication):
    """One collective call of a group."""

    group_label: str
    members: Mapping[int, int]  # the simulated members: place in the group -> global rank
    name: str  # the collective, as in `torch.distributed`
    index: int  # number of earlier calls on the group
    # calls by place in the group, until all members have joined
    joined: dict[int, Joined] = field(default_factory=dict)

    def mismatch(self, first: Joined, second: Joined) -> CollectiveMismatchError:
        """The error for two calls that do not agree."""
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
    """One posted send or receive."""

    kind: str  # "send" or "recv"
    clock: RankClock  # clock of the rank that posted it
    place: int  # place of that rank in the group
    peer: int  # place of the other side, or ANY_SOURCE
    tag: int
    size_bytes: int  # size_bytes, dtype: of the message; both sides must agree
    dtype: str
    shape: tuple[int, ...]
    issue_s: float
    phase: str
    source: Any
    peer_rank: int | None  # global rank of the peer; None for any source
    group_label: str
    tensors: Any = None  # that tensor, for the host that moves it; kept until send and receive are matched
    matched: int = ANY_SOURCE  # place of the other side, once matched
    turn: int = 0  # for a send, the number of sends that its rank issued before
    is_in_order: bool = False  # whether messages between two ranks match in posting order, regardless of tags

    def text(self, direction: str) -> Wait:
        """Describe this side, for a mismatch error."""
        peer = "any rank" if self.peer_rank is None else f"rank {self.peer_rank}"
        what = f"{self.kind}s {self.dtype}{list(self.shape)} {direction} {peer}"
        return Wait(self.clock.rank, what, str(self.source))

    def fits(self, receive: "Message") -> bool:
        """Whether this send matches a posted receive."""
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
