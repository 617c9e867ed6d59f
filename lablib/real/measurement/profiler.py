"""The profiler of a rank: torch's, which on a GPU records every kernel through CUPTI.

Without `use_kineto=True`, torch (2.13) brackets operators with CUDA events in place of recording kernels, and what it
tells are times of the host. So that is asked for, and where this torch cannot do it, host events alone are recorded:
a run then says that its timeline is missing (kernels.py).
"""

from torch.autograd.profiler import profile

from lablib.torch_compat import ProfilerActivity


def profiler_of(trace: bool, on_gpu: bool) -> profile:
    """A profiler to be entered; one that does nothing without `trace`.

    torch.autograd.profiler is the engine of torch.profiler, without the second that importing the latter takes.
    """
    profiler = profile(enabled=trace, use_device="cuda" if on_gpu else None, use_kineto=True, with_flops=True)
    if trace and on_gpu and ProfilerActivity.CUDA not in profiler.kineto_activities:
        return profile(use_kineto=True, with_flops=True)
    return profiler
