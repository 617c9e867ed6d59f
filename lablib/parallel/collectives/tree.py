"""Tree all-reduce: sum up a binary tree, then send the sum down again; few messages, each of the whole tensor.

Idea. In round k the ranks pair up at distance 2^k: the higher one sends its partial sum to the lower one and is done.
After ceil(log2 n) rounds rank 0 holds the sum. The same rounds in reverse send it to all ranks. A small message costs
almost only latency, so the number of rounds matters: 2 ceil(log2 n), and 2 (n-1) in a ring.

    n = 6      round 0: 1 -> 0, 3 -> 2, 5 -> 4      round 1: 2 -> 0      round 2: 4 -> 0      then backwards

Cost, for S bytes on n ranks, with alpha seconds of latency and beta seconds per byte (the slowest link of each round):

    seconds                2 ceil(log2 n) (alpha + S beta)
    bytes sent per rank    S up (all but rank 0), and S for each child down; 2 (n-1) S in total
    peak extra bytes       S                        one incoming tensor

Order of the sum. Pairwise: ((t_0 + t_1) + (t_2 + t_3)) + (t_4 + t_5) for n = 6. It is bit-identical in every run.

Legend: `tensor` keeps its shape; nothing is cut.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1),
2005, doi:10.1177/1094342005051521, section 4 (binomial trees).
Simplified: one tree, and no pipelining of a large tensor in pieces (NCCL uses two complementary trees, each for half of
the data: Sanders, Speck and Traeff, Parallel Computing 35(12), 2009, doi:10.1016/j.parco.2009.09.001).
"""

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def tree_all_reduce(tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place, as `dist.all_reduce(tensor, group=group)` does.

    Phases: up (reduce to rank 0), down (broadcast from rank 0). Arguments as `ring_all_reduce`.
    """
    if not tensor.is_contiguous():
        raise ValueError("tensor must be contiguous, since it is sent without a copy: pass tensor.contiguous()")
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    strides = [2**k for k in range((n - 1).bit_length())]  # 1, 2, 4, ...: ceil(log2 n) of them

    # Up: at each stride, half of the remaining ranks send their partial sum and are done.
    incoming = torch.empty_like(tensor)
    for stride in strides:
        if rank % (2 * stride) == stride:
            dist.send(tensor, group_dst=rank - stride, group=group)
        elif rank % (2 * stride) == 0 and rank + stride < n:
            dist.recv(incoming, group_src=rank + stride, group=group)
            tensor += incoming

    # Down: the same pairs in reverse order, in the other direction.
    for stride in reversed(strides):
        if rank % (2 * stride) == stride:
            dist.recv(tensor, group_src=rank - stride, group=group)
        elif rank % (2 * stride) == 0 and rank + stride < n:
            dist.send(tensor, group_dst=rank + stride, group=group)
