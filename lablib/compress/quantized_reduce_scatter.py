"""Quantized reduce-scatter: pieces are sent to their owners, which average them in float32: one rounding.

A ring would sum and round at every hop (`quantized_ring.py`). Instead rank r sends the codes of piece i to rank i, all
at once; rank i reads n messages and sums numbers, not codes.

    rank 0   [a0 b0] -> codes |                  | a: codes 0 and 1 -> (a0~ + a1~) / 2
    rank 1   [a1 b1] -> codes |  one all-to-all  | b: codes 0 and 1 -> (b0~ + b1~) / 2

Cost for n ranks, P numbers per piece, message S_q = ceil(P b / 8) + 4 k ceil(P / B) bytes:
    time_s      alpha + (n-1) S_q beta, plus quantizing and reading n P numbers
    peak bytes  2 n S_q of messages and 4 n P of numbers
    sent bytes (n-1) S_q per rank, as in a ring, but to every rank instead of a neighbour: more bytes across nodes,
                which `hierarchical_reduce_scatter.py` reduces
Shapes: full [n P], shard [P], in the order of ranks.
Source: Wang et al., "ZeRO++", 2023, arXiv 2306.10209, section 3.3 (qgZ, one hop).
Simplified: n P float32 numbers are held at once, while a kernel sums as it reads.
"""

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor

from lablib.compress.quantized import Quantizer
from lablib.compress.quantized_all_gather import INT8, check_shards, quantized_on
from lablib.compress.stages import all_to_all_bytes, staged
from lablib.parallel.data.overlapped import Handle


@staged
def quantized_reduce_scatter(
    full: Tensor, shard: Tensor, group: dist.ProcessGroup | None = None, quantizer: Quantizer = INT8
) -> Iterator[Handle]:
    """Fill `shard` with the mean over ranks of this rank's piece of `full`; the handle's `wait` ends it.

    Communicates: one all-to-all of bytes; no communication or rounding on one rank. A `ReduceScatter` of
    lablib/parallel/zero/shards.py, with `functools.partial` for another quantizer.

    Arguments:
        full: [n P] of any floating dtype, the same size on every rank; not changed.
        shard: [P], overwritten.
        group: None for all ranks.
        quantizer: the same on every rank.

    Raises ValueError: sizes that do not fit, numbers that are not floating-point or not finite.
    """
    n = dist.get_world_size(group)
    check_shards(full, shard, n)
    if n == 1:
        shard.copy_(full.reshape(shard.shape))
        return
    parts, work = exchange(full.reshape(n, -1), group, quantizer)
    yield work
    shard.copy_(mean_of(parts, shard.numel(), quantizer).reshape(shard.shape))


def exchange(
    pieces: Tensor, group: dist.ProcessGroup | None, quantizer: Quantizer, what: str = "the tensor"
) -> tuple[Tensor, Handle]:
    """Start to send row i of `pieces` [n, ..., P] to rank i; returns the received messages and the handle."""
    return all_to_all_bytes(quantized_on(what, pieces, quantizer, group).message(), group)


def mean_of(messages: Tensor, numel: int, quantizer: Quantizer) -> Tensor:
    """The mean of the contents of messages [n, bytes], float32 [P]."""
    return quantizer.dequantize(quantizer.from_message(messages, numel)).sum(dim=0).div_(len(messages))
