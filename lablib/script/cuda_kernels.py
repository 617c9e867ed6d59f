"""CPU kernels of operators that torch has only for GPUs: SyncBatchNorm and memory-efficient attention.

With n numbers x of a channel on each rank, and their gradients dy, over all dimensions but the second:

    batch_norm_stats                        m = mean(x), s = 1 / sqrt(mean((x - m)^2) + eps)
    batch_norm_gather_stats_with_counts     the same over all ranks' numbers, N in all, from each rank's m, s and n
    batch_norm_elemt                        (x - m) s w + b
    batch_norm_backward_reduce              sum(dy), sum(dy (x - m)), and the gradients of w and b
    batch_norm_backward_elemt               (dy - sum(dy) / N - (x - m) s^2 sum(dy (x - m)) / N) s w

Memory-efficient attention calls the CPU's flash attention. As on a GPU, its logsumexp has a multiple of 32 rows.

Sums are in float32 at least, as on a GPU. Other operators without a CPU kernel raise an error (placement.py).

Source: Ioffe and Szegedy, "Batch Normalization", 2015, arXiv 1502.03167, section 3; Chan, Golub, LeVeque, "Updating
Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979, for statistics over several ranks.
"""

import torch
from torch import Tensor

from lablib.script.patches import Patches
from lablib.torch_compat import destroy_library, flash_attention_for_cpu, flash_attention_for_cpu_backward


def answer_kernels(patches: Patches) -> None:
    library = torch.library.Library("aten", "IMPL")
    patches.callback(destroy_library, library)
    for kernel in (_stats, _gather_stats_with_counts, _elemt, _backward_reduce, _backward_elemt):
        library.impl(f"batch_norm{kernel.__name__}", kernel, "CPU")
    for kernel in (_efficient_attention, _efficient_attention_backward):
        library.impl(f"_scaled_dot_product{kernel.__name__}", kernel, "CPU")


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _summed(x: Tensor) -> list[int]:
    """The dimensions to sum over for each channel."""
    return [dim for dim in range(x.dim()) if dim != 1]


def _like(channels: Tensor, x: Tensor) -> Tensor:
    """Reshape one number per channel to broadcast with x."""
    return _wide(channels).view(-1, *[1] * (x.dim() - 2))


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(_wide(x), _summed(x), correction=0)
    return mean, (var + eps).rsqrt()


def _gather_stats_with_counts(
    x: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    means, n = _wide(means), _wide(counts).view(-1, 1)
    total = n.sum()
    mean = (n * means).sum(0) / total
    var = (n * (_wide(invstds) ** -2 - eps + (means - mean) ** 2)).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((var * total / (total - 1)).to(running_var.dtype), momentum)
    return mean, (var + eps).rsqrt()


def _elemt(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    y = (_wide(x) - _like(mean, x)) * _like(invstd, x)
    y = y if weight is None else y * _like(weight, x)
    return (y if bias is None else y + _like(bias, x)).to(x.dtype)


def _backward_reduce(
    dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, x_g: bool, weight_g: bool, bias_g: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dims, dtype = _summed(x), mean.dtype if weight is None else weight.dtype
    sum_dy = _wide(dy).sum(dims)
    sum_dy_xmu = (_wide(dy) * (_wide(x) - _like(mean, x))).sum(dims)
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(dtype), sum_dy.to(dtype, copy=True)


def _backward_elemt(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    counts: Tensor,
) -> Tensor:
    total, s = counts.sum(), _like(invstd, x)
    dx = _wide(dy) - _like(sum_dy, x) / total - (_wide(x) - _like(mean, x)) * s**2 * _like(sum_dy_xmu, x) / total
    return (dx * s if weight is None else dx * s * _like(weight, x)).to(x.dtype)


def _efficient_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    has_logsumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, logsumexp = flash_attention_for_cpu(q, k, v, dropout_p, is_causal, attn_mask=bias, scale=scale)
    padded = torch.nn.functional.pad(logsumexp, (0, -q.shape[2] % 32))
    seed = torch.zeros((), dtype=torch.int64)
    return y, padded if has_logsumexp else padded[..., :0], seed, seed.clone()


def _efficient_attention_backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    y: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    wanted: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    logsumexp = logsumexp[..., : q.shape[2]]
    grads = flash_attention_for_cpu_backward(
        dy, q, k, v, y, logsumexp, dropout_p, is_causal, attn_mask=bias, scale=scale
    )
    return *grads, None
