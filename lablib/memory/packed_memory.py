"""Pack the memory that autograd saves, once for all operators and views that share it.

torch passes every saved tensor to a pair of functions: `pack` returns the kept form, `unpack` restores the tensor in
backward. Two operators may save the same memory: softmax saves its result, and the product after it saves a view of
another shape. Packed separately, that memory would be kept twice. So `pack` gets the underlying memory as a flat
tensor, and unpacking restores the view:

    saved        view (B H, T, T) of p         view (B, H, T, T) of p
    packed       flat p ---- one object ---- flat p

Compression (activation_compression.py) and offload (offload.py) pack a flat tensor.

Cost: a look-up for each saved tensor. Shapes: any.
Source: torch's tutorial "Hooks for autograd saved tensors" (torch 2.13); the rest is ours.
Simplified: a view with gaps (a part of a wider tensor) is packed as a separate copy.
"""

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lablib.signature import check_type, checked
from lablib.torch_compat import storage_id, version


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """The record of one saved tensor: the packed memory, which others may share, and the shape of its view."""

    memory: Any
    shape: torch.Size
    stride: tuple[int, ...]


@checked
def packed_memory(
    pack: Callable[[Tensor], Any],
    unpack: Callable[[Any], Tensor],
    parameters: Iterable[Tensor] = (),
    min_numel: int = 1,
) -> AbstractContextManager[None]:
    """In this block, autograd keeps `pack(flat)` of each floating-point memory that operators save.

    Arguments:
        pack: maps a flat tensor to an object that can have weak references. It must not keep the tensor.
        unpack: maps that object to a flat tensor of the same numbers. It may be called several times.
        parameters: not packed, as they stay in memory anyway; nor are tensors below `min_numel`.
    """
    parameters = list(parameters)
    check_type("packed_memory: parameters", parameters, list[Tensor])
    owned = {storage_id(parameter.untyped_storage()) for parameter in parameters}
    known: dict[tuple, tuple[weakref.ref, weakref.ref]] = {}

    def pack_tensor(tensor: Tensor) -> Tensor | PackedTensor:
        storage = tensor.untyped_storage()
        if storage_id(storage) in owned or not tensor.is_floating_point() or tensor.numel() < min_numel:
            return tensor
        if not is_dense(tensor):
            tensor = tensor.contiguous()
            return PackedTensor(pack(tensor.flatten()), tensor.shape, tensor.stride())
        key = (storage_id(storage), tensor.storage_offset(), tensor.numel(), tensor.dtype, version(tensor))
        of_storage, of_memory = known.get(key, (None, None))
        memory = of_memory() if of_memory is not None else None
        # Addresses are reused, so check that the memory is the packed one.
        if memory is None or of_storage is None or of_storage() is not storage:
            memory = pack(tensor.detach().as_strided((tensor.numel(),), (1,)))
            known[key] = weakref.ref(storage), weakref.ref(memory)
        return PackedTensor(memory, tensor.shape, tensor.stride())

    def unpack_tensor(kept: Tensor | PackedTensor) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return unpack(kept.memory).as_strided(kept.shape, kept.stride)

    return torch.autograd.graph.saved_tensors_hooks(pack_tensor, unpack_tensor)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor fills contiguous memory without gaps or overlaps, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
