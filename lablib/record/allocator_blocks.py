"""Blocks of an allocator's segments: cut, joined with free neighbours, and cached by size.

    segment   [ used | cached | used | cached       ]      each block lists its neighbours `before` and `after`

Shared by caching_allocator.py and expandable_segments.py.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, in the list of its neighbours. Sizes in bytes."""

    address: int
    size_bytes: int
    is_small: bool  # of the pool of small requests
    is_mapped: bool = True  # backed by memory: always, except in expandable segments
    is_used: bool = False
    requested_bytes: int = 0
    cached_at: int = 0  # searches in its pool until it was cached
    segment_start: int = 0  # address of its segment
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None


class Pool:
    """The free blocks of one kind of request: cached ones by size, then address; unmapped ones by address."""

    def __init__(self, is_small: bool):
        self.is_small = is_small
        self.num_searches = 0
        self.cached: list[tuple[int, int]] = []  # (size, address)
        self.unmapped: list[int] = []
        self.blocks: dict[int, Block] = {}  # by address

    def insert(self, block: Block) -> None:
        """Add a free block."""
        self.blocks[block.address] = block
        if block.is_mapped:
            block.cached_at = self.num_searches
            insort(self.cached, (block.size_bytes, block.address))
        else:
            insort(self.unmapped, block.address)

    def remove(self, block: Block) -> None:
        """Take a free block out."""
        del self.blocks[block.address]
        if block.is_mapped:
            del self.cached[bisect_left(self.cached, (block.size_bytes, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]

    def at_least(self, size_bytes: float) -> Iterator[Block]:
        """Cached blocks of at least a size, the smallest first."""
        for place in range(bisect_left(self.cached, (size_bytes, -1)), len(self.cached)):
            yield self.blocks[self.cached[place][1]]

    def cut(self, block: Block, size_bytes: int) -> None:
        """Keep the first bytes of a block that is in no list; the rest becomes a free block."""
        rest = Block(block.address + size_bytes, block.size_bytes - size_bytes, self.is_small, block.is_mapped)
        rest.segment_start = block.segment_start
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size_bytes = rest, size_bytes
        self.insert(rest)

    def join(self, block: Block) -> None:
        """Join a block that is in no list with its free neighbours in the same state, and add it."""
        for other in (block.before, block.after):
            if other is None or other.is_used or other.is_mapped != block.is_mapped:
                continue
            self.remove(other)
            if other is block.before:
                block.address, block.before = other.address, other.before
                if block.before is not None:
                    block.before.after = block
            else:
                block.after = other.after
                if block.after is not None:
                    block.after.before = block
            block.size_bytes += other.size_bytes
        self.insert(block)
