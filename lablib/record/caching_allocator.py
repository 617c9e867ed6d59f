"""Model of torch's CUDA caching allocator: rounding, caching, splitting and joining of blocks.

The allocator asks the driver for segments, cuts blocks from them, and caches freed blocks:

    request      rounded up to 512 bytes
    pool         small: up to 1 MiB, in segments of 2 MiB; large: below 10 MiB in segments of 20 MiB, from 10 MiB on in
                 one segment of the request's size, rounded up to 2 MiB
    best fit     the smallest cached block that is large enough, at the lowest address of these
    split        if at least 512 bytes (small pool) or more than 1 MiB (large pool) remain
    free         the block joins its free neighbours in the segment; the segment stays reserved
    new segment  if it does not fit: free cached segments without a used block, try again, then out of memory

    segment      [####|    |##|      ]        free pieces between used blocks serve requests up to their own size

    requested <= allocated <= reserved <= capacity        fragmentation = (reserved - allocated) / reserved

So a request can fail while enough memory is free: no free piece is large enough, and no segment is free as a whole.
`max_split_size_mb` keeps large segments whole; expandable_segments.py has no segments of fixed size.

Cost: O(log n) comparisons per event for n cached blocks, some 5 microseconds.
Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp (malloc, get_free_block, should_split, try_merge_blocks,
release_cached_blocks, garbage_collect_cached_blocks).
Simplified: one stream; a new segment lies above all older ones; no CUDA graphs, no cudaMallocAsync. Memory outside of
the allocator (CUDA's context, NCCL) is not counted: subtract it from `capacity_bytes`.
"""

from math import inf
from typing import Annotated

from lablib.record.allocator_blocks import Block, Pool
from lablib.record.allocator_settings import MIB, AllocatorSettings
from lablib.signature import Range, checked

SMALL_REQUEST, SMALL_SEGMENT, ALIGNMENT = MIB, 2 * MIB, 512
LARGE_REQUEST, LARGE_ROUNDING = 10 * MIB, 2 * MIB


class OutOfMemory(Exception):
    """A request does not fit, although all cached segments without a used block were freed."""


class CachingAllocator:
    """The allocator of one device. Sizes in bytes.

    Attributes:
        requested, allocated, reserved: bytes asked for, in used blocks, in segments.
        num_segment_calls: calls to the driver for memory.
        num_retries: how often all free segments were given back to make room.
    """

    @checked
    def __init__(self, settings: AllocatorSettings, capacity_bytes: Annotated[float, Range(gt=0)] = inf):
        self.settings, self.capacity_bytes = settings, capacity_bytes
        fraction = settings.per_process_memory_fraction
        self.allowed_bytes = capacity_bytes if fraction is None else fraction * capacity_bytes
        self.pools = {is_small: Pool(is_small) for is_small in (True, False)}
        self.requested = self.allocated = self.reserved = self.num_segment_calls = self.num_retries = 0
        self._end = LARGE_ROUNDING  # the address of the next segment

    def malloc(self, requested_bytes: int) -> Block:
        """A block for a request of at least one byte. Raises OutOfMemory."""
        size = rounded(requested_bytes, self.settings)
        pool = self.pools[size <= SMALL_REQUEST]
        block = self._cached(pool, size)
        if block is None:
            self._collect_garbage()
            block = self._new(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._new(pool, size)
        if block is None:
            self.empty_cache()
            self.num_retries += 1
            block = self._new(pool, size)
        if block is None:
            raise OutOfMemory(requested_bytes)
        if self._splits(block, size):
            pool.cut(block, size)
        block.is_used, block.requested_bytes = True, requested_bytes
        self.requested += requested_bytes
        self.allocated += block.size_bytes
        return block

    def free(self, block: Block) -> None:
        """Return a block to the cache."""
        self.requested -= block.requested_bytes
        self.allocated -= block.size_bytes
        block.is_used = False
        self.pools[block.is_small].join(block)

    def empty_cache(self) -> None:
        """Give back every segment without a used block (`torch.cuda.empty_cache`)."""
        for pool in self.pools.values():
            for block in [block for block in pool.at_least(0) if block.is_whole]:
                self._release(pool, block)

    @property
    def largest_cached(self) -> int:
        """Bytes of the largest cached block."""
        return max((pool.cached[-1][0] for pool in self.pools.values() if pool.cached), default=0)

    # ---- a cached block ----

    def _cached(self, pool: Pool, size: int) -> Block | None:
        """The best fit, taken out of the cache."""
        pool.num_searches += 1
        block, limit = self._best_fit(pool, size), self.settings.max_split_size_bytes
        if block is None or size < limit <= block.size_bytes:
            return None
        if size >= limit and block.size_bytes >= size + self.settings.max_non_split_rounding_bytes:
            return None
        pool.remove(block)
        return block

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        return next(pool.at_least(size), None)

    def _splits(self, block: Block, size: int) -> bool:
        remaining = block.size_bytes - size
        if block.is_small:
            return remaining >= ALIGNMENT
        return size < self.settings.max_split_size_bytes and remaining > SMALL_REQUEST

    # ---- segments ----

    def _new(self, pool: Pool, size: int) -> Block | None:
        """A block of new memory; None if it does not fit."""
        segment = segment_bytes(size, self.settings)
        if self.reserved + segment > self.allowed_bytes:
            return None
        self.reserved += segment
        self.num_segment_calls += 1
        self._end += segment
        return Block(self._end - segment, segment, pool.is_small, segment_start=self._end - segment)

    def _release(self, pool: Pool, block: Block) -> None:
        pool.remove(block)
        self.reserved -= block.size_bytes

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """With a split limit, give back segments above it, as many as the request needs; whether they suffice."""
        needed = max(size, self.settings.max_split_size_bytes)
        if needed == inf:
            return False
        one = next(pool.at_least(needed), None)
        chosen = [one] if one is not None else reversed(list(pool.at_least(self.settings.max_split_size_bytes)))
        released = 0
        for block in chosen:
            if released < needed:
                released += block.size_bytes
                self._release(pool, block)
        return released >= needed

    def _collect_garbage(self) -> None:
        """Above the threshold, give back the free large segments that were cached for longer than the average."""
        threshold, large = self.settings.garbage_collection_threshold, self.pools[False]
        if not threshold or self.settings.per_process_memory_fraction is None:
            return
        excess = self.reserved - threshold * self.allowed_bytes
        whole = [block for block in large.at_least(0) if block.is_whole]
        while excess > 0 and whole:
            average = sum(large.num_searches - block.cached_at for block in whole) / len(whole)
            for block in [block for block in whole if large.num_searches - block.cached_at >= average]:
                excess -= block.size_bytes
                whole.remove(block)
                self._release(large, block)


def rounded(requested_bytes: int, settings: AllocatorSettings) -> int:
    """A request rounded up: to 512 bytes, or to a step between two powers of two."""
    interval = min(max(requested_bytes.bit_length() - MIB.bit_length(), 0), len(settings.roundup_power2_divisions) - 1)
    divisions = settings.roundup_power2_divisions[interval]
    if divisions > 1 and requested_bytes > ALIGNMENT * divisions:
        step = 2 ** (requested_bytes.bit_length() - 1) // divisions
        return -(-requested_bytes // step) * step
    return max(-(-requested_bytes // ALIGNMENT), 1) * ALIGNMENT


def segment_bytes(size: int, settings: AllocatorSettings) -> int:
    """The size of a new segment for a rounded request."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < LARGE_REQUEST:
        return settings.large_segment_bytes
    return -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
