"""Hybrid sharding: shards within a node, replicas across nodes. Gathers never leave the node.

With shards over all ranks, every gather crosses the slow links between nodes. With shards within each node of L ranks,
replicated N times, only gradients cross: the reduce-scatter gives each rank the node's mean of its shard, and ranks
with the same shard average it over nodes. The shards take N times the memory.

    mesh         local 0   local 1          gather, reduce-scatter    along local: rank 0 with 1, rank 2 with 3
    node 0       rank 0    rank 1           all-reduce of shards      along node:  rank 0 with 2, rank 1 with 3
    node 1       rank 2    rank 3

        mesh = node_mesh(ranks_per_node=2)
        Zero(model, optimizer_fn, stage=3, group=mesh.get_group("local"), replicate_group=mesh.get_group("node"))

Cost for N nodes of L ranks, S bytes of parameters (stage 3; gradients: the same), alpha and beta of both links (rings):
    time_s      3(L-1) (alpha_in + S/L beta_in)  +  2(N-1) (alpha_out + S/(N L) beta_out)
    peak bytes  shards of 1/L, not of 1/(N L); in backward a third full bucket, as two are in flight
    sent bytes  3(L-1)/L S inside the node, 2(N-1)/N S/L across
Shapes: a full buffer is [N], a shard [N / L].
Source: Zhao et al., "PyTorch FSDP", VLDB 2023, arXiv 2304.11277, section 3.2.2 (hybrid sharding); Zhang et al., "MiCS",
VLDB 2022, arXiv 2205.00119.
Simplified: shards are all-reduced after every backward, even if the all-reduce could wait for the last micro-batch.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from lablib.parallel.data.overlapped import Handle, all_reduce_average
from lablib.parallel.zero.shards import ReduceScatter, reduce_scatter_average


class HybridReduceScatter:
    """A `ReduceScatter`: the mean over the shard group, then over the ranks that hold the same shard.

    The two stages use different links: when a bucket is launched, the one before it moves on to its second stage.
    """

    num_under_way = 2  # one in each stage

    def __init__(self, replicate_group: dist.ProcessGroup, reduce_scatter: ReduceScatter = reduce_scatter_average):
        self._replicate_group, self._reduce_scatter = replicate_group, reduce_scatter
        self._last: _TwoStages | None = None

    def __call__(self, full: Tensor, shard: Tensor, group: dist.ProcessGroup | None = None) -> "_TwoStages":
        handle = self._reduce_scatter(full, shard, group)
        if self._last is not None:
            self._last.move_on()
        self._last = _TwoStages(handle, shard, self._replicate_group)
        return self._last


class _TwoStages:
    """The handle of one shard: its reduce-scatter, and then its all-reduce."""

    def __init__(self, handle: Handle, shard: Tensor, replicate_group: dist.ProcessGroup):
        self._handle, self._shard, self._group = handle, shard, replicate_group
        self._is_across = False

    def move_on(self) -> None:
        """Start the all-reduce, once; waits for the reduce-scatter."""
        if not self._is_across:
            self._is_across = True
            self._handle.wait()
            self._handle = all_reduce_average(self._shard, self._group)

    def wait(self) -> Any:
        self.move_on()
        return self._handle.wait()
