"""Results whose future the program holds while they are still under way: the first operation that touches one waits.

They are found by their memory (the storage), as every view of a result waits for it too. Only a weak reference is kept:
a result that the program drops is gone, and while the reference lives torch gives its address to nobody else, so an
entry is never taken for that of another tensor.
"""

from typing import Protocol

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lablib.torch_compat import storage_id


class Awaited(Protocol):
    """A communication: `wait` until it is over; `is_over` tells whether that would take no time."""

    def wait(self) -> bool: ...

    def is_over(self) -> bool: ...


class Pending:
    """One rank's results under way, by storage. False when there are none."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[StorageWeakRef, list[Awaited]]] = {}
        self._room = 16

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tensor: Tensor, awaited: Awaited) -> None:
        """The next operation that touches the memory of `tensor` waits for this."""
        reference = StorageWeakRef(tensor.untyped_storage())
        _, before = self._entries.get(reference.cdata, (None, []))
        self._entries[reference.cdata] = (reference, [*(a for a in before if not a.is_over()), awaited])
        if len(self._entries) > self._room:
            self._entries = {key: entry for key, entry in self._entries.items() if not entry[0].expired()}
            self._room = max(16, 2 * len(self._entries))

    def copy(self) -> "Pending":
        """The same for another stream of the rank: what has been waited for there has not been here."""
        other = Pending()
        other._entries = dict(self._entries)
        return other

    def take_over(self, other: "Pending") -> None:
        """Know of what another stream has begun, too."""
        self._entries = other._entries | self._entries

    def join_all(self) -> None:
        """Wait for everything that the program still holds a result of."""
        entries, self._entries = self._entries, {}
        for _, awaited in entries.values():
            for communication in awaited:
                communication.wait()

    def join(self, tensor: Tensor) -> None:
        """Wait for what writes to the memory of `tensor`."""
        _, awaited = self._entries.pop(storage_id(tensor.untyped_storage()), (None, []))
        for communication in awaited:
            communication.wait()
