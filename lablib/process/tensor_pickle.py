"""Pickle a dense tensor as its parts, so that a pickler can handle the storage separately.

A view stays a view of its storage; a leaf keeps `requires_grad` and `.grad`. A result of autograd is rebuilt detached,
because its graph is not copied.
"""

from typing import Any

import torch
from torch import Tensor, nn


def reduce_tensor(x: Tensor, is_whole: bool = True) -> tuple[Any, ...]:
    """Parts from which a tensor is rebuilt: storage, geometry, gradient, and attributes set by the program.

    `is_whole`: with the whole storage; otherwise a view of a part brings only that part.
    """
    plain = x.detach().resolve_conj().resolve_neg()
    if not is_whole and plain.nbytes < plain.untyped_storage().nbytes():
        plain = plain.clone()
    geometry = (plain.dtype, plain.storage_offset(), tuple(plain.size()), plain.stride())
    gradient = x.grad if x.is_leaf else None
    args = (type(x), plain.untyped_storage(), geometry, x.requires_grad and x.is_leaf, gradient)
    return _rebuild, args, x.__dict__ or None, None, None, _set_attributes


def _rebuild(
    kind: type, storage: torch.UntypedStorage, geometry: tuple, requires_grad: bool, gradient: Tensor | None
) -> Tensor:
    dtype, offset, size, stride = geometry
    x = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)  # pyright: ignore
    x = nn.Parameter(x, requires_grad) if kind is nn.Parameter else x.requires_grad_(requires_grad)
    x.grad = gradient
    return x


def _set_attributes(x: Tensor, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(x, name, value)
