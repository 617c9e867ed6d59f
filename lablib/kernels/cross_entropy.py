"""Softmax cross-entropy with its gradient computed in forward, tile by tile over a large vocabulary.

    loss_t = log sum_v exp(x_tv) - x_t,target           lse = m + log s, by online softmax (`softmax.py`)
    d loss / d x_tv = (exp(x_tv - lse_t) - [v = target]) / number of counted tokens

The softmax is never stored: once lse is known, a second pass over the token's scores writes the gradient. Backward
multiplies it by the gradient of the loss. A token with the target `ignore_index` has no loss and gradient 0; its scores
are not read, and the mean is over the other tokens.

Cost for T tokens, K of them counted, V scores of b bytes, a bytes of the loss (4; 8 for float64), targets of 8 bytes:
    HBM bytes  with gradient K (2 V + 1) b + T V b + 8 T + T a + a       (K = T: 3 T V b and small terms)
               only the loss K (V + 1) b + 8 T + T a + a
               as operators (log-softmax, pick, and their gradients) 6 T V b
    FLOPs      8 K V, 4 K V for only the loss
Kept for backward: the gradient, T V numbers, and no scores.
Shapes: T tokens, V vocabulary.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867, algorithm 3; the
gradient in the forward pass: Hsu et al., "Liger Kernel", 2024, arXiv 2410.10989, section 3.2.
Simplified: the gradient has separate memory (Liger overwrites the scores); only the mean; no smoothing.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from lablib.kernels.jit import TileSize, accumulator, jit, next_power_of_2, tl
from lablib.kernels.launch_checks import check_contiguous, check_inputs
from lablib.signature import checked

IGNORE_INDEX = -100  # torch's


@jit
def cross_entropy_kernel(
    x_ptr, target_ptr, scale_ptr, loss_ptr, dx_ptr, V,
    IGNORE: tl.constexpr, WITH_GRADIENT: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + t)
    if target == IGNORE:
        tl.store(loss_ptr + t, 0.0)
        if WITH_GRADIENT:
            for start in range(0, V, BLOCK):
                v = start + tl.arange(0, BLOCK)
                tl.store(dx_ptr + t * V + v, tl.zeros([BLOCK], ACC), mask=v < V)
    else:
        m = tl.full([], -float("inf"), ACC)
        s = tl.zeros([], ACC)
        for start in range(0, V, BLOCK):
            v = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + t * V + v, mask=v < V, other=-float("inf")).to(ACC)
            m_new = tl.maximum(m, tl.max(x, axis=0))
            shift = tl.where(m_new == -float("inf"), 0.0, m_new)
            s = s * tl.exp(m - shift) + tl.sum(tl.exp(x - shift), axis=0)
            m = m_new
        lse = m + tl.log(s)
        # A target outside the vocabulary reads nothing, and makes the loss NaN.
        is_word = (target >= 0) & (target < V)
        x_target = tl.load(x_ptr + t * V + target, mask=is_word, other=float("nan")).to(ACC)
        tl.store(loss_ptr + t, lse - x_target)
        if WITH_GRADIENT:
            scale = tl.load(scale_ptr)
            for start in range(0, V, BLOCK):
                v = start + tl.arange(0, BLOCK)
                x = tl.load(x_ptr + t * V + v, mask=v < V, other=-float("inf")).to(ACC)
                dx = tl.exp(x - lse) - tl.where(v == target, 1.0, 0.0)
                tl.store(dx_ptr + t * V + v, dx * scale, mask=v < V)


@checked
def cross_entropy(
    x: Float[Tensor, "T V"], target_T: Int[Tensor, " T"], ignore_index: int = IGNORE_INDEX, block: TileSize = 4096
) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats, in float32 (float64 for float64), by the kernel; with the gradient of the scores.

    NaN if no token counts, as in torch. On a GPU a target outside the vocabulary makes the loss NaN, as a check would
    make the host wait.

    Arguments:
        x: scores, contiguous.
        target_T: int64; ids of words, or `ignore_index`.
        block: scores of a tile.

    Raises ValueError: (on the CPU) a target outside the vocabulary.
    """
    check_inputs("cross_entropy", x=x)
    check_contiguous("cross_entropy", target=target_T)
    _check_targets(x, target_T, ignore_index)
    # Checked here: under no_grad no gradient is needed, which saves the pass that writes it.
    with_gradient = x.requires_grad and torch.is_grad_enabled()
    return _CrossEntropy.apply(x, target_T, int(ignore_index), int(block), with_gradient)


def _check_targets(x: Tensor, target_T: Tensor, ignore_index: int) -> None:
    if target_T.dtype != torch.int64 or len(target_T) != len(x):
        got = f"{len(target_T)} of {target_T.dtype}"
        raise ValueError(f"cross_entropy: targets must be int64, one for each of {len(x)} tokens: got {got}.")
    if target_T.device.type == "cpu":
        wrong = target_T[(target_T != ignore_index) & ((target_T < 0) | (target_T >= x.shape[1]))]
        if len(wrong):
            words = f"ids from 0 to {x.shape[1] - 1}, or ignore_index {ignore_index}"
            raise ValueError(f"cross_entropy: targets must be {words}: got {int(wrong[0])}.")


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target_T: Tensor, ignore_index: int, block: int, with_gradient: bool) -> Tensor:
        T, V = x.shape
        wide = torch.promote_types(x.dtype, torch.float32)
        loss_T, scale = x.new_empty(T, dtype=wide), 1 / (target_T != ignore_index).sum().to(wide)
        dx = torch.empty_like(x) if with_gradient else x  # a kernel needs a pointer; it does not use this one
        cross_entropy_kernel[(T,)](
            x, target_T, scale, loss_T, dx, V,
            IGNORE=ignore_index, WITH_GRADIENT=with_gradient,
            ACC=accumulator(x.dtype), BLOCK=min(block, next_power_of_2(V)),
        )  # fmt: skip
        ctx.save_for_backward(dx) if with_gradient else None
        return loss_T.sum() * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (dx,) = ctx.saved_tensors
        # At least in float32: a scaler's 65,536 is infinite in float16.
        return (dx.to(gradients[0].dtype) * gradients[0]).to(dx.dtype), None, None, None, None
