"""Memory of a run by rank, category and time, from the storages that its ranks allocated.

An allocation is one storage (the memory behind one or more tensors) of one rank. The bytes of a rank at a moment are
the sum over its live allocations; the peak is the largest of these sums, over the rank's allocations and releases in
their order:

    held(k) = sum over events 1 .. k of (+ size of an allocation, - size of a release)        peak = max over k

Categories. An allocation has one, the last that was known:
    parameter       a storage of an nn.Parameter, or of a tensor that an optimizer updates
    gradient        left by backward in `.grad`
    optimizer state touched inside `Optimizer.step`, alive after it, and none of the above (momentum, variance)
    activation      made by an op that autograd records: by forward, or its recomputation, for backward
    communication   buffers that collectives fill or send, and none of the above
    other           the rest: data, buffers of modules, temporaries of backward and of the optimizer

Simplified: an allocator's rounding and fragmentation are counted by `replay_allocator` only; workspaces inside kernels
are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from lablib.record import memory_text
from lablib.record.allocations import CATEGORIES, NEVER, Allocation, Allocations, MemoryTimeline
from lablib.record.allocator_replay import AllocatorReplay, replay_allocator
from lablib.record.allocator_settings import AllocatorSettings
from lablib.record.draw import draw
from lablib.record.timeline import check_rank
from lablib.signature import Fraction, Range, check_type, checked
from lablib.text.markup import table_html
from lablib.text.units import plural

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from lablib.hardware.device import Device
    from lablib.record.timeline import Timeline

__all__ = ["CATEGORIES", "NEVER", "AllocationGroup", "Allocation", "Allocations", "Memory"]


@dataclass(frozen=True, slots=True)
class AllocationGroup:
    """Allocations of one origin, category and phase at the peak."""

    source: str
    name: str
    category: str
    phase: str
    size_bytes: int
    num_allocations: int


@dataclass(frozen=True)
class Memory:
    """The allocations of a run, rank by rank in order of allocation.

    Sizes are in bytes, times in virtual seconds. `rank=None` selects the rank with the highest peak.
    """

    allocations: Sequence[Allocation] = ()  # of all ranks
    num_ranks: int = 0  # number of ranks
    simulated: tuple[int, ...] | None = None  # the simulated ranks, if the others were phantoms; None: all
    # peak of each rank in bytes, as counted by its GPU's allocator (nccl). There are then no allocations, and the time
    # and the contents of a peak are unknown.
    allocator_peaks: tuple[int, ...] = ()
    run_notes: tuple[str, ...] = ()  # notes below each of its figures, such as that ranks shared a GPU

    def __post_init__(self) -> None:
        check_type("num_ranks of a Memory", self.num_ranks, int)
        check_type("allocator_peaks of a Memory", self.allocator_peaks, tuple[int, ...])
        if self.allocator_peaks and (len(self.allocator_peaks) != self.num_ranks or len(self.allocations)):
            raise ValueError(
                "allocator_peaks of a Memory are one for each rank, and replace allocations: got "
                f"{len(self.allocator_peaks)} for {plural(self.num_ranks, 'ranks')} and "
                f"{plural(len(self.allocations), 'allocations')}"
            )
        if not isinstance(self.allocations, Allocations):
            check_type("allocations of a Memory", self.allocations, Sequence[Allocation])
        object.__setattr__(self, "allocations", Allocations.of(self.allocations))

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks with records: all except phantoms."""
        return range(self.num_ranks) if self.simulated is None else self.simulated

    @staticmethod
    @checked
    def from_snapshot(paths: str | Path | Sequence[str | Path]) -> Memory:
        """Read snapshots of CUDA's allocator, one per process (memory_snapshot.py): a rank for each device.

        Raises OSError: a file cannot be read. ValueError: it is no snapshot.
        """
        from lablib.record.memory_snapshot import read_snapshots

        return read_snapshots([paths] if isinstance(paths, (str, Path)) else paths)

    # ---- the peak ----

    @checked
    def peak_bytes(self, rank: int | None = None) -> int:
        """The peak of `rank`; None: the highest of all ranks."""
        if self.allocator_peaks:
            check_rank(rank, self.num_ranks, self.simulated)
            return max(self.allocator_peaks) if rank is None else self.allocator_peaks[rank]
        return self._curve(rank).peak_bytes if self.num_ranks else 0

    @property
    def is_known(self) -> bool:
        """Whether memory was counted: at least the peaks are known."""
        return bool(len(self.allocations) or self.allocator_peaks)

    def peak_rank(self) -> int:
        """The rank with the highest peak; the first if several are equal."""
        return max(self.ranks, key=self.peak_bytes, default=0)

    @checked
    def peak_at_s(self, rank: int | None = None) -> float:
        """Time at which the rank first reached its peak; NaN if only the allocator's peaks are known."""
        curve = self._curve(rank)
        if self.allocator_peaks:
            return nan
        return float(curve.times_s[curve.peak_index]) if len(curve) else 0.0

    @checked
    def peak_phase(self, rank: int | None = None) -> str:
        """Phase of the program when the rank reached its peak."""
        curve = self._curve(rank)
        if not len(curve):
            return ""
        return curve.allocations[int(curve.allocation[curve.peak_index])].phase

    @checked
    def at_peak(self, rank: int | None = None) -> dict[str, int]:
        """Bytes at the rank's peak, by category; empty if only the allocator's peaks are known."""
        curve = self._curve(rank)
        if self.allocator_peaks:
            return {}
        return _by_category(curve.allocations.where(curve.is_alive_at_peak))

    @checked
    def allocations_at_peak(self, rank: int | None = None) -> list[AllocationGroup]:
        """The allocations at the rank's peak, by origin; largest first."""
        curve = self._curve(rank)
        groups: dict[tuple[int, int], list[int]] = {}
        held = curve.allocations.where(curve.is_alive_at_peak).columns
        for label, category, size in zip(held["label"], held["category"], held["size_bytes"], strict=True):
            group = groups.setdefault((int(label), int(category)), [0, 0])
            group[0] += int(size)
            group[1] += 1
        labels = curve.allocations.labels
        allocations = [
            AllocationGroup(labels[label][2], labels[label][0], CATEGORIES[category], labels[label][1], size, count)
            for (label, category), (size, count) in groups.items()
        ]
        return sorted(allocations, key=lambda h: (-h.size_bytes, h.source, h.name))

    # ---- over time ----

    @checked
    def at(self, rank: int, time_s: float) -> dict[str, int]:
        """Bytes held by the rank after all events up to `time_s`, by category."""
        allocations = self._curve(rank).allocations
        start_s, end_s, end = (allocations.columns[name] for name in ("start_s", "end_s", "end_event"))
        return _by_category(allocations.where((start_s <= time_s) & ((end_s > time_s) | (end == NEVER))))

    @checked
    def curve(self, rank: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Bytes held by the rank over time: the time of each allocation and release, and the bytes after it.

        Returns:
            `times_s`, and for each category an array of the same length. Of several events at one time, the last has
            the bytes held after it.
        """
        curve = self._curve(rank)
        kinds = curve.allocations.columns["category"][curve.allocation]
        held = {name: np.cumsum(np.where(kinds == i, curve.changes, 0)) for i, name in enumerate(CATEGORIES)}
        return curve.times_s, held

    @checked
    def by_phase(self, rank: int | None = None) -> pd.DataFrame:
        """One row per phase, in order of their beginning: the largest number of bytes held, and the bytes allocated."""
        import pandas as pd

        curve = self._curve(rank)
        phases = [phase for _, phase, _ in curve.allocations.labels]
        rows: dict[str, list[int]] = {}
        born = curve.changes > 0
        labels = curve.allocations.columns["label"][curve.allocation[born]].tolist()
        for label, held, size in zip(labels, curve.held[born].tolist(), curve.changes[born].tolist(), strict=True):
            row = rows.setdefault(phases[label], [0, 0, 0])
            rows[phases[label]] = [max(row[0], held), row[1] + size, row[2] + 1]
        columns = ["peak_bytes", "allocated_bytes", "num_allocations"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("phase")

    @checked
    def replay_allocator(
        self, settings: str = "", capacity_bytes: Annotated[float, Range(gt=0)] = inf, rank: int | None = None
    ) -> AllocatorReplay:
        """Reserved memory and fragmentation of a rank: its record replayed through torch's caching allocator.

        Args:
            settings: as in the environment variable PYTORCH_ALLOC_CONF: "expandable_segments:True".
            capacity_bytes: memory of the device for the allocator; infinite: requests never fail.

        Raises ValueError: settings that torch refuses, or a memory without allocations.
        """
        if self.allocator_peaks:
            raise ValueError(
                "replay_allocator must have the allocations of a run: got the allocator's peaks; run it on the "
                "simulator, or read a snapshot with Memory.from_snapshot"
            )
        return replay_allocator(self._curve(rank), AllocatorSettings.parse(settings), capacity_bytes)

    # ---- text, table, figure ----

    @checked
    def explain(self, rank: int | None = None) -> str:
        """One sentence on the contents of a rank's peak and their origin."""
        return memory_text.explain(self, self.peak_rank() if rank is None else rank)

    def table(self) -> pd.DataFrame:
        """One row per rank: its peak, the time of the peak, and the bytes of each category then."""
        import pandas as pd

        rows = [
            {"peak_bytes": self.peak_bytes(rank), "peak_at_s": self.peak_at_s(rank), **self.at_peak(rank)}
            for rank in self.ranks
        ]
        columns = ["peak_bytes", "peak_at_s", *CATEGORIES]
        return pd.DataFrame(rows, columns=columns, index=pd.Index(self.ranks, name="rank"))

    @checked
    def figure(self, timeline: Timeline | None = None, **options: Any) -> go.Figure:
        """Bytes held by a rank over time, stacked by category; under its timeline if one is given."""
        return draw("figure_memory", self, timeline=timeline, **options)

    @checked
    def notes(self, device: Device, fractions: Mapping[int, Fraction] | None = None) -> list[str]:
        """Warnings: the ranks that need more memory than a device has, or the fraction of it that a rank may use."""
        return memory_text.too_large(self, device, fractions or {})

    def __len__(self) -> int:
        return len(self.allocations)

    def __repr__(self) -> str:
        known = "peaks by the allocator" if self.allocator_peaks else plural(len(self.allocations), "allocations")
        return f"Memory({known}, {plural(self.num_ranks, 'ranks')}, peak {self.peak_bytes():.4g} bytes)"

    def _repr_html_(self) -> str:
        return table_html(self.table(), max_rows=20)

    @cached_property
    def _curves(self) -> dict[int, MemoryTimeline]:
        return {}

    def _curve(self, rank: int | None) -> MemoryTimeline:
        check_rank(rank, self.num_ranks, self.simulated)
        rank = self.peak_rank() if rank is None else rank
        if rank not in self._curves:
            assert isinstance(self.allocations, Allocations)
            self._curves[rank] = MemoryTimeline(self.allocations.of_rank(rank))
        return self._curves[rank]


def _by_category(allocations: Allocations) -> dict[str, int]:
    sums = np.zeros(len(CATEGORIES), np.int64)
    np.add.at(sums, allocations.columns["category"], allocations.columns["size_bytes"])
    return {name: int(size) for name, size in zip(CATEGORIES, sums, strict=True)}
