"""Sequence parallelism: outside tensor-parallel regions each rank has its own tokens, without n-fold activations.

Between two regions a GPT has norms, dropout and the residual sum. With f and g every rank computes them on all tokens:
the same work and activations n times. But they work on each token separately, so the tokens can be cut. An all-reduce
is a reduce-scatter followed by an all-gather; norms move between the two:

    tensor     region  g: all-reduce           norm, dropout, + on all tokens        f: nothing       region
    sequence   region  g': reduce-scatter      norm, dropout, + on T / n tokens      f': all-gather   region

                             forward             backward
    f'  `gather_sequence`    all-gather          reduce-scatter
    g'  `scatter_sequence`   reduce-scatter      all-gather

The same bytes, and 1/n of the activations there. A weight used on cut tokens (of a norm, a bias after g', a position)
has on each rank the gradient of that rank's tokens, and these must be summed over ranks. Without the sum, n different
norms are trained (`NormOnShards` applies f to the weight).

Cost for n ranks, S = B T D w bytes of an activation, alpha and beta of the link (ring):
    time_s      2(n-1) (alpha + S/n beta) for both together, as an all-reduce
    peak bytes  S / n outside regions; the gathered input S at the entrance of each
    sent bytes  (n-1)/n S each; norm weights: 2(n-1)/n 2 D w for each norm and step
Shapes: B batch, T time, D width; t = T / n tokens on this rank: x_BtD. n must divide T.
Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, arXiv 2205.05198,
section 4.2.2 and figures 5 and 6.
Simplified: the gathered input is kept for backward, as torch does (Megatron gathers again: `tensor/overlap.py`); the
gradients of norms are summed one by one.
"""

# pyright: reportIncompatibleMethodOverride=false
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lablib.parallel.data.overlapped import Handle
from lablib.parallel.tensor.regions import (
    Group,
    Region,
    all_gather_single,
    copy_to_ranks,
    reduce_scatter_single,
    with_gradient,
)

SEQUENCE_DIM = -2  # of [B, T, D]


def require_even_sequence(seq_len: int, world_size: int) -> None:
    """Raise ValueError for a sequence length that the ranks do not divide."""
    if seq_len % world_size:
        raise ValueError(
            f"with sequence parallelism the sequence must be a multiple of the ranks: got {seq_len} tokens on "
            f"{world_size} ranks; pad it to {-(-seq_len // world_size) * world_size}."
        )


@dataclass(frozen=True, slots=True)
class TokensUnderWay:
    """The output of a collective in flight; `wait` returns it."""

    tensor: Tensor
    work: Handle

    def wait(self) -> Tensor:
        self.work.wait()
        return self.tensor.contiguous()  # for several sequences one copy, instead of one in each product


def start_all_gather_tokens(x_BtD: Float[Tensor, "B t D"], group: Group = None) -> TokensUnderWay:
    """Start to gather the tokens of all ranks, in rank order. Not differentiable."""
    x_tBD = x_BtD.movedim(SEQUENCE_DIM, 0).contiguous()  # a collective concatenates ranks
    x_TBD = x_tBD.new_empty(x_tBD.shape[0] * dist.get_world_size(group), *x_tBD.shape[1:])
    work: Any = all_gather_single(x_TBD, x_tBD, group=group, async_op=True)
    return TokensUnderWay(x_TBD.movedim(0, SEQUENCE_DIM), work)


def start_reduce_scatter_tokens(x_BTD_partial: Float[Tensor, "B T D"], group: Group = None) -> TokensUnderWay:
    """Start a sum over ranks, of which this rank gets its tokens. Not differentiable."""
    world_size = dist.get_world_size(group)
    require_even_sequence(x_BTD_partial.shape[SEQUENCE_DIM], world_size)
    x_TBD = x_BTD_partial.movedim(SEQUENCE_DIM, 0).contiguous()
    x_tBD = x_TBD.new_empty(x_TBD.shape[0] // world_size, *x_TBD.shape[1:])
    work: Any = reduce_scatter_single(x_tBD, x_TBD, group=group, async_op=True)
    return TokensUnderWay(x_tBD.movedim(0, SEQUENCE_DIM), work)


def _gathered(x_BtD: Tensor, group: Group) -> Tensor:
    return start_all_gather_tokens(x_BtD, group).wait()


def _scattered(x_BTD_partial: Tensor, group: Group) -> Tensor:
    return start_reduce_scatter_tokens(x_BTD_partial, group).wait()


def gather_sequence(x_BtD: Float[Tensor, "B t D"], group: Group = None) -> Float[Tensor, "B T D"]:
    """f': tokens of all ranks enter the region. Forward: one all-gather. Backward: one reduce-scatter.

    Not to be confused with `gather_from_ranks`, after which all ranks compute the same.
    """
    if dist.get_world_size(group) == 1:
        return x_BtD
    return with_gradient(x_BtD, partial(_gathered, group=group), partial(_scattered, group=group))


def scatter_sequence(x_BTD_partial: Float[Tensor, "B T D"], group: Group = None) -> Float[Tensor, "B t D"]:
    """g': this rank's tokens of the sum over ranks. Forward: one reduce-scatter. Backward: one all-gather."""
    if dist.get_world_size(group) == 1:
        return x_BTD_partial
    return with_gradient(x_BTD_partial, partial(_scattered, group=group), partial(_gathered, group=group))


SEQUENCE = Region("SEQUENCE", gather_sequence, scatter_sequence, cuts_sequence=True)


def own_tokens(tokens: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part of a tensor that all ranks have for every token: a view. Does not communicate."""
    world_size = dist.get_world_size(group)
    require_even_sequence(tokens.shape[dim], world_size)
    return tokens.chunk(world_size, dim)[dist.get_rank(group)]


class NormOnShards(nn.Module):
    """A LayerNorm, or an RMSNorm, of this rank's tokens. Communicates backward: one all-reduce for each parameter.

    `norm`: whole on every rank; its parameters are shared, not copied. `group`: None for all ranks.
    """

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm, group: Group = None):
        super().__init__()
        self.normalized_shape, self.eps, self.group = norm.normalized_shape, norm.eps, group
        self._normalize: Any = F.rms_norm if isinstance(norm, nn.RMSNorm) else F.layer_norm
        self.weight = norm.weight
        if isinstance(norm, nn.LayerNorm):
            self.bias = norm.bias

    def forward(self, x_BtD: Float[Tensor, "B t D"]) -> Float[Tensor, "B t D"]:
        weights = {name: copy_to_ranks(param, self.group) for name, param in self.named_parameters()}
        return self._normalize(x_BtD, self.normalized_shape, **weights, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{tuple(self.normalized_shape)}, on this rank's tokens"


class PositionsOnShards(nn.Module):
    """Position embeddings of this rank's tokens. Communicates backward: one all-reduce of the weight's gradient.

    `embedding`: whole on every rank; its weight is shared, not copied. `group`: None for all ranks.
    """

    def __init__(self, embedding: nn.Embedding, group: Group = None):
        super().__init__()
        self.weight, self.group = embedding.weight, group

    def forward(self, positions_T: Tensor) -> Tensor:
        return F.embedding(own_tokens(positions_T, -1, self.group), copy_to_ranks(self.weight, self.group))
