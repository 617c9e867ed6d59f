"""torch's profiler for a rank; on a GPU it records every kernel through CUPTI.

Without `use_kineto=True`, torch (2.13) brackets operators with CUDA events instead of recording kernels, and reports
times of the host. So kineto is required; if this torch lacks it for CUDA, only host events are recorded, and a run
notes that its timeline is missing (kernels.py).
"""

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
