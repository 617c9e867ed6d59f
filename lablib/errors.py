"""Errors of a launch: one class for each kind of failure of a distributed program.

    LaunchError
      RankError                 an exception on one rank; `__cause__` is the original
      DeadlockError             every unfinished rank waits for another
      FaultError                a requested fault ended the run; `run` is the run until then
        RankKilledError         `KillRank`
        LinkDownError           `DropLink`
      CollectiveMismatchError   ranks made the same call with different arguments
      LaunchTimeoutError        the program exceeded `timeout_s`
      ValueNeededError          under fidelity="shapes", the program read a value
      WorkerError               a real worker process died or could not be started

A message gives the rule, the value and the remedy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from lablib.text.messages import safe_repr, safe_str, type_name

if TYPE_CHECKING:
    from lablib.run import Run
T = TypeVar("T")


_LONGEST_NAME = 100  # longest name, in characters, for which suggestions are searched
_MAX_LINES = 16  # longest list of ranks in a message


class LaunchError(RuntimeError):
    """A launched program failed. The subclasses are the kinds of failure."""


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
    """State of one rank when no rank could go on."""

    rank: int  # the rank
    what: str  # "waits in all_reduce #7 of group dp", "has finished"
    source: str = ""  # "file:line" of the program; "" if unknown
    why: str = ""  # the reason of the wait, "rank 3 is not there"; "" for none
    for_ranks: tuple[int, ...] = ()  # the ranks it waits for; empty if unknown or none
    operation: str = ""  # the call, "all_reduce", "recv"; "" if it is no communication
    group: str = ""  # the process group of the call
    since_s: float | None = None  # virtual time at which the wait began; None if not recorded

    @property
    def text(self) -> str:
        """The state in words, without rank and line."""
        since = "" if self.since_s is None else f" since {self.since_s:.6g} s"
        return f"{self.what}{since}{self.why and f'; {self.why}'}"

    def __str__(self) -> str:
        return f"rank {self.rank} {self.text}" + (f"  ({self.source})" if self.source else "")


class DeadlockError(LaunchError):
    """No rank can go on. `waits` holds one `Wait` per rank, in rank order."""

    def __init__(self, headline: str, waits: Sequence[Wait]):
        self.waits = tuple(waits)
        super().__init__("\n".join([headline, *(f"  {wait}" for wait in self.waits)]))


class CollectiveMismatchError(LaunchError):
    """Two ranks made the same call with different operations or arguments. `calls` holds one `Wait` for each."""

    def __init__(self, headline: str, calls: Sequence[Wait]):
        self.calls = tuple(calls)
        super().__init__("\n".join([headline, *(f"  {call}" for call in self.calls)]))


class ValueNeededError(LaunchError):
    """Under `fidelity="shapes"` the program read the value of a tensor."""


class FaultError(LaunchError):
    """A fault requested by the launch (`faults=`) ended the run.

    Attributes:
        at_s: virtual time of the fault.
        waits: one `Wait` for each rank that could not go on, in rank order.
        run: the run until then. Its timeline includes communications that never ended, with `Transfer`s named
            "unfinished"; a rank that did not finish has the value None.
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
    """A rank died (`KillRank`). `rank` is the first; `killed` maps each dead rank to the virtual time of its death."""

    def __init__(self, headline: str, killed: "dict[int, float]", waits: Sequence[Wait]):
        self.killed = dict(killed)
        self.rank = min(killed, key=lambda rank: (killed[rank], rank))
        super().__init__(headline, killed[self.rank], waits)


class LinkDownError(FaultError):
    """A communication needed a dropped link (`DropLink`). `link` is its two ranks, `operation` the communication."""

    def __init__(self, headline: str, link: tuple[int, int], at_s: float, operation: str, waits: Sequence[Wait]):
        self.link = link
        self.operation = operation
        super().__init__(headline, at_s, waits)


class UnwaitedWarning(UserWarning):
    """A program dropped the handle of a communication without waiting for it; `Run.notes` holds the same sentence."""


class WriteInFlightWarning(UserWarning):
    """A program wrote to a tensor of a communication before its wait; `Run.notes` holds the same sentence."""


class ReadInFlightWarning(UserWarning):
    """A program read a tensor that a communication fills before its wait; `Run.notes` holds the same sentence."""


class OverlapWarning(UserWarning):
    """A call's output overlapped its input in an invalid way; `Run.notes` holds the same sentence."""


class NotOnNcclWarning(UserWarning):
    """A program may hang on NCCL, depending on its sizes; `Run.notes` holds the same sentence."""


class LaunchTimeoutError(LaunchError):
    """The program was still running after `timeout_s` seconds of real time, and was ended."""


class WorkerError(LaunchError):
    """A worker process of a real backend died, or the backend cannot run on this machine."""


def find_named(kind: str, name: "str | T", catalogue: Mapping[str, T], record: type[T]) -> T:
    """The record of that name; a record is returned as it is. Raises ValueError with the nearest names."""
    if isinstance(name, record):
        return name
    if not isinstance(name, str) or name not in catalogue:
        raise unknown_name(kind, name, list(catalogue))
    return catalogue[name]


def unknown_name(kind: str, name: object, valid: Sequence[str]) -> ValueError:
    """The error for an unknown name, with the nearest valid names.

    >>> unknown_name("cluster", "dgx-h10", ["dgx-a100", "dgx-h100"]).args[0]
    "unknown cluster 'dgx-h10': did you mean 'dgx-h100' or 'dgx-a100'? Valid: dgx-a100, dgx-h100."
    """
    valid = list(map(safe_str, valid)) if isinstance(valid, Iterable) else []
    lower = {each.lower(): each for each in valid}
    nearest = [lower[n] for n in get_close_matches(safe_str(name)[:_LONGEST_NAME].lower(), lower, n=3, cutoff=0.5)]
    hint = " did you mean " + " or ".join(f"{n!r}" for n in nearest) + "?" if nearest else ""
    return ValueError(f"unknown {kind} {safe_repr(name)}:{hint} Valid: {', '.join(valid)}.")
