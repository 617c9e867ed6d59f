"""S of the cost model, from what each rank of a collective gives and wants.

all_reduce, reduce, broadcast, scatter    what the root (without one: any rank) gives
all_gather, gather                        what all give together: the n shards
reduce_scatter                            what a rank gives: the n shards together
all_to_all                                the most that a rank gives or gets: with uneven splits a round lasts as
                                          long as its largest message, so the fullest rank counts
barrier                                   nothing
"""

from collections.abc import Sequence


def payload_bytes(kind: str, sent_bytes: Sequence[float], received_bytes: Sequence[float], root: int = 0) -> float:
    """Bytes of the tensor that a collective is about.

    Args:
        kind: "all_reduce", ..., as in collective.py.
        sent_bytes, received_bytes: what each rank gives and wants, in group order.
        root: place of the root, where there is one.
    """
    if kind in ("all_gather", "gather"):
        return float(sum(sent_bytes))
    if kind == "reduce_scatter":
        return float(sent_bytes[0])
    if kind == "all_to_all":
        return float(max(map(max, sent_bytes, received_bytes)))
    return float(sent_bytes[root])
