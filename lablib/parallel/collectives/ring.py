"""Ring all-reduce: every rank gets the sum and sends at most twice its tensor.

Idea. Cut the tensor into n chunks and send them around a ring, rank r only to rank r + 1. In the first n - 1 steps
(reduce-scatter) each rank adds its part to the chunk that it receives; then rank r holds the finished sum of chunk r +
1. In n - 1 more steps (all-gather) the finished chunks go around once. All ranks send at every step, so no link is idle
or a bottleneck.

    n = 4, chunk sent by rank r in step s     step     rank 0   rank 1   rank 2   rank 3
                                                0       c0       c1       c2       c3
    reduce-scatter: chunk (r - s) mod n         1       c3       c0       c1       c2
                                                2       c2       c3       c0       c1
    all-gather: chunk (r - s + 1) mod n         0       c1       c2       c3       c0       ...

Cost, for S bytes on n ranks, with alpha seconds of latency and beta seconds per byte on the slowest link of the ring:

    seconds                2 (n-1) (alpha + S/n beta)
    bytes sent per rank    2 (n-1)/n S              the minimum without reduction in switches (lablib/cost/nvls.py)
    peak extra bytes       S/n                      one incoming chunk

Order of the sum. Chunk c is (((t_c + t_{c+1}) + t_{c+2}) + ...) + t_{c-1}, ranks counted mod n. It is bit-identical in
every run, and differs from a sum in rank order by rounding. Integers are exact.

Legend: tensors are flat; `chunks` are n views of one tensor, with sizes that differ by at most one element.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009,
doi:10.1016/j.jpdc.2008.09.002; Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH", IJHPCA 19(1), 2005, doi:10.1177/1094342005051521, section 4 (reduce-scatter and all-gather on a ring).
Simplified: one ring in one direction, while NCCL runs several in parallel over all NICs of a node; chunks are not cut
further to overlap addition with transfer.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def ring_all_reduce(tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place, as `dist.all_reduce(tensor, group=group)` does.

    Args:
        tensor: contiguous, of any shape, size and dtype; the same on all ranks. Changed in place.
        group: the participating ranks; None: all.
    """
    if not tensor.is_contiguous():
        raise ValueError("tensor must be contiguous, since it is cut into chunks in place: pass tensor.contiguous()")
    ring = range(dist.get_world_size(group))
    chunks = tensor.view(-1).tensor_split(len(ring))
    ring_reduce_scatter(chunks, ring, group)
    ring_all_gather(chunks, ring, group)


def ring_reduce_scatter(chunks: Sequence[Tensor], ring: Sequence[int], group: dist.ProcessGroup | None = None) -> None:
    """Reduce-scatter, the first half: afterwards rank i of the ring holds the sum of chunk i + 1 (mod n).

    Args:
        chunks: one for each rank; changed in place (other chunks then hold partial sums).
        ring: the group's ranks in ring order; this rank is one of them.
        group: the group of the ranks in `ring`; None: all ranks.
    """
    n = len(ring)
    i = _place(ring, group)
    for step in range(n - 1):
        outgoing, mine = chunks[(i - step) % n], chunks[(i - step - 1) % n]
        incoming = torch.empty_like(mine)
        exchange(outgoing, ring[(i + 1) % n], incoming, ring[(i - 1) % n], group)
        mine += incoming


def ring_all_gather(chunks: Sequence[Tensor], ring: Sequence[int], group: dist.ProcessGroup | None = None) -> None:
    """All-gather, the second half: rank i starts with chunk i + 1 (mod n), finished, and ends with all of them."""
    n = len(ring)
    i = _place(ring, group)
    for step in range(n - 1):
        outgoing, incoming = chunks[(i - step + 1) % n], chunks[(i - step) % n]
        exchange(outgoing, ring[(i + 1) % n], incoming, ring[(i - 1) % n], group)


def _place(ring: Sequence[int], group: dist.ProcessGroup | None) -> int:
    rank = dist.get_rank(group)
    if rank not in ring:
        of = "the world" if group is None else "this group"
        raise ValueError(
            f"only ranks of the ring may call this: rank {rank} of {of} is not in {list(ring)}; "
            "give the `group` that the ring counts in"
        )
    return ring.index(rank)


def exchange(outgoing: Tensor, to: int, incoming: Tensor, source: int, group: dist.ProcessGroup | None = None) -> None:
    """Send one tensor and receive another at the same time; return when both are done.

    In a ring every rank sends. If each waited for its send, no rank would receive. Posting both at once cannot
    deadlock, and uses both directions of the link.

    Args:
        outgoing, incoming: contiguous; `incoming` is overwritten.
        to, source: ranks of `group`.
    """
    send = dist.P2POp(dist.isend, outgoing, group=group, group_peer=to)
    receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=source)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
