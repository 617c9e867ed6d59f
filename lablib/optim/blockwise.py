"""Block-wise 8-bit quantization: a byte for each number of a state, and one scale per block.

A byte encodes one of 256 values q between -1 and 1 (or 0 and 1, without negative numbers). A block of B numbers is
divided by its maximum, and each number is replaced by the nearest value:

    scale = max |x| of the block             code = the j with q_j nearest to x / scale             x ~ q_code scale

States span many orders of magnitude within a block, and the values of `codebook` do too: seven decades, each with twice
as many values as the one below (dynamic tree quantization; E zeros in the byte mean 10^-E, the rest a fraction):

    10^-6 ... 10^-5  1 value      10^-5 ... 10^-4  2      ...      0.1 ... 1  64        unsigned: twice as many

An outlier reduces the precision only of its block; with one scale for a whole tensor it would affect all
(`outlier_errors`).

The nearest value comes from a table: a search among 255 borders would mispredict every second branch. A quotient is
rounded to half precision, and its 16 bits index the 65,536 codes of the table; only a quotient within 2^-11 (relative)
of the middle of two values may get the farther one.

Cost: 1 + 4 / B bytes per number; about 7 passes over the numbers to quantize, 3 to dequantize.
Shapes: any; blocks are B neighbours in memory, the last one may be shorter.
Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, arXiv 2110.02861, sections 1.2 and 2;
Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2015, arXiv 1511.04561 (the tree).
Conventions: the values are bitsandbytes' (middles of equal parts of 0.1 to 1, and 0 and 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from lablib.signature import Count, checked


@checked
def codebook(is_signed: bool) -> Float[Tensor, "256"]:
    """The 256 values of a byte, in order, in float32."""
    values = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for decade in range(7):
        borders = torch.linspace(0.1, 1, 2 ** (decade + (0 if is_signed else 1)) + 1, dtype=torch.float64)
        middles = 10.0 ** (decade - 6) * (borders[:-1] + borders[1:]) / 2
        values += [middles, -middles] if is_signed else [middles]
    return torch.cat(values).sort().values.float()


@dataclass(frozen=True, slots=True, eq=False)
class BlockCoding:
    """Settings of blocks and codes."""

    values: Tensor  # of the 256 codes
    nearest: Tensor  # the code for each number of half precision, in the order of its bits
    size: int  # numbers that share a scale


@checked
def blocks(is_signed: bool, size: Count, device: torch.device | None = None) -> BlockCoding:
    """Blocks of `size` numbers with the values of `codebook`."""
    values = codebook(is_signed).to(device)
    halves = torch.arange(1 << 16, dtype=torch.int32, device=device).to(torch.int16).view(torch.float16)
    nearest = torch.bucketize(halves.float(), (values[:-1] + values[1:]) / 2, out_int32=True)
    return BlockCoding(values, nearest.to(torch.uint8), size)


def quantize(x: Float[Tensor, "..."], how: BlockCoding) -> tuple[UInt8[Tensor, "..."], Float32[Tensor, " blocks"]]:
    """Codes in the shape of x, and a scale for each block. A block with a NaN or an infinity dequantizes to NaN."""
    flat = x.flatten().float()
    if padding := -len(flat) % how.size:
        flat = torch.nn.functional.pad(flat, (0, padding))
    rows = flat.view(-1, how.size)
    scales = rows.abs().amax(dim=1)
    shares = rows / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    codes = how.nearest.index_select(0, shares.half().view(torch.uint16).flatten().int())
    return (codes[: x.numel()].clone() if padding else codes).view(x.shape), scales  # a slice would keep the padding


def dequantize(
    codes: UInt8[Tensor, "..."], scales: Float32[Tensor, " blocks"], how: BlockCoding
) -> Float32[Tensor, "..."]:
    """The numbers of codes and scales."""
    flat = how.values.index_select(0, codes.flatten().int())
    whole = len(flat) // how.size * how.size
    flat[:whole].view(-1, how.size).mul_(scales[: whole // how.size, None])
    flat[whole:].mul_(scales[-1:])
    return flat.view(codes.shape)


@checked
def num_blocks(numel: int, size: int) -> int:
    """Blocks, and so scales, of a tensor of `numel` numbers."""
    return -(-numel // size)


@checked
def outlier_errors(x: Float[Tensor, "..."], block_sizes: Sequence[int], outlier: float) -> list[float]:
    """Relative error of the other numbers with one outlier, |x~ - x| / |x| of norms, for each size of blocks.

    In a copy of x the first number becomes the outlier, a multiple of the root mean square of x.
    """
    with_outlier = x.flatten().clone()
    with_outlier[0] = outlier * x.square().mean().sqrt()
    errors = []
    for size in block_sizes:
        how = blocks(True, size, x.device)
        off = dequantize(*quantize(with_outlier, how), how) - with_outlier
        errors.append(float(off[1:].norm() / with_outlier[1:].norm()))
    return errors
