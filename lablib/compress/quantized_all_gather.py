"""Quantized all-gather: every rank quantizes its shard once, and sends codes instead of numbers.

    rank 0   [x0] -> codes 0 |                    | codes 0, codes 1 -> [x0~ x1~]
    rank 1   [x1] -> codes 1 |  one all-gather    | codes 0, codes 1 -> [x0~ x1~]

A rank also reads its own shard from the codes. So all ranks get bit-identical results, and with ZeRO they compute with
the same parameters. Gathering INT8 instead of 16-bit parameters is qwZ of ZeRO++.

Cost for n ranks, P numbers per shard, message S_q = ceil(P b / 8) + 4 k ceil(P / B) bytes (see `quantized.py`):
    time_s      (n-1) (alpha + S_q beta) in a ring, plus quantizing P and reading n P numbers
    peak bytes  n S_q of messages and 4 n P of numbers, more than the full tensor
    sent bytes  (n-1) S_q per rank; one rounding
Shapes: shard [P], full [n P], in the order of ranks.
Source: Wang et al., "ZeRO++", 2023, arXiv 2306.10209, section 3.1.
Simplified: all numbers are dequantized at once, while a kernel writes them directly into the full tensor.
"""

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor

from lablib.compress.int8 import Int8
from lablib.compress.quantized import QuantizedMessage, Quantizer
from lablib.compress.stages import all_gather_bytes, staged
from lablib.parallel.data.overlapped import Handle

INT8 = Int8()


@staged
def quantized_all_gather(
    shard: Tensor, full: Tensor, group: dist.ProcessGroup | None = None, quantizer: Quantizer = INT8
) -> Iterator[Handle]:
    """Fill `full` with every rank's quantized `shard`; the handle's `wait` ends it.

    Communicates: one all-gather of bytes; no communication or rounding on one rank. An `AllGather` of
    lablib/parallel/zero/shards.py, with `functools.partial` for another quantizer. `shard`: [P] of any floating dtype,
    with the same P and quantizer on every rank; `full`: [n P], overwritten. Raises as `quantized_reduce_scatter`.
    """
    n = dist.get_world_size(group)
    check_shards(full, shard, n)
    if n == 1:
        full.copy_(shard.reshape(full.shape))
        return
    message = quantized_on("the shard", shard.flatten(), quantizer, group).message()
    messages = message.new_empty(n, message.numel())
    yield all_gather_bytes(messages, message, group)
    full.copy_(quantizer.dequantize(quantizer.from_message(messages, shard.numel())).reshape(full.shape))


def check_shards(full: Tensor, shard: Tensor, num_ranks: int) -> None:
    """Raise ValueError unless a full buffer has a shard of each rank."""
    if full.numel() != num_ranks * shard.numel():
        rule = f"full must hold {num_ranks} shards"
        raise ValueError(f"{rule}: got {full.numel()} numbers for shards of {shard.numel()}; pad it.")


def quantized_on(what: str, x: Tensor, quantizer: Quantizer, group: dist.ProcessGroup | None) -> QuantizedMessage:
    """`x` quantized; an error names the tensor that was not finite, and its rank in the group."""
    try:
        return quantizer.quantize(x)
    except ValueError as error:
        raise ValueError(f"{what} on rank {dist.get_rank(group)}: {error}") from None
