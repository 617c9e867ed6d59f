"""Buckets: pack many small gradients into a few large buffers, to pay the latency of few all-reduces.

Every all-reduce pays latency, however small. A transformer has a dozen small parameters in each layer (norms, biases),
and each would pay it. In buckets of about 25 MiB, they pay once per bucket. Buckets are filled in reverse order of
registration, about the order in which backward produces gradients, so the first bucket is complete first.
`data/overlapped.py` starts its all-reduce at that moment instead of after backward.

    registered   embedding  block 0  block 1  norm  head          bucket_bytes fits two
    buckets      [head norm]  [block 1 block 0]  [embedding]      the last one may be partly filled

Cost for n ranks, S bytes of gradients in M = about S / bucket_bytes buckets, alpha and beta of the link (ring):
    time_s      M 2(n-1) alpha + 2(n-1)/n S beta, plus 2 S of memory traffic to pack and 2 S to divide
    peak bytes  S more: the buckets
    sent bytes  2(n-1)/n S per rank and step, as in the naive version
Shapes: a bucket is flat, [N] with N the elements of its gradients together.
Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, arXiv
2006.15704, section 3.2.2; Sergeev and Del Balso, "Horovod", 2018, arXiv 1802.05799, section 5 (tensor fusion).
Simplified: the plan is not revised after the first backward, and the first bucket is as large as the others.
"""

from collections.abc import Container, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.naive import parameters_with_gradients
from lablib.signature import Count, checked

BUCKET_BYTES = 25 * 2**20


@checked
def plan_buckets(
    params: Sequence[Tensor], bucket_bytes: Count = BUCKET_BYTES, apart: Container[Tensor] = ()
) -> list[list[int]]:
    """Assign parameters to buckets. Pure: reads only sizes and dtypes.

    Arguments:
        params: in order of registration.
        bucket_bytes: maximum bytes of a bucket; a larger parameter gets a separate bucket.
        apart: parameters that share no bucket with others.

    Returns:
        The indices of the parameters of each bucket, both in the order in which backward fills them: from the last
        parameter to the first. A bucket has one dtype and one device.
    """
    buckets: list[list[int]] = []
    filling: dict[tuple, tuple[list[int], int]] = {}  # (dtype, device, apart) -> the bucket being filled, its bytes
    for index in reversed(range(len(params))):
        kind = params[index].dtype, params[index].device, params[index] in apart
        bucket, filled_bytes = filling.get(kind, ([], 0))
        if not bucket or filled_bytes + params[index].nbytes > bucket_bytes:
            bucket, filled_bytes = [], 0
            buckets.append(bucket)
        bucket.append(index)
        filling[kind] = bucket, filled_bytes + params[index].nbytes
    # With several kinds, buckets fill in parallel: order them by completion.
    return sorted(buckets, key=lambda bucket: -bucket[-1])


def pack(params: Sequence[nn.Parameter], out: Tensor | None = None) -> Tensor:
    """The gradients of these parameters as one flat copy [N]; `out`: a tensor to copy them into."""
    return torch.cat([param.grad.flatten() for param in params if param.grad is not None], out=out)


def unpack(buffer: Tensor, params: Sequence[nn.Parameter]) -> None:
    """Make every gradient a view of its piece of the buffer, without a copy. Changes `param.grad`."""
    pieces = buffer.split([param.numel() for param in params])
    for param, piece in zip(params, pieces, strict=True):
        param.grad = piece.view_as(param)


def average_gradients_in_buckets(
    module: nn.Module, group: dist.ProcessGroup | None = None, bucket_bytes: int = BUCKET_BYTES
) -> None:
    """Replace every gradient by its mean over the ranks: between backward and the optimizer.

    Communicates: one all-reduce for each bucket of at most `bucket_bytes`. Afterwards each `param.grad` is a view of a
    bucket. Each trainable parameter has a gradient.
    """
    world_size = dist.get_world_size(group)
    params = list(parameters_with_gradients(module))
    for bucket in plan_buckets(params, bucket_bytes):
        members = [params[index] for index in bucket]
        buffer = pack(members).div_(world_size)
        dist.all_reduce(buffer, group=group)
        unpack(buffer, members)
