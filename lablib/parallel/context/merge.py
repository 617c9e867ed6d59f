"""Attention over the keys in parts, merged by their log-sum-exp.

softmax(s) v over all keys is a mean of v with weights exp(s). Over a part of the keys it is also such a mean, and one
number per query, the log-sum-exp of its scores, is the weight of the part:

    o_1, l_1 of some keys, o_2, l_2 of others       w = exp(l_2) / (exp(l_1) + exp(l_2)) = sigmoid(l_2 - l_1)
                                                    o = o_1 + w (o_2 - o_1)       l = log(exp(l_1) + exp(l_2))

exactly, in any order. Backward needs no merging: the final l and o give the gradients of each part (p = exp(s - l)),
and these are summed.

Cost of merging r rows of K numbers, in 32 bits: 5 kernels, (3 K + 11) 4 r bytes, and before it the new part widened.
Shapes: B batch, H heads, G key-value heads (G divides H), K width; t queries and s keys of this call.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867, section 3; Liu et
al., "Ring Attention with Blockwise Transformers", 2023, arXiv 2310.01889, section 3; Dao et al., "FlashAttention",
2022, arXiv 2205.14135, algorithm 4 (backward from o and l).
Simplified: on a CPU and on the simulator, torch's fused CPU kernel; on other devices plain products, with scores in
memory. Custom `BlockPasses` may call any kernel that returns and takes a log-sum-exp.
"""

# pyright: reportIncompatibleMethodOverride=false
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lablib.parallel.context.blocks import AttentionBlock
from lablib.torch_compat import flash_attention_for_cpu, flash_attention_for_cpu_backward


def merge_attention(
    o_1: Float[Tensor, "*rows K"],
    lse_1: Float[Tensor, "*rows"],
    o_2: Float[Tensor, "*rows K"],
    lse_2: Float[Tensor, "*rows"],
) -> tuple[Float[Tensor, "*rows K"], Float[Tensor, "*rows"]]:
    """Attention over two sets of keys from the attention over each; returns new tensors.

    Arguments:
        o_1, o_2: outputs.
        lse_1, lse_2: of the scaled scores of each row; -inf: the row has no keys, and its output counts as 0. That
            output must be finite: NaN, the softmax of scores that are all -inf, would stay in the result.
    """
    weight = torch.sigmoid(lse_2 - lse_1).nan_to_num_(0.0)  # NaN: no keys in either part
    return torch.lerp(o_1, o_2, weight.unsqueeze(-1)), torch.logaddexp(lse_1, lse_2)


