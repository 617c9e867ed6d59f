"""The memory of a run as a snapshot of CUDA's allocator, for torch's viewer (pytorch.org/memory_viz).

    run.to_memory_viz("memory.pickle")      drop the file on the page, or:
    python -m torch.cuda._memory_viz trace_plot memory.pickle -o memory.html

Each rank is a device. Its record is replayed through torch's caching allocator (caching_allocator.py), which gives each
storage an address in a segment:

    device_traces   per rank: segment_alloc, alloc, free_requested and free_completed in their order, with virtual
                    time in microseconds, the category, and two frames: the program's line, the operator and its phase
    segments        per segment, its blocks at the end of the run

Source: torch 2.13, torch/cuda/memory.py (`_snapshot`), torch/cuda/_memory_viz.py and torch/utils/viz/MemoryViz.js.
Simplified: memory is unlimited, so no segment is given back; one stream.
"""

import pickle
import re
from itertools import pairwise
from typing import Any

from lablib.record.allocations import CATEGORIES, Allocations, MemoryTimeline
from lablib.record.allocator_blocks import Block
from lablib.record.allocator_settings import AllocatorSettings
from lablib.record.caching_allocator import CachingAllocator
from lablib.record.memory import Memory

_PROTOCOL = 4  # the viewer reads pickles of protocols 2 to 4
_SOURCE = re.compile(r"(?P<filename>[^:]+):(?P<line>\d+): ?(?P<name>.*)")


def snapshot_pickle(memory: Memory) -> bytes:
    """The pickle of `snapshot_of`."""
    return pickle.dumps(snapshot_of(memory), _PROTOCOL)


def snapshot_of(memory: Memory) -> dict[str, Any]:
    """The snapshot, of plain values. Raises ValueError: a memory without allocations."""
    if not len(memory.allocations):
        raise ValueError(
            "a memory snapshot needs the allocations of a run: this run has none; run it on the simulator with "
            "trace=True, or write it on a GPU with torch.cuda.memory._dump_snapshot(path)"
        )
    assert isinstance(memory.allocations, Allocations)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(memory.num_ranks)]
    segments: list[dict[str, Any]] = []
    for rank in memory.ranks:
        segments += _replayed(MemoryTimeline(memory.allocations.of_rank(rank)), rank, traces[rank])
    return {"segments": segments, "device_traces": traces, "allocator_settings": {}}


def _replayed(curve: MemoryTimeline, rank: int, trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the events of a rank to its trace. Returns its segments at the end."""
    allocator, held = CachingAllocator(AllocatorSettings.parse("")), dict[int, Block]()
    frames = [_frames(*label) for label in curve.allocations.labels]
    labels, kinds = (curve.allocations.columns[name].tolist() for name in ("label", "category"))
    starts: list[int] = []  # addresses of the segments

    def add(action: str, time_s: float, address: int, size_bytes: int, of: int) -> None:
        event = {"action": action, "addr": address, "size": size_bytes, "stream": 0, "time_us": time_s * 1e6}
        trace.append(event | {"frames": frames[labels[of]], "category": CATEGORIES[kinds[of]].replace(" ", "_")})

    events = zip(curve.times_s.tolist(), curve.changes.tolist(), curve.allocation.tolist(), strict=True)
    for time_s, change, of in events:
        if change > 0:
            reserved = allocator.reserved
            block = held[of] = allocator.malloc(change)
            if allocator.reserved > reserved:
                starts.append(block.segment_start)
                add("segment_alloc", time_s, block.segment_start, allocator.reserved - reserved, of)
            add("alloc", time_s, block.address, change, of)
        elif change < 0:
            block = held.pop(of)
            for action in ("free_requested", "free_completed"):
                add(action, time_s, block.address, -change, of)
            allocator.free(block)
    bounds = [*starts, starts[0] + allocator.reserved] if starts else []
    taken = [_taken(block, frames[labels[of]]) for of, block in held.items()]
    return [_segment(start, end, taken, rank) for start, end in pairwise(bounds)]


def _taken(block: Block, frames: list[dict[str, Any]]) -> dict[str, Any]:
    known = {"address": block.address, "size": block.size_bytes, "requested_size": block.requested_bytes}
    return known | {"state": "active_allocated", "frames": frames}


def _segment(start: int, end: int, taken: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    """The segment between two addresses, as used blocks and the gaps between them."""
    used = sorted((each for each in taken if start <= each["address"] < end), key=lambda each: each["address"])
    blocks: list[dict[str, Any]] = []
    at = start
    for block in used:
        blocks += [*_free(at, block["address"]), block]
        at = block["address"] + block["size"]
    size = sum(block["size"] for block in used)
    about = {"device": rank, "address": start, "stream": 0, "segment_type": "large", "frames": []}
    sizes = {"total_size": end - start, "allocated_size": size, "active_size": size}
    return about | sizes | {"blocks": [*blocks, *_free(at, end)]}


def _free(start: int, end: int) -> list[dict[str, Any]]:
    gap = {"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}
    return [gap] if end > start else []


def _frames(name: str, phase: str, source: str) -> list[dict[str, Any]]:
    """The operator, then the line of the program: innermost first, as torch's."""
    found = _SOURCE.fullmatch(source)
    line = [{**found.groupdict(), "line": int(found["line"])}] if found else []
    return [{"filename": phase or "??", "line": 0, "name": name or "allocation"}, *line]
