"""One rank's actions written as phases, each a pattern and its repetitions; checks of sizes; places of pieces.

    row = RankActions((1,), num_microbatches=4)
    row.write(2, "F")         1F0 1F1                   two forwards
    row.write(9, "F B")       1F2 1B0 1F3 1B1 1B2 1B3   one forward, one backward, as long as some are left

A step of a pattern is a kind, followed by the piece's number if the rank holds several: "F0 I1 W1". Each kind takes the
micro-batches of a piece in order; "W" without a number takes the oldest waiting weight gradient of any piece.
"""

from collections import deque
from collections.abc import Sequence
from math import prod

from lablib.pipeline.plan import Action, Kind
from lablib.signature import shown, whole_number

MAX_ACTIONS = 20_000_000  # of one kind; some gigabytes
# A whole backward counts as both of its halves.
_COUNTED_AS = {Kind.F: (Kind.F,), Kind.B: (Kind.I, Kind.W), Kind.I: (Kind.I,), Kind.W: (Kind.W,)}


class RankActions:
    """The actions of one rank, written so far in `actions`."""

    def __init__(self, pieces: Sequence[int], num_microbatches: int):
        self.actions: list[Action] = []
        self._pieces = tuple(pieces)
        self._num_microbatches = num_microbatches
        self._next = {(kind, piece): 0 for kind in Kind for piece in self._pieces}
        self._waiting: deque[int] = deque()  # the piece of each I without its W

    def write(self, times: int, pattern: str) -> None:
        """Add the steps of `pattern` `times` times, without steps that have no micro-batches left."""
        steps = [self._parse(step) for step in pattern.split()]
        for _ in range(times):
            for kind, piece in steps:
                if piece is None and self._waiting:
                    self._add(kind, self._waiting.popleft())
                elif piece is not None:
                    self._add(kind, piece)

    def _parse(self, step: str) -> tuple[Kind, int | None]:
        kind, which = Kind(step[0]), step[1:]
        if not which and len(self._pieces) > 1:
            assert kind is Kind.W, f"say which piece does {kind}"
            return kind, None
        return kind, self._pieces[int(which or 0)]

    def _add(self, kind: Kind, piece: int) -> None:
        counted = _COUNTED_AS[kind]
        if (microbatch := self._next[counted[0], piece]) >= self._num_microbatches:
            return
        self.actions.append(Action(piece, kind, microbatch))
        for each in counted:
            self._next[each, piece] = microbatch + 1
        if kind is Kind.I:
            self._waiting.append(piece)


def check_sizes(name: str, **sizes: int) -> None:
    """Raise ValueError unless every size is a whole number from 1: `check_sizes("gpipe", num_stages=4)`.

    Also if the plan is too large for memory.
    """
    for size, value in sizes.items():
        whole_number(f"{name}: {size}", value)
    if prod(sizes.values()) > MAX_ACTIONS:
        got = " * ".join(map(shown, sizes.values()))
        raise ValueError(
            f"{name}: {' * '.join(sizes)} must be {MAX_ACTIONS:,} or less: got {got}; "
            "try a hundredth of it, or steady_state for very many micro-batches"
        )


def loop(num_stages: int, num_chunks: int = 1) -> tuple[int, ...]:
    """`rank_of` of pieces dealt around in turn: 0 1 2 0 1 2."""
    return tuple(range(num_stages)) * num_chunks


def vee(num_stages: int) -> tuple[int, ...]:
    """`rank_of` of two pieces per rank in the shape of a V, 0 1 2 2 1 0: rank i holds pieces i and 2p-1-i."""
    return (*range(num_stages), *reversed(range(num_stages)))
