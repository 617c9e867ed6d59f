"""Ranks and groups of ranks as text: in a table or a label, and in a sentence."""

from collections.abc import Callable, Sequence

MAX_RUNS = 8  # in a sentence


def short_ranks(ranks: Sequence[int]) -> str:
    """Short form for a column or the label of an unnamed group: `0-7` for at least three consecutive ranks, or `0,4`.

    >>> short_ranks([0, 1, 2, 3]), short_ranks([0, 4])
    ('0-3', '0,4')
    """
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def numbered(name: str, is_taken: Callable[[str], bool]) -> str:
    """An unused label: the name, or the name with the first free number from 2 on.

    >>> numbered("0,4", {"0,4", "0,4 (2)"}.__contains__)
    '0,4 (3)'
    """
    label, number = name, 1
    while is_taken(label):
        number += 1
        label = f"{name} ({number})"
    return label


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Sorted ranks for a sentence: the first eight runs, each in short form.

    >>> ranks_in_words([0, 1, 2, 3, 12, 13, 15])
    '0 to 3, 12, 13, 15'
    >>> ranks_in_words(range(0, 100, 2))
    '0, 2, 4, 6, 8, 10, 12, 14, ... (50 in all)'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    more = f", ... ({len(ranks):,} in all)" if len(runs) > MAX_RUNS else ""
    return ", ".join(texts[:MAX_RUNS]) + more
