"""Asynchronous aggregation: step t applies the mean gradient of step t - s, sent during s steps.

A synchronous step waits for the slowest message. If an update may use gradients that are s steps old, the all-reduce of
step t overlaps with the next s steps of computation. Parameters change in the meantime: the gradient is stale.

    compute   step 0   step 1   step 2   step 3            s = 1: step 1 applies the gradients of step 0
    comm             [ grads 0 ][ grads 1 ][ grads 2 ]     the first s steps apply nothing
    applied     -      grads 0    grads 1    grads 2

Every rank applies the same gradients at the same step: replicas stay equal, no parameter server is needed, and the
staleness is exactly s. A larger s requires a smaller rate: on a quadratic with curvature h, the rate must stay below 2
sin(pi / (4 s + 2)) / h (2/h for s = 0, 1/h for s = 1).

Cost for n ranks, S bytes of gradients:
    time_s      step max(compute, communication / s); synchronous at worst their sum
    peak bytes  s S more: gradients in flight
    sent bytes  as synchronous
Shapes: a bucket is flat, [N].
Source: Recht et al., "Hogwild!", 2011, arXiv 1106.5730, section 4 (bounded delay); Ho et al., "More Effective
Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013, section 2 (bounded staleness); the
stability of a delayed recursion: Levin and May, "A note on difference-delay equations", 1976.
Simplified: the delay is fixed; with an asynchronous parameter server it depends on the speed of each rank.
"""

from collections import deque

import torch.distributed as dist
from torch import Tensor

from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage
from lablib.parallel.data.overlapped import Handle, Reduce, all_reduce_average, reduce_for
from lablib.signature import NonNegativeInt, checked


class StaleAverage(LossyAverage):
    """The mean gradient of `staleness` steps ago, zeros in the first steps.

        DataParallel(model, reduce=StaleAverage(staleness=1))

    Arguments:
        staleness: steps s between a gradient and its use; 0 is the synchronous average.
        reduce: averages a buffer; with compression, one per bucket.
    """

    @checked
    def __init__(self, staleness: NonNegativeInt = 1, reduce: Reduce = all_reduce_average):
        self.staleness, self.reduce = staleness, reduce
        self._reduces: dict[int, Reduce] = {}
        self._under_way: dict[int, deque[tuple[Tensor, Handle]]] = {}

    def exchange(self, buffer: Tensor, group: dist.ProcessGroup | None, bucket: Bucket) -> Exchange:
        own, sent = buffer.clone(), buffer.clone()
        queue = self._under_way.setdefault(bucket.index, deque())
        if queue and queue[0][0].shape != sent.shape:
            raise ValueError(
                f"StaleAverage: bucket {bucket.index} must keep its size: it has {sent.numel()} numbers, the gradients "
                f"under way {queue[0][0].numel()}; after a change of buckets, make a new StaleAverage."
            )
        if bucket.index not in self._reduces:
            params = [buffer.new_empty(shape, device="meta") for shape in bucket.shapes]
            self._reduces[bucket.index] = reduce_for(self.reduce, bucket.index, params)
        queue.append((sent, self._reduces[bucket.index](sent, group)))
        if len(queue) <= self.staleness:
            buffer.zero_()
            return own
        mean, handle = queue.popleft()
        yield handle
        buffer.copy_(mean)
        return own

    def finish(self) -> None:
        """Wait for all gradients in flight and drop them, on all ranks: call before the program ends."""
        for index in sorted(self._under_way):
            for _, handle in self._under_way.pop(index):
                handle.wait()
