"""torch's profiler for a rank; on a GPU it records every kernel through CUPTI.

Without `use_kineto=True`, torch (2.13) brackets operators with CUDA events instead of recording kernels, and reports
times of the host. So kineto is required; if this torch lacks it for CUDA, only host events are recorded, and a run
notes that its timeline is missing (kernels.py).

CUPTI may lose the first kernels of a session. Observed: it stamps them with another clock, if the process has had
sessions before and the GPU was idle between: the k-th session lost k (github.com/pytorch/pytorch/issues/192021). There
it happened with CUDA 12.9 and not with 13.2; the notes of CUPTI 13.1 list such a fault since CUDA 12.6.2 as fixed. A
warm worker has one session per program. So each begins with more small kernels than can be lost, before the program's
own. They also show whether the profiler records kernels at all.
"""

import torch
from torch.autograd.profiler import profile

from lablib.torch_compat import ProfilerActivity


def profiler_of(trace: bool, on_gpu: bool) -> profile:
    """A profiler context; disabled without `trace`.

    torch.autograd.profiler is the engine of torch.profiler, without the second that importing the latter takes.
    """
    profiler = profile(enabled=trace, use_device="cuda" if on_gpu else None, use_kineto=True, with_flops=True)
    if trace and on_gpu and ProfilerActivity.CUDA not in profiler.kineto_activities:
        return profile(use_kineto=True, with_flops=True)
    return profiler


_MARGIN, _PER_SESSION, _MAX_KERNELS = 16, 2, 4096


def warm_up_kernel_count(session: int) -> int:
    """Number of dummy kernels for the `session`-th session of a process, counted from 1."""
    return min(_MAX_KERNELS, _MARGIN + _PER_SESSION * session)


def run_warm_up_kernels(kernels: int) -> None:
    """Launch that many small kernels on the current GPU and wait for them: some 5 us each."""
    number = torch.zeros((), device="cuda")
    for _ in range(kernels):
        number.add_(1)
    torch.cuda.synchronize()
