"""What a rank's programs held of its GPU: a count that begins anew with each, and nothing kept from the last.

torch's allocator keeps freed memory for later (its cache) and the highest count so far (its peak). In a warm worker
both would come from programs before: another process on the same GPU would find the memory missing, and a small program
would have the peak of a large one. So a worker gives the cache back after each program and resets the peak before the
next. The price: a program's first allocations ask the driver again, as in a new process.

The peak is that of the bytes that tensors took (`torch.cuda.max_memory_allocated`), which is what the simulator counts,
too. It is without the allocator's rounding up to blocks it got from the driver, CUDA's context (some 500 MB) and NCCL's
buffers; `nvidia-smi` shows these as well.
"""

import torch


def give_back_cache(device: torch.device) -> None:
    """Return to the driver what no tensor holds. Nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # memory in use by another stream is returned when that has ended
        torch.cuda.empty_cache()


def begin_count(device: torch.device) -> None:
    """From here on the peak is that of what is held now, and of what comes. Nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes that tensors held at once since `begin_count`; None on a CPU, whose allocator keeps no count."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
