"""Peak GPU memory of a rank's program, with a new count and an empty cache for each program.

torch's allocator keeps freed memory for later (its cache) and the highest count so far (its peak). In a warm worker
both would include earlier programs: another process on the same GPU would lack the memory, and a small program would
have the peak of a large one. So a worker empties the cache after each program and resets the peak before the next. The
cost: a program's first allocations call the driver again, as in a new process.

The peak counts the bytes of tensors (`torch.cuda.max_memory_allocated`), as the simulator does. It excludes the
allocator's rounding up to blocks of the driver, CUDA's context (some 500 MB) and NCCL's buffers; `nvidia-smi` does not.
"""

import torch


def give_back_cache(device: torch.device) -> None:
    """Return unused memory to the driver. No effect on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # memory used by another stream is returned only after that stream
        torch.cuda.empty_cache()


def begin_count(device: torch.device) -> None:
    """Reset the peak to the bytes held now. No effect on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Peak bytes of tensors since `begin_count`; None on a CPU, as its allocator keeps no count."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
