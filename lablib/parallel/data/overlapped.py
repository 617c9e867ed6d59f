"""Overlapped data parallelism: the all-reduce of a bucket starts as soon as backward has filled it.

Backward works from the last layer to the first, so the gradients of the last layers are final long before it ends. A
hook on every parameter is called when its gradient is ready. With the last gradient of a bucket, the bucket is packed
and its all-reduce starts, while backward continues with earlier layers. Communication after the end of backward is
exposed: at least the last bucket.

    compute    forward  | backward 3 | backward 2 | backward 1 | backward 0 |       wait |  optimizer
    comm                             [ bucket 0 ] [ bucket 1 ]  [ bucket 2 ] [ bucket 3 ]
                                       of layer 3   of layer 2    of layer 1   of layer 0: exposed

Phases of one step (the code has the same headings):
    1. a gradient is ready     count it; a complete bucket is launched, buckets always in the order of the plan
    2. a bucket is launched    pack it: its gradients become views; divide it, start its all-reduce, and do not wait
    3. backward ends           wait for buckets in flight

Cost for n ranks, S bytes of gradients in M buckets, backward B seconds, all-reduce C seconds in all (see
`data/bucketed.py`), bucket i ready at r_i and taking c_i:
    time_s      forward + max(B, e_M) with e_i = max(e_{i-1}, r_i) + c_i: hidden = min(C, backward left), roughly
    peak bytes  S for the buckets, which are kept from the first backward on, and the gradients of buckets that are not
                launched yet; launched buckets are the gradients
    sent bytes  2(n-1)/n S per rank and step; 0 under `no_sync`
Shapes: a bucket is flat, [N] with N the elements of its gradients together.
A kept bucket saves the page faults of fresh memory: 4,700 for 19 MB on a CPU, in every step. A buffer to which
anything else still refers (a gradient that was kept, or communication in flight) is not used again but replaced.
Source: Li et al., "PyTorch Distributed", VLDB 2020, arXiv 2006.15704, sections 3.2.3 (overlap) and 3.2.4 (no_sync),
algorithm 1; torch 2.13, DistributedDataParallel(gradient_as_bucket_view=True).
Simplified: buffers are broadcast once, not before every forward; the order of buckets is fixed by registration, not
by the first backward; a parameter that gets no gradient is an error, not a search through the graph.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.bucketed import BUCKET_BYTES, pack, plan_buckets, unpack
from lablib.parallel.data.naive import broadcast_module, require_no_unused, require_once
from lablib.torch_compat import num_storage_users, queue_callback, storage_id


class Handle(Protocol):
    """A communication in flight, such as a `dist.Work`."""

    def wait(self) -> Any: ...


# Starts to replace a buffer by its mean over the group, without waiting.
Reduce = Callable[[Tensor, dist.ProcessGroup | None], Handle]


def all_reduce_average(buffer: Tensor, group: dist.ProcessGroup | None = None) -> Handle:
    """The mean over the ranks of `group`, by one all-reduce in the background."""
    buffer.div_(dist.get_world_size(group))  # before the sum, which might overflow in 16 bits
    return all_reduce_sum(buffer, group)


def all_reduce_sum(buffer: Tensor, group: dist.ProcessGroup | None = None) -> Handle:
    """The sum over the ranks of `group`, by one all-reduce in the background."""
    work = dist.all_reduce(buffer, group=group, async_op=True)
    assert work is not None  # only ranks outside the group get None
    return work


def reduce_for(reduce: Reduce, index: int, params: Sequence[Tensor]) -> Reduce:
    """The `Reduce` of one bucket: `reduce.for_bucket(index, params)` if it keeps state per bucket, or itself."""
    for_bucket = getattr(reduce, "for_bucket", None)
    return reduce if for_bucket is None else for_bucket(index, params)


class _KeptBuffer:
    """The buffer of a bucket, written again by the next backward unless something else refers to its memory."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._num_users = 0  # of the storage of a new buffer

    def pack(self, params: Sequence[nn.Parameter]) -> Tensor:
        """The gradients as one flat copy."""
        if self._buffer is not None and self._count(self._buffer) > self._num_users:
            self._buffer = None
        is_new = self._buffer is None
        self._buffer = pack(params, self._buffer)
        if is_new:
            self._num_users = self._count(self._buffer)
        return self._buffer

    @staticmethod
    def _count(buffer: Tensor) -> int:
        return num_storage_users(storage_id(buffer.untyped_storage()))


