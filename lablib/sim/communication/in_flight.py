"""Tensors in flight: a program that uses one, or gives it to another call, is right by luck, so it is a finding.

On real processes what is given to an asynchronous call belongs to that call until its `wait`: it may be read or filled
at any time. Here data moves as late as the rules allow (delivery.py), so who reads a result too early sees what was
there before. That may be what the program wants: a gather into the buffer of the layer that still computes does no harm
here. Who writes too early may get right values, too (`work = all_reduce(grad, async_op=True); grad /= n; work.wait()`).
So both are looked for:

    a call is issued        its tensors are in flight, known by their memory: storage, offset, shape, strides. None of
                            them may be in flight already where either call fills it
    an operator runs        it reads and writes to those of its arguments that its schema says. None that it writes to
                            may be in flight, and none that it reads may be about to be filled
    the call is waited for  its tensors are the program's again

Views of one storage are compared element by element: chunk i may be in flight while chunk j of the same tensor is
written to. Which elements an operator with indices or a mask writes only its result shows: there bytes are compared.

Cost: nothing for a call that blocks while no other is under way; 10 us for another, and beside it 2 us for an
operator, 5 us for a write.
Source: torch.distributed, `isend`: "Modifying tensor before the request completes causes undefined behavior."
Simplified: only operators are seen: nothing without the clock (`trace=False`), and nothing by way of numpy. What an
operator reads at some indices or of a mask is not looked for.
Collectives of one group may share tensors: NCCL runs them in order on one stream; gloo does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lablib.operators.op import tensors_in
from lablib.sim.communication.delivery import unseen_by_torch
from lablib.sim.operators.op_traits import OpTraits
from lablib.sim.source import Source, program_line
from lablib.torch_compat import DisableTorchFunction, storage_id

if TYPE_CHECKING:
    from lablib.sim.communication.work import Issued


READ = "read"  # what was done, in a finding
_SOME_ADDRESS = 1 << 12  # of a storage


class Place(NamedTuple):
    """The memory of a tensor in its storage."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    bytes: range  # from the first to the last

    @staticmethod
    def of(tensor: Tensor) -> Place:
        size, first = tensor.element_size(), int(tensor.storage_offset())
        if not tensor.numel():
            return Place(tensor.dtype, tensor.shape, tensor.stride(), first, range(0))
        last = first + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        extent = range(first * size, (last + 1) * size)
        return Place(tensor.dtype, tensor.shape, tensor.stride(), first, extent)

    def overlaps(self, other: Place) -> bool:
        """Whether the two have a byte of one storage in common."""
        if max(self.bytes.start, other.bytes.start) >= min(self.bytes.stop, other.bytes.stop):
            return False
        return np.shares_memory(self._array(), other._array())

    def _array(self) -> np.ndarray:
        """Its addresses, as those of an array that must be neither read nor written to: numpy compares addresses."""
        size = self.dtype.itemsize
        interface = {
            "version": 3,
            "shape": tuple(self.shape),
            "strides": tuple(step * size for step in self.stride),
            "typestr": f"|V{size}",
            "data": (_SOME_ADDRESS + self.offset * size, True),
        }
        return np.asarray(SimpleNamespace(__array_interface__=interface))

    def read(self, storage: torch.UntypedStorage) -> Tensor:
        """A copy of its bytes."""
        with unseen_by_torch():
            whole = torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.shape, self.stride)  # pyright: ignore
            return whole.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


class _Given(NamedTuple):
    """A tensor that was given to a call.

    Attributes:
        issued: the call.
        place: its memory.
        is_filled: whether the call fills it; others it reads.
        order: calls of the same order do not run at once; None: of no order.
        alive: while a weak reference lives, torch gives the address of its storage to nobody else.
    """

    issued: Issued
    place: Place
    is_filled: bool
    order: object | None
    alive: StorageWeakRef


class _Before(NamedTuple):
    """Bytes in flight before an operator ran that may write to them."""

    given: _Given
    storage: torch.UntypedStorage
    data: Tensor


