"""S of the cost model, from what the ranks of a collective give and want.

    all_reduce, reduce, broadcast    what each gives
    all_gather, gather               what all give together: the n shards
    reduce_scatter                   what each gives: the n shards together
    scatter                          what the root gives: the n shards together
    all_to_all                       the most that a rank gives or gets: with uneven splits a round lasts as long as its
                                     largest message, so the fullest rank counts
    barrier                          nothing

Some ranks may be unknown, as they do what the known ones do: these count for a mean rank.
"""

from collections.abc import Sequence


def payload_bytes(kind: str, sent_bytes: Sequence[float], received_bytes: Sequence[float], num_ranks: int) -> float:
    """Bytes of the tensor that a collective is about.

    Args:
        kind: "all_reduce", ..., as in collective.py.
        sent_bytes, received_bytes: what each known rank gives and wants.
        num_ranks: n, those included of which nothing is known.
    """
    known = len(sent_bytes)
    if kind in ("all_gather", "gather"):
        total = float(sum(sent_bytes))
        return total if known == num_ranks else total * num_ranks / known
    if kind == "scatter":
        total = float(sum(received_bytes))
        return total if known == num_ranks else total * num_ranks / known
    if kind == "all_to_all":
        return float(max(map(max, sent_bytes, received_bytes)))
    return float(max(sent_bytes))
