"""Lossy average: every rank sends a compressed message of its gradients, and all get the mean of the messages.

The common interface of the compressors. Each is a generator that yields every communication to wait for (`stages.py`),
and returns the content of this rank's message:

    def exchange(self, buffer, group, bucket):
        message = ...                                                      # pack
        yield dist.all_gather(..., async_op=True)                          # resumed when it has ended
        buffer.copy_(...)                                                  # the mean of all messages
        return own                                                         # the content of this rank's message

The gradient less `own` is the omitted part, for error feedback (`error_feedback.py`). Some compressors keep further
state between steps, for each bucket separately, under the bucket's index.

    a `reduce` of DataParallel    DataParallel(model, reduce=TopK(0.01))
    a hook of torch's DDP         ddp.register_comm_hook(None, comm_hook(TopK(0.01)))
    by hand, a single buffer      TopK(0.01)(buffer).wait()

Cost: as the compressor. The first communication overlaps with backward; later ones start when the bucket is waited for.
Shapes: a bucket is flat, [N]; `Bucket.shapes` has the shapes of its gradients, in order.
Source: the frame of Karimireddy et al., 2019, arXiv 1901.09847, algorithm 2: a compressor and its memory.
Simplified: gradients are checked for NaN in every call, which waits for the device once per bucket.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.compress.stages import Stages
from lablib.parallel.data.overlapped import Handle, Reduce

# Yields communications that must end before it continues; returns the content of this rank's message.
Exchange = Generator[Handle, None, Tensor]


@dataclass(frozen=True)
class Bucket:
    """Identity of a buffer over the steps."""

    index: int = 0  # key of the state that is kept between steps
    # shapes of the gradients concatenated in the buffer; empty: the buffer is one gradient
    shapes: tuple[torch.Size, ...] = ()


class LossyAverage:
    """A `Reduce`: replaces a buffer by the mean of all ranks' messages.

    A subclass has `exchange`. All ranks must call it for the same buckets in the same order.
    """

    def exchange(self, buffer: Tensor, group: dist.ProcessGroup | None, bucket: Bucket) -> Exchange:
        raise NotImplementedError

    def __call__(self, buffer: Tensor, group: dist.ProcessGroup | None = None, bucket: Bucket | None = None) -> Stages:
        """Start. Communicates; changes the buffer until `wait()`. ValueError: not floating, finite and contiguous."""
        check_gradients(type(self).__name__, buffer)
        if not buffer.is_contiguous():
            raise ValueError(f"{type(self).__name__}: a buffer must be contiguous: call .contiguous() first.")
        return Stages(self.exchange(buffer, group, bucket or Bucket(0, (buffer.shape,))))

    def for_bucket(self, index: int, params: Sequence[Tensor]) -> Reduce:
        """The same with the state of the bucket: DataParallel calls it once for each bucket."""
        return partial(self, bucket=Bucket(index, tuple(param.shape for param in params)))


def check_gradients(name: str, numbers: Tensor, what: str = "gradients") -> None:
    """Raise for numbers that cannot be averaged: a NaN would stay in the residuals."""
    if not isinstance(numbers, Tensor) or not numbers.is_floating_point():
        kind = numbers.dtype if isinstance(numbers, Tensor) else type(numbers).__name__
        raise ValueError(f"{name}: {what} must be floating-point numbers: got {kind}; call .float() first.")
    if numbers.is_meta or numbers.isfinite().all():
        return
    raise ValueError(
        f"{name}: {what} must be finite: got {int(numbers.isnan().sum())} NaN and {int(numbers.isinf().sum())} "
        f"infinite numbers of {numbers.numel()}; skip the step on all ranks, or find their cause."
    )
