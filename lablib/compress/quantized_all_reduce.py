"""Two-phase quantized all-reduce: codes of pieces to their owners, a sum in float32, codes of the mean to all ranks.

    phase 1   piece i of every rank, quantized, goes to rank i        one all-to-all
              rank i reads n messages, sums in float32, divides by n
    phase 2   the mean of piece i, quantized again, goes to all       one all-gather

A number is rounded twice for any n: once on its own rank and once as the mean. In a ring with a sum at every hop it
would be rounded n times, with steps that grow with the sum (`quantized_ring.py`). Every rank also reads its own piece
from the codes, so all results are bit-identical.

Cost for n ranks, N numbers, P = ceil(N / n), message S_q = ceil(P b / 8) + 4 k ceil(P / B) bytes of a piece:
    time_s      alpha + (n-1) S_q beta, and again in a ring (n-1) (alpha + S_q beta); N quantized, 2 N read
    peak bytes  3 n S_q of messages and 4 N of numbers more than the buffer; n - 1 numbers of padding
    sent bytes 2 (n-1) S_q per rank: 2 (n-1)/n of a message of the whole buffer, as in the planner
                (lablib/plan/gradient_compression.py, "two_phase"); if n B divides N the two are equal
    error       (s_1 + s_2) / 2 at most with nearest rounding: s_1 the mean of the ranks' steps, s_2 the mean's step
Shapes: buffer [N]; pieces [n, P].
Source: Wang et al., "ZeRO++", 2023, arXiv 2306.10209, section 3.3; Tang et al., 1-bit Adam, 2021, arXiv 2102.02888,
section 5.2 (the two phases).
Simplified: no error feedback: rounding errors are lost.
"""

from collections.abc import Iterator

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lablib.compress.quantized import Quantizer
from lablib.compress.quantized_all_gather import INT8, quantized_on
from lablib.compress.quantized_reduce_scatter import exchange, mean_of
from lablib.compress.stages import all_gather_bytes, staged
from lablib.parallel.data.overlapped import Handle
from lablib.signature import Count, NonNegativeInt, checked


@staged
def quantized_all_reduce(
    buffer: Tensor, group: dist.ProcessGroup | None = None, quantizer: Quantizer = INT8
) -> Iterator[Handle]:
    """Replace `buffer` by its mean over the ranks; the handle's `wait` ends it. A `Reduce` for `DataParallel`.

        replica = DataParallel(model, reduce=InSequence(quantized_all_reduce))
        replica = DataParallel(model, reduce=InSequence(partial(quantized_all_reduce, quantizer=Int4(block=64))))

    Communicates: an all-to-all and an all-gather of bytes; no communication or rounding on one rank.
    `buffer`: of any shape and floating dtype, the same size and quantizer on every rank. ValueError: not finite.
    """
    n = dist.get_world_size(group)
    if n == 1 or not buffer.numel():
        return
    pieces = in_pieces(buffer, n)
    numel = pieces.shape[1]

    # 1. The pieces of all ranks, to their owners.
    parts, work = exchange(pieces, group, quantizer)
    yield work

    # 2. The mean of this rank's piece, to all.
    mean = mean_of(parts, numel, quantizer)
    message = quantized_on("the mean", mean, quantizer, group).message()
    means = message.new_empty(n, message.numel())
    yield all_gather_bytes(means, message, group)
    found = quantizer.dequantize(quantizer.from_message(means, numel)).flatten()
    buffer.copy_(found[: buffer.numel()].view(buffer.shape))


def in_pieces(buffer: Tensor, n: int) -> Tensor:
    """The buffer as [n, P] pieces of equal size, with zeros at the end if n does not divide it."""
    flat = buffer.flatten()
    missing = -flat.numel() % n
    return (F.pad(flat, (0, missing)) if missing else flat).view(n, -1)


@checked
def two_phase_bytes(numel: NonNegativeInt, ranks: Count, quantizer: Quantizer = INT8) -> int:
    """Bytes that each rank sends in a two-phase all-reduce of `numel` numbers: 2 (n-1) S_q."""
    return 2 * (ranks - 1) * quantizer.message_bytes(-(-numel // ranks)) if ranks > 1 and numel else 0
