"""Hierarchical all-reduce: reduce inside each node first, so that only 1/L of the tensor crosses the network.

Idea. Links inside a node (NVLink) are some ten times faster than those between nodes. Reduce-scatter among the L ranks
of each node: every rank then holds one L-th of the node's sum. All-reduce that part over the ranks with the same place
on the other nodes (a "rail"): L small rings in parallel, each with separate network cards (NICs). All-gather inside the
node brings the parts together.

    2 nodes of 4       node 0:  0 - 1 - 2 - 3        1. reduce-scatter in each node     S/4 a step, NVLink
                                |   |   |   |        2. all-reduce along the 4 rails    S/4 in all, network
                       node 1:  4 - 5 - 6 - 7        3. all-gather in each node         S/4 a step, NVLink

Cost, for S bytes on N nodes of L ranks; alpha, beta inside a node, alpha', beta' between nodes:

    seconds                2 (L-1) (alpha + S/L beta)  +  2 (N-1) (alpha' + S/(L N) beta')
    bytes sent per rank    2 (L-1)/L S inside the node, 2 (N-1)/N S/L through its NIC
    peak extra bytes       S/L                      one incoming chunk

A single ring over all n = N L ranks instead sends 2 (n-1)/n S through one NIC of each node, while the others are idle.
(NCCL runs several rings at once, each through separate NICs, so that all NICs carry a part.)

Order of the sum. The part of rank p of each node is chunk c = p + 1: first in ring order over the ranks of a node,
u = ((t_c + t_{c+1}) + ...) + t_{c-1}, counted mod L; then its d-th piece in ring order over nodes from node d.

Legend: `chunks` are L views of one flat tensor, `pieces` N views of one chunk; sizes differ by at most one element.

Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, doi:10.1177/1094342005051521 (the phases); Cho et al.,
"BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network hierarchy", MLSys 2019 (the nesting).
Simplified: two levels; always a ring on the rails, though a tree is better for few bytes on many nodes; the phases of
different chunks do not overlap.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.parallel.collectives.ring import ring_all_gather, ring_reduce_scatter


@torch.no_grad()
def hierarchical_all_reduce(
    tensor: Tensor, group: dist.ProcessGroup | None = None, ranks_per_node: int | None = None
) -> None:
    """Sum `tensor` over the ranks of `group`, in place, as `dist.all_reduce(tensor, group=group)` does.

    Phases: reduce-scatter inside the node, all-reduce along the rails, all-gather inside the node.

    Args:
        tensor: contiguous, of any shape, size and dtype; the same on all ranks. Changed in place.
        group: the participating ranks, node by node; None: all.
        ranks_per_node: L, which must divide the size of the group; None: LOCAL_WORLD_SIZE, as set by torchrun.
    """
    if not tensor.is_contiguous():
        raise ValueError("tensor must be contiguous, since it is cut into chunks in place: pass tensor.contiguous()")
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    local = ranks_per_node or int(os.environ["LOCAL_WORLD_SIZE"])
    if n % local:
        raise ValueError(f"ranks_per_node must divide the ranks of the group: got {local} and {n}")
    first = rank - rank % local
    node = range(first, first + local)
    rail = range(rank % local, n, local)

    # 1. Inside the node: this rank then holds the node's sum of one chunk.
    chunks = tensor.view(-1).tensor_split(local)
    ring_reduce_scatter(chunks, node, group)

    # 2. Across nodes: only that chunk, with the ranks that hold the same one. Only this phase uses the network.
    pieces = chunks[(rank % local + 1) % local].tensor_split(len(rail))
    ring_reduce_scatter(pieces, rail, group)
    ring_all_gather(pieces, rail, group)

    # 3. Inside the node again: all chunks to all ranks.
    ring_all_gather(chunks, node, group)
