"""Storages allocated by the ranks of a run, as columns: half a million of them take 25 MB.

`Allocations` is a sequence of `Allocation`s, with its columns as arrays for sums.

Order. Virtual time does not advance while a rank only allocates, so times alone do not determine which allocations were
held together. Each rank therefore numbers its allocations and releases: 1, 2, 3, ... (`start_event`, `end_event`).
Allocations without numbers are ordered by time; at equal times releases come first, as memory is reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

CATEGORIES = ("parameter", "gradient", "optimizer state", "activation", "communication", "other")
NEVER = 2**62  # the number of an event that did not happen


@dataclass(frozen=True, slots=True)
class Allocation:
    """One storage of one rank: the memory behind one or more tensors."""

    rank: int  # global rank
    # one of CATEGORIES, as known at the end: an operator's output becomes a gradient once it is in `.grad`
    category: str
    size_bytes: int  # as allocated
    start_s: float  # start_s, end_s: virtual time of its allocation and of its release (or the end of its rank)
    end_s: float
    name: str = ""  # the op that made it, e.g. "aten.mm"; "" if it existed before an op first read it.
    phase: str = ""  # phase of the program at its allocation
    source: str = ""  # the line of the program that led to it
    # start_event, end_event: their numbers among the rank's allocations and releases; `NEVER` if not released
    start_event: int = 0
    end_event: int = 0


class Allocations(Sequence[Allocation]):
    """Allocations as columns: arrays of equal length by name, as in COLUMNS; `label` is an index into `labels`."""

    COLUMNS = {
        "rank": "i4",
        "category": "u1",
        "size_bytes": "i8",
        "start_s": "f8",
        "end_s": "f8",
        "start_event": "i8",
        "end_event": "i8",
        "label": "i4",
    }

    def __init__(self, columns: Mapping[str, Any], labels: Sequence[tuple[str, str, str]]):
        self.columns = {name: np.asarray(columns[name], dtype=kind) for name, kind in self.COLUMNS.items()}
        self.labels = labels

    @staticmethod
    def of(allocations: Iterable[Allocation]) -> Allocations:
        """The columns of some allocations. ValueError: a category that does not exist."""
        if isinstance(allocations, Allocations):
            return allocations
        labels: dict[tuple[str, str, str], int] = {}
        columns: dict[str, list] = {name: [] for name in Allocations.COLUMNS}
        for allocation in allocations:
            if allocation.category not in CATEGORIES:
                names = ", ".join(CATEGORIES)
                raise ValueError(f"an allocation's category is one of {names}: got {allocation.category!r}")
            label = (allocation.name, allocation.phase, allocation.source)
            given = {"category": CATEGORIES.index(allocation.category), "label": labels.setdefault(label, len(labels))}
            for name, column in columns.items():
                column.append(given[name] if name in given else getattr(allocation, name))
        return Allocations(columns, list(labels))

    @staticmethod
    def joined(parts: Sequence[Allocations]) -> Allocations:
        """Concatenate the allocations of several ranks; they share their labels."""
        if not parts:
            return Allocations({name: () for name in Allocations.COLUMNS}, ())
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in Allocations.COLUMNS}
        return Allocations(columns, parts[0].labels)

    def with_labels_once(self) -> Allocations:
        """A copy in which each label occurs once among `labels`."""
        places: dict[tuple[str, str, str], int] = {}
        of = np.array([places.setdefault(label, len(places)) for label in self.labels], dtype=np.int32)
        if len(places) == len(of):
            return self
        return Allocations(self.columns | {"label": of[self.columns["label"]]}, list(places))

    def where(self, chosen: Any) -> Allocations:
        """The allocations selected by a mask or a list of indices."""
        return Allocations({name: column[chosen] for name, column in self.columns.items()}, self.labels)

    def of_rank(self, rank: int) -> Allocations:
        """The allocations of one rank, in the order of allocation."""
        ranks = self.columns["rank"]
        if len(ranks) and np.all(ranks[1:] >= ranks[:-1]):
            return self.where(slice(*np.searchsorted(ranks, (rank, rank + 1))))
        return self.where(ranks == rank)

    @overload
    def __getitem__(self, index: int) -> Allocation: ...

    @overload
    def __getitem__(self, index: slice) -> Allocations: ...

    def __getitem__(self, index: int | slice) -> Allocation | Allocations:
        if isinstance(index, slice):
            return self.where(index)
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        row = {name: column[index].item() for name, column in self.columns.items()}
        name, phase, source = self.labels[row.pop("label")]
        return Allocation(**{**row, "category": CATEGORIES[row["category"]]}, name=name, phase=phase, source=source)

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def __iter__(self) -> Iterator[Allocation]:
        columns = (self.columns[name].tolist() for name in self.COLUMNS)
        for rank, category, size, start_s, end_s, start_event, end_event, label in zip(*columns, strict=True):
            name, phase, source = self.labels[label]
            made = (name, phase, source)
            yield Allocation(rank, CATEGORIES[category], size, start_s, end_s, *made, start_event, end_event)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Allocations({len(self)})"


class MemoryTimeline:
    """The allocations and releases of one rank in their order.

    Attributes (arrays with one entry per event):
        times_s: time of the event.
        changes: bytes allocated (positive) or released (negative).
        allocation: index in `allocations`.
        held: bytes held after the event.
    """

    def __init__(self, allocations: Allocations):
        self.allocations = allocations
        columns, every = allocations.columns, np.arange(len(allocations))
        dies = columns["end_event"] != NEVER
        times_s = np.concatenate([columns["start_s"], columns["end_s"][dies]])
        events = np.concatenate([columns["start_event"], columns["end_event"][dies]])
        is_birth = np.concatenate([np.ones(len(allocations), bool), np.zeros(dies.sum(), bool)])
        order = np.lexsort((is_birth, events, times_s))
        sizes = columns["size_bytes"]
        self.times_s = times_s[order]
        self.changes = np.concatenate([sizes, -sizes[dies]])[order]
        self.allocation = np.concatenate([every, every[dies]])[order]
        self.held = np.cumsum(self.changes)
        self.peak_index = int(np.argmax(self.held)) if len(order) else 0
        self.peak_bytes = max(0, int(self.held[self.peak_index])) if len(order) else 0

    def __len__(self) -> int:
        return len(self.changes)

    @property
    def is_alive_at_peak(self) -> np.ndarray:
        """Mask of the allocations held at the peak."""
        count = np.zeros(len(self.allocations), int)
        upto = slice(0, self.peak_index + 1)
        np.add.at(count, self.allocation[upto], np.sign(self.changes[upto]))
        return count > 0
