"""What travelled between the ranks of a run: every collective, and every matched send and receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Transfer:
    """One communication call: a collective of a group, or one matched send and receive.

    Attributes:
        group: name of the process group ("world", or the name given to `new_group`).
        name: "all_reduce", "broadcast", ..., or "send" for a matched send and receive.
        ranks: global ranks taking part (sender first, for a send).
        algorithm: how the bytes travelled: "ring", "tree", "hierarchical", "direct"; on real backends its library.
        size_bytes: payload of one rank, as the call's own contract counts it (the whole tensor for `all_reduce`).
        sent_bytes: bytes that leave each of `ranks` under that algorithm, in the same order.
        start_s, end_s: when the transfer ran (first start, last end), seconds since the launch.
        issued_s: when each of `ranks` made the call, in the same order; empty where it is not known. A transfer starts
            when the last has come: the others have waited since then, if they had nothing else to do.
    """

    group: str
    name: str
    ranks: tuple[int, ...]
    algorithm: str
    size_bytes: float
    sent_bytes: tuple[float, ...]
    start_s: float
    end_s: float
    issued_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """Every communication of a run, in the order in which it started."""

    transfers: tuple[Transfer, ...] = ()

    def sent_bytes(self, rank: int | None = None) -> float:
        """Bytes that left `rank` over the whole run; None: that left all ranks together."""
        return sum(
            sent
            for transfer in self.transfers
            for member, sent in zip(transfer.ranks, transfer.sent_bytes, strict=True)
            if rank is None or member == rank
        )

    def count(self, name: str) -> int:
        """How many calls of this name ("all_reduce", "send", ...) there were."""
        return sum(transfer.name == name for transfer in self.transfers)

    def table(self) -> pd.DataFrame:
        """One row a communication: group, op, ranks, algorithm, payload, bytes sent by all ranks, start, seconds."""
        import pandas as pd

        rows = [
            {
                "group": t.group,
                "name": t.name,
                "ranks": short_ranks(t.ranks),
                "algorithm": t.algorithm,
                "size_bytes": t.size_bytes,
                "sent_bytes": sum(t.sent_bytes),
                "start_s": t.start_s,
                "seconds": t.end_s - t.start_s,
            }
            for t in self.transfers
        ]
        names = ("group", "name", "ranks", "algorithm", "size_bytes", "sent_bytes", "start_s", "seconds")
        return pd.DataFrame(rows, columns=names)

    def __len__(self) -> int:
        return len(self.transfers)

    def __repr__(self) -> str:
        return f"Traffic({len(self.transfers)} communications, {self.sent_bytes():.4g} bytes sent)"

    def _repr_html_(self) -> str:
        return self.table().to_html(max_rows=20)


def short_ranks(ranks: tuple[int, ...]) -> str:
    """`0-7` for a run of ranks, `0,4` otherwise."""
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
