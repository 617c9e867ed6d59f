"""Training with 4-bit integers: a Hadamard transform in forward, bit splitting and sampling for gradients.

Sixteen evenly spaced numbers have almost no range: with one outlier, the rest rounds to zero. Two remedies:

    forward     X W^T = (X H)(W H)^T. The transform spreads outliers over their neighbours; then round to
                step * {-7 .. 7}. The steps are learned like weights (LSQ): the gradient of the loss widens or refines
                them.
    backward    Gradients of tokens differ by orders of magnitude, and most are near zero. They are rounded,
                stochastically, to 8 bits, and an 8-bit number is two of 4 bits: v = 16 high + low. So a product with dY
                is two products of 4 bits, over 2 T rows. About T of these are kept, mainly the largest, each divided by
                its probability: unbiased.

                dW = sum over rows i of  m_i / p_i  dY_i^T X_i          m_i is 1 with probability p_i, or 0
                p_i = min(1, k |dY_i| |X_i|)                            k so that the sum is T: least variance

Cost: forward one 4-bit product; backward two over about T rows each, as many FLOPs as in full precision. Memory: X and
W in 4 bits.
Shapes: T tokens, K inputs, N outputs; s_high, s_low scales of both halves.
Source: Xi, Li, Chen, Zhu, "Training Transformers with 4-bit Integers", 2023, arXiv 2306.11987, sections 3 and 4;
learned steps: Esser et al., "Learned Step Size Quantization", 2019, arXiv 1902.08153, section 2.1.
Simplified: emulated in float32; one step for a tensor; both gradients' products use the same sample, drawn by |dY_i|
|X_i|.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lablib.precision.hadamard import hadamard_transform
from lablib.signature import Count, checked

LARGEST_INT4 = 7  # of -7 .. 7: symmetric, so that zero is exact
LARGEST_SPLIT = 119  # 16 * 7 + 7: the largest v = 16 high + low of two 4-bit integers in -8 .. 7


class RoundToStep(torch.autograd.Function):
    """`step * round(x / step)`, within -7 .. 7 steps, with a gradient for the step: LSQ, equations 1 and 3.

    With v = x / step: dy/dx is 1 within the range and 0 outside; dy/dstep is round(v) - v within and +-7 outside,
    scaled by 1 / sqrt(7 numel).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> Tensor:
        ctx.save_for_backward(x, step)
        return (x / step).round().clamp(-LARGEST_INT4, LARGEST_INT4) * step

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (dy,) = gradients
        x, step = ctx.saved_tensors
        v = x / step
        is_within = v.abs() <= LARGEST_INT4
        by_step = torch.where(is_within, v.round() - v, LARGEST_INT4 * v.sign())
        d_step = (dy * by_step).sum() / (LARGEST_INT4 * x.numel()) ** 0.5
        return dy * is_within, d_step.reshape(step.shape)


@checked
def split_bits(
    dy_TN: Float[Tensor, "T N"], generator: torch.Generator | None = None
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"], float]:
    """`dy` as (16 high + low) * scale, stochastically rounded: high and low are whole numbers of -8 .. 7.

    The expectation of (16 high + low) scale is `dy`.

    Returns:
        high, low, scale.
    """
    scale = float(dy_TN.abs().max()) / LARGEST_SPLIT or 1.0
    noise = torch.rand(dy_TN.shape, generator=generator, device=dy_TN.device)
    v = (dy_TN / scale + noise.to(dy_TN.dtype)).floor().clamp(-LARGEST_SPLIT, LARGEST_SPLIT)
    low = (v + 8) % 16 - 8
    return (v - low) / 16, low, scale


@checked
def sampling_probabilities(scores: Float[Tensor, " R"], num_kept: Count) -> Float[Tensor, " R"]:
    """p_i = min(1, k score_i) with k such that the sum is `num_kept`: the sample of least variance.

    All are 1 if at most `num_kept` rows have a score.
    """
    if int((scores > 0).sum()) <= num_kept:
        return (scores > 0).to(scores.dtype)
    # Largest first: if the j largest have probability 1, the rest shares num_kept - j in proportion. The first j
    # without a share above 1 is right.
    ordered = scores.double().sort(descending=True).values
    left = num_kept - torch.arange(len(ordered), device=scores.device)
    tails = ordered.flip(0).cumsum(0).flip(0)
    factors = left / tails.clamp(min=torch.finfo(torch.float64).tiny)
    first = int(((factors * ordered <= 1) & (left > 0)).int().argmax())
    return (scores.double() * factors[first]).clamp(max=1.0).to(scores.dtype)


class Int4Linear(nn.Module):
    """`nn.Linear` with products on 4-bit integers. Takes over weight and bias, and learns two steps.

    `block`: size of the Hadamard transform, a power of two that divides the inputs; `generator`: of stochastic rounding
    and sampling.
    """

    def __init__(self, linear: nn.Linear, block: int = 32, generator: torch.Generator | None = None):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.block, self.generator = block, generator
        with torch.no_grad():
            self.weight_step = nn.Parameter(_first_step(hadamard_transform(self.weight, block)))
        self.input_step = nn.Parameter(torch.ones_like(self.weight_step))
        self._has_input_step = False

    def forward(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... N"]:
        x_TK = hadamard_transform(x.flatten(0, -2), self.block)
        if not self._has_input_step:  # from the first batch, as in LSQ
            self._has_input_step = True
            self.input_step.data.copy_(_first_step(x_TK.detach()))
        x_TK = RoundToStep.apply(x_TK, self.input_step)
        w_NK = RoundToStep.apply(hadamard_transform(self.weight, self.block), self.weight_step)
        y_TN = _SampledProduct.apply(x_TK, w_NK, self.generator)
        return y_TN.unflatten(0, x.shape[:-1]) + (0 if self.bias is None else self.bias)


class _SampledProduct(torch.autograd.Function):
    """y = x w^T; backward multiplies sampled rows of the gradient, split into two 4-bit halves."""

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, w_NK: Tensor, generator: torch.Generator | None) -> Tensor:
        ctx.save_for_backward(x_TK, w_NK)
        ctx.generator = generator
        return x_TK @ w_NK.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (dy_TN,) = gradients
        x_TK, w_NK = ctx.saved_tensors
        high, low, scale = split_bits(dy_TN, ctx.generator)
        rows_2TN = torch.cat([high * (16 * scale), low * scale])
        scores = rows_2TN.norm(dim=1) * torch.cat([x_TK, x_TK]).norm(dim=1)
        chances = sampling_probabilities(scores, len(dy_TN))
        is_kept = torch.rand(chances.shape, generator=ctx.generator, device=chances.device) < chances
        rows_2TN = rows_2TN * torch.where(is_kept, 1 / chances.clamp(min=1e-30), torch.zeros_like(chances))[:, None]
        dy_TN = rows_2TN[: len(dy_TN)] + rows_2TN[len(dy_TN) :]  # both halves of a token's gradient multiply the same x
        return dy_TN @ w_NK, dy_TN.T @ x_TK, None


def _first_step(x: Tensor) -> Tensor:
    """LSQ's: 2 mean |x| / sqrt(7)."""
    return (2 * x.abs().mean() / LARGEST_INT4**0.5).reshape(1)
