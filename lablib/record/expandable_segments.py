"""Expandable segments: one long segment per pool, with pages that are mapped on demand.

    fixed segments   [####|      ] [##|    ] [###########]    a request larger than each free piece: a new segment
    expandable       [####|##|###########|      |..........   pages are mapped at the end, free pages unmapped

The segment reserves addresses (9/8 of the device), not memory. A request maps as many pages as it needs behind the
last free block; before the allocator gives up, it unmaps every page without a used block, so that a free page anywhere
serves a request of any size. Pages are 20 MiB, in the small pool 2 MiB.

Cost: mapping a page takes a call to the driver, as a segment does. Memory is lost only within pages that a used block
still touches.
Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp (ExpandableSegment, try_allocate_expandable_block, unmap_block).
Simplified: as in caching_allocator.py.
"""

from math import inf

from lablib.record.allocator_blocks import Block, Pool
from lablib.record.caching_allocator import ALIGNMENT, SMALL_SEGMENT, CachingAllocator, segment_bytes

_ADDRESS_SPACE = 2**50  # bytes, where the device has no capacity


class ExpandableAllocator(CachingAllocator):
    """The allocator with `expandable_segments:True`."""

    def empty_cache(self) -> None:
        """Unmap every page without a used block."""
        for pool in self.pools.values():
            for block in list(pool.at_least(0)):
                self._unmap(pool, block)

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """The smallest block, counted with its room to grow: of equal blocks, one that cannot grow."""
        best = None
        for block in pool.at_least(size):
            if best is not None and _room(block) >= _room(best):
                break
            best = block
        return best

    def _splits(self, block: Block, size: int) -> bool:
        return block.size_bytes - size >= ALIGNMENT

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        return False  # there are no segments to give back

    def _collect_garbage(self) -> None:
        return

    def _new(self, pool: Pool, size: int) -> Block | None:
        is_limited = self.settings.per_process_memory_fraction is not None
        if is_limited and self.reserved + segment_bytes(size, self.settings) > self.allowed_bytes:
            return None
        block = self._place(pool, size)
        if not block.is_mapped and not self._map(pool, block, size):
            return None
        while block.size_bytes < size:
            growth = block.after
            assert growth is not None and not growth.is_mapped
            if not self._map(pool, growth, size - block.size_bytes):
                return None
            block = growth  # joined with the block before it
        pool.remove(block)
        return block

    def _place(self, pool: Pool, size: int) -> Block:
        """The first of free neighbours, mapped or not, with room for the request; at the lowest address."""
        for address in pool.unmapped:
            first = pool.blocks[address]
            if first.before is not None and not first.before.is_used:
                first = first.before
            room, block = 0, first
            while block is not None and not block.is_used and room < size:
                room, block = room + block.size_bytes, block.after
            if room >= size:
                return first
        space = _ADDRESS_SPACE if self.capacity_bytes == inf else int(self.capacity_bytes * 9 / 8)
        space = -(-max(space, size) // self._page(pool)) * self._page(pool)
        block = Block(self._end, space, pool.is_small, is_mapped=False, segment_start=self._end)
        self._end += space
        pool.insert(block)
        return block

    def _page(self, pool: Pool) -> int:
        return SMALL_SEGMENT if pool.is_small else self.settings.large_segment_bytes

    def _map(self, pool: Pool, block: Block, size: int) -> bool:
        """Map the first bytes of an unmapped block, in whole pages; whether they fit."""
        page = self._page(pool)
        size = -(-min(size, block.size_bytes) // page) * page
        if self.reserved + size > self.capacity_bytes:
            return False
        pool.remove(block)
        if size < block.size_bytes:
            pool.cut(block, size)
        block.is_mapped = True
        pool.join(block)
        self.reserved += size
        self.num_segment_calls += 1
        return True

    def _unmap(self, pool: Pool, block: Block) -> None:
        """Unmap the whole pages of a cached block; its ends on shared pages stay cached."""
        page, start = self._page(pool), block.segment_start
        begin = -(-(block.address - start) // page) * page + start
        end = (block.address + block.size_bytes - start) // page * page + start
        if begin >= end:
            return
        pool.remove(block)
        if end < block.address + block.size_bytes:
            pool.cut(block, end - block.address)
        if begin > block.address:
            pool.cut(block, begin - block.address)
            pool.insert(block)
            assert block.after is not None
            block = block.after
            pool.remove(block)
        block.is_mapped = False
        pool.join(block)
        self.reserved -= end - begin


def _room(block: Block) -> int:
    after = block.after
    return block.size_bytes + (after.size_bytes if after is not None and not after.is_mapped else 0)
