"""hpZ: each node keeps a second copy of the parameters, sharded over its ranks, for the gathers of backward.

ZeRO-3 gathers every unit twice, for forward and for backward, from all ranks: the same numbers cross the network twice.
With hpZ a rank keeps, after the first gather, its part of a copy that is sharded over its node:

    all ranks, N = 2, L = 2    forward   a | b | c | d   gathered across nodes -> [a b c d] on every rank
    node 0                     kept      [a b] on local rank 0, [c d] on local rank 1
    node 1                     kept      [a b] on local rank 0, [c d] on local rank 1
                               backward  gathered inside the node -> [a b c d]

Backward gets the parameters of forward: if qwZ rounded them, they are kept rounded. A step changes the shards, and the
next gather of forward updates the copy.

Cost for N nodes of L ranks, n = N L, S bytes of a unit's full buffer:
    time_s      of a gather in backward (L-1) alpha_in + (L-1)/L S beta_in, instead of one over all ranks
    peak bytes  S / L more on each rank, and at rest: of the whole model, n / L = N times its shards
    sent bytes  (L-1)/L S per rank inside the node; 0 across
Shapes: shard [P], full [n P], the kept part [N P].
Source: Wang et al., "ZeRO++", 2023, arXiv 2306.10209, section 3.2 (hierarchical partitioning).
Simplified: the root unit of `Zero3`, which is never gathered twice, is also kept.
"""

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from lablib.compress.stages import staged
from lablib.parallel.data.overlapped import Handle
from lablib.parallel.zero.shards import AllGather, all_gather_shards


class SecondaryShards:
    """A pair of `AllGather`s: one for forward, which keeps a copy, and one for backward, which reads it.

        kept = SecondaryShards(mesh, all_gather=quantized_all_gather)
        Zero(model, optimizer_fn, stage=3, all_gather=kept.forward, backward_all_gather=kept.backward)

    Arguments:
        mesh: of `lablib.parallel.node_mesh`, over the ranks that share; ranks of a node one after another.
        all_gather: the all-gather of forward over all ranks.
    """

    def __init__(self, mesh: DeviceMesh, all_gather: AllGather = all_gather_shards):
        self._num_ranks, self._all_gather = mesh.size(), all_gather
        self._inside = mesh.get_group("local")
        self._kept: dict[Tensor, Tensor] = {}  # the full buffer of a unit -> this rank's part of its node's copy

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for part in self._kept.values())

    @staged
    def forward(self, shard: Tensor, full: Tensor, group: dist.ProcessGroup | None = None) -> Iterator[Handle]:
        """Gather over all ranks, keep this rank's part. Communicates across nodes. ValueError: not the mesh's ranks."""
        if dist.get_world_size(group) != self._num_ranks:
            got = f"got {dist.get_world_size(group)} ranks and a mesh of {self._num_ranks}"
            raise ValueError(f"SecondaryShards needs the mesh of the ranks that share: {got}.")
        yield self._all_gather(shard, full, group)
        own = full.view(self._inside.size(), -1)[self._inside.rank()]
        self._kept[full] = own.clone() if full not in self._kept else self._kept[full].copy_(own)

    def backward(self, shard: Tensor, full: Tensor, group: dist.ProcessGroup | None = None) -> Handle:
        """Gather from the node's copy. Communicates inside the node. ValueError: forward has not gathered this unit."""
        if full not in self._kept:
            rule = "backward gathers the copy that forward kept"
            raise ValueError(f"{rule}: there is none; pass `forward` as all_gather.")
        return all_gather_shards(self._kept[full], full, self._inside)
