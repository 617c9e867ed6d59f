"""Fused attention on device "meta", so that a step has the same price with and without values.

torch picks the algorithm of `scaled_dot_product_attention` by device. For tensors without values it decomposes
attention into products and a softmax, which take longer than the kernel of the same program on a CPU or a GPU. Instead:

    with FusedAttention():
        loss_of(module)        a module on "meta"

Cost: see lablib/cost/attention.py for the fused operator.
Source: torch.nn.functional.scaled_dot_product_attention, its documentation's list of implementations.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lablib.torch_compat import flash_attention_for_cpu

UNFUSED = F.scaled_dot_product_attention  # torch's function; the simulator replaces the name in `F` during a run


class FusedAttention(TorchFunctionMode):
    """Inside, attention on "meta" is the fused operator."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        is_attention = func is UNFUSED and args[0].is_meta
        return (fused_attention if is_attention else func)(*args, **(kwargs or {}))


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As torch's function, for tensors on "meta"; decomposed if no fused kernel takes such arguments."""
    is_plain = attn_mask is None or not attn_mask.requires_grad
    if query.dim() != 4 or not _fit(query, key, value, enable_gqa) or not is_plain or dropout_p or not query.numel():
        return UNFUSED(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = attn_mask.logical_not()
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(hidden, float("-inf"))
    return flash_attention_for_cpu(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _fit(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Whether the fused kernel takes such shapes: [batch, heads, tokens, width], and whole groups of heads."""
    if key.shape[:2] != value.shape[:2] or query.shape[0] != key.shape[0] or query.shape[-1] != value.shape[-1]:
        return False
    return query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)
