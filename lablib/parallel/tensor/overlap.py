"""Column products with overlapped backward: the input's gradient is sent while the weights' are computed.

Backward of Y = X W computes dX = dY W^T, which must be summed over ranks, and dW = X^T dY, which need not. Autograd
runs both products, then f's all-reduce without overlap. Here dX comes first and is sent at once:

    f, naive       compute  [ dX ][ dW ]                        overlapped     [ dX ][ dW      ]
                   comm                 [ all-reduce ]                               [ all-reduce ]

With sequence parallelism the gathered input is also not kept: a rank keeps its own tokens and gathers the others again
during dX, which does not need them. So activations shrink to 1/n, for one more all-gather that may overlap:

    sequence       compute  [ dX       ][ dW            ]
                   comm     [ all-gather ][ reduce-scatter ]

Several matrices that read one input (queries, keys, values) go through one function: one dX, one all-reduce.

Cost for n ranks, t_X and t_W seconds of the two products, c of a collective (formulas: `overlapped_backward_s`):
    time_s      f: t_X + max(t_W, c), naive t_X + t_W + c; sequence: max(t_X, c_gather) + max(t_W, c_scatter)
    peak bytes  kept for backward: f: B T D w, the input; sequence: B t D w, this rank's tokens
    sent bytes  f: 2(n-1)/n B T D w backward; sequence: 3 (n-1)/n B T D w, of which one gather is forward
Shapes: B batch, T time, D width, F features; t = T / n, f = F / n on this rank.
Source: NVIDIA/Megatron-LM, megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication;
Korthikanti et al., 2022, arXiv 2205.05198, section 4.2.2 (gathering again).
Simplified: gradients of weights are not accumulated in a separate buffer. On a GPU the collective must be queued before
the product to overlap with it, which Megatron ensures with CUDA_DEVICE_MAX_CONNECTIONS=1.
"""

# pyright: reportIncompatibleMethodOverride=false
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.tensor.linear import ColumnLinear
from lablib.parallel.tensor.regions import TENSOR, Group, Region
from lablib.parallel.tensor.sequence_parallel import (
    TokensUnderWay,
    start_all_gather_tokens,
    start_reduce_scatter_tokens,
)
from lablib.signature import checked


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, cuts_sequence: bool, *weights_and_biases: Tensor) -> Any:
        weights, biases = _halves(weights_and_biases)
        ctx.save_for_backward(x, *weights)  # with sequence parallelism, this rank's tokens
        ctx.group, ctx.cuts_sequence = group, cuts_sequence
        x_BTD = start_all_gather_tokens(x, group).wait() if cuts_sequence else x
        return tuple(F.linear(x_BTD, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads_BTf: Tensor) -> Any:
        x, *weights = ctx.saved_tensors
        weights_need, biases_need = _halves(ctx.needs_input_grad[3:])
        gather = start_all_gather_tokens(x, ctx.group) if ctx.cuts_sequence and any(weights_need) else None
        # dX first: of all tokens, but only from this rank's columns.
        grad_BTD_partial = grads_BTf[0] @ weights[0]
        for grad, weight in zip(grads_BTf[1:], weights[1:], strict=True):
            grad_BTD_partial += grad @ weight
        x_BTD = x if gather is None else gather.wait()
        reduction = _start_sum(grad_BTD_partial, ctx.group, ctx.cuts_sequence) if ctx.needs_input_grad[0] else None
        # dW at the same time.
        of_weights = [
            grad.flatten(0, -2).t() @ x_BTD.flatten(0, -2) if needs else None
            for grad, needs in zip(grads_BTf, weights_need, strict=True)
        ]
        of_biases = [
            grad.flatten(0, -2).sum(0) if needs else None for grad, needs in zip(grads_BTf, biases_need, strict=True)
        ]
        return (None if reduction is None else reduction.wait(), None, None, *of_weights, *of_biases)


def _start_sum(grad_BTD_partial: Tensor, group: Group, cuts_sequence: bool) -> TokensUnderWay:
    if cuts_sequence:
        return start_reduce_scatter_tokens(grad_BTD_partial, group)
    work: Any = dist.all_reduce(grad_BTD_partial, group=group, async_op=True)
    return TokensUnderWay(grad_BTD_partial, work)


def _halves(both: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    return both[: len(both) // 2], both[len(both) // 2 :]


def overlapped_columns(
    x_BTD: Float[Tensor, "B T D"],
    weights: Sequence[Float[Tensor, "f D"]],
    biases: Sequence[Float[Tensor, " f"] | None],
    group: Group = None,
    region: Region = TENSOR,
) -> tuple[Float[Tensor, "B T f"], ...]:
    """`column_linear` for several weights that read one input, with overlapped backward.

    Communicates: forward nothing (sequence: one all-gather); backward one all-reduce (all-gather, reduce-scatter).
    `x_BTD`: the same on all ranks; with `SEQUENCE`, this rank's tokens. `weights`, `biases`: this rank's rows of each.
    """
    if not weights or len(weights) != len(biases):
        raise ValueError(f"weights and biases must be one or more pairs: got {len(weights)} and {len(biases)}.")
    if dist.get_world_size(group) == 1:
        return tuple(F.linear(x_BTD, weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return _Columns.apply(x_BTD, group, region.cuts_sequence, *weights, *biases)  # pyright: ignore


class OverlappedColumnLinear(ColumnLinear):
    """`ColumnLinear` with overlapped backward. It does not share its entrance, and its output stays cut."""

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T f"]:
        assert isinstance(self.region, Region)
        return overlapped_columns(x_BTD, [self.weight], [self.bias], self.group, self.region)[0]


@checked
def overlapped_backward_s(
    input_grad_s: float, weight_grad_s: float, reduce_s: float, gather_s: float = 0.0, *, overlaps: bool = True
) -> float:
    """Seconds of the backward of columns, of the products dX and dW.

    `reduce_s`: of the all-reduce, or with sequence parallelism of the reduce-scatter; `gather_s`: of gathering the
    input again, 0 without. Without `overlaps`, one after the other.
    """
    if not overlaps:
        return input_grad_s + weight_grad_s + reduce_s + gather_s
    return max(input_grad_s, gather_s) + max(weight_grad_s, reduce_s)
