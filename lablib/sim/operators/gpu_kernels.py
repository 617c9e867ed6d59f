"""Operators that are one kernel on a GPU, and a sequence of them on a CPU: RMS norm, with its gradients.

torch's `rms_norm` calls the operator `_fused_rms_norm`. Where it has no kernel, on a CPU and on "meta", torch runs its
formula operator by operator: 7 of them, and 13 in backward, which also keep three tensors as large as the input. On a
cluster of GPUs it has one here, so that the clock sees one operator and the memory tracker the bytes kept on a GPU:

    r = 1 / sqrt(mean(x^2) + eps)                      one number for each row, kept
    y = x r w
    dx = r (dy w - x r mean(dy w x r))                 dw = sum over rows of dy x r

Sums are in float32 at least, as on a GPU. Torch itself takes the formula if x and w have two dtypes.

Source: Zhang and Sennrich, 2019, arXiv 1910.07467; torch 2.13, aten/src/ATen/native/layer_norm.cpp (`rms_norm_symint`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lablib.hardware.device import Device
from lablib.torch_compat import add_kernel, destroy_library


@contextmanager
def kernels_of(device: Device) -> Iterator[None]:
    """Give the operators these kernels for the time of a run, if the device is a GPU."""
    if not device.is_gpu:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    try:
        for key in ("CPU", "Meta"):
            add_kernel(library, "_fused_rms_norm", key, _rms_norm)
        add_kernel(library, "_fused_rms_norm_backward", "CPU", _rms_norm_backward)  # torch has the one of "meta"
        yield
    finally:
        destroy_library(library)


def _rms_norm(x: Tensor, shape: Sequence[int], w: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    wide, dims = _wide(x), tuple(range(-len(shape), 0))
    r = (wide.pow(2).mean(dims, keepdim=True) + (torch.finfo(wide.dtype).eps if eps is None else eps)).rsqrt()
    y = wide * r
    return (y if w is None else y * w).to(x.dtype), r


def _rms_norm_backward(
    dy: Tensor, x: Tensor, shape: Sequence[int], r: Tensor, w: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    dims, normed = tuple(range(-len(shape), 0)), _wide(x) * r
    scaled = _wide(dy) if w is None else _wide(dy) * w
    dx = (r * (scaled - normed * (scaled * normed).mean(dims, keepdim=True))).to(x.dtype)
    rows = tuple(range(x.dim() - len(shape)))
    product = _wide(dy) * normed
    dw = None if w is None else (product.sum(rows) if rows else product).to(w.dtype)
    return dx if wanted[0] else None, dw if wanted[1] else None


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
