"""A `Reduce` of this folder as a communication hook of torch's DDP.

DDP passes each full bucket to its hook, which returns a future of the averaged bucket; DDP waits for all futures when
backward ends. A `Reduce` returns a handle instead, with work left in its `wait`. So the hook starts the reduction,
returns a future without waiting, and registers a callback of autograd at the end of backward, before DDP waits: it
waits for the handles in order and fills the futures.

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, comm_hook(InSequence(quantized_all_reduce)))

Cost: as the reduction. Shapes: a bucket is flat, [N].
Source: torch, "DDP Communication Hooks", https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html.
Simplified: no sparse gradients. A `Reduce` with state for each bucket begins with the second step: torch rebuilds its
buckets after the first, which is averaged without compression.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from lablib.parallel.data.overlapped import Handle, Reduce, all_reduce_average, reduce_for
from lablib.torch_compat import queue_callback


def comm_hook(reduce: Reduce, group: dist.ProcessGroup | None = None) -> Callable[[Any, Any], Future[Tensor]]:
    """A hook for `register_comm_hook`, called with an unused state and a `dist.GradBucket`. One hook per module.

    `reduce` averages a bucket; `group`: DDP's, None for all ranks.
    """
    started: list[tuple[Handle, Tensor, Future[Tensor]]] = []
    num_steps = 0

    def end_of_backward() -> None:
        for handle, buffer, future in started:
            handle.wait()
            future.set_result(buffer)
        started.clear()

    def hook(_: Any, bucket) -> Future[Tensor]:
        nonlocal num_steps
        if bucket.index() == 0:  # buckets come in order; discard the state of a backward that raised
            started.clear()
            queue_callback(end_of_backward)
            num_steps += 1
        buffer, future = bucket.buffer(), Future[Tensor]()
        average = reduce_for(reduce, bucket.index(), bucket.parameters())
        if num_steps == 1 and average is not reduce:
            average = all_reduce_average
        started.append((average(buffer, group), buffer, future))
        return future

    return hook
