"""Errors of a launch: one class for each kind of failure of a distributed program.

    LaunchError
      RankError                 an exception on one rank; `__cause__` is the original
      DeadlockError             every unfinished rank waits for another
      FaultError                a fault that the launch asked for ended the run; `run` is what happened until then
        RankKilledError         `KillRank`
        LinkDownError           `DropLink`
      CollectiveMismatchError   ranks met in one call with different arguments
      LaunchTimeoutError        the program outlived `timeout_s`
      ValueNeededError          under fidelity="shapes", the program asked for a value
      WorkerError               a real worker process died or could not be started

A message states the rule, the value and the remedy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from lablib.text.messages import safe_repr, safe_str, type_name

if TYPE_CHECKING:
    from lablib.run import Run


_LONGEST_NAME = 100  # characters in which a misspelled name is looked for
_MAX_LINES = 16  # of a message that would have one for each rank


class LaunchError(RuntimeError):
    """A launched program failed. The subclasses say how."""


class RankError(LaunchError):
    """An exception on one rank ended the run; `__cause__` is that exception.

    Attributes:
        rank: the rank that raised.
        rank_traceback: its traceback as text, without the frames of the launcher.
    """

    def __init__(self, rank: int, error: BaseException, rank_traceback: str = ""):
        self.rank = rank
        self.rank_traceback = rank_traceback
        text = f"rank {rank} raised {type_name(error)}: {safe_str(error)}"
        super().__init__(f"{text}\n{rank_traceback}" if rank_traceback else text)


@dataclass(frozen=True, slots=True)
class Wait:
    """What one rank was doing when nothing could go on.

    Attributes:
        rank: who.
        what: "waits in all_reduce #7 of group dp", "has finished".
        source: "file:line" of the program; "" where it is not known.
        why: what keeps it, "rank 3 is not there"; "" where nothing is to be said.
        for_ranks: whom it waits for; empty: for nobody that is known.
        operation: what it called, "all_reduce", "recv"; "" for no communication.
        group: the process group of that.
        since_s: since when, in virtual seconds; None where it is not told.
    """

    rank: int
    what: str
    source: str = ""
    why: str = ""
    for_ranks: tuple[int, ...] = ()
    operation: str = ""
    group: str = ""
    since_s: float | None = None

    @property
    def text(self) -> str:
        """All of it in words, without rank and line."""
        since = "" if self.since_s is None else f" since {self.since_s:.6g} s"
        return f"{self.what}{since}{self.why and f'; {self.why}'}"

    def __str__(self) -> str:
        return f"rank {self.rank} {self.text}" + (f"  ({self.source})" if self.source else "")


class DeadlockError(LaunchError):
    """No rank can go on. `waits` holds one `Wait` a rank, in rank order."""

    def __init__(self, headline: str, waits: Sequence[Wait]):
        self.waits = tuple(waits)
        super().__init__("\n".join([headline, *(f"  {wait}" for wait in self.waits)]))


class CollectiveMismatchError(LaunchError):
    """Two ranks met in the same call with different operations or arguments. `calls` holds one `Wait` for each."""

    def __init__(self, headline: str, calls: Sequence[Wait]):
        self.calls = tuple(calls)
        super().__init__("\n".join([headline, *(f"  {call}" for call in self.calls)]))


class ValueNeededError(LaunchError):
    """Under `fidelity="shapes"` the program asked a tensor for a value."""


class FaultError(LaunchError):
    """A fault that the launch asked for (`faults=`) ended the run.

    Attributes:
        at_s: the virtual second in which it happened.
        waits: one `Wait` for each rank that could not go on, in rank order.
        run: what happened until then. Communications that never ended are in its timeline, and their `Transfer`s are
            called "unfinished"; a rank that did not finish has the value None.
    """

    run: "Run"

    def __init__(self, headline: str, at_s: float, waits: Sequence[Wait]):
        self.at_s = at_s
        self.waits = tuple(waits)
        lines = [headline, *(f"  {wait}" for wait in self.waits[:_MAX_LINES])]
        if len(self.waits) > _MAX_LINES:
            lines.append(f"  ... and {len(self.waits) - _MAX_LINES} more: error.waits has them all")
        super().__init__("\n".join([*lines, "error.run holds what happened until then."]))


class RankKilledError(FaultError):
    """A rank died (`KillRank`). `rank` is the first that did; `killed` maps each that died to its virtual second."""

    def __init__(self, headline: str, killed: "dict[int, float]", waits: Sequence[Wait]):
        self.killed = dict(killed)
        self.rank = min(killed, key=lambda rank: (killed[rank], rank))
        super().__init__(headline, killed[self.rank], waits)


class LinkDownError(FaultError):
    """A communication needed a link that was down (`DropLink`). `link` is its two ranks, `operation` what needed it."""

    def __init__(self, headline: str, link: tuple[int, int], at_s: float, operation: str, waits: Sequence[Wait]):
        self.link = link
        self.operation = operation
        super().__init__(headline, at_s, waits)


class UnwaitedWarning(UserWarning):
    """A program dropped the handle of a communication without waiting for it; `Run.notes` holds the same sentence."""


class WriteInFlightWarning(UserWarning):
    """A program wrote to what it gave to a communication before it waited; `Run.notes` holds the same sentence."""


class ReadInFlightWarning(UserWarning):
    """A program read what a communication was to fill before it waited; `Run.notes` holds the same sentence."""


class OverlapWarning(UserWarning):
    """A call's output shared memory with its input elsewhere than in its place; `Run.notes` holds the same sentence."""


class NotOnNcclWarning(UserWarning):
    """A program may hang on NCCL, depending on its sizes; `Run.notes` holds the same sentence."""


class LaunchTimeoutError(LaunchError):
    """The program was still running after `timeout_s` seconds of real time, and was ended."""


class WorkerError(LaunchError):
    """A worker process of a real backend died, or the backend cannot run on this machine."""


def unknown_name(kind: str, name: object, valid: Sequence[str]) -> ValueError:
    """The error for a name nobody knows, with the nearest names that exist.

    >>> unknown_name("cluster", "dgx-h10", ["dgx-a100", "dgx-h100"]).args[0]
    "unknown cluster 'dgx-h10': did you mean 'dgx-h100' or 'dgx-a100'? Valid: dgx-a100, dgx-h100."
    """
    nearest = get_close_matches(safe_str(name)[:_LONGEST_NAME].lower(), valid, n=3, cutoff=0.5)
    hint = " did you mean " + " or ".join(f"{n!r}" for n in nearest) + "?" if nearest else ""
    return ValueError(f"unknown {kind} {safe_repr(name)}:{hint} Valid: {', '.join(valid)}.")
