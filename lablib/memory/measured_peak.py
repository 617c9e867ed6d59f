"""Measured peak: the most bytes that torch held at once while a program ran, to check a predicted peak.

A GPU's allocator keeps count itself. A CPU's does not, but torch's profiler hears of every allocation and every
release; their running sum is the memory in use:

    held_i = held_{i-1} + size_i  (negative for a release),     peak = max_i held_i

Cost: the program under a profiler, a few times as long.
Source: torch.profiler, `profile_memory`; torch.cuda.max_memory_allocated (torch 2.13).
Simplified: bytes that tensors take, without the allocator's reserve; memory in use before does not count.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lablib.signature import checked


@checked
def measured_peak_bytes(program: Callable[..., Any], *args: Any) -> int:
    """Call `program(*args)` and return the most bytes that its tensors took at once, here, on CPU or GPU.

    On a GPU where that is the default device, or CUDA is in use already.

    Under `launch(..., trace=False)` only: a traced rank has a profiler of its own, and there is but one.
    """
    # Where tensors are made: on a rank of nccl its GPU; in a notebook beside GPUs the CPU, and CUDA is left alone.
    if torch.get_default_device().type == "cuda" or torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        program(*args)
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        program(*args)
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    in_order: list[Any] = sorted(events, key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in in_order), initial=0))
