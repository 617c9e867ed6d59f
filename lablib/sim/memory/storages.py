"""Storages: callbacks on their release and on resizes, and the storages of a tensor.

A storage is the memory behind one or more tensors. Its Python object lives exactly as long as the memory, regardless of
the owner (Python, autograd, torch's C++), so the callback of a weak reference runs before the address is reused.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from lablib.process.replaced import replaced
from lablib.torch_compat import sparse_parts


class TrackedStorage(weakref.ref):
    """A weak reference to a storage.

    Attributes:
        key: its address.
        allocation: number of its latest allocation.
    """

    __slots__ = ("key", "allocation")
    key: int
    allocation: int


def inner(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors with memory inside a tensor: a DTensor's shard, a sparse tensor's indices and values."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            part = getattr(tensor, name)
            if isinstance(part, Tensor):
                yield from inner(part)
    elif tensor.layout == torch.strided:
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield from sparse_parts(tensor)
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def heard_changes(
    resized: Callable[[torch.UntypedStorage], None], swapped: Callable[[Tensor, Tensor], None]
) -> AbstractContextManager[None]:
    """Patch two functions of torch that bypass the dispatcher, to report their calls.

    `UntypedStorage.resize_` (FSDP2 frees and restores memory with it) calls `resized` after it has resized a storage.
    `torch.utils.swap_tensors` (`Module.to` of DTensors) calls `swapped` before: it rejects tensors with weak
    references.
    """
    resize, swap = torch.UntypedStorage.resize_, torch.utils.swap_tensors

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        resized(storage)
        return result

    def swap_tensors(first: Tensor, second: Tensor) -> None:
        swapped(first, second)
        swap(first, second)

    return replaced((torch.UntypedStorage, "resize_", resize_), (torch.utils, "swap_tensors", swap_tensors))
