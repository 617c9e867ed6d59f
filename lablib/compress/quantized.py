"""Quantized tensors: codes of few bits, with a scale (and a zero) for each block of numbers; common to all quantizers.

A block of B neighbours shares a scale s, and for asymmetric quantizers the number z of code 0:

    code = round((x - z) / s)            x ~ z + s code            symmetric: z = 0, not stored

With rounding to the nearest code, the error is at most s / 2. With stochastic rounding, up with the probability of the
remainder, it is below s and unbiased, so errors of many ranks cancel in a sum. `message` puts everything in a row of
bytes, the parameters of the blocks first, for one collective.

Cost: b bits per number and 4 bytes per parameter; for P numbers with k parameters per block ceil(P b / 8) + 4 k ceil(P
/ B).
Shapes: x (..., P), each row separately: codes (..., bytes), scales and zeros (..., blocks), message (..., bytes). A
block does not continue in the next row; the last of a row may be shorter (as in lablib/optim/blockwise.py).
Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2015, arXiv 1511.04561; Alistarh et al.,
"QSGD", 2017, arXiv 1610.02132, section 3 (stochastic, in blocks); Wang et al., "ZeRO++", 2023, arXiv 2306.10209,
section 3.1 (blocks for messages).
Simplified: numbers pass through float32, and scales and zeros are float32; scales are no smaller than the smallest
normal number, so that nothing is divided by zero; a row with a shorter last block is copied once more.
"""

from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from lablib.precision.rounding import ROUNDINGS
from lablib.signature import Checked, Count, OneOf, whole_number

BLOCK = 256  # numbers that share a scale
TINY, MAX = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMessage:
    """A quantized tensor."""

    codes: Tensor  # in memory layout, one byte each or packed; (..., bytes)
    scales: Tensor  # float32, (..., blocks)
    zeros: Tensor | None  # numbers of code 0, float32, (..., blocks); None for symmetric quantizers, where they are 0
    numel: int  # numbers P in a row; the last block may be shorter, and the last byte may have one code less

    @property
    def size_bytes(self) -> int:
        """Bytes of codes, scales and zeros: the closed form above."""
        return sum(part.nbytes for part in (self.codes, self.scales, self.zeros) if part is not None)

    def message(self) -> Tensor:
        """All of it as bytes, (..., bytes): scales, zeros, codes."""
        parts = [part for part in (self.scales, self.zeros, self.codes) if part is not None]
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=-1)


class Quantizer(Protocol):
    """A quantizer with its settings; one per file."""

    def quantize(self, x: Tensor) -> QuantizedMessage:
        """`x` (..., P) in codes. Raises ValueError: not floating-point, or a NaN or an infinity in it."""
        ...

    def dequantize(self, quantized: QuantizedMessage) -> Tensor:
        """The numbers of the codes, float32 (..., P)."""
        ...

    def message_bytes(self, numel: int) -> int:
        """Bytes of the message of a row of `numel` numbers."""
        ...

    def from_message(self, message: Tensor, numel: int) -> QuantizedMessage:
        """A quantized tensor from its message (..., bytes) and the numbers in a row."""
        ...


@dataclass(frozen=True, kw_only=True)
class Blocks(Checked):
    """Common settings of the quantizers of this folder, and the layout of their messages."""

    bits, code_dtype = 8, torch.int8  # of a code
    num_parameters = 1  # 32-bit numbers kept per block
    block: Count = BLOCK  # numbers that share a scale
    rounding: Annotated[str, OneOf(ROUNDINGS)] = "nearest"  # "nearest" (ties to even) or "stochastic"
    generator: torch.Generator | None = None  # source of stochastic rounding; None: torch's default one

    def message_bytes(self, numel: int) -> int:
        """Bytes of a row of `numel` numbers: ceil(P b / 8) for codes, and 4 for each parameter of a block."""
        numel = whole_number("numel", numel, 0, example=1024)
        return -(-numel * self.bits // 8) + 4 * self.num_parameters * -(-numel // self.block)

    def from_message(self, message: Tensor, numel: int) -> QuantizedMessage:
        blocks = -(-numel // self.block)
        sizes = [4 * blocks] * self.num_parameters
        *parameters, codes = message.split([*sizes, message.shape[-1] - sum(sizes)], dim=-1)
        shape = (*message.shape[:-1], blocks)
        # A copy: the bytes of a message may not be aligned for float32.
        copies = (part.clone(memory_format=torch.contiguous_format) for part in parameters)
        scales, *zeros = (part.flatten().view(torch.float32).view(shape) for part in copies)
        return QuantizedMessage(codes.contiguous().view(self.code_dtype), scales, zeros[0] if zeros else None, numel)


def in_blocks(x: Tensor, block: int) -> Tensor:
    """`x` (..., P) as float32 blocks (..., blocks, B): a view if B divides P, otherwise a copy that repeats the last
    number, which keeps the minimum and maximum of its block.

    Raises ValueError: numbers that are not floating-point.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"only rows of floating-point numbers are quantized: got {got}; give x.float().flatten().")
    x = x.detach().float()
    if missing := -x.shape[-1] % block:
        x = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], missing)], dim=-1)
    return x.unflatten(-1, (-1, block)) if x.shape[-1] else x.unsqueeze(-1).expand(*x.shape, block)


def out_of_blocks(blocks: Tensor, numel: int) -> Tensor:
    """The first `numel` numbers of the rows of blocks (..., blocks, B)."""
    return blocks.flatten(-2)[..., :numel]


def rounded(shares: Tensor, how: Blocks) -> Tensor:
    """Round `shares` in place. Noise of up to half a step makes rounding to nearest unbiased."""
    if how.rounding == "stochastic":
        # 16 random bits per number, four numbers per draw: precise to 2^-16 of a step, in a third of rand's time.
        draws = torch.empty(-(-shares.numel() // 4), dtype=torch.int64, device=shares.device)
        noise = draws.random_(-(2**63), None, generator=how.generator).view(torch.int16)
        shares.add_(noise[: shares.numel()].view(shares.shape), alpha=2.0**-16)
    return shares.round_()


def require_finite(x: Tensor, *of_blocks: Tensor) -> None:
    """Raise ValueError for a NaN or an infinity, found from the maxima of the blocks without another pass over x."""
    if x.is_meta or all(bool(each.isfinite().all()) for each in of_blocks):
        return  # under fidelity="shapes" there are no values
    wrong = (~x.detach().float().isfinite()).flatten().nonzero()
    what = f"number {int(wrong[0])} is {float(x.flatten()[wrong[0]])}" if len(wrong) else "a block spans more than 3e38"
    raise ValueError(f"quantized numbers must be finite in float32: {what}; skip the step, or lower the loss scale.")
