"""Unfinished results of communications: the first operation that touches one waits for it.

Results are identified by their storage, as every view of a result must wait too. Only a weak reference is kept: it does
not keep a dropped result alive, and while it lives torch does not reuse the address for another tensor.
"""

from typing import Protocol

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lablib.torch_compat import storage_id


class Awaited(Protocol):
    """A communication: `wait` until it ends; `is_over` returns whether that would take no time."""

    def wait(self) -> bool: ...

    def is_over(self) -> bool: ...


class Pending:
    """One rank's unfinished results, by storage. False if there are none."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[StorageWeakRef, list[Awaited]]] = {}
        self._room = 16

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tensor: Tensor, awaited: Awaited) -> None:
        """Let the next operation that touches the memory of `tensor` wait for `awaited`."""
        reference = StorageWeakRef(tensor.untyped_storage())
        _, before = self._entries.get(reference.cdata, (None, []))
        self._entries[reference.cdata] = (reference, [*(a for a in before if not a.is_over()), awaited])
        if len(self._entries) > self._room:
            self._entries = {key: entry for key, entry in self._entries.items() if not entry[0].expired()}
            self._room = max(16, 2 * len(self._entries))

    def copy(self) -> "Pending":
        """A copy for another stream of the rank, which keeps a separate record of its waits."""
        other = Pending()
        other._entries = dict(self._entries)
        return other

    def take_over(self, other: "Pending") -> None:
        """Add the unfinished results of another stream."""
        self._entries = other._entries | self._entries

    def join_all(self) -> None:
        """Wait for all results that the program still holds."""
        entries, self._entries = self._entries, {}
        for _, awaited in entries.values():
            for communication in awaited:
                communication.wait()

    def join(self, tensor: Tensor) -> None:
        """Wait for communications that write to the memory of `tensor`."""
        _, awaited = self._entries.pop(storage_id(tensor.untyped_storage()), (None, []))
        for communication in awaited:
            communication.wait()
