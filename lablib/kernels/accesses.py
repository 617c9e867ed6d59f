"""Memory accesses of an interpreted launch: loads and stores of every program, element by element, and the bytes.

    with record_accesses() as launches:
        softmax(x)
    hbm_bytes(launches)        {"x": 4096, "y": 4096}       each access counted
    distinct_bytes(launches)   {"x": 4096, "y": 4096}       each element once per launch, for reads and for writes

The two differ if several programs, or one program twice, access the same element: a cache may serve the second access,
so the traffic of the GPU's memory is between the two numbers. Masked elements are not counted. An atomic addition reads
and writes, so it counts its element's bytes twice.

Simplified: bytes of the requested elements; a GPU fetches sectors of 32 bytes, so scattered reads cost more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np

Kind = Literal["load", "store", "atomic"]
Program = tuple[int, int, int]
_recording: ContextVar[list[Launch] | None] = ContextVar("accesses of interpreted launches", default=None)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a launch: its address and layout."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    itemsize: int
    address: int

    @property
    def end(self) -> int:
        """The address after the last element."""
        if 0 in self.shape:
            return self.address
        steps = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return self.address + (steps + 1) * self.itemsize

    def elements(self, addresses: np.ndarray) -> np.ndarray:
        """Row-major index of the element at each address, the first of several; -1 without an element."""
        rest, off = np.divmod(addresses.astype(np.int64) - self.address, self.itemsize)
        if _share_elements(self.shape, self.strides):
            offsets, first = _first_places(self.shape, self.strides)
            at = np.searchsorted(offsets, rest).clip(max=len(offsets) - 1)
            return np.where((off == 0) & (offsets[at] == rest), first[at], -1)
        found = (off == 0) & (rest >= 0) & (addresses < self.end)
        index, row_major = np.zeros_like(rest), np.cumprod((1, *self.shape[:0:-1]))[::-1]
        for dim in sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim]):
            if self.strides[dim] == 0 or self.shape[dim] == 1:
                continue  # all places of this dimension share one element: the first
            place, rest = np.divmod(rest, self.strides[dim])
            found &= place < self.shape[dim]
            index += place * row_major[dim]
        return np.where(found & (rest == 0), index, -1)


def _share_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether several places may share an address, as in windows (`unfold`) with overlapping rows."""
    reach = 0  # of the dimensions with smaller strides
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if stride):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


@lru_cache(maxsize=16)
def _first_places(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Distances from the first element, ascending, each once, and the first row-major index that lies there."""
    distances = np.zeros((1,) * len(shape), np.int64)
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        distances = distances + (np.arange(size) * stride).reshape([-1 if dim == i else 1 for i in range(len(shape))])
    return np.unique(distances, return_index=True)


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One load, store or atomic of one program."""

    program: Program  # the three program ids
    kind: Kind
    tensor: str  # name of the kernel's parameter, without `_ptr`
    elements: np.ndarray  # row-major indices into the tensor, in the order of the tile; masked ones are left out
    itemsize: int

    @property
    def num_bytes(self) -> int:
        return self.elements.size * self.itemsize * (2 if self.kind == "atomic" else 1)


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One launch of a kernel: its grid, its tensors by name, and its accesses in order."""

    kernel: str
    grid: Program
    tensors: dict[str, Operand]
    accesses: list[Access] = field(default_factory=list)

    def elements(self, tensor: str, program: Program, *kinds: Kind) -> np.ndarray:
        """Elements of a tensor that one program touches, ascending, each once; by accesses of these kinds, if named."""
        found = [
            one.elements
            for one in self.accesses
            if one.tensor == tensor and one.program == program and (not kinds or one.kind in kinds)
        ]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


@contextmanager
def record_accesses() -> Iterator[list[Launch]]:
    """In this block, record every interpreted launch of this thread in the returned list."""
    launches: list[Launch] = []
    token = _recording.set(launches)
    try:
        yield launches
    finally:
        _recording.reset(token)


def recording() -> list[Launch] | None:
    """The list of the innermost `record_accesses` around this call; None outside."""
    return _recording.get()


def hbm_bytes(launches: Iterable[Launch], *kinds: Kind) -> dict[str, int]:
    """Bytes by tensor, every access counted; only of these kinds, if any are named."""
    total: Counter[str] = Counter()
    for access in (one for launch in launches for one in launch.accesses):
        if not kinds or access.kind in kinds:
            total[access.tensor] += access.num_bytes
    return dict(total)


def distinct_bytes(launches: Iterable[Launch], *kinds: Kind) -> dict[str, int]:
    """Bytes by tensor, each element counted once per launch and kind of access, as with a perfect cache."""
    total: Counter[str] = Counter()
    for launch in launches:
        parts: defaultdict[tuple[str, Kind], list[Access]] = defaultdict(list)
        for access in launch.accesses:
            if not kinds or access.kind in kinds:
                parts[access.tensor, access.kind].append(access)
        for (tensor, kind), accesses in parts.items():
            distinct = np.unique(np.concatenate([one.elements for one in accesses])).size
            total[tensor] += distinct * accesses[0].itemsize * (2 if kind == "atomic" else 1)
    return dict(total)
