"""Name what a program is doing, for every timeline that is made of it.

    with lablib.phase("forward"):
        loss = model(x)

The name becomes the phase of each span inside the block: on the simulator, in the profiler of real processes
(`torch.profiler.record_function`), and in NVIDIA's tools (an NVTX range, on GPUs).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lablib.signature import check_type


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Label everything in the block. Blocks may be nested: the innermost name counts.

    Raises:
        ValueError: an empty name, or one with ".", "::" or "#": these mark the labels that libraries set themselves.
    """
    check_type("phase: the name", name, str)
    if not name or any(mark in name for mark in (".", "::", "#")):
        raise ValueError(f'a phase needs a name without ".", "::" or "#": got {name!r}; try "forward"')
    import torch  # here: `import lablib` does without the second that torch takes

    has_gpu = torch.cuda.is_initialized()  # `is_available` would initialise the CUDA driver, also in a notebook
    if has_gpu:
        torch.cuda.nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if has_gpu:
            torch.cuda.nvtx.range_pop()
