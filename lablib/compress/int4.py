"""INT4 in blocks, symmetric: half a byte per number, two codes in each byte.

    s = max |x| / 7            code = round(x / s), -7 to 7            x ~ s code

Half a byte is an integer of four bits in two's complement. Byte i of a row has code i in its lower half and code i +
ceil(P / 2) in its upper half: halves of a row instead of neighbours, so that packing and unpacking access memory in
order.

    codes   a b c d e        bytes   [d|a] [e|b] [0|c]

Cost: 4 + 32 / B bits per number, an eighth of float32 (B = 256: 4.125). One pass more than INT8 in each direction, to
pack.
Shapes: x (..., P), codes (..., ceil(P / 2)) int8, scales (..., ceil(P / B)).
Source: Wang et al., "ZeRO++", 2023, arXiv 2306.10209, section 3.3 (gradients in blocks of INT4).
Simplified: as INT8. lablib/optim/four_bits.py has 16 steps from the minimum to the maximum, and neighbours in one byte.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lablib.compress.int8 import scaled, symmetric_scales
from lablib.compress.quantized import Blocks, QuantizedMessage, in_blocks, out_of_blocks, rounded


@dataclass(frozen=True, kw_only=True)
class Int4(Blocks):
    """Halves of bytes of -7 to 7; see `Blocks` for the settings."""

    bits = 4

    def quantize(self, x: Tensor) -> QuantizedMessage:
        rows = in_blocks(x, self.block)
        scales = symmetric_scales(x, rows, 7)
        codes = rounded(rows / scales, self).to(torch.int8)
        return QuantizedMessage(pack(out_of_blocks(codes, x.shape[-1])), scales[..., 0], None, x.shape[-1])

    def dequantize(self, quantized: QuantizedMessage) -> Tensor:
        return scaled(unpack(quantized.codes, quantized.numel), self.block, quantized.scales)


def pack(codes: Tensor) -> Tensor:
    """Codes (..., P) of four bits, int8 of -8 to 7 or uint8 of 0 to 15, two in a byte: (..., ceil(P / 2))."""
    half = (codes.shape[-1] + 1) // 2
    packed = codes[..., :half] & 15
    packed[..., : codes.shape[-1] - half].bitwise_or_(codes[..., half:] << 4)
    return packed


def unpack(packed: Tensor, numel: int) -> Tensor:
    """The codes of `pack` as float32 (..., P); of int8, shifted to the right, the sign stays."""
    half = packed.shape[-1]
    codes = torch.empty(*packed.shape[:-1], numel, device=packed.device)
    codes[..., :half] = packed << 4 >> 4
    codes[..., half:] = packed[..., : numel - half] >> 4
    return codes
