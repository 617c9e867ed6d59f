"""Measured peak: the most bytes that torch held at once during a program, to check a predicted peak.

The allocator of a GPU keeps this count. On a CPU, torch's profiler records every allocation and release; their running
sum is the memory in use:

    held_i = held_{i-1} + size_i  (negative for a release),     peak = max_i held_i

Cost: the program under a profiler, a few times as long.
Source: torch.profiler, `profile_memory`; torch.cuda.max_memory_allocated (torch 2.13).
Simplified: bytes of tensors, without the allocator's reserve and without memory in use before.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lablib.signature import checked


@checked
def measured_peak_bytes(program: Callable[..., Any], *args: Any) -> int:
    """Call `program(*args)` and return the most bytes that its tensors held at once, on CPU or GPU.

    On a GPU if that is the default device, or if CUDA is already in use.

    Under `launch` only with `trace=False`: a traced rank already uses the profiler, and only one can run.
    """
    # The device of new tensors: on a rank of nccl its GPU; in a notebook the CPU, without starting CUDA.
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
