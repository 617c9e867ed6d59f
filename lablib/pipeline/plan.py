"""A pipeline schedule as data: the ordered list of actions of each stage.

A pipeline of p stages cuts the model's layers into p (or, with chunks, p times v) consecutive pieces. A micro-batch
goes forward through the pieces in order and backward in reverse. A schedule gives the order of the actions on each
rank:

    stage 0   0F0  0F1  0B0  0B1          F forward    B whole backward (= I then W)
    stage 1        1F0  1B0  1F1  1B1     I backward for the input only     W backward for the weights only

The executor, the replay, the figure and the validator all read this one record. Times are not part of it.

Legend: p ranks of the pipeline (`num_stages`), v chunks on each (`num_chunks`), m micro-batches; the p v pieces of the
model are numbered 0 to p v - 1 from the input to the loss: an action's `stage` is that number, as in
torch.distributed.pipelining, and equals the rank where v = 1.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lablib.signature import checked, shown


class Kind(StrEnum):
    """Kind of an action on a micro-batch at a piece of the model."""

    F = "F"  # forward
    B = "B"  # backward, input and weights together
    I = "I"  # noqa: E741  backward for the input: needed by the piece before
    W = "W"  # backward for the weights: needed only by the optimizer

    @property
    def phase(self) -> str:
        """Its name in a timeline."""
        return {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}[self]


_MAX_PIECES = 1_000_000
_TEXT = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One action: `str(Action(1, Kind.F, 0))` is "1F0", piece 1, forward, micro-batch 0."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action "1F0". Raises ValueError for any other text."""
        match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ValueError(
                f"an action is written as stage, kind and micro-batch, such as 1F0 or 12W3: got {shown(text)}"
            )
        return cls(int(match[1]), Kind(match[2]), int(match[3]))


@dataclass(frozen=True)
class Plan:
    """A schedule for p ranks and m micro-batches."""

    name: str  # the schedule's, e.g. "1f1b"
    num_stages: int  # ranks of the pipeline p
    num_microbatches: int  # m
    actions: tuple[tuple[Action, ...], ...]  # of each rank, in order
    rank_of: tuple[int, ...]  # the rank of each piece of the model; p v entries

    @property
    def num_pieces(self) -> int:
        """Pieces of the model, p v, numbered by `stage` of an action."""
        return len(self.rank_of)

    @property
    def num_chunks(self) -> int:
        """Pieces on each rank, v."""
        return self.num_pieces // self.num_stages

    @property
    def num_actions(self) -> int:
        """Of all ranks."""
        return sum(map(len, self.actions))

    def __iter__(self) -> Iterator[tuple[Action, ...]]:
        return iter(self.actions)

    def __str__(self) -> str:
        lines = (f"stage {rank}  " + " ".join(map(str, actions)) for rank, actions in enumerate(self.actions))
        return "\n".join(lines)

    @classmethod
    @checked
    def parse(cls, name: str, lines: Sequence[str], rank_of: Sequence[int] | None = None) -> "Plan":
        """A plan from text, one line of actions per rank: `Plan.parse("mine", ["0F0 0B0", "1F0 1B0"])`.

        `rank_of` defaults to piece i on rank i mod p. Only the spelling is checked: see validate.py.
        """
        if not all(isinstance(line, str) for line in lines):
            raise TypeError(f'lines must be texts, one a rank: got {shown(lines)}; try ["0F0 0B0"]')
        actions = tuple(tuple(map(Action.parse, line.split())) for line in lines)
        every = [action for row in actions for action in row]
        pieces = max((action.stage for action in every), default=-1) + 1
        if pieces > _MAX_PIECES:
            raise ValueError(f"pieces are numbered from 0, and at most {_MAX_PIECES:,}: got {pieces - 1:,}; try 0F0")
        placed = tuple(i % len(actions) for i in range(pieces)) if rank_of is None else tuple(rank_of)
        return cls(name, len(actions), max((a.microbatch for a in every), default=-1) + 1, actions, placed)
