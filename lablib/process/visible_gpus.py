"""Which GPUs there are, asked without initialising CUDA.

The notebook's process launches ranks and computes nothing on a GPU. Were CUDA initialised in it, its context would hold
some 500 MB of a GPU that a rank needs, and processes forked from it could not use CUDA. So whatever lablib asks there,
it asks the driver's management library (NVML), which leaves CUDA alone. `torch.cuda.device_count` does so too; where
NVML says nothing (MIG instances, some containers) it asks the CUDA driver, which still makes no context (torch 2.11 to
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
    """A GPU that programs may use: "" and 0 where the driver does not say its name and its memory."""

    name: str = ""
    memory_bytes: int = 0


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def visible_gpus() -> list[VisibleGpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in the order of CUDA's numbers."""
    count = torch.cuda.device_count()
    if not count:
        return []
    if torch.cuda.is_initialized():  # as on a rank: there is nothing left to spare
        properties = [torch.cuda.get_device_properties(device) for device in range(count)]
        return [VisibleGpu(one.name, one.total_memory) for one in properties]
    with _nvml() as library:
        return [_gpu(library, device) for device in range(count)]


def gpus_text() -> str:
    """The visible GPUs, for people: "8 x NVIDIA H100 80GB HBM3"; "0 GPUs" where there are none."""
    names = [gpu.name for gpu in visible_gpus()]
    if not all(names) or not names:
        return plural(len(names), "GPUs")
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, initialised; None where there is none, or no driver."""
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
    """What NVML says of CUDA's device of this number."""
    with suppress(RuntimeError, IndexError, TypeError, ValueError):  # a MIG instance has no index of its own
        index = nvml_index(device)
        handle, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES), _Memory()
        if library is not None and library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            library.nvmlDeviceGetName(handle, name, _NAME_BYTES)
            library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            return VisibleGpu(name.value.decode(errors="replace"), memory.total)
    return VisibleGpu()
