"""Block scaling: few bits per number, and a scale per block that moves the block into the format's range.

An 8-bit format spans a factor of 2^18, a 4-bit format a factor of 12: less than the values of one tensor. So a block of
numbers is divided by its scale before rounding, and multiplied by it after the product:

    s = max |x| of the block / largest number of the format         code = round(x / s)         x ~ code * s

One outlier sets the scale of its block, and much smaller numbers are rounded to zero: a smaller block has fewer such
numbers, and more scales to keep. The recipes differ in block, format, and scale format:

    recipe               elements      block      scale                             bits per number
    tensor_e4m3          E4M3          all        FP32                              8
    deepseek_activation  E4M3          1 x 128    FP32                              8.25
    deepseek_weight      E4M3          128 x 128  FP32                              8.002
    mxfp8                E4M3          1 x 32     E8M0: a power of two              8.25
    mxfp4                E2M1          1 x 32     E8M0                              4.25
    nvfp4                E2M1          1 x 16     E4M3, and one FP32 for the tensor 4.5

Shapes: x_RC any matrix (..., C); blocks are b_r rows by b_c columns of its last two dimensions, along the dimension
that a product sums over. Codes have the shape of x, scales (..., R / b_r, C / b_c).
Cost: one pass over x for the scales, one to round; bytes: bits above / 8.
Source: Micikevicius et al., 2022, arXiv 2209.05433, section 4 (a scale for each tensor, current and delayed);
DeepSeek-V3, 2024, arXiv 2412.19437, section 3.3.2 (1 x 128 and 128 x 128); OCP Microscaling Formats 1.0, 2023, section
6.3 (MX: 2^(floor(log2 max) - e_max)); NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, arXiv 2509.25149,
section 2 and appendix B.
Simplified: codes are kept as numbers of the format in float32 (`size_bytes` is their packed size).
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from lablib.precision.formats import BF16, E2M1, E4M3, E5M2, E8M0, FP32, Format
from lablib.precision.rounding import round_to
from lablib.signature import Count, OneOf, checked


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of the quantization of a tensor."""

    name: str  # the field's
    format: Format  # of the elements
    block: tuple[int, int] | None = None  # rows and columns that share a scale; None: the whole tensor
    scale_format: Format | None = FP32  # of the scales; None: numbers are rounded without a scale, as in BF16
    # whether a further FP32 scale of the whole tensor brings the blocks' scales into their format
    has_tensor_scale: bool = False
    rounding: str = "nearest"  # "nearest", or "stochastic"

    @property
    def bits_per_number(self) -> float:
        """Bits of codes and block scales, without the scale of a whole tensor."""
        if self.block is None or self.scale_format is None:
            return float(self.format.num_bits)
        return self.format.num_bits + self.scale_format.num_bits / (self.block[0] * self.block[1])

    def stochastic(self) -> "Recipe":
        """The same recipe with stochastic rounding, for gradients, which must be unbiased."""
        return replace(self, rounding="stochastic")


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", BF16, scale_format=None),
        Recipe("tensor_e4m3", E4M3),
        Recipe("tensor_e5m2", E5M2),
        Recipe("deepseek_activation", E4M3, (1, 128)),
        Recipe("deepseek_weight", E4M3, (128, 128)),
        Recipe("mxfp8", E4M3, (1, 32), E8M0),
        Recipe("mxfp4", E2M1, (1, 32), E8M0),
        Recipe("nvfp4", E2M1, (1, 16), E4M3, has_tensor_scale=True),
    )
}


