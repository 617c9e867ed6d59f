"""Checks of `lab doctor` with GPUs: NCCL, traced kernels, ranks that share a GPU, shared memory.

    ok       nccl           2 ranks on 8 x NVIDIA H100 80GB HBM3 agree, 5210 ms
    ok       tracing        the profiler saw 3 kernels
    ok       sharing        2 ranks on one GPU agree, 6120 ms
    missing  /dev/shm       0.1 GB free; ...

Without GPUs none of them is needed, and the doctor says so in one line. With GPUs, NCCL and tracing are required:
without NCCL a lab cannot run on them, without tracing its timelines have no kernels.
"""

import os
import shutil

from lablib.course.running.doctor import Absent, Probe, ranks_agree
from lablib.course.running.environment import environment
from lablib.text.units import format_quantity, plural

_TIMEOUT_S = 120.0
_SHARED_MEMORY = "/dev/shm"
_MIN_SHARED_BYTES = 1e9  # required by NCCL's user guide for containers: --shm-size=1g
_NO_SHARED_MEMORY = (
    "NCCL between GPUs without NVLink, and DataLoader's workers, pass tensors through it: start the container with "
    "`--shm-size=1g` or more"
)
_NO_TRACING = (
    "timelines of GPU runs need NVIDIA's CUPTI: install the CUDA build of torch with its packages, and in a container "
    "allow profiling (the host's driver with NVreg_RestrictProfilingToAdminUsers=0, or `--cap-add=SYS_ADMIN`)"
)


def gpu_probes() -> list[Probe]:
    """The probes for this machine, with or without GPUs."""
    if not _num_gpus():
        remedy = "not needed: `sim` and `gloo` do everything but real GPU times"
        return [Probe("nccl", nccl, remedy, required=False)]
    return [
        Probe("nccl", nccl, "this machine has GPUs, which labs cannot use: NCCL_DEBUG=INFO `lab doctor` says more"),
        Probe("tracing", tracing, _NO_TRACING),
        Probe("sharing", sharing, "only runs of more ranks than GPUs need it: ask for fewer ranks", required=False),
        Probe(_SHARED_MEMORY, shared_memory, _NO_SHARED_MEMORY, required=False),
    ]


def nccl() -> str:
    """Ranks with a GPU each, at most two, add their numbers."""
    if not _num_gpus():
        raise Absent("no CUDA device")
    from lablib.process.visible_gpus import gpus_text

    ranks = min(2, _num_gpus())
    return ranks_agree("nccl", ranks, f"{plural(ranks, 'ranks')} on {gpus_text()}", _TIMEOUT_S)


def sharing() -> str:
    """Two ranks on the first GPU add their numbers."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    with environment(CUDA_VISIBLE_DEVICES=first, LABLIB_SHARE_GPUS="1"):
        return ranks_agree("nccl", 2, "2 ranks on one GPU", _TIMEOUT_S)


def tracing() -> str:
    """The profiler of a rank sees the kernels that it starts."""
    from lablib.launch import launch

    kernels = launch(_kernels_seen, ranks=1, backend="nccl", timeout_s=_TIMEOUT_S, trace=False).values[0]
    if not kernels:
        raise Absent("the profiler saw no kernel of a matrix product")
    return f"the profiler saw {kernels} kernels"


def shared_memory() -> str:
    """Free shared memory, by which processes pass tensors."""
    free_bytes = shutil.disk_usage(_SHARED_MEMORY).free
    text = f"{format_quantity(free_bytes, 'B', 2)} free"
    if free_bytes < _MIN_SHARED_BYTES:
        raise Absent(text)
    return text


def _num_gpus() -> int:
    """Number of GPUs; 0 if torch is broken, which another probe reports."""
    try:
        import torch

        return torch.cuda.device_count()
    except Exception:
        return 0


def _kernels_seen() -> int:
    """Number of kernels that the profiler records for a matrix product."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from lablib.torch_compat import ProfiledDevice

    x = torch.ones(64, 64, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        (x @ x).sum()
        torch.cuda.synchronize()
    return sum(event.device_type == ProfiledDevice.CUDA for event in profiler.events() or ())
