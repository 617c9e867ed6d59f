"""Warm-up of a GPU: first-use initialisation, done once by each worker before any program is measured.

    a matrix product     cuBLAS makes a handle and a workspace for each thread that multiplies: the program's own, and
                         autograd's, which runs backward on GPUs
    any kernel           CUDA loads it when it is first called (CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2)
    a collective         NCCL connects ranks when an algorithm first needs it (NCCL_RUNTIME_CONNECT=1, the default since
                         NCCL 2.22); small and large tensors use different ones
    a message            NCCL connects two ranks when they first send to each other

Together these take a good part of a second, which would be added to a program's first step. A group that a program
makes itself still connects inside the program, as under torchrun.
"""

import torch
import torch.distributed as dist

_SIZES = (1024, 1 << 22)  # numbers per rank: NCCL uses another algorithm for 4 KB than for 16 MB


def warm_up(device: torch.device) -> None:
    """Run matrix products, and each kind of collective once. Communicates: every rank calls it at the same point."""
    # A product, forward and backward, in each training dtype that the device supports.
    has_bf16 = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
    for dtype in (torch.float32, torch.float16, *([torch.bfloat16] if has_bf16 else [])):
        a = torch.ones(64, 64, device=device, dtype=dtype, requires_grad=True)
        (a @ a).sum().backward()
    for size in _SIZES:
        warm_collectives(device, size)
    warm_messages(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # leave the memory to the programs


def warm_collectives(device: torch.device, size: int) -> None:
    """Run each kind of collective of the default group once, with `size` numbers per rank."""
    ranks = dist.get_world_size()
    shard = torch.zeros(-(-size // ranks), device=device)
    whole = torch.zeros(ranks * len(shard), device=device)
    dist.all_reduce(whole)
    dist.broadcast(whole, 0)
    dist.reduce(whole, 0)
    dist.all_gather(list(whole.chunk(ranks)), shard)  # NCCL uses the same kernels as for one tensor, and copies
    dist.reduce_scatter(shard, list(whole.chunk(ranks)))
    dist.all_to_all_single(torch.zeros_like(whole), whole)
    parts = list(whole.chunk(ranks)) if dist.get_rank() == 0 else None
    dist.gather(shard, parts, 0)
    dist.scatter(shard, parts, 0)
    dist.barrier()


def warm_messages(device: torch.device) -> None:
    """Send a message from each rank to each other one, a ring at a time, both directions in one batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(1, device=device)
    for step in range(1, ranks):
        sending = dist.P2POp(dist.isend, x, (rank + step) % ranks)
        receiving = dist.P2POp(dist.irecv, torch.zeros_like(x), (rank - step) % ranks)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()
