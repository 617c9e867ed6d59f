"""FP8 in blocks: bytes as floating-point numbers, with the same relative precision for small and large numbers.

    s = max |x| / largest of the format            code = x / s as E4M3 or E5M2            x ~ s code

INT8's steps are equal, so the error of a number of any size is up to s / 2. The error of a floating-point code is
relative: half of 2^-3 with E4M3 (largest 448), half of 2^-2 with E5M2 (57,344), down to subnormals. So small numbers of
a block survive next to a large one, and its largest are less precise than in INT8.

Cost: 8 + 32 / B bits per number, as INT8.
Shapes: x (..., P), codes (..., P) float8, scales (..., ceil(P / B)).
Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv 2209.05433; formats as in
lablib/precision/formats.py.
Simplified: stochastic rounding is lablib/precision/rounding.py's, in float64. Bytes are read with a table of all 256
values, which on a CPU is faster than torch's conversion.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from lablib.compress.int8 import scaled, symmetric_scales
from lablib.compress.quantized import Blocks, QuantizedMessage, in_blocks, out_of_blocks
from lablib.precision import E4M3, E5M2, Format, round_to
from lablib.signature import OneOf


@dataclass(frozen=True, kw_only=True)
class Fp8(Blocks):
    """Bytes of a floating-point format; see `Blocks` for the other settings."""

    format: Annotated[Format, OneOf((E4M3, E5M2))] = E4M3  # E4M3 or E5M2

    @property
    def code_dtype(self) -> torch.dtype:
        assert self.format.dtype is not None
        return self.format.dtype

    def quantize(self, x: Tensor) -> QuantizedMessage:
        rows = in_blocks(x, self.block)
        scales = symmetric_scales(x, rows, self.format.largest)
        shares = rows / scales
        if self.rounding == "stochastic":
            shares = round_to(shares, self.format, rounding="stochastic", saturates=True, generator=self.generator)
        # By rounding, a quotient may exceed the largest number, which E4M3 would make a NaN.
        codes = shares.clamp_(-self.format.largest, self.format.largest).to(self.code_dtype)
        return QuantizedMessage(out_of_blocks(codes, x.shape[-1]), scales[..., 0], None, x.shape[-1])

    def dequantize(self, quantized: QuantizedMessage) -> Tensor:
        codes = quantized.codes
        values = torch.arange(256, dtype=torch.uint8, device=codes.device).view(self.code_dtype).float()
        numbers = values.index_select(0, codes.contiguous().view(torch.uint8).flatten().int())
        return scaled(numbers.view(codes.shape), self.block, quantized.scales)
