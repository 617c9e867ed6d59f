"""Notes on races: dropped handles, tensors used before their wait, overlapping outputs."""

from collections.abc import Iterable, Sequence

from lablib.record.rank_text import ranks_in_words
from lablib.sim.communication.in_flight import READ
from lablib.sim.ranks.rank import Rank

_MAX_NOTES = 8


def unwaited_notes(ranks: Sequence[Rank]) -> list[str]:
    """A sentence for each line of the program with communications that were dropped without a wait."""
    return _notes(
        (
            (rank.rank, (issued.event.title, str(issued.source), _until_its_wait(issued.event.title)))
            for rank in ranks
            for issued in rank.unwaited
            if issued.is_own
        ),
        "{who} never waited for {}{times} ({}): on real processes {}; keep the returned work and call wait() on it",
        "issued communications without a wait",
    )


def _until_its_wait(title: str) -> str:
    """The risk before the wait: a send fills no buffer, it reads one."""
    if title.startswith("send "):
        return "the message may not have left before wait(), and until then its tensor may not be changed"
    return "a buffer holds garbage until wait()"


def written_notes(ranks: Sequence[Rank]) -> list[str]:
    """A sentence for each line that wrote to a tensor in flight (in_flight.py), unless its wait is missing (above)."""
    return _notes(
        (
            (rank.rank, (what, str(line), issued.event.title, str(issued.source), _remedy(is_again)))
            for rank in ranks
            if rank.in_flight is not None
            for issued, what, line, is_again in rank.in_flight.findings
            if issued not in rank.unwaited and what != READ
        ),
        "{who} {} a tensor in flight{times} ({}), that of {} ({}): on real processes the call may read or fill it "
        "at any time until its wait(); {}",
        "used a tensor in flight",
    )


def read_notes(ranks: Sequence[Rank]) -> list[str]:
    """A sentence for each line that read a tensor to be filled (in_flight.py), unless its wait is missing (above)."""
    return _notes(
        (
            (rank.rank, (str(line), issued.event.title, str(issued.source)))
            for rank in ranks
            if rank.in_flight is not None
            for issued, what, line, _ in rank.in_flight.findings
            if issued not in rank.unwaited and what == READ
        ),
        "{who} read a tensor in flight{times} ({}), that of {} ({}): on real processes it holds garbage until the "
        "wait() of the call that fills it; wait() first, or let that call fill another tensor",
        "read a tensor in flight",
    )


def overlap_notes(ranks: Sequence[Rank]) -> list[str]:
    """A sentence for each call with an output that overlaps its input in a way other than in place."""
    return _notes(
        ((rank.rank, (name, str(line), place)) for rank in ranks for name, place, line in rank.overlaps),
        "{who} gave {} an output that overlaps its input{times} ({}): {}; elsewhere what NCCL "
        "gives is undefined: use a separate tensor",
        "gave a call an output that overlaps its input",
    )


def _remedy(is_again: bool) -> str:
    """The remedy. A program that keeps the works of earlier steps takes a wait for one of them for this call's."""
    if is_again:
        return "the wait() before was for an earlier call, already waited for; let go of those, and wait for this one"
    return "wait() first, or use a copy"


def _notes(found: Iterable[tuple[int, tuple[str, ...]]], sentence: str, others: str) -> list[str]:
    """A sentence for each finding, with its ranks and the largest number of times on one of them.

    Args:
        found: (rank, words of the sentence).
        sentence: template with fields for the words, `who` and `times`.
        others: words for lines beyond the eighth.
    """
    counts: dict[tuple[str, ...], dict[int, int]] = {}
    for rank, words in found:
        of_words = counts.setdefault(words, {})
        of_words[rank] = of_words.get(rank, 0) + 1
    notes = []
    for words, times in counts.items():
        who = f"rank {next(iter(times))}" if len(times) == 1 else f"ranks {ranks_in_words(sorted(times))}"
        max_times = max(times.values())
        notes.append(sentence.format(*words, who=who, times=f", {max_times} times" if max_times > 1 else ""))
    if len(notes) > _MAX_NOTES:
        notes[_MAX_NOTES:] = [f"{len(notes) - _MAX_NOTES} more lines {others}"]
    return notes
