"""A linear layer with its three products in few bits: forward, gradient of the input, gradient of the weight.

A product sums over one dimension, and its two operands are quantized along that dimension, so that each block has one
scale in the sum:

    forward            y_TN  = x_TK  w_NK^T        sums over K
    gradient of x      dx_TK = dy_TN w_NK          sums over N
    gradient of w      dw_NK = dy_TN^T x_TK        sums over T

Activations and weights need precision (E4M3); gradients need range (E5M2), or finer blocks. Rounding gradients to
nearest is biased over many steps; stochastic rounding is not. In 4 bits the product over T, which multiplies outliers
of activations and gradients, is computed after a Hadamard transform.

Cost: products at the format's peak; x, w and dy are each quantized twice, along two dimensions. Weights stay in FP32
(master weights).
Shapes: T tokens, K inputs, N outputs; names as above.
Source: Micikevicius et al., 2022, arXiv 2209.05433 (hybrid: E4M3 forward, E5M2 for gradients); DeepSeek-V3, 2024, arXiv
2412.19437, section 3.3; Mishra et al., "Recipes for Pre-training LLMs with MXFP8", 2025, arXiv 2506.08027; NVIDIA,
2025, arXiv 2509.25149, section 4.
Simplified: emulated by float32 products of the rounded numbers, which equal matrix units up to the order of sums
(`uses_scaled_mm` uses torch's FP8 product in forward); biases and their gradients stay in float32; the embedding and
the head are left in full precision, as all of these recipes do.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lablib.models.drawing import generator_beside
from lablib.precision.block_scaling import RECIPES, DelayedScale, Quantized, Recipe, quantize
from lablib.precision.hadamard import hadamard_transform
from lablib.signature import OneOf, checked
from lablib.torch_compat import scaled_mm


@dataclass(frozen=True, slots=True)
class LinearRecipe:
    """Quantization of the operands of a linear layer's products."""

    name: str  # the name in the literature
    activation: Recipe  # activation, weight, gradient: the recipes of x, w and dy
    weight: Recipe
    gradient: Recipe
    hadamard: int = 0  # neighbours that are mixed before the weight's gradient; 0: no transform
    is_delayed: bool = False  # whether scales come from earlier steps


def _all(name: str, recipe: Recipe) -> LinearRecipe:
    return LinearRecipe(name, recipe, recipe, recipe)


_HYBRID = LinearRecipe("fp8_current", RECIPES["tensor_e4m3"], RECIPES["tensor_e4m3"], RECIPES["tensor_e5m2"])
LINEAR_RECIPES = {
    recipe.name: recipe
    for recipe in (
        _all("bf16", RECIPES["bf16"]),
        _HYBRID,
        replace(_HYBRID, name="fp8_delayed", is_delayed=True),
        LinearRecipe(
            "fp8_deepseek", RECIPES["deepseek_activation"], RECIPES["deepseek_weight"], RECIPES["deepseek_activation"]
        ),
        _all("mxfp8", RECIPES["mxfp8"]),
        _all("mxfp4", RECIPES["mxfp4"]),
        LinearRecipe("nvfp4", RECIPES["nvfp4"], RECIPES["nvfp4"], RECIPES["nvfp4"].stochastic(), hadamard=16),
    )
}


@checked
def find_linear_recipe(name: Annotated[str, OneOf(LINEAR_RECIPES)]) -> LinearRecipe:
    """The recipe of this name."""
    return LINEAR_RECIPES[name]