@checked
def find_recipe(name: Annotated[str, OneOf(RECIPES)]) -> Recipe:
    """The recipe of this name."""
    return RECIPES[name]


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A quantized tensor."""

    codes: Tensor  # numbers of the recipe's format, in float32, in the shape of the tensor
    scales: Tensor  # one for each block, in float32; for `nvfp4` without the tensor's scale
    tensor_scale: float  # of all blocks; 1 except for `nvfp4`
    recipe: Recipe  # the recipe of the quantization

    @property
    def size_bytes(self) -> float:
        """Bytes of codes and scales, packed."""
        recipe, scale_bits = self.recipe, self.recipe.scale_format.num_bits if self.recipe.scale_format else 0
        num_bits = self.codes.numel() * recipe.format.num_bits + self.scales.numel() * scale_bits
        return (num_bits + 32 * recipe.has_tensor_scale) / 8

    def dequantize(self) -> Tensor:
        """The numbers of the codes, in float32."""
        return self.codes * _spread(self.scales * self.tensor_scale, self.codes)


@checked
def quantize(
    x: Float[Tensor, "*batch R C"],
    recipe: Recipe,
    *,
    scale: float | None = None,
    generator: torch.Generator | None = None,
) -> Quantized:
    """`x` in codes and scales.

    Arguments:
        x: not changed.
        recipe: such as `find_recipe("mxfp8")`.
        scale: of the whole tensor, if known in advance (`DelayedScale`); None: from `x`.
        generator: source of stochastic rounding.

    Raises ValueError: the block does not divide the shape of `x`, or a scale is given to a recipe of blocks.
    """
    if scale is not None and recipe.block:
        raise ValueError(f"a scale known beforehand is for a whole tensor: {recipe.name} scales blocks; leave it out.")
    scale = 1.0 if recipe.scale_format is None else scale
    x = x.detach().float()
    max_abs = _block_max(x, recipe)
    tensor_scale = 1.0
    if recipe.has_tensor_scale and recipe.scale_format:
        tensor_scale = _or_one(max_abs.max() / (recipe.format.largest * recipe.scale_format.largest)).item()
    scales = _scales(max_abs / tensor_scale, recipe) if scale is None else torch.full_like(max_abs, scale)
    codes = round_to(
        x / _spread(scales * tensor_scale, x),
        recipe.format,
        rounding=recipe.rounding,
        saturates=True,
        generator=generator,
    )
    return Quantized(codes, scales, tensor_scale, recipe)


class DelayedScale:
    """The scale of a tensor from earlier steps: no pass over the tensor is needed before rounding.

    The largest |x| of the last `window` steps, over the largest number of the format, times 2^margin. A value that
    grows beyond the margin from one step to the next saturates.
    """

    @checked
    def __init__(self, format: Format, window: Count = 16, margin: int = 0):
        self._largest = format.largest
        self._history: deque[float] = deque(maxlen=window)
        self._margin = margin

    @property
    def scale(self) -> float:
        """For the next step; 1 before the first."""
        max_abs = max(self._history, default=0.0)
        return max_abs * 2.0**self._margin / self._largest if max_abs else 1.0

    def record(self, x: Tensor) -> None:
        """Record the largest |x| of this step, for later steps."""
        self._history.append(float(x.detach().abs().max()))


def _block_max(x: Tensor, recipe: Recipe) -> Tensor:
    """Largest |x| of each block: (..., R / b_r, C / b_c)."""
    rows, columns = x.shape[-2:]
    if recipe.block is None:
        return x.abs().amax().expand(*(1,) * x.ndim)
    b_r, b_c = recipe.block
    if rows % b_r or columns % b_c:
        raise ValueError(
            f"blocks of {b_r} x {b_c} must divide the matrix for {recipe.name}: got {rows} x {columns}; pad it to "
            f"{-(-rows // b_r) * b_r} x {-(-columns // b_c) * b_c}, or take another recipe."
        )
    return x.abs().unflatten(-1, (-1, b_c)).unflatten(-3, (-1, b_r)).amax((-3, -1))


def _scales(max_abs: Tensor, recipe: Recipe) -> Tensor:
    """Scales of the blocks with these largest values, in the recipe's scale format."""
    if recipe.scale_format is E8M0:
        # OCP's rule: the largest value gets the exponent of the format's largest number. A largest value
        # between that number and the next power of two saturates.
        exponents = torch.frexp(_or_one(max_abs)).exponent - 1 - recipe.format.max_exponent
        return torch.ldexp(torch.ones_like(max_abs), exponents.clamp(E8M0.min_exponent, E8M0.max_exponent))
    assert recipe.scale_format is not None  # or the scale was 1
    return _or_one(round_to(max_abs / recipe.format.largest, recipe.scale_format, saturates=True))


def _or_one(scales: Tensor) -> Tensor:
    """Replace scales of 0 by 1: a block of zeros would be 0 / 0."""
    return torch.where(scales > 0, scales, torch.ones_like(scales))


def _spread(scales: Tensor, x: Tensor) -> Tensor:
    """Each scale, repeated over the numbers of its block."""
    if scales.shape[-2:] == (1, 1):
        return scales.expand_as(x)
    rows, columns = x.shape[-2] // scales.shape[-2], x.shape[-1] // scales.shape[-1]
    return scales.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
