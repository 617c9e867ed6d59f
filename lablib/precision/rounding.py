"""Rounding to a number format: to the nearest of its numbers, or stochastically.

Near x the numbers of a format are evenly spaced: by the spacing (unit in the last place, ulp)

    u(x) = 2^(max(floor(log2 |x|), e_min) - M)            e_min the exponent of the smallest normal number

so rounding is: divide by the spacing, round to a whole number, multiply again. Division by a power of two is exact. Two
rules:

    nearest       the nearer neighbour, in a tie the even one: an error of at most u / 2
    stochastic    the upper one with probability (x - lower) / u, otherwise the lower: unbiased, so that many
                  small additions are not lost; an error below u

A value above the largest number plus half its spacing becomes an infinity (IEEE), a NaN where there is no infinity, or,
if it `saturates`, the largest number.

Naive: `round_by_table` looks up the nearest of all numbers. Real: `round_to`.

Cost: five operations per number, in float64. Shapes: any; inputs are not changed.
Source: IEEE 754-2019, section 4.3.1 (nearest, ties to even); Gupta et al., "Deep Learning with Limited Numerical
Precision", 2015, arXiv 1502.02551, section 3.1 (stochastic); the OCP 8-bit specification, 2023, section 5 (saturating
conversion).
Simplified: emulated. A float64 is rounded to 16 or 8 bits in one step; torch rounds it to float32 first.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from lablib.precision.formats import Format, all_values
from lablib.signature import OneOf, checked

ROUNDINGS = ("nearest", "stochastic")
Rounding = Annotated[str, OneOf(ROUNDINGS)]


@checked
def round_to(
    x: Float[Tensor, "..."],
    format: Format,
    *,
    rounding: Rounding = "nearest",
    saturates: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "..."]:
    """`x`, rounded to numbers of a format; in the dtype of `x`, which must hold them (float32 holds all but FP64).

    Arguments:
        rounding: "nearest" (ties to even) or "stochastic".
        saturates: whether too large values become the largest number instead of an infinity or a NaN.
        generator: source of stochastic rounding; None: torch's default one.
    """
    wide = x.to(torch.float64)
    wide = wide if format.is_signed else wide.abs()
    spacing = _spacing(wide, format)
    steps = wide / spacing
    if rounding == "stochastic":
        noise = torch.rand(x.shape, dtype=torch.float64, device=x.device, generator=generator)
        steps = (steps + noise).floor()
    elif format.mantissa_bits == 0:
        steps = (steps + 0.5).floor()  # without mantissa there is no even neighbour: ties go up
    else:
        steps = steps.round()  # torch rounds half to even
    return _bounded(steps * spacing, wide, format, saturates).to(x.dtype)


@checked
def round_by_table(x: Float[Tensor, "..."], format: Format) -> Float[Tensor, "..."]:
    """The nearest of all numbers of a format of at most 16 bits, saturating: the naive `round_to`. Not for NaN."""
    values = all_values(format).to(x.device)
    wide = x.to(torch.float64).clamp(float(values[0]), float(values[-1]))
    upper = torch.searchsorted(values, wide).clamp(1, len(values) - 1)
    below, above = values[upper - 1], values[upper]
    # The even neighbour has an even index in the list, counted from zero.
    even_is_above = (
        (upper - len(values) // 2) % 2 == 0 if format.is_signed else torch.ones_like(upper, dtype=torch.bool)
    )
    to_below, to_above = wide - below, above - wide
    is_above = (to_above < to_below) | ((to_above == to_below) & even_is_above)
    return torch.where(is_above, above, below).to(x.dtype)


def _spacing(wide: Tensor, format: Format) -> Tensor:
    """The distance of the format's numbers around each x: u(x) above."""
    exponents = torch.frexp(wide).exponent - 1  # |x| = 2^exponent * [1, 2); frexp's mantissa is in [1/2, 1)
    exponents = exponents.clamp(min=format.min_exponent)
    return torch.ldexp(torch.ones_like(wide), exponents - format.mantissa_bits)


def _bounded(y: Tensor, x: Tensor, format: Format, saturates: bool) -> Tensor:
    """`y` if it is within the format's range; infinities, NaN and too large values by the format's rules."""
    if not format.is_signed:
        y = y.clamp(min=format.smallest_normal)
    largest = format.largest
    if saturates or not format.has_nan:
        return torch.where(x.isnan(), x if format.has_nan else largest, y.clamp(-largest, largest))
    overflow = torch.inf * x.sign() if format.has_infinity else torch.full_like(x, torch.nan)
    return torch.where(y.abs() > largest, overflow, torch.where(x.isnan(), x, y))
