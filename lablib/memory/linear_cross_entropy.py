"""Head and cross-entropy loss without the full logits: in chunks of tokens, with gradients computed in forward.

The head turns T tokens of width D into T V scores, for V = 50,000 the largest tensor of a step. Three tensors of that
size in float32 are in memory at one moment of backward: the logarithm of the softmax, kept by forward, and the
gradients of the logarithm and of the scores. But the loss of a token needs only its own V scores. Three ways to compute
the same loss, the mean over T tokens:

    naive     logits_TV = x_TD w_VD^T, cross-entropy        keeps T V numbers for backward; 3 T V at the peak
    chunked   C tokens at a time, each chunk checkpointed:  keeps nothing; 3 C V at the peak; one product more
              its scores are made again in backward
    fused     C tokens at a time; as soon as their scores   keeps dx_TD and dw_VD, which a step needs anyway;
              are there, so are their gradients:            2 C V at the peak; no product more
              d loss / d logits = (softmax - one hot) / T

Cost for T tokens: FLOPs 2 T D V forward and 4 T D V backward; chunked 8 T D V in all. Peak bytes beyond x, w and their
gradients, scores in float32: naive 12 T V, chunked 12 C V, fused 8 C V; the last two add a further gradient of w, the
chunk's own. Without backward: 8 instead of 12. In float64 twice as many.
Shapes: T tokens, D width, V vocabulary, C tokens of a chunk.
Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024, arXiv 2411.09009 (as one kernel,
which keeps no scores at all); Hsu et al., "Liger Kernel", 2024, arXiv 2410.10989, section 3.2 (gradients made in
forward).
Simplified: no special kernel: scores of a chunk are in memory; no smoothing, no tokens to ignore. torch has
`F.linear_cross_entropy`, the reference in tests.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lablib.signature import Count, checked


@checked
def linear_cross_entropy(
    x_TD: Float[Tensor, "T D"], w_VD: Float[Tensor, "V D"], targets_T: Int[Tensor, " T"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats, of the head's scores `x w^T`: all T V scores at once (naive)."""
    return F.cross_entropy(_widened(x_TD @ w_VD.T), targets_T)


@checked
def chunked_linear_cross_entropy(
    x_TD: Float[Tensor, "T D"], w_VD: Float[Tensor, "V D"], targets_T: Int[Tensor, " T"], num_chunks: Count = 8
) -> Float[Tensor, ""]:
    """The same loss, one chunk of tokens at a time, equal up to one token; scores are recomputed in backward."""
    total = x_TD.new_zeros((), dtype=_wide(x_TD.dtype))
    for x_CD, targets_C in zip(*_chunks(num_chunks, x_TD, targets_T), strict=True):
        total = total + checkpoint(_summed_loss, x_CD, w_VD, targets_C, use_reentrant=False)
    return total / len(x_TD)


@checked
def fused_linear_cross_entropy(
    x_TD: Float[Tensor, "T D"], w_VD: Float[Tensor, "V D"], targets_T: Int[Tensor, " T"], num_chunks: Count = 8
) -> Float[Tensor, ""]:
    """The same loss, one chunk at a time, with the gradients of x and w computed in forward: scores are computed once.

    Gradients are computed only if required. Double backward is not supported.
    """
    return FusedLoss.apply(x_TD, w_VD, targets_T, num_chunks)


class FusedLoss(torch.autograd.Function):
    """Backward only multiplies by the gradient of the loss."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, w_VD: Tensor, targets_T: Tensor, num_chunks: int) -> Tensor:
        needs_x, needs_w = ctx.needs_input_grad[:2]
        dx_TD = torch.empty_like(x_TD) if needs_x else None
        # In float32 if w is narrower: the sum over chunks must not be rounded chunk by chunk.
        dw_VD = torch.zeros_like(w_VD, dtype=_wide(w_VD.dtype)) if needs_w else None
        total = x_TD.new_zeros((), dtype=_wide(x_TD.dtype))
        start = 0
        for x_CD, targets_C in zip(*_chunks(num_chunks, x_TD, targets_T), strict=True):
            scores_CV = _widened(x_CD @ w_VD.T)
            total += F.cross_entropy(scores_CV, targets_C, reduction="sum")
            if needs_x or needs_w:
                # d loss / d scores = (softmax - one hot) / T
                scores_CV = scores_CV.softmax(-1)
                scores_CV[torch.arange(len(targets_C), device=x_TD.device), targets_C] -= 1
                d_CV = (scores_CV / len(x_TD)).to(x_TD.dtype)
                if dx_TD is not None:
                    dx_TD[start : start + len(x_CD)] = d_CV @ w_VD
                if dw_VD is not None:
                    dw_VD += d_CV.T @ x_CD
                del d_CV  # free it before the next chunk's scores are computed
            del scores_CV
            start += len(x_CD)
        ctx.gradients = dx_TD, None if dw_VD is None else dw_VD.to(w_VD.dtype)
        return total / len(x_TD)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (d_loss,) = gradients
        dx_TD, dw_VD = (g if g is None else g * d_loss.to(g.dtype) for g in ctx.gradients)
        return dx_TD, dw_VD, None, None


def _chunks(num_chunks: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    num_tokens = len(tensors[0])
    if num_tokens == 0:
        raise ValueError("a mean over no tokens is undefined: got an empty batch.")
    return [tensor.tensor_split(min(num_chunks, num_tokens)) for tensor in tensors]


def _summed_loss(x_CD: Tensor, w_VD: Tensor, targets_C: Tensor) -> Tensor:
    return F.cross_entropy(_widened(x_CD @ w_VD.T), targets_C, reduction="sum")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _widened(scores: Tensor) -> Tensor:
    """Half-precision scores in float32: exp and the sum over V lose too much in 8 or 11 bits."""
    return scores.to(_wide(scores.dtype))
