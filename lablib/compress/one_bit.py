"""One bit: send the signs of gradients and one scale, and average in two phases of one bit each.

A message is N signs and s = mean |g|, so that s sign(g) is closest to g. The sum of signs is not a sign, so messages
would grow in an all-reduce. Instead every rank owns a piece of the bucket:

    1. all_to_all     each rank sends each owner its piece: signs and the scale
    2. the owner      averages, adds its last residual, and keeps the new one (server feedback)
    3. all_gather     the owner's signs and scale, to all

Both roundings need a residual: the rank's (by `ErrorFeedback(OneBit())`), and the owner's, kept in this class.

Cost for n ranks, N gradients in pieces of W = ceil(N/n), a multiple of 8:
    time_s      2 (n-1) (alpha + (W/8 + 4) beta), and two passes to pack and unpack
    peak bytes  N/4 more than the gradients; N/n numbers kept by an owner
    sent bytes  2 (n-1) (W/8 + 4) per rank: about 1/32 of 2(n-1)/n 4 N
Shapes: a bucket is flat, [N]; pieces [n, W], packed [n, W/8 + 4] bytes with the scale's four at the end.
Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014 (signs and error feedback); Karimireddy et
al., 2019, arXiv 1901.09847 (the scale, mean |g|); Tang et al., "1-bit Adam", 2021, arXiv 2102.02888 (both sides).
Simplified: one scale per message; Seide et al. have two values for each column of a matrix, Tang et al. take the root
of the mean square, which keeps the norm and is less close to g. A zero counts as positive.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lablib.compress.error_feedback import check_residual
from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage, check_gradients
from lablib.compress.stages import all_gather_bytes, all_to_all_bytes
from lablib.signature import checked

SCALE_BYTES = 4


@checked
def pack_signs(x: Tensor) -> Tensor:
    """Signs as bytes: [..., W] -> uint8 [..., W/8], the first number in the lowest bit; 1 is zero or above.

    ValueError: W is not a multiple of 8, or `x` is not floating-point.
    """
    check_gradients("pack_signs", x)
    if x.ndim == 0 or x.shape[-1] % 8:
        raise ValueError(f"pack_signs: the last dimension must be a multiple of 8: got {tuple(x.shape)}; pad it.")
    bits = (x >= 0).unflatten(-1, (-1, 8)).to(torch.uint8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=x.device)).sum(-1, dtype=torch.uint8)


@checked
def unpack_signs(packed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The reverse: uint8 [..., W/8] -> [..., W] of 1 and -1. ValueError: `packed` is not of bytes."""
    if packed.dtype != torch.uint8 or packed.ndim == 0 or not dtype.is_floating_point:
        raise ValueError(f"unpack_signs needs uint8 in, floating point out: got {packed.dtype} and {dtype}.")
    bits = (packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    return bits.flatten(-2).to(dtype) * 2 - 1


class OneBit(LossyAverage):
    """The mean over ranks of signs times scales, rounded again to signs times a scale for each rank's piece.

    `has_server_feedback`: whether an owner keeps the residual of its piece.
    """

    @checked
    def __init__(self, has_server_feedback: bool = True):
        self.has_server_feedback = has_server_feedback
        self.server_residuals: dict[int, Tensor] = {}  # index of the bucket -> the owner's residual [W]

    def exchange(self, buffer: Tensor, group: dist.ProcessGroup | None, bucket: Bucket) -> Exchange:
        num_ranks, rank, numel = dist.get_world_size(group), dist.get_rank(group), buffer.numel()
        width = piece_width(numel, num_ranks)
        pieces = F.pad(buffer.view(-1), (0, num_ranks * width - numel)).view(num_ranks, width)
        # 1. all_to_all
        messages = _pack(pieces, buffer.abs().mean() if numel else buffer.new_zeros(()))
        own = _unpack(messages, buffer.dtype).flatten()[:numel].view_as(buffer)
        received, work = all_to_all_bytes(messages, group)
        yield work
        # 2. the owner
        num_real = min(max(numel - rank * width, 0), width)  # the rest of the last pieces is padding
        mean = _unpack(received, buffer.dtype).mean(0)[:num_real]
        if self.has_server_feedback and bucket.index in self.server_residuals:
            check_residual("OneBit", bucket, self.server_residuals[bucket.index], num_real)
            mean = mean + self.server_residuals[bucket.index]
        answer = _pack(F.pad(mean, (0, width - num_real)), mean.abs().mean() if num_real else mean.sum())
        if self.has_server_feedback:
            self.server_residuals[bucket.index] = mean - _unpack(answer, buffer.dtype)[:num_real]
        # 3. all_gather
        gathered = torch.empty_like(messages)
        yield all_gather_bytes(gathered, answer, group)
        buffer.copy_(_unpack(gathered, buffer.dtype).flatten()[:numel].view_as(buffer))
        return own


@checked
def piece_width(numel: int, num_ranks: int) -> int:
    """Numbers per piece: a multiple of 8, such that n pieces cover the bucket."""
    return -(-numel // (8 * num_ranks)) * 8


def _pack(x: Tensor, scale: Tensor) -> Tensor:
    """[..., W] -> [..., W/8 + 4] bytes: signs, then the scale in 32 bits."""
    scale_bytes = scale.to(torch.float32).reshape(1).view(torch.uint8)
    return torch.cat([pack_signs(x), scale_bytes.expand(*x.shape[:-1], SCALE_BYTES)], -1)


def _unpack(messages: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., W/8 + 4] bytes -> [..., W] numbers."""
    scale = messages[..., -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32).to(dtype)
    return unpack_signs(messages[..., :-SCALE_BYTES], dtype) * scale
