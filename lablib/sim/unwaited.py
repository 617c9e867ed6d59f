"""Communications that a program never waited for: a finding, as their buffers hold garbage on real processes."""

from collections.abc import Sequence

from lablib.record.traffic import short_ranks
from lablib.sim.rank import Rank

_MAX_NOTES = 8


def unwaited_notes(ranks: Sequence[Rank]) -> list[str]:
    """A sentence for each line of the program that issued communications whose handle was dropped without a wait."""
    found: dict[tuple[str, str], dict[int, int]] = {}  # (what, line) -> rank -> how many
    for rank in ranks:
        for issued in (issued for issued in rank.unwaited if issued.is_own):
            counts = found.setdefault((issued.event.title, str(issued.source)), {})
            counts[rank.rank] = counts.get(rank.rank, 0) + 1
    notes = [_note(title, source, counts) for (title, source), counts in found.items()]
    if len(notes) > _MAX_NOTES:
        notes[_MAX_NOTES:] = [f"{len(notes) - _MAX_NOTES} more lines issued communications that nobody waited for"]
    return notes


def _note(title: str, source: str, counts: dict[int, int]) -> str:
    who = f"rank {next(iter(counts))}" if len(counts) == 1 else f"ranks {short_ranks(tuple(counts))}"
    most = max(counts.values())
    times = f", {most} times" if most > 1 else ""
    return (
        f"{who} never waited for {title}{times} ({source}): on real processes a buffer holds garbage until wait(); "
        "keep what the call returns and call wait() on it"
    )
