"""In which order each rank called `new_group`: a deadlock among ranks that disagree on it has that cause.

torch numbers groups as they are made, so all ranks must make the same ones in the same order, also those they are not
members of. Where they do not, each waits in a group whose other members have one of another number.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lablib.sim.source import Source, program_line

_ORDINALS = ("first", "second", "third")


class GroupOrders:
    """The groups that each rank has made so far, with the line of each."""

    def __init__(self) -> None:
        self._made: dict[int, list[tuple[tuple[int, ...], Source]]] = {}

    def noting(self, name_of: Callable[..., Any], rank: Callable[[], int]) -> Callable[..., Any]:
        """torch's function that names a group, which every rank calls for every group, and this notes for whom."""

        def name(ranks: Sequence[int], use_hashed_name: bool) -> Any:
            if ranks and not use_hashed_name:
                self._made.setdefault(rank(), []).append((tuple(ranks), program_line()))
            return name_of(ranks, use_hashed_name)

        return name

    def difference(self) -> str:
        """The first call at which two ranks made different groups, in a sentence; "" if there is none."""
        known: dict[int, tuple[int, tuple[int, ...], Source]] = {}
        for rank, made in sorted(self._made.items()):
            for index, (ranks, source) in enumerate(made):
                other, theirs, line = known.setdefault(index, (rank, ranks, source))
                if theirs != ranks:
                    place = _ORDINALS[index] if index < len(_ORDINALS) else f"as number {index + 1}"
                    return (
                        f"Ranks called new_group in different orders: rank {other} made {list(theirs)} {place} "
                        f"({line}), rank {rank} made {list(ranks)} ({source}); "
                        "every rank must make all groups in the same order."
                    )
        return ""