class QuantizedLinear(nn.Module):
    """`nn.Linear` with products in a recipe: y = x w^T + b.

    Arguments:
        linear: the layer with the weight and bias; the parameters are shared, not copied.
        generator: source of stochastic rounding; None: torch's default generator.
        uses_scaled_mm: use torch's product of real 8-bit numbers in forward, without emulation. ValueError: a recipe
            without one scale per tensor.
    """

    def __init__(
        self,
        linear: nn.Linear,
        recipe: LinearRecipe,
        generator: torch.Generator | None = None,
        *,
        uses_scaled_mm: bool = False,
    ):
        super().__init__()
        if uses_scaled_mm and not (recipe.activation == recipe.weight == RECIPES["tensor_e4m3"]):
            raise ValueError(
                f"torch's product of 8-bit numbers takes E4M3 and one scale for each tensor here: got {recipe.name}; "
                "try fp8_current or fp8_delayed."
            )
        self.uses_scaled_mm = uses_scaled_mm
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.recipe = recipe
        self._generator = generator
        self._delayed: dict[str, DelayedScale] = {}
        if recipe.is_delayed:
            operands = ("activation", "weight", "gradient")
            self._delayed = {name: DelayedScale(getattr(recipe, name).format) for name in operands}

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        y_TN = _Products.apply(x.flatten(0, -2), self.weight, self)
        return y_TN.unflatten(0, x.shape[:-1]) + (0 if self.bias is None else self.bias)

    def quantized(self, operand: str, matrix: Tensor) -> Quantized:
        """An operand ("activation", "weight", "gradient"), quantized along its last dimension."""
        recipe: Recipe = getattr(self.recipe, operand)
        delayed = self._delayed.get(operand)
        scale = delayed.scale if delayed else None
        return quantize(matrix, recipe, scale=scale, generator=self._generator)

    def rounded(self, operand: str, matrix: Tensor) -> Tensor:
        """An operand, quantized and dequantized."""
        return self.quantized(operand, matrix).dequantize()

    def record(self, operand: str, matrix: Tensor) -> None:
        """Record an operand for the scales of later steps, if they are delayed."""
        if operand in self._delayed:
            self._delayed[operand].record(matrix)

    def mixed(self, matrix_T: Tensor) -> Tensor:
        """An operand of the weight's gradient, transformed along the tokens if the recipe says so."""
        return hadamard_transform(matrix_T, self.recipe.hadamard) if self.recipe.hadamard else matrix_T

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, recipe={self.recipe.name}"


class _Products(torch.autograd.Function):
    """The three products; every operand is rounded along the dimension that its product sums over."""

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, w_NK: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.save_for_backward(x_TK, w_NK)
        ctx.layer = layer
        x, w = layer.quantized("activation", x_TK), layer.quantized("weight", w_NK)
        y_TN = scaled_product(x, w) if layer.uses_scaled_mm else x.dequantize() @ w.dequantize().T
        return y_TN.to(x_TK.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (dy_TN,) = gradients
        x_TK, w_NK = ctx.saved_tensors
        layer: QuantizedLinear = ctx.layer
        dx_TK = layer.rounded("gradient", dy_TN) @ layer.rounded("weight", w_NK.T).T
        # x^T and dy^T: their last dimension is T. (Both transformed by H, the product is the same: H H^T = 1.)
        dy_NT, x_KT = layer.mixed(dy_TN.T), layer.mixed(x_TK.T)
        dw_NK = layer.rounded("gradient", dy_NT) @ layer.rounded("activation", x_KT).T
        for operand, matrix in (("activation", x_TK), ("weight", w_NK), ("gradient", dy_TN)):
            layer.record(operand, matrix)
        return dx_TK.to(x_TK.dtype), dw_NK.to(w_NK.dtype), None


def scaled_product(x: Quantized, w: Quantized) -> Tensor:
    """x w^T by torch's product of 8-bit numbers: codes are multiplied, the sum times both scales. T, K, N by 16."""
    x_TK, w_NK = (one.codes.to(one.recipe.format.dtype) for one in (x, w))
    scale_x, scale_w = (one.scales.reshape(()) for one in (x, w))
    return scaled_mm(x_TK, w_NK.T, scale_a=scale_x, scale_b=scale_w, out_dtype=torch.float32)


@checked
def quantize_linears(
    module: nn.Module, recipe: LinearRecipe, *, keep: tuple[str, ...] = ("head",), seed: int = 0
) -> nn.Module:
    """Replace every `nn.Linear` of a module by a `QuantizedLinear` on its parameters, in place. ValueError: none there.

    Arguments:
        keep: parts of names of layers that are not replaced; recipes keep the head, where errors matter most.
        seed: of stochastic rounding.
    """
    generator = generator_beside(module, seed)
    found = [
        name
        for name, child in module.named_modules()
        if isinstance(child, nn.Linear) and not any(part in name for part in keep)
    ]
    if not found:
        raise ValueError(f"no nn.Linear is left to quantize: keep={keep} excludes all of them.")
    for name in found:
        linear = module.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        module.set_submodule(name, QuantizedLinear(linear, recipe, generator))
    return module
