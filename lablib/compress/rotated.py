"""Hadamard rotation before quantizing: an outlier is spread over its neighbours, and the scale of its block shrinks.

    y = x diag(signs) H            y is quantized            x ~ y H diag(signs)

One number of size a among n small ones sets the scale a / 7 of its block, and the small ones round to zero. After
rotation it is n numbers of size a / sqrt(n), with a smaller scale. H is orthogonal, so the error of x has the norm of
y's error, spread evenly. Without outliers rotation has no effect.

Cost: as the quantizer inside; a product with H in each direction (n additions per number; log2 n with a butterfly).
Rows are padded with zeros to a multiple of n, which are also sent.
Shapes: x (..., P); H is n x n, n a power of two; blocks of n neighbours are rotated separately.
Source: Tseng et al., "QuIP#", 2024, arXiv 2402.04396, section 3; Ashkboos et al., "QuaRot", 2024, arXiv 2404.00456; for
gradients: Suresh et al., "Distributed Mean Estimation with Limited Communication", 2017, arXiv 1611.00429, section 3.
Simplified: signs come from a common seed, the same in every step.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from lablib.compress.int4 import Int4
from lablib.compress.quantized import QuantizedMessage, Quantizer, in_blocks
from lablib.precision.hadamard import hadamard_matrix, hadamard_transform
from lablib.signature import Checked, NonNegativeInt, PowerOfTwo, whole_number


@dataclass(frozen=True, kw_only=True)
class Rotated(Checked):
    """A quantizer of rotated numbers."""

    quantizer: Quantizer = field(default_factory=Int4)  # of the rotated numbers
    size: Annotated[int, PowerOfTwo(le=4096)] = 64  # n, numbers that are mixed; a power of two
    seed: NonNegativeInt = 0  # of the signs, the same on all ranks

    def quantize(self, x: Tensor) -> QuantizedMessage:
        rows = in_blocks(x, 1)[..., 0]  # float32, or an error
        padded = F.pad(rows, (0, -x.shape[-1] % self.size))
        quantized = self.quantizer.quantize(hadamard_transform(padded, self.size, self._signs()))
        return replace(quantized, numel=x.shape[-1])

    def dequantize(self, quantized: QuantizedMessage) -> Tensor:
        numel = quantized.numel
        rotated = self.quantizer.dequantize(replace(quantized, numel=self._padded(numel)))
        back = (hadamard_matrix(self.size) * self._signs()).to(rotated.device)  # H diag(signs)
        return (rotated.unflatten(-1, (-1, self.size)) @ back).flatten(-2)[..., :numel]

    def message_bytes(self, numel: int) -> int:
        return self.quantizer.message_bytes(self._padded(whole_number("numel", numel, 0, example=1024)))

    def from_message(self, message: Tensor, numel: int) -> QuantizedMessage:
        return replace(self.quantizer.from_message(message, self._padded(numel)), numel=numel)

    def _padded(self, numel: int) -> int:
        return -(-numel // self.size) * self.size

    def _signs(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(0, 2, (self.size,), generator=generator) * 2.0 - 1
