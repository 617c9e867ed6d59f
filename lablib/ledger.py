"""Who held how many bytes, and when: the memory of a run, from the storages that its ranks allocated.

A block is one storage (the memory behind one or more tensors) of one rank, from its allocation to its death. The bytes
a rank holds at a moment are the blocks alive then; the peak is the largest of these sums.

Categories:
    parameter       what the program trains (nn.Parameter)
    gradient        what backward leaves in `.grad`
    optimizer state made inside `Optimizer.step` and alive after it (momentum, variance)
    activation      kept for backward
    communication   buffers that collectives fill or send
    other           everything else
"""

from __future__ import annotations

from dataclasses import dataclass

CATEGORIES = ("parameter", "gradient", "optimizer state", "activation", "communication", "other")


@dataclass(frozen=True, slots=True)
class Block:
    """One storage of one rank.

    Attributes:
        rank: global rank.
        category: one of CATEGORIES.
        size_bytes: as allocated.
        start_s, end_s: virtual seconds of its allocation and of its death (the end of the run, if it outlived it).
        name: the op that made it, e.g. "aten.mm".
        phase: what the program was doing then.
        source: the line of the program that led there.
    """

    rank: int
    category: str
    size_bytes: int
    start_s: float
    end_s: float
    name: str = ""
    phase: str = ""
    source: str = ""


@dataclass(frozen=True)
class Memory:
    """The blocks of a run, in the order in which they were allocated."""

    blocks: tuple[Block, ...] = ()
    num_ranks: int = 0

    def peak_bytes(self, rank: int | None = None) -> int:
        """The most that `rank` ever held at once; None: that any rank held."""
        if rank is None:
            return max((self.peak_bytes(r) for r in range(self.num_ranks)), default=0)
        # At one moment what dies goes before what is born: an allocator reuses it.
        changes = [(b.start_s, 1, b.size_bytes) for b in self.blocks if b.rank == rank]
        changes += [(b.end_s, 0, -b.size_bytes) for b in self.blocks if b.rank == rank]
        held = peak = 0
        for *_, change in sorted(changes):
            held += change
            peak = max(peak, held)
        return peak

    def __len__(self) -> int:
        return len(self.blocks)

    def __repr__(self) -> str:
        return f"Memory({len(self.blocks)} blocks, {self.num_ranks} ranks, peak {self.peak_bytes():.4g} bytes)"