class InFlight:
    """What a rank's program has given to asynchronous calls and not waited for. False when there is none.

    Attributes:
        findings: (call, what was done to a tensor of it, by which line, whether the latest wait was for a call that had
            been waited for before); the first for each call.
        waited_again: whether the latest wait was such a one: a program that keeps the works of an earlier step waits
            for these once more, and takes that for the wait of this step's.
    """

    def __init__(self) -> None:
        self._latest: tuple[Issued, Sequence[Tensor], Sequence[Tensor], object | None] | None = None
        self._given: dict[int, list[_Given]] = {}  # by storage
        self._storages: dict[Issued, set[int]] = {}
        self.findings: list[tuple[Issued, str, Source, bool]] = []
        self.waited_again = False

    def __len__(self) -> int:
        return len(self._storages) + (self._latest is not None)

    def add(self, issued: Issued, sent: Sequence[Tensor], received: Sequence[Tensor], order: object | None) -> None:
        """A call was issued: it reads some tensors, and fills others."""
        self._settle()
        self._latest = issued, sent, received, order
        if self._storages:
            self._settle()  # even if it blocks, others are under way meanwhile

    def remove(self, issued: Issued) -> None:
        """It is waited for."""
        if self._latest is not None and self._latest[0] is issued:
            self._latest = None
        for storage in self._storages.pop(issued, ()):
            self._given[storage] = [given for given in self._given[storage] if given.issued is not issued]
            if not self._given[storage]:
                del self._given[storage]

    def before(self, traits: OpTraits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[_Before]:
        """An operator is about to run. Returns what must be shown to `after` when it has."""
        if self._latest is not None:
            self._settle()
        if not traits.writes and not traits.reads:
            return []
        met: dict[_Given, _Before] = {}
        with DisableTorchFunction():
            for n, name in traits.reads:
                value = args[n] if n < len(args) else kwargs.get(name)
                for tensor in (value,) if type(value) is Tensor else tensors_in((value,)):
                    for given in self._meeting(tensor):
                        if given.is_filled:
                            self._found(given.issued, READ)
            for tensor in tensors_in([args[n] if n < len(args) else kwargs.get(name) for n, name in traits.writes]):
                for given in self._meeting(tensor):
                    if traits.writes_all:
                        self._found(given.issued, "wrote to")
                    elif not tensor.is_meta and given not in met:
                        storage = tensor.untyped_storage()
                        met[given] = _Before(given, storage, given.place.read(storage))
        return list(met.values())

    def after(self, before: Sequence[_Before]) -> None:
        """The operator has run."""
        for given, storage, data in before:
            with unseen_by_torch():
                is_same = torch.equal(given.place.read(storage), data)
            if not is_same:
                self._found(given.issued, "wrote to")

    def _settle(self) -> None:
        """The latest call does not block, as it was not waited for at once: note what it was given."""
        if self._latest is None:
            return
        issued, sent, received, order = self._latest
        self._latest = None
        new: dict[tuple[int, Place], _Given] = {}
        with DisableTorchFunction():
            for is_filled, tensors in ((True, received), (False, sent)):
                for tensor in tensors:
                    storage, place = tensor.untyped_storage(), Place.of(tensor)
                    if (storage_id(storage), place) in new:  # an all_reduce fills what it reads
                        continue
                    for given in self._meeting(tensor):
                        is_ordered = order is not None and order is given.order
                        if not is_ordered and (is_filled or given.is_filled):
                            self._found(given.issued, f"gave {issued.event.title}", issued.source)
                    new[storage_id(storage), place] = _Given(issued, place, is_filled, order, StorageWeakRef(storage))
        self._storages[issued] = {storage for storage, _ in new}
        for (storage, _), given in new.items():
            self._given.setdefault(storage, []).append(given)

    def _meeting(self, tensor: Tensor) -> list[_Given]:
        """What is in flight of the memory of a tensor."""
        if tensor.layout != torch.strided or not (others := self._given.get(storage_id(tensor.untyped_storage()))):
            return []
        place, end = Place.of(tensor), tensor.untyped_storage().nbytes()  # it may have been made smaller
        return [given for given in others if given.place.bytes.stop <= end and given.place.overlaps(place)]

    def _found(self, issued: Issued, what: str, line: Source | None = None) -> None:
        if issued in self._storages:
            self.remove(issued)
            self.findings.append((issued, what, line or program_line(), self.waited_again))