class BlockPasses(NamedTuple):
    """forward(q, k, v, is_causal) -> o, lse; backward(do, q, k, v, o, lse, is_causal) -> dq, dk, dv."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


# ---- one block: with products, or with torch's kernel ----


def _products_forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    scores, heads = _scores(q, k, is_causal), (q.shape[1] // k.shape[1])
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(v.dtype) @ v.repeat_interleave(heads, 1), lse


def _products_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    scale, heads = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]
    p = (_scores(q, k, is_causal) - lse.unsqueeze(-1)).exp()
    dp = (do @ v.repeat_interleave(heads, 1).mT).to(p.dtype)
    delta = (do * o).sum(-1, keepdim=True, dtype=p.dtype)
    ds = (p * (dp - delta) * scale).to(q.dtype)
    # Sum the gradients of query heads that share keys.
    dk, dv = ((x.mT @ y).unflatten(1, (-1, heads)).sum(2) for x, y in ((ds, q), (p.to(do.dtype), do)))
    return ds @ k.repeat_interleave(heads, 1), dk, dv


def _scores(q: Tensor, k: Tensor, is_causal: bool) -> Tensor:
    """Scaled scores, at least in float32; -inf where masked."""
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[-1] ** -0.5
    scores = scores.to(torch.promote_types(q.dtype, torch.float32))
    if is_causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return scores


def _fused_forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    if q.device.type not in ("cpu", "meta"):
        return _products_forward(q, k, v, is_causal)
    return flash_attention_for_cpu(*_by_rows(q, k, v), 0.0, is_causal)


def _fused_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if q.device.type not in ("cpu", "meta"):
        return _products_backward(do, q, k, v, o, lse, is_causal)
    return flash_attention_for_cpu_backward(*_by_rows(do, q, k, v, o), lse, 0.0, is_causal)


def _by_rows(*tensors: Tensor) -> list[Tensor]:
    """Make rows contiguous: the kernel assumes it, and would read other memory otherwise."""
    return [x if x.stride(-1) == 1 else x.contiguous() for x in tensors]


PRODUCTS = BlockPasses(_products_forward, _products_backward)
FUSED = BlockPasses(_fused_forward, _fused_backward)


# ---- many blocks ----


class PartialAttention:
    """Attention of some queries with keys that arrive in parts: `add` blocks, then take the `result`."""

    def __init__(self, q_BHtK: Float[Tensor, "B H t K"], passes: BlockPasses = FUSED):
        self.q, self.passes = q_BHtK, passes
        self.wide = torch.promote_types(q_BHtK.dtype, torch.float32)  # in 16 bits each merge would round
        self._state: tuple[Tensor, Tensor] | None = None

    def add(
        self, k_BGsK: Float[Tensor, "B G s K"], v_BGsK: Float[Tensor, "B G s K"], blocks: Sequence[AttentionBlock]
    ) -> None:
        """Attend to more keys. Does not communicate."""
        for rows, queries, keys, is_causal in blocks:
            here, there = (rows, slice(None), queries), (rows, slice(None), keys)
            q = self.q[here]
            part = self.passes.forward(q, k_BGsK[there], v_BGsK[there], is_causal)
            is_whole = q.shape == self.q.shape
            if self._state is None and is_whole:
                self._state = part  # nothing to merge with
                continue
            o, lse = self._widened()
            merged = merge_attention(o[here], lse[here], part[0].to(self.wide), part[1])
            if is_whole:
                self._state = merged
            else:
                o[here], lse[here] = merged

    def result(self) -> tuple[Float[Tensor, "B H t K"], Float[Tensor, "B H t"]]:
        """Output, in the queries' dtype, and log-sum-exp; zeros and -inf for a query without keys."""
        o, lse = self._widened() if self._state is None else self._state
        return o.to(self.q.dtype), lse

    def _widened(self) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp so far, in at least 32 bits."""
        if self._state is None:
            none = self.q.new_full(self.q.shape[:-1], float("-inf"), dtype=self.wide)
            self._state = torch.zeros_like(self.q, dtype=self.wide), none
        self._state = self._state[0].to(self.wide), self._state[1]
        return self._state


class PartialGradients:
    """The gradients of some queries, block by block; each `add` returns the gradients of its keys and values."""

    def __init__(self, do: Tensor, q: Tensor, o: Tensor, lse: Tensor, passes: BlockPasses = FUSED):
        self.known, self.passes = (do, q, o, lse), passes
        self.dq = torch.zeros_like(q, dtype=lse.dtype)

    def add(self, k: Tensor, v: Tensor, blocks: Sequence[AttentionBlock]) -> Float[Tensor, "2 B G s K"]:
        """The gradients of the keys and values from these blocks: a new tensor, at least in float32."""
        dkv = torch.zeros((2, *k.shape), dtype=self.dq.dtype, device=k.device)
        for rows, queries, keys, is_causal in blocks:
            here, there = (rows, slice(None), queries), (rows, slice(None), keys)
            do, q, o, lse = (x[here] for x in self.known)
            dq, dk, dv = self.passes.backward(do, q, k[there], v[there], o, lse, is_causal)
            self.dq[here].add_(dq)
            dkv[0][there].add_(dk)
            dkv[1][there].add_(dv)
        return dkv


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[AttentionBlock], passes: BlockPasses
    ) -> Tensor:
        part = PartialAttention(q, passes)
        part.add(k, v, blocks)
        o, lse = part.result()
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.call = blocks, passes
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, o, lse), (blocks, passes) = ctx.saved_tensors, ctx.call
        part = PartialGradients(grads[0], q, o, lse, passes)
        dk, dv = part.add(k, v, blocks)
        return part.dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def attention_in_blocks(
    q_BHtK: Float[Tensor, "B H t K"],
    k_BGsK: Float[Tensor, "B G s K"],
    v_BGsK: Float[Tensor, "B G s K"],
    blocks: Sequence[AttentionBlock],
    passes: BlockPasses = FUSED,
) -> Float[Tensor, "B H t K"]:
    """Attention of these queries over these keys in `blocks` from `blocks_of`; zeros for a query without keys."""
    return _InBlocks.apply(q_BHtK, k_BGsK, v_BGsK, blocks, passes)  # pyright: ignore[reportReturnType]
