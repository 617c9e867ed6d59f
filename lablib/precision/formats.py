"""Number formats as data: the numbers with a sign bit, E bits of exponent and M bits of mantissa.

A finite number of a format is, with the exponent field e and the mantissa field m (0 <= m < 2^M),

    normal       e >= 1     (-1)^s  2^(e - bias)  (1 + m / 2^M)       M + 1 significant bits, the first not stored
    subnormal    e = 0      (-1)^s  2^(1 - bias)  (m / 2^M)           evenly spaced down to zero

    largest = 2^(e_max - bias) (2 - 2^-M)          smallest normal = 2^(1 - bias)
    epsilon = 2^-M, from 1 to the next             smallest subnormal = 2^(1 - bias - M)

The meaning of the highest exponent differs. IEEE 754 reserves all of it for infinities and NaN. E4M3 keeps one mantissa
for NaN and has no infinity; E2M1 has neither. E8M0 is a scale: only an exponent, no sign, no zero.

Source: IEEE 754-2019; bfloat16: Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019, arXiv
1905.12322; TF32: NVIDIA, "A100 Tensor Core GPU Architecture", 2020; E4M3, E5M2: Micikevicius et al., "FP8 Formats for
Deep Learning", 2022, arXiv 2209.05433, table 1; E2M1, E8M0: Rouhani et al., "Microscaling Data Formats", 2023, arXiv
2310.10537, and the OCP Microscaling Formats specification 1.0, section 5.
Simplified: NaN is one value.
"""

from dataclasses import dataclass

import torch

from lablib.signature import checked


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format."""

    name: str  # the common name in lower case: "bf16"
    exponent_bits: int  # exponent_bits, mantissa_bits: E and M
    mantissa_bits: int
    bias: int  # subtracted from the stored exponent
    # whether too large values become an infinity; if not, a NaN, or the largest number without a NaN
    has_infinity: bool = True
    has_nan: bool = True  # whether there is a NaN
    is_signed: bool = True  # whether there is a sign bit; E8M0 has none
    # its dtype in torch; None if torch has none (TF32) or packs two numbers into a byte (E2M1)
    dtype: torch.dtype | None = None

    @property
    def num_bits(self) -> int:
        return self.is_signed + self.exponent_bits + self.mantissa_bits

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number, 2^-M."""
        return 2.0**-self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """1 - bias, of the smallest normal number. E8M0 has no subnormals: its field 0 is one more exponent."""
        return (1 if self.has_subnormals else 0) - self.bias

    @property
    def max_exponent(self) -> int:
        """Of the largest number."""
        last = 2**self.exponent_bits - 1
        is_reserved = self.has_infinity or (self.has_nan and self.mantissa_bits == 0)
        return last - is_reserved - self.bias

    @property
    def has_subnormals(self) -> bool:
        return self.mantissa_bits > 0

    @property
    def has_zero(self) -> bool:
        return self.has_subnormals

    @property
    def largest(self) -> float:
        # In E4M3 only one mantissa of the highest exponent is NaN.
        steps = 2 if self.has_nan and not self.has_infinity and self.mantissa_bits else 1
        return 2.0**self.max_exponent * (2 - steps * self.epsilon)

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number; without subnormals the smallest normal number."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def underflow_exponent(self) -> int:
        """Numbers below 2 to this power round to zero: half the smallest subnormal. (E8M0 has no zero.)"""
        return self.min_exponent - self.mantissa_bits - 1

    def __str__(self) -> str:
        return self.name


FP64 = Format("fp64", 11, 52, 1023, dtype=torch.float64)
FP32 = Format("fp32", 8, 23, 127, dtype=torch.float32)
TF32 = Format("tf32", 8, 10, 127)
BF16 = Format("bf16", 8, 7, 127, dtype=torch.bfloat16)
FP16 = Format("fp16", 5, 10, 15, dtype=torch.float16)
E5M2 = Format("e5m2", 5, 2, 15, dtype=torch.float8_e5m2)
E4M3 = Format("e4m3", 4, 3, 7, has_infinity=False, dtype=torch.float8_e4m3fn)
E2M1 = Format("e2m1", 2, 1, 1, has_infinity=False, has_nan=False)
E8M0 = Format("e8m0", 8, 0, 127, has_infinity=False, is_signed=False, dtype=torch.float8_e8m0fnu)

FORMATS = {format.name: format for format in (FP64, FP32, TF32, BF16, FP16, E5M2, E4M3, E2M1, E8M0)}


@checked
def all_values(format: Format) -> torch.Tensor:
    """Every finite number of a format, in order, in float64: zero once. ValueError: a format of more than 16 bits."""
    if format.num_bits > 16:
        raise ValueError(
            f"only formats of at most 16 bits can be listed: {format} has {format.num_bits}; try bf16 or e4m3"
        )
    mantissas = 1 + torch.arange(2**format.mantissa_bits, dtype=torch.float64) * format.epsilon
    exponents = torch.arange(format.min_exponent, format.max_exponent + 1, dtype=torch.float64)
    positive = (2.0 ** exponents[:, None] * mantissas).flatten()
    positive = positive[positive <= format.largest]
    if format.has_subnormals:
        positive = torch.cat([(mantissas - 1)[1:] * format.smallest_normal, positive])
    parts = [-positive.flip(0)] if format.is_signed else []
    return torch.cat([*parts, torch.zeros(int(format.has_zero), dtype=torch.float64), positive])
