"""Phases: named parts of a program, shown in timelines.

    with lablib.phase("forward"):
        loss = model(x)

The name becomes the phase of each span inside the block: on the simulator, in the profiler of real processes
(`torch.profiler.record_function`), and in NVIDIA's tools (an NVTX range, on GPUs).

    with lablib.phases.host_work(50e9):
        optimizer.step()                # of parameters in the host's memory

On the simulator's GPUs the host's own work takes no time. Inside this block it takes the bytes of its operators divided
by this bandwidth, in the lane "host" of the timeline. On real machines the block has no effect.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lablib.signature import check_type

HOST_WORK = "lablib::host_work"  # label of such a block, followed by the bandwidth


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Label all spans in the block.

    Blocks may be nested: the innermost name is a span's phase, the outer ones its `outer_phases`;
    `timeline.without(name)` excludes the spans of the block at any depth.

    Raises:
        ValueError: an empty name, or one with ".", "::" or "#": these mark the labels of libraries.
    """
    check_type("phase: the name", name, str)
    if not name or any(mark in name for mark in (".", "::", "#")):
        raise ValueError(f'a phase needs a name without ".", "::" or "#": got {name!r}; try "forward"')
    import torch  # keeps torch's second out of `import lablib`

    has_gpu = torch.cuda.is_initialized()  # `is_available` would initialise the CUDA driver, also in a notebook
    if has_gpu:
        torch.cuda.nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if has_gpu:
            torch.cuda.nvtx.range_pop()


@contextmanager
def host_work(bandwidth_bytes_per_s: float) -> Iterator[None]:
    """Let the simulator time the host's work in this block. Blocks may be nested: the innermost counts.

    Arguments:
        bandwidth_bytes_per_s: one rank's share of the bandwidth of the host's memory.

    Raises:
        ValueError: a bandwidth that is not above 0 and finite.
    """
    check_type("host_work: bandwidth_bytes_per_s", bandwidth_bytes_per_s, float)
    if not 0 < bandwidth_bytes_per_s < float("inf"):
        raise ValueError(f"bandwidth_bytes_per_s must be above 0, and finite: got {bandwidth_bytes_per_s}; try 50e9.")
    import torch

    with torch.profiler.record_function(f"{HOST_WORK} {float(bandwidth_bytes_per_s)!r}"):
        yield
