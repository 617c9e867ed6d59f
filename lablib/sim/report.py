"""Report a simulation: its `Run`, its warnings, and the error of a run that cannot go on."""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from itertools import dropwhile
from typing import TYPE_CHECKING

from lablib import errors
from lablib.engine.group import WHOSE_RANKS
from lablib.process.thread_frames import thread_frames
from lablib.record.passes import with_phases
from lablib.run import Run, Span, Timeline, Traffic, Transfer
from lablib.sim.communication.unwaited import overlap_notes, read_notes, unwaited_notes, written_notes
from lablib.sim.memory.collector import no_collections
from lablib.sim.source import program_frame, program_line
from lablib.text.messages import traceback_text
from lablib.text.units import plural

if TYPE_CHECKING:
    from lablib.sim.build import Parts

_LAUNCHERS = tuple(os.path.join(os.path.dirname(os.path.dirname(__file__)), name) for name in ("sim", "script"))
_MOST_WAITS = 16
_OURS = (*_LAUNCHERS, threading.__file__)
_FINDINGS = {
    errors.UnwaitedWarning: unwaited_notes,
    errors.WriteInFlightWarning: written_notes,
    errors.ReadInFlightWarning: read_notes,
    errors.OverlapWarning: overlap_notes,
}


def warn_of_findings(parts: Parts, stacklevel: int) -> list[str]:
    """Warn of values that are right by chance only: races, and calls that may hang on NCCL. Returns the notes."""
    found = [(note, kind) for kind, notes_of in _FINDINGS.items() for note in notes_of(parts.ranks)]
    found += [(note, errors.NotOnNcclWarning) for note in parts.nccl_notes]
    for note, kind in found:
        warnings.warn(note, kind, stacklevel=stacklevel + 1)
    return [note for note, _ in found]


@no_collections()
def result_of(
    parts: Parts, notes: Sequence[str], open_spans: Sequence[Span] = (), unfinished: Sequence[Transfer] = ()
) -> Run:
    """The result of the run; for one that a fault ended, with the unfinished communication."""
    spans: list[Span] = []
    passes = {}
    for rank in parts.ranks:
        of_rank, passes[rank.rank] = rank.named_spans()
        spans += of_rank
    if open_spans:
        spans = with_phases([*spans, *open_spans])
    transfers = [*parts.recorder.transfers, *unfinished]
    memory = parts.trackers.memory(parts.ranks, passes, parts.num_ranks, parts.simulated)
    if parts.simulated is not None:
        phantoms = (
            f"{len(parts.simulated):,} of {plural(parts.num_ranks, 'ranks')} were simulated; the others were taken to "
            f"do the same as ranks of their groups, at the same time, and have no spans, memory or values"
        )
        notes = [phantoms, *notes]
    ranks = [parts.by_number.get(number) for number in range(parts.num_ranks)]  # None: a phantom
    deaths = parts.faults.deaths() if parts.faults else ()
    return Run(
        values=[rank.value if rank else None for rank in ranks],
        timeline=Timeline.of(spans, parts.num_ranks, deaths, parts.simulated),
        traffic=Traffic(tuple(sorted(transfers, key=lambda t: (t.start_s, t.ranks)))),
        stdout=[rank.stdout.getvalue() if rank else "" for rank in ranks],
        backend="sim",
        cluster=parts.cluster.name,
        wall_s=time.perf_counter() - parts.began_s,
        notes=(*notes, *memory.notes(parts.cluster.device, {rank.rank: rank.memory_fraction for rank in parts.ranks})),
        memory=memory,
        device=parts.cluster.device,
        fidelity=parts.fidelity,
    )


# ---- errors ----


def error_of(parts: Parts, headline: str, waits: Sequence[errors.Wait]) -> errors.LaunchError:
    """The error for a run in which no rank can go on. Called while all ranks wait."""
    if cause := parts.group_orders.cause_of_deadlock():
        headline = f"{headline} {cause}"
    elif len(parts.groups) > 1 and any(group.has_unmet_messages for group in parts.groups.values()):
        headline = f"{headline} {WHOSE_RANKS}"
    if parts.faults is None:
        return errors.DeadlockError(headline, waits)
    error = parts.faults.error_of(headline, waits)
    if isinstance(error, errors.FaultError):
        ends_s = [rank.clock_s for rank in parts.ranks] + [span[5] for rank in parts.ranks for span in rank.spans]
        unfinished = parts.faults.unfinished(parts.groups.values(), max(ends_s), len(parts.recorder.transfers))
        error.run = result_of(parts, parts.faults.notes(), *unfinished)
    return error


def as_launch_error(rank: int, error: BaseException) -> BaseException:
    if issubclass(type(error), errors.LaunchError):
        return error
    wrapped = errors.RankError(rank, error, traceback_text(error, _of_program) + "\n")
    wrapped.__cause__ = error
    return wrapped


def where_it_is(parts: Parts) -> str:
    """The running rank, and its last lines in the program."""
    number, thread = parts.turns.running_rank()
    if number < 0:
        return "no rank had begun"
    frame = thread_frames().get(thread or 0)
    where = f"rank {number} was at {program_line(frame)}" if frame else f"rank {number} was running"
    frames = _of_program(traceback.extract_stack(program_frame(frame) or frame), _OURS) if frame else []
    return where + "\n" + "".join(traceback.format_list(frames[-3:]))


def waits_of_others(parts: Parts) -> str:
    """The waits of the ranks that do not run, one per line; "" for none."""
    waits = [f"  {wait}\n" for wait in parts.turns.waits() if wait.rank != parts.turns.current]
    more = f"  and {len(waits) - _MOST_WAITS} more\n" if len(waits) > _MOST_WAITS else ""
    return "".join(["the other ranks then:\n", *waits[:_MOST_WAITS], more]) if waits else ""


def _of_program(
    stack: traceback.StackSummary, left_out: str | tuple[str, ...] = _LAUNCHERS[1]
) -> traceback.StackSummary:
    """A stack without the frames of the simulator beneath the program.

    A script's calls of torch also pass through functions that emulate a device (lablib/script); these are left out too.
    """
    above = dropwhile(lambda frame: frame.filename.startswith(_OURS), stack)
    return traceback.StackSummary.from_list([f for f in above if not f.filename.startswith(left_out)])
