"""Replay of a rank's memory record through torch's caching allocator: reserved memory, fragmentation, out of memory.

    replay = run.memory.replay_allocator("expandable_segments:True", capacity_bytes=80e9)
    replay.peak_reserved_bytes, replay.out_of_memory, replay.figure()

A record has the sizes of storages in their order of allocation and release. The replay adds rounding and segments. It
ends at the first request that does not fit, as the program would.

Simplified: as in caching_allocator.py. A storage of zero bytes needs no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lablib.record.allocations import MemoryTimeline
from lablib.record.allocator_blocks import Block
from lablib.record.allocator_settings import AllocatorSettings
from lablib.record.caching_allocator import CachingAllocator, OutOfMemory
from lablib.record.draw import draw
from lablib.record.expandable_segments import ExpandableAllocator
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class FailedRequest:
    """A request that did not fit. Bytes at that moment, after cached segments were given back."""

    time_s: float  # of the request
    size_bytes: int  # of the request
    allocated_bytes: int  # allocated_bytes, reserved_bytes: in used blocks; in segments
    reserved_bytes: int
    largest_cached_bytes: int  # of the largest free piece of a segment
    capacity_bytes: float  # memory that this process may reserve

    @property
    def is_fragmentation(self) -> bool:
        """Whether the request would fit if the free memory was in one piece."""
        return self.allocated_bytes + self.size_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        size, free, largest, outside = (
            format_quantity(size_bytes, "B")
            for size_bytes in (
                self.size_bytes,
                self.capacity_bytes - self.allocated_bytes,
                self.largest_cached_bytes,
                self.capacity_bytes - self.reserved_bytes,
            )
        )
        why = f"only {free} are free"
        if self.is_fragmentation:
            why = f"{free} are free, in pieces: {outside} not reserved, the largest cached piece {largest}"
        return f"out of memory at {format_quantity(self.time_s, 's')}: {size} do not fit; {why}"


@dataclass(frozen=True, eq=False)
class AllocatorReplay:
    """A replayed record. Arrays have one entry per event (allocation or release)."""

    settings: AllocatorSettings
    capacity_bytes: float
    times_s: np.ndarray  # of the events
    # requested_bytes, allocated_bytes, reserved_bytes: after each event: as asked for; with rounding; in segments
    requested_bytes: np.ndarray
    allocated_bytes: np.ndarray
    reserved_bytes: np.ndarray
    num_segment_calls: int  # calls to the driver for memory
    num_retries: int  # how often cached segments were given back because a request did not fit
    out_of_memory: FailedRequest | None = None  # the request that ended the replay; None if all fit

    @property
    def peak_allocated_bytes(self) -> int:
        """As `torch.cuda.max_memory_allocated`."""
        return int(self.allocated_bytes.max(initial=0))

    @property
    def peak_reserved_bytes(self) -> int:
        """As `torch.cuda.max_memory_reserved`."""
        return int(self.reserved_bytes.max(initial=0))

    @property
    def fragmentation(self) -> np.ndarray:
        """After each event, the share of reserved memory that no used block has; 0 where nothing is reserved."""
        return 1 - self.allocated_bytes / np.maximum(self.reserved_bytes, 1) if len(self.times_s) else np.zeros(0)

    def figure(self, **options: Any) -> go.Figure:
        """Reserved, allocated and requested bytes over time."""
        return draw("figure_allocator", self, **options)

    def __str__(self) -> str:
        if self.out_of_memory is not None:
            return str(self.out_of_memory)
        reserved, allocated = (
            format_quantity(peak, "B") for peak in (self.peak_reserved_bytes, self.peak_allocated_bytes)
        )
        calls = plural(self.num_segment_calls, "calls")
        return f"at most {reserved} reserved and {allocated} allocated, in {calls} to the driver"


def replay_allocator(curve: MemoryTimeline, settings: AllocatorSettings, capacity_bytes: float) -> AllocatorReplay:
    """Replay the events of one rank."""
    kind = ExpandableAllocator if settings.expandable_segments else CachingAllocator
    allocator, held, rows, failed = (
        kind(settings, capacity_bytes),
        dict[int, Block](),
        list[tuple[int, int, int]](),
        None,
    )
    events = zip(curve.times_s.tolist(), curve.changes.tolist(), curve.allocation.tolist(), strict=True)
    for time_s, change, allocation in events:
        try:
            if change > 0:
                held[allocation] = allocator.malloc(change)
            elif change < 0:
                allocator.free(held.pop(allocation))
        except OutOfMemory:
            used = (allocator.allocated, allocator.reserved, allocator.largest_cached)
            failed = FailedRequest(time_s, change, *used, allocator.allowed_bytes)
            break
        rows.append((allocator.requested, allocator.allocated, allocator.reserved))
    requested, allocated, reserved = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    counts = (allocator.num_segment_calls, allocator.num_retries)
    times_s = curve.times_s[: len(rows)]
    return AllocatorReplay(settings, capacity_bytes, times_s, requested, allocated, reserved, *counts, failed)
