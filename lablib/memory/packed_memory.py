"""Packing of the memory that autograd saves: each memory once, for all operators and shapes that save it.

torch shows a pair of functions every tensor that an operator saves: `pack` returns the kept form, `unpack` makes a
tensor of it when backward comes. Two operators may save one memory: softmax its result, and the product behind it the
same numbers as a view of another shape. Packed one by one, that memory would be kept twice. So `pack` gets the stretch
of memory beneath, a flat tensor, and a view of it is made again when it is unpacked:

    saved        view (B H, T, T) of p         view (B, H, T, T) of p
    packed       flat p ---- one object ---- flat p

Compression (activation_compression.py) and offload (offload.py) pack a flat tensor.

Cost: a look-up for each saved tensor. Shapes: any.
Source: torch's tutorial "Hooks for autograd saved tensors" (torch 2.13); the rest is bookkeeping of our own.
Simplified: a view with gaps (a part of a wider tensor) is packed as a copy of its own.
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
class Packed:
    """The record of one saved tensor: the packed memory, which others may share, and how it was seen."""

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
    """Within this block, autograd keeps `pack(flat)` of each floating-point memory that operators save.

    Arguments:
        pack: given a flat tensor, gives an object that can have weak references. It must not keep the tensor.
        unpack: given that object, gives a flat tensor of the same numbers. It may be called several times.
        parameters: left as they are, since they stay in memory anyway.
        min_numel: smaller tensors are left as they are.
    """
    parameters = list(parameters)
    check_type("packed_memory: parameters", parameters, list[Tensor])
    owned = {storage_id(parameter.untyped_storage()) for parameter in parameters}
    known: dict[tuple, tuple[weakref.ref, weakref.ref]] = {}

    def pack_tensor(tensor: Tensor) -> Tensor | Packed:
        storage = tensor.untyped_storage()
        if storage_id(storage) in owned or not tensor.is_floating_point() or tensor.numel() < min_numel:
            return tensor
        if not is_dense(tensor):
            tensor = tensor.contiguous()
            return Packed(pack(tensor.flatten()), tensor.shape, tensor.stride())
        key = (storage_id(storage), tensor.storage_offset(), tensor.numel(), tensor.dtype, version(tensor))
        of_storage, of_memory = known.get(key, (None, None))
        memory = of_memory() if of_memory is not None else None
        # An address is used again, so the memory must also be the one that was packed.
        if memory is None or of_storage is None or of_storage() is not storage:
            memory = pack(tensor.detach().as_strided((tensor.numel(),), (1,)))
            known[key] = weakref.ref(storage), weakref.ref(memory)
        return Packed(memory, tensor.shape, tensor.stride())

    def unpack_tensor(kept: Tensor | Packed) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return unpack(kept.memory).as_strided(kept.shape, kept.stride)

    return torch.autograd.graph.saved_tensors_hooks(pack_tensor, unpack_tensor)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor fills a stretch of memory without gaps or overlaps, in whatever order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
