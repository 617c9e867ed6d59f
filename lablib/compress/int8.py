"""INT8 in blocks, symmetric: one byte per number, and for each block a scale from its largest number.

    s = max |x| / 127            code = round(x / s), -127 to 127            x ~ s code

Zero is code 0, so a zero stays zero. -128 is left out, so that the range is the same on both sides; stochastic rounding
may produce it.

Cost: 8 + 32 / B bits per number, a quarter of float32 (B = 256: 8.125). About 3 passes over memory to quantize (maximum
and minimum, division, codes), 2 to dequantize.
Shapes: x (..., P), codes (..., P) int8, scales (..., ceil(P / B)).
Source: Dettmers, 2015, arXiv 1511.04561; Wang et al., "ZeRO++", 2023, arXiv 2306.10209, section 3.1 (qwZ: one scale for
a whole tensor is less precise than blocks).
Simplified: separate passes of torch; a fused kernel reads once and writes once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lablib.compress.quantized import (
    MAX,
    TINY,
    Blocks,
    QuantizedMessage,
    in_blocks,
    out_of_blocks,
    require_finite,
    rounded,
)


@dataclass(frozen=True, kw_only=True)
class Int8(Blocks):
    """Bytes of -127 to 127; see `Blocks` for the settings."""

    def quantize(self, x: Tensor) -> QuantizedMessage:
        rows = in_blocks(x, self.block)
        scales = symmetric_scales(x, rows, 127)
        codes = rounded(rows / scales, self).to(torch.int8)
        return QuantizedMessage(out_of_blocks(codes, x.shape[-1]), scales[..., 0], None, x.shape[-1])

    def dequantize(self, quantized: QuantizedMessage) -> Tensor:
        return scaled(quantized.codes.float(), self.block, quantized.scales)


def symmetric_scales(x: Tensor, rows: Tensor, largest: float) -> Tensor:
    """max |x| / `largest` of each block (..., blocks, B), as (..., blocks, 1); no smaller than the smallest normal."""
    if not rows.numel():
        return rows[..., :1]
    max_abs = torch.maximum(rows.amax(-1, keepdim=True), rows.amin(-1, keepdim=True).neg_())  # no copy of |x|
    require_finite(x, max_abs)
    # Also small enough that the largest number does not become an infinity.
    return max_abs.div_(largest).clamp_(TINY, (1 - 2.0**-22) * MAX / largest)


def scaled(codes: Tensor, block: int, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
    """Codes (..., P) in float32 times their block's scale (..., blocks), plus the number of code 0; in place."""
    whole = codes.shape[-1] // block
    parts = [(codes[..., : whole * block].unflatten(-1, (whole, block)), slice(whole))] if whole else []
    if whole * block < codes.shape[-1]:
        parts.append((codes[..., None, whole * block :], slice(whole, None)))
    for part, blocks in parts:
        part.mul_(scales[..., blocks, None])
        if zeros is not None:
            part.add_(zeros[..., blocks, None])
    return codes
