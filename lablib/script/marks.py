"""Mark of a tensor on the simulated device: its storage has the index of the device as an attribute.

A storage without a mark is host memory. placement.py sets the marks and uses them.
"""

from contextlib import suppress
from typing import Any

import torch

from lablib.script.process import here
from lablib.torch_compat import functorch_inner, is_functorch_tensor, sparse_parts

_MARK = "lablib_device_index"
HOST = -1  # index of the host's memory


def index_of(tensor: torch.Tensor) -> int | None:
    """The index of the simulated device that holds a tensor; None: host memory."""
    if type(tensor) is not torch.Tensor and (inner := _inner(tensor)) is not None:
        return index_of(inner)
    return index_of_storage(storage_of(tensor))


def _inner(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor inside a wrapper, such as a DTensor's shard. None: not a wrapper, or an incomplete one."""
    inner = getattr(tensor, "_local_tensor", None)
    if inner is None:
        inner = getattr(tensor, "elem", None)
    if inner is None and (flatten := getattr(tensor, "__tensor_flatten__", None)) is not None:
        with suppress(Exception):  # during construction: attributes are set after `_make_wrapper_subclass`
            names, _ = flatten()
            inner = getattr(tensor, names[0]) if names else None
    return inner if isinstance(inner, torch.Tensor) else None


def mark(tensor: torch.Tensor, index: int) -> None:
    mark_storage(storage_of(tensor), index)


def mark_storage(storage: Any, index: int) -> None:
    setattr(storage, _MARK, index)


def index_of_storage(storage: Any) -> int | None:
    """The index of its device. Memory without values (fidelity="shapes") is the device's once the script uses one."""
    index = getattr(storage, _MARK, None)
    if index is None and storage.device.type == "meta":
        process = here()
        if process is not None and process.is_shapes and process.placement.is_used:
            return process.placement.device_index
    return index


def storage_of(tensor: torch.Tensor) -> Any:
    """The storage of a tensor: of the values of a sparse one, of the tensor inside a `torch.func` transform."""
    while is_functorch_tensor(tensor):
        tensor = functorch_inner(tensor)
    if tensor.layout == torch.strided:
        return tensor.untyped_storage()
    values = sparse_parts(tensor)[1] if tensor.layout == torch.sparse_coo else tensor.values()
    return values.untyped_storage()


def is_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is memory, not a wrapper around other tensors."""
    return type(tensor) is torch.Tensor or not hasattr(tensor, "__tensor_flatten__")
