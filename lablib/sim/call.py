"""One collective call of one group: who has joined, what they brought, when it ends.

Ranks meet in a collective by counting: a rank's seventh call on a group meets the others' seventh. They must agree on
the operation and on everything that all must give alike (dtype, shape, root, reduction); the first that does not is
told at once, with the line of each side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lablib.errors import CollectiveMismatchError, Wait
from lablib.sim.event import Event
from lablib.sim.source import Source

# What all ranks must give alike, as (label, value) pairs: (("dtype", torch.float32), ("shape", (4,)), ...)
Agreement = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """What one rank brought to a call."""

    rank: int
    name: str
    agreement: Agreement
    sent: Sequence[Tensor]
    received: Sequence[Tensor]
    issue_s: float
    phase: str
    source: Source
    handling: str = ""

    def text(self) -> str:
        given = ", ".join(f"{label} {_plain(value)}" for label, value in self.agreement)
        return f"called {self.name}({given}){self.handling}"


@dataclass(slots=True, eq=False)
class Call(Event):
    """A collective in the making.

    Attributes:
        name: the collective, as in `torch.distributed`.
        index: how many calls of the group came before.
        joined: by group rank, until all have.
    """

    group_label: str
    group_ranks: tuple[int, ...]
    name: str
    index: int
    joined: dict[int, Joined] = field(default_factory=dict)

    def join(self, group_rank: int, newcomer: Joined) -> CollectiveMismatchError | None:
        """Add a rank. Returns the error when it does not agree with those who came before."""
        if self.joined:
            other = next(iter(self.joined.values()))
            if newcomer.name != other.name:
                return self.mismatch("operation", other, newcomer)
            for (label, mine), (_, theirs) in zip(newcomer.agreement, other.agreement, strict=True):
                if mine != theirs:
                    return self.mismatch(label, other, newcomer)
        self.joined[group_rank] = newcomer
        return None

    def mismatch(self, what: str, first: Joined, second: Joined) -> CollectiveMismatchError:
        headline = (
            f"ranks disagree on the {what} of call #{self.index} of group {self.group_label}: "
            "every rank of a group must make the same calls in the same order."
        )
        calls = [Wait(joined.rank, joined.text(), str(joined.source)) for joined in (first, second)]
        return CollectiveMismatchError(headline, calls)

    @property
    def title(self) -> str:
        return f"{self.name} of group {self.group_label}"

    def describe(self, rank: int, source: Source, verb: str = "waits in") -> Callable[[], Wait]:
        """What to say of a rank that waits for this call; put together only when asked for."""

        def wait() -> Wait:
            missing = [r for i, r in enumerate(self.group_ranks) if i not in self.joined]
            who = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {_some(missing)} are"
            text = f"{verb} {self.name} #{self.index} of group {self.group_label}; {self.stopped or f'{who} not there'}"
            return Wait(rank, text, str(source))

        return wait


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(v) for v in value) + "]"
    return str(value).removeprefix("torch.").removeprefix("RedOpType.")


def _some(ranks: Sequence[int], at_most: int = 8) -> str:
    shown = ", ".join(map(str, ranks[:at_most]))
    return shown if len(ranks) <= at_most else f"{shown}, ... ({len(ranks)} in all)"
