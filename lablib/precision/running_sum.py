"""A running sum in few bits stalls when an addend is less than half the distance to the next number.

A format with M bits of mantissa has numbers 2^(e - M) apart around 2^e. Adding less than half of that and rounding to
nearest has no effect, however often it is repeated:

    s = round(s + d) = s        where |d| < 2^(e - M - 1)        BF16, d = 1: from s = 256 = 2^8 on

Weights are such sums, of an initial value and many small updates. Two remedies:

    stochastic rounding    up with probability d / distance: unbiased, and the noise of single steps averages out
    FP32 master weights    16 more bits of mantissa: the sum is in FP32, and the model uses a copy in BF16

Cost: of stochastic rounding a random number for each addition; of master weights 4 bytes per parameter.
Shapes: N additions.
Source: Gupta et al., 2015, arXiv 1502.02551, section 3.1; Micikevicius et al., 2017, arXiv 1710.03740, section 3.1;
Zamirai et al., "Revisiting BFloat16 Training", 2020, arXiv 2010.06192, sections 3 and 4.
Simplified: emulated, each sum computed in FP64 and then rounded, once.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from lablib.precision.formats import Format
from lablib.precision.rounding import Rounding, round_to
from lablib.signature import Range, checked


@checked
def running_sum(
    start: float,
    increments_N: Float[Tensor, " N"],
    format: Format,
    *,
    rounding: Rounding = "nearest",
    generator: torch.Generator | None = None,
) -> Float[Tensor, " N"]:
    """`start`, and one increment after the other added to it, rounded to a format after each: all N sums, in float64.

    `rounding`, `generator`: as of `round_to`.
    """
    total = torch.tensor(start, dtype=torch.float64, device=increments_N.device)
    sums = []
    for increment in increments_N.double():
        total = round_to(total + increment, format, rounding=rounding, generator=generator)
        sums.append(total)
    return torch.stack(sums) if sums else increments_N.double()


@checked
def stalls_at(increment: Annotated[float, Range(gt=0, example=1.0)], format: Format) -> float:
    """The power of two at which a sum that grows by `increment` > 0 stops growing.

    There its distance to the next number is twice the increment, or more: 2^(e - M) >= 2 d. (At just twice, d is half
    the distance, and the tie goes to the even neighbour: back.)
    """
    stall = format.smallest_normal
    while stall * format.epsilon < 2 * increment:
        stall *= 2
    return stall