@dataclass
class BucketBackward:
    """State of one backward pass: gradients missing in each bucket, and communication in flight."""

    num_missing: list[int]
    seen: set[Tensor] = field(default_factory=set)
    num_launched: int = 0
    under_way: list[Any] = field(default_factory=list)

    def complete(self, param: Tensor, name: str, bucket: int) -> Iterator[int]:
        """Count a gradient; the buckets to launch now. In order: all ranks must issue the same collectives in it."""
        require_once(name, param in self.seen)
        self.seen.add(param)
        self.num_missing[bucket] -= 1
        while self.num_launched < len(self.num_missing) and self.num_missing[self.num_launched] == 0:
            self.num_launched += 1
            yield self.num_launched - 1


class Synchronizing(nn.Module):
    """A module that communicates gradients in backward, except under `no_sync`."""

    _is_synchronizing = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """In this block, backward accumulates gradients without communication: for all micro-batches but the last.

        The first backward outside averages the accumulated gradients. Divide each loss by the number of micro-batches.
        """
        before, self._is_synchronizing = self._is_synchronizing, False
        try:
            yield
        finally:
            self._is_synchronizing = before


class DataParallel(Synchronizing):
    """A replica with gradients that are the mean over all ranks when `loss.backward()` returns.

    Construction broadcasts parameters and buffers from the group's first rank. Every backward outside `no_sync`
    communicates; all ranks must run the same number.

        replica = DataParallel(model)
        loss = loss_of(replica(inputs), targets)      # this rank's part of the batch
        loss.backward()                               # communicates
        optimizer.step()

    Arguments:
        module: on this rank's device. Parameters that do not require gradients at construction are ignored.
        group: None for all ranks.
        bucket_bytes: maximum bytes of a bucket. Smaller: more overlap, more latency.
        reduce: averages a bucket; see `Reduce`, `data/hierarchical.py` and `lablib.compress`. If it has
            `for_bucket(index, params)`, that makes the `Reduce` of each bucket.

    Raises ValueError: no parameter requires a gradient; in backward, a parameter without a gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        reduce: Reduce = all_reduce_average,
    ):
        super().__init__()
        self.module, self.group = module, group
        # `named_parameters` lists a tied parameter once, and autograd sums its uses before the hook runs.
        self._names: dict[Tensor, str] = {p: name for name, p in module.named_parameters() if p.requires_grad}
        if not self._names:
            raise ValueError("DataParallel needs a parameter to train: no parameter of the module requires a gradient.")
        params = [param for param in module.parameters() if param.requires_grad]
        self.buckets = [[params[i] for i in plan] for plan in plan_buckets(params, bucket_bytes)]
        self._bucket_of: dict[Tensor, int] = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.reduces = [reduce_for(reduce, index, bucket) for index, bucket in enumerate(self.buckets)]
        self._kept_buffers = [_KeptBuffer() for _ in self.buckets]
        self._backward: BucketBackward | None = None
        broadcast_module(module, group)
        for param in params:
            param.register_post_accumulate_grad_hook(self._on_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._backward = None  # discard the state of a backward that raised
        return self.module(*args, **kwargs)

    # ---- 1. a gradient is ready ----

    def _on_gradient(self, param: Tensor) -> None:
        """Autograd calls this with the *parameter*, once its gradient is in `param.grad`."""
        if not self._is_synchronizing:
            return
        if self._backward is None:
            self._backward = BucketBackward([len(bucket) for bucket in self.buckets])
            queue_callback(self._on_backward_end)
        for index in self._backward.complete(param, self._names[param], self._bucket_of[param]):
            # ---- 2. a bucket is launched ----
            buffer = self._kept_buffers[index].pack(self.buckets[index])
            unpack(buffer, self.buckets[index])  # frees the gradients that backward has made
            self._backward.under_way.append(self.reduces[index](buffer, self.group))  # no wait: backward continues

    # ---- 3. backward ends ----

    def _on_backward_end(self) -> None:
        now, self._backward = self._backward, None
        assert now is not None
        unused = [name for param, name in self._names.items() if param not in now.seen]
        require_no_unused(unused)
        for handle in now.under_way:
            handle.wait()
