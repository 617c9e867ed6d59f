"""Description of the measured machine in a profile: processor, memory, versions."""

import os
import platform
import sys
from datetime import date
from pathlib import Path

import torch

from lablib.process.visible_gpus import gpus_text
from lablib.text.units import format_quantity, plural


def machine_text(on_gpu: bool) -> str:
    """The processors, for people: "4 x NVIDIA H100" or "AMD EPYC, 2 cores, 25 GB". No host name."""
    if on_gpu:
        return gpus_text()
    return f"{_processor()}, {plural(num_cores(), 'cores')}, {format_quantity(total_memory_bytes(), 'B', 2)}"


def gpu_sizes() -> tuple[float, int]:
    """Bytes of memory and number of multiprocessors of the current GPU: a program for a rank."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return float(properties.total_memory), properties.multi_processor_count


def versions() -> dict[str, str]:
    """Date and versions of a measurement."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"date": date.today().isoformat(), "torch": torch.__version__, "python": python, "system": platform.system()}


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory_bytes() -> float:
    """Memory of the machine; 8 GB if the system does not report it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return 8e9


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
