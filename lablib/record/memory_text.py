"""A run's memory in words: the contents of the peak, and the ranks that need more than a device has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.hardware.device import Device
    from lablib.record.memory import AllocationGroup, Memory

NOT_RECORDED = (
    "No memory was recorded: only the simulator counts it, with its clock (trace=True), "
    "and on nccl the GPUs' allocators."
)
_SHOWN = 3  # categories and origins that one sentence names
_LONGEST = 72  # characters of a line of the program
_SMALL = 0.02  # of the peak; less is not worth naming


def explain(memory: Memory, rank: int) -> str:
    """One sentence: the peak of a rank, its time, its categories, and the lines and ops that made most of it.

    "At its peak (1.23 ms, in backward) rank 0 held 4.1 GB: 61% activation, made in model.py:12: h = gelu(x) (aten.gelu,
    24 allocations, 1.2 GB), ...; 20% parameter, ..."
    """
    peak_bytes = memory.peak_bytes(rank)
    if memory.allocator_peaks:
        return (
            f"Rank {rank} held at most {format_quantity(peak_bytes, 'B')}, by the count of its GPU's allocator, which "
            "does not record when and for what: only the simulator does."
        )
    if not peak_bytes:
        return f"Rank {rank} allocated nothing that was counted."
    held = memory.allocations_at_peak(rank)
    parts = []
    for category, size_bytes in sorted(memory.at_peak(rank).items(), key=lambda item: -item[1])[: _SHOWN + 1]:
        if size_bytes >= _SMALL * peak_bytes:
            origins = [h for h in held if h.category == category]
            parts.append(f"{size_bytes / peak_bytes:.0%} {category}, {_origins(origins, size_bytes)}")
    when = f"{format_quantity(memory.peak_at_s(rank), 's')}, in {memory.peak_phase(rank)}"
    return f"At its peak ({when}) rank {rank} held {format_quantity(peak_bytes, 'B')}: {'; '.join(parts)}."


def _origins(allocations: list[AllocationGroup], size_bytes: int) -> str:
    """The origins of the largest: "made in model.py:12: h = gelu(x) (aten.gelu, 24 allocations, 1.2 GB)"."""
    named = [h for h in allocations[:_SHOWN] if h.size_bytes >= _SMALL * size_bytes]
    lines = [_line(h) for h in named]
    is_new = [line not in lines[:i] for i, line in enumerate(lines)]
    text = "made in " + " and ".join(_origin(h, new) for h, new in zip(named, is_new, strict=True))
    rest = len(allocations) - len(named)
    return text + (f" and {rest} more {'places' if rest > 1 else 'place'}" if rest else "")


def _origin(allocation: AllocationGroup, is_new: bool) -> str:
    """The line ("there" if named before), the op, the bytes."""
    count = f"{allocation.num_allocations} allocations, " if allocation.num_allocations > 1 else ""
    op = allocation.name.removeprefix("aten.") or "there before"
    return f"{_line(allocation) if is_new else 'there'} ({op}, {count}{format_quantity(allocation.size_bytes, 'B')})"


def _line(allocation: AllocationGroup) -> str:
    line = allocation.source or allocation.phase or "torch"
    return line if len(line) <= _LONGEST else line[: _LONGEST - 4] + " ..."


def too_large(memory: Memory, device: Device, fractions: Mapping[int, float]) -> list[str]:
    """A sentence when ranks need more memory than a device has, or than their fraction of it; none if all fit."""
    needed = {rank: memory.peak_bytes(rank) for rank in memory.ranks}
    over = [rank for rank, size in needed.items() if size > fractions.get(rank, 1.0) * device.memory_bytes]
    if not over:
        return []
    worst = max(over, key=lambda rank: needed[rank])
    others = f" (so do {len(over) - 1} more ranks)" if len(over) > 1 else ""
    article = "an" if device.name[:1].upper() in "AEFHILMNORSX" else "a"
    limit = f"{article} {device.name} has {format_quantity(device.memory_bytes, 'B')}"
    if (fraction := fractions.get(worst, 1.0)) < 1:
        allowed = format_quantity(fraction * device.memory_bytes, "B")
        limit += f", of which set_per_process_memory_fraction({fraction:g}) allows {allowed}"
    return [
        f"rank {worst}{others} needs {format_quantity(needed[worst], 'B')} at its peak, {limit}: "
        "a real device would stop with an out-of-memory error."
    ]
