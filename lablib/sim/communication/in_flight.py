"""Race detection for tensors in flight: reads and writes between the issue of a call and its `wait`.

On real processes an asynchronous call may read or fill its tensors at any time until its `wait`. Here data moves as
late as the rules allow (delivery.py), so an early read of a result sees the old values. That may be intended: a gather
into the buffer of the layer that still computes does no harm here. An early write may give correct values, too (`work =
all_reduce(grad, async_op=True); grad /= n; work.wait()`). So both are reported as findings:

    a call is issued        its tensors are in flight, identified by memory: storage, offset, shape, strides. None of
                            them may be in flight already if either call fills it
    an operator runs        it reads and writes to the arguments named by its schema. None that it writes to may be in
                            flight, and none that it reads may be in flight to be filled
    the call is waited for  its tensors are free again

Views of one storage are compared element by element: chunk i may be in flight while chunk j of the same tensor is
written to. For an operator with indices or a mask only its result shows the written elements: there bytes are compared.

Cost: nothing for a call that blocks while no other is in flight; otherwise 10 us, plus 2 us per operator, 5 us per
write. Source: torch.distributed, `isend`: "Modifying tensor before the request completes causes undefined behavior."
Simplified: only operators are checked: none without the clock (`trace=False`), and no access through numpy. Reads at
indices or through a mask are not checked. Collectives of one group may share tensors: NCCL runs them in order on one
stream; gloo does not.
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
from lablib.sim.source import ProgramLine, program_line
from lablib.torch_compat import DisableTorchFunction, storage_id

if TYPE_CHECKING:
    from lablib.sim.communication.work import IssuedWork


READ = "read"  # the access, in a finding
_SOME_ADDRESS = 1 << 12  # placeholder address of a storage


class MemoryRange(NamedTuple):
    """The memory of a tensor in its storage."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    bytes: range  # from the first byte to the end

    @staticmethod
    def of(tensor: Tensor) -> MemoryRange:
        size, first = tensor.element_size(), int(tensor.storage_offset())
        if not tensor.numel():
            return MemoryRange(tensor.dtype, tensor.shape, tensor.stride(), first, range(0))
        last = first + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        extent = range(first * size, (last + 1) * size)
        return MemoryRange(tensor.dtype, tensor.shape, tensor.stride(), first, extent)

    def overlaps(self, other: MemoryRange) -> bool:
        """Whether the two places share a byte of one storage."""
        if max(self.bytes.start, other.bytes.start) >= min(self.bytes.stop, other.bytes.stop):
            return False
        return np.shares_memory(self._array(), other._array())

    def _array(self) -> np.ndarray:
        """The addresses as an array for numpy's comparison; its elements are never read or written."""
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
    issued: IssuedWork
    place: MemoryRange
    is_filled: bool  # whether the call fills it; otherwise the call reads it
    order: object | None  # calls with the same order do not run at the same time; None: unordered
    alive: StorageWeakRef  # while this weak reference lives, torch does not reuse the address of the storage


class _Before(NamedTuple):
    """Bytes in flight, before an operator that may write to them."""

    given: _Given
    storage: torch.UntypedStorage
    data: Tensor


class InFlight:
    """The tensors given to asynchronous calls that a rank's program has not waited for. False if there are none.

    Attributes:
        findings: (call, access to one of its tensors, source line, `waited_again` at that time); the first per call.
        waited_again: whether the latest wait was for a call waited for before: a program that keeps the works of an
            earlier step waits for these again, and takes that for the wait of this step's works.
    """

    def __init__(self) -> None:
        self._latest: tuple[IssuedWork, Sequence[Tensor], Sequence[Tensor], object | None] | None = None
        self._given: dict[int, list[_Given]] = {}  # by storage
        self._storages: dict[IssuedWork, set[int]] = {}
        self.findings: list[tuple[IssuedWork, str, ProgramLine, bool]] = []
        self.waited_again = False

    def __len__(self) -> int:
        return len(self._storages) + (self._latest is not None)

    def add(self, issued: IssuedWork, sent: Sequence[Tensor], received: Sequence[Tensor], order: object | None) -> None:
        """Note an issued call, the tensors that it reads, and those that it fills."""
        self._settle()
        self._latest = issued, sent, received, order
        if self._storages:
            self._settle()  # even if it blocks, others are in flight

    def remove(self, issued: IssuedWork) -> None:
        """Remove a call that is waited for."""
        if self._latest is not None and self._latest[0] is issued:
            self._latest = None
        for storage in self._storages.pop(issued, ()):
            self._given[storage] = [given for given in self._given[storage] if given.issued is not issued]
            if not self._given[storage]:
                del self._given[storage]

    def before(self, traits: OpTraits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[_Before]:
        """Check an operator that is about to run. Returns the argument for `after`."""
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
        """Check an operator that has run."""
        for given, storage, data in before:
            with unseen_by_torch():
                is_same = torch.equal(given.place.read(storage), data)
            if not is_same:
                self._found(given.issued, "wrote to")

    def _settle(self) -> None:
        """Register the tensors of the latest call: it does not block, as it was not waited for at once."""
        if self._latest is None:
            return
        issued, sent, received, order = self._latest
        self._latest = None
        new: dict[tuple[int, MemoryRange], _Given] = {}
        with DisableTorchFunction():
            for is_filled, tensors in ((True, received), (False, sent)):
                for tensor in tensors:
                    storage, place = tensor.untyped_storage(), MemoryRange.of(tensor)
                    if (storage_id(storage), place) in new:  # an all_reduce fills its input
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
        """The tensors in flight that overlap a tensor."""
        if tensor.layout != torch.strided or not (others := self._given.get(storage_id(tensor.untyped_storage()))):
            return []
        place, end = MemoryRange.of(tensor), tensor.untyped_storage().nbytes()  # the storage may have shrunk
        return [given for given in others if given.place.bytes.stop <= end and given.place.overlaps(place)]

    def _found(self, issued: IssuedWork, what: str, line: ProgramLine | None = None) -> None:
        if issued in self._storages:
            self.remove(issued)
            self.findings.append((issued, what, line or program_line(), self.waited_again))
