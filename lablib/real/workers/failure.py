"""Root cause among the failures of several ranks, and the error that reports it.

When a rank fails, others often fail after it: gloo reports "connection closed by peer". So a failure that only reports
a lost peer is a consequence; the earliest of the others is the cause.
"""

from contextlib import suppress
from dataclasses import dataclass

from lablib.errors import LaunchError, LaunchTimeoutError, RankError, WorkerError
from lablib.real.workers.capture import MAX_BYTES
from lablib.real.workers.messages import Failed, Whereabouts
from lablib.real.workers.pickling import unpack
from lablib.text.units import plural

_TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class Death:
    """A worker process ended during a program. `at_ns` is the time of detection (`time.time_ns`)."""

    at_ns: int
    lost_peer: bool = False


def failure_error(
    failures: dict[int, Failed | Death],
    pids: dict[int, int],
    causes_of_death: dict[int, str],
    stdout: dict[int, str],
    stderr: dict[int, str],
) -> LaunchError:
    """The error for the cause among `failures`; every argument is keyed by rank. Its notes have that rank's output."""
    rank = min(failures, key=lambda rank: (failures[rank].lost_peer, failures[rank].at_ns, rank))
    failed = failures[rank]
    if isinstance(failed, Death):
        said = _tail(stderr[rank])
        error: LaunchError = WorkerError(
            f"the worker process of rank {rank} (pid {pids[rank]}) {causes_of_death[rank]} while the program ran; the "
            f"other ranks were ended" + (f". Its last words:\n{said}" if said else "")
        )
    else:
        original = _original(failed)
        error = RankError(rank, original, failed.traceback)
        error.__cause__ = original if failed.error is not None else None
        _add_stderr(error, rank, stderr[rank])
    if printed := _tail(stdout[rank]):
        error.add_note(f"rank {rank} had printed:\n{printed}")
    return error


def timeout_error(
    timeout_s: float, ranks: int, reports: dict[int, Whereabouts], stderr: dict[int, str], interference: str = ""
) -> LaunchTimeoutError:
    """The error for ranks that had not returned, with the report and stderr of each.

    `interference`: other users' connections to them (peers.py).
    """
    names = ", ".join(map(str, reports))
    lines = [
        f"the program was still running after timeout_s={timeout_s:g}: of {plural(ranks, 'ranks')}, {names} had not "
        "returned and were ended; look for a communication that not all ranks make, or raise timeout_s",
        *filter(None, [interference]),
    ]
    for rank, at in reports.items():
        lines.append(f"rank {rank} was at\n{at.stack}" if at.stack else f"rank {rank} did not say where it was")
        if at.under_way:
            lines.append(f"its communications that were not complete:\n{at.under_way}")
    error = LaunchTimeoutError("\n".join(lines))
    for rank, text in stderr.items():
        _add_stderr(error, rank, text)
    return error


def endless_error(rank: int, stream: str) -> LaunchError:
    """The error for a rank that prints without end."""
    rule = f"a rank may write up to {MAX_BYTES / 1e9:.1f} GB to {stream}, which is kept until the program ends"
    return LaunchError(f"{rule}: rank {rank} wrote more, so all ranks were ended; print less, or write to a file")


def _add_stderr(error: LaunchError, rank: int, text: str) -> None:
    if said := _tail(text):
        error.add_note(f"rank {rank} had written to stderr:\n{said}")


def _original(failed: Failed) -> BaseException:
    """The exception itself; if it cannot be sent or rebuilt here, one with its name and text."""
    if failed.error is not None:
        with suppress(BaseException):  # an exception class may need arguments that its pickle lacks, or raise anything
            if isinstance(original := unpack(failed.error), BaseException):
                return original
    return type(failed.type_name, (RuntimeError,), {})(failed.text)


def _tail(text: str) -> str:
    """The last lines, without the long list of modules that a crash report ends with."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("Extension modules:")]
    return "\n".join(lines[-_TAIL_LINES:])
