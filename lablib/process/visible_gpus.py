"""Visible GPUs, queried without initialising CUDA.

The notebook's process launches ranks and computes nothing on a GPU. If CUDA were initialised in it, its context would
take some 500 MB of a GPU that a rank needs, and processes forked from it could not use CUDA. So lablib queries the
driver's management library (NVML) there, which does not initialise CUDA. `torch.cuda.device_count` does so too; if NVML
has no answer (MIG instances, some containers) it asks the CUDA driver, which still makes no context (torch 2.11 to
2.13, torch/cuda/__init__.py).
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from lablib.text.units import plural
from lablib.torch_compat import nvml_index

_NVML = "libnvidia-ml.so.1"
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A GPU that programs may use: "" and 0 if the driver does not report name and memory."""

    name: str = ""
    memory_bytes: int = 0


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def visible_gpus() -> list[VisibleGpu]:
    """The GPUs selected by CUDA_VISIBLE_DEVICES, in the order of CUDA's numbers."""
    count = torch.cuda.device_count()
    if not count:
        return []
    if torch.cuda.is_initialized():  # as on a rank
        properties = [torch.cuda.get_device_properties(device) for device in range(count)]
        return [VisibleGpu(one.name, one.total_memory) for one in properties]
    with _nvml() as library:
        return [_gpu(library, device) for device in range(count)]


def gpus_text() -> str:
    """The visible GPUs in words: "8 x NVIDIA H100 80GB HBM3"; "0 GPUs" for none."""
    names = [gpu.name for gpu in visible_gpus()]
    if not all(names) or not names:
        return plural(len(names), "GPUs")
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, initialised; None if it or the driver is missing."""
    try:
        library = ctypes.CDLL(_NVML)
    except OSError:
        yield None
        return
    if library.nvmlInit_v2() != 0:
        yield None
        return
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _gpu(library: Any, device: int) -> VisibleGpu:
    with suppress(RuntimeError, IndexError, TypeError, ValueError):  # a MIG instance has no NVML index
        index = nvml_index(device)
        handle, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES), _Memory()
        if library is not None and library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            library.nvmlDeviceGetName(handle, name, _NAME_BYTES)
            library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            return VisibleGpu(name.value.decode(errors="replace"), memory.total)
    return VisibleGpu()
