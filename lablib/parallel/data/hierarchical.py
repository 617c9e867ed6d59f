"""Hierarchical gradient averaging: reduce-scatter inside the node, all-reduce across nodes, all-gather inside.

Links inside a node are many times faster than links between nodes. So a bucket is first reduce-scattered inside the
node: each of its L ranks then holds the node's sum of one shard. Ranks with the same place on their nodes all-reduce
their shards across nodes, all L networks at once; an all-gather inside the node completes the bucket.

    node 0   rank 0 [a b]  -> [a0+a1  .   ]  -> [A  .]  -> [A B]      A = a0+a1+a2+a3
             rank 1 [a b]  -> [ .   b0+b1 ]  -> [.  B]  -> [A B]
    node 1   rank 2 [a b]  -> [a2+a3  .   ]  -> [A  .]  -> [A B]
             rank 3 [a b]  -> [ .   b2+b3 ]  -> [.  B]  -> [A B]
                          inside          across      inside

The stages use different links, so buckets are pipelined through them: when a bucket is launched, the one before it
moves on to its next stage.

Cost for N nodes of L ranks, S bytes of gradients in one bucket, alpha and beta of the inner and the outer link (rings):
    time_s      2(L-1) (alpha_in + S/L beta_in)  +  2(N-1) (alpha_out + S/(N L) beta_out)
    peak bytes  S/L in addition to the bucket, or S + S/L if L does not divide its length
    sent bytes 2(L-1)/L S inside the node, 2(N-1)/N S/L across: in total 2(n-1)/n S with n = N L, as in one ring over
                all ranks, but each link between nodes carries only 1/L
Shapes: a bucket is flat, [N]; a shard is [N / L].
Source: Sergeev and Del Balso, "Horovod", 2018, arXiv 1802.05799 (HOROVOD_HIERARCHICAL_ALLREDUCE); Goyal et al., 2017,
arXiv 1706.02677, section 4 (reduce in the server, all-reduce across, broadcast in the server).
Simplified: nodes have the same number of ranks. NCCL does this automatically when its tuner finds it faster; here each
stage can be changed (compress only across nodes, skip it in some steps).
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lablib.parallel.tensor.regions import all_gather_single, reduce_scatter_single
from lablib.signature import Count, checked

Stage = Callable[[], Any]  # starts a communication and returns its `dist.Work`


@checked
def node_mesh(ranks_per_node: Count, device_type: str = "cpu") -> DeviceMesh:
    """The ranks as a mesh of axes "node" and "local"; all ranks call it, for its groups. ValueError: uneven nodes."""
    world_size = dist.get_world_size()
    if world_size % ranks_per_node:
        raise ValueError(
            f"world_size must be a multiple of ranks_per_node: got {world_size} and {ranks_per_node}; "
            "all nodes must have the same number of ranks."
        )
    shape = (world_size // ranks_per_node, ranks_per_node)
    return init_device_mesh(device_type, shape, mesh_dim_names=("node", "local"))


class HierarchicalAverage:
    """A `reduce` for `DataParallel`: the mean over a mesh of nodes, in three stages.

        replica = DataParallel(model, reduce=HierarchicalAverage(node_mesh(ranks_per_node=8)))

    A call with a buffer starts the first stage and returns a handle; `handle.wait()` ends the last. Buffers must be
    passed in the same order on every rank. Communicates; changes the buffer in place.
    """

    def __init__(self, mesh: DeviceMesh):
        self._inside, self._across = mesh.get_group("local"), mesh.get_group("node")
        self._flights: list[_Flight] = []

    def __call__(self, buffer: Tensor, group: dist.ProcessGroup | None = None) -> "_Flight":
        if group is not None:
            raise ValueError("HierarchicalAverage averages over its mesh: leave DataParallel's group at None.")
        self.move_on()  # earlier buckets had the time of a whole bucket for their stage: a short wait, if any
        self._flights.append(_Flight(self, buffer, *self._stages(buffer)))
        return self._flights[-1]

    def move_on(self) -> None:
        """Every bucket in flight waits for its stage and starts the next, if there is one."""
        for flight in self._flights:
            flight.move_on()

    def finish(self, flight: "_Flight") -> None:
        """Move one bucket to its last stage; earlier buckets move with it."""
        while flight.stages:
            self.move_on()
        self._flights.remove(flight)

    def _stages(self, buffer: Tensor) -> tuple[Tensor, list[Stage]]:
        """The tensor to communicate (the buffer, or a padded copy), and the three calls that start it."""
        num_local, num_nodes = self._inside.size(), self._across.size()
        missing = -buffer.numel() % num_local  # pad to equal shards
        padded = F.pad(buffer, (0, missing)) if missing else buffer
        shard = padded.new_empty(padded.numel() // num_local)

        def scatter_inside() -> Any:
            return reduce_scatter_single(shard, padded, group=self._inside, async_op=True)

        def reduce_across() -> Any:
            shard.div_(num_local * num_nodes)  # divide once, and only the shard
            return dist.all_reduce(shard, group=self._across, async_op=True)

        def gather_inside() -> Any:
            return all_gather_single(padded, shard, group=self._inside, async_op=True)

        return padded, [scatter_inside, reduce_across, gather_inside]


class _Flight:
    """One bucket in flight: the communication of its current stage, and the stages to come."""

    def __init__(self, average: HierarchicalAverage, buffer: Tensor, padded: Tensor, stages: list[Stage]):
        self._average, self._buffer, self._padded = average, buffer, padded
        self.work, *self.stages = stages[0](), *stages[1:]

    def move_on(self) -> None:
        if self.stages:  # after the last stage, `wait` does the waiting
            self.work.wait()
            self.work = self.stages.pop(0)()

    def wait(self) -> None:
        """The bucket holds the mean when this returns."""
        self._average.finish(self)
        self.work.wait()
        if self._padded is not self._buffer:
            self._buffer.copy_(self._padded[: self._buffer.numel()])
