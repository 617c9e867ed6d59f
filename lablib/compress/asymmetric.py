"""Asymmetric INT8 and INT4: the codes range from the minimum to the maximum of a block.

    s = (max - min) / (2^b - 1)            code = round((x - min) / s), 0 to 2^b - 1            x ~ min + s code

Numbers that are all positive (a second moment, an activation after ReLU) use every code, while a symmetric quantizer
would waste half; a block of equal numbers is exact. In return a block keeps two numbers, and zero is in general not a
code: a zero may become up to s / 2.

Cost: b + 64 / B bits per number. One pass more than INT8 in each direction, for the minimum.
Shapes: x (..., P), codes (..., P) uint8 or two in a byte, scales and zeros (..., ceil(P / B)).
Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
2018, arXiv 1712.05877, section 2.1, equation 1 (scale and zero point).
Simplified: the zero point is kept as the number of code 0, not as the code of zero, as in lablib/optim/four_bits.py: no
integer product needs the code.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from lablib.compress.int4 import pack, unpack
from lablib.compress.int8 import scaled
from lablib.compress.quantized import TINY, Blocks, QuantizedMessage, in_blocks, out_of_blocks, require_finite, rounded
from lablib.signature import OneOf


@dataclass(frozen=True, kw_only=True)
class Asymmetric(Blocks):
    """Codes of 0 to 2^bits - 1; see `Blocks` for the other settings."""

    bits: Annotated[int, OneOf((4, 8))] = 8
    code_dtype, num_parameters = torch.uint8, 2

    def quantize(self, x: Tensor) -> QuantizedMessage:
        rows = in_blocks(x, self.block)
        low, scales = self._ranges(x, rows)
        codes = rounded((rows - low).div_(scales), self).to(torch.uint8)
        codes = out_of_blocks(codes, x.shape[-1])
        return QuantizedMessage(codes if self.bits == 8 else pack(codes), scales[..., 0], low[..., 0], x.shape[-1])

    def dequantize(self, quantized: QuantizedMessage) -> Tensor:
        assert quantized.zeros is not None
        numel = quantized.numel
        codes = quantized.codes.float() if self.bits == 8 else unpack(quantized.codes, numel)
        return scaled(codes, self.block, quantized.scales, quantized.zeros)

    def _ranges(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Minimum and scale of each block, (..., blocks, 1)."""
        if not rows.numel():
            return rows[..., :1], rows[..., :1]
        low = rows.amin(-1, keepdim=True)
        scales = (rows.amax(-1, keepdim=True) - low).div_(2**self.bits - 1)
        require_finite(x, low, scales)
        return low, scales.clamp_(min=TINY)
