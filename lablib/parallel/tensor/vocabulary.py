"""Vocabulary parallelism: rows of the embedding on each rank, and the loss without gathering the logits.

Embedding: a rank looks up the tokens of its rows, and returns 0 for the others; g sums over ranks.

Loss: with logits x_0 ... x_{V-1} of a token, cut over ranks,

    loss = log sum_v exp(x_v - m) + m - x_target        m = max_v x_v, so that no exp overflows

    1. m          the maximum on this rank, then over ranks      all-reduce (max), 1 number per token
    2. x_target   one rank has it, the others add 0              all-reduce (sum), 1 number per token
    3. sum        of this rank's exp(x - m), then over ranks     all-reduce (sum), 1 number per token

Backward sends nothing: d loss / d x_v = exp(x_v - m) / sum - [v = target] needs only this rank's columns and the sum.
The naive loss gathers the logits, V numbers per token, on every rank: for V = 128,000 in float32 half a megabyte per
token.

If n does not divide V: chunks of ceil(V / n) rows, fewer on the last ranks (as DTensor), or rows of zeros after
the last word up to equal chunks (as Megatron), which must not count in the sum, as exp(0) is 1.

Cost for n ranks, N = B T tokens, a bytes of a number in the loss (4; 8 for float64):
    FLOPs       about 5 N V / n, and the same backward
    peak bytes  N V a / n, kept for backward instead of the logits; gathered: N V a
    sent bytes  3 * 2(n-1)/n N a per rank; gathered: (n-1)/n N V w; the embedding: 2(n-1)/n N D w, by g
Shapes: B batch, T time, V vocabulary, D width; v = ceil(V / n) on this rank, or fewer on the last ranks.
Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3 (embedding; fused loss);
torch.distributed.tensor.parallel.loss_parallel (torch 2.13, documentation).
Simplified: no label smoothing; steps 2 and 3 are not one message.
"""

# pyright: reportIncompatibleMethodOverride=false
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lablib.models.gpt import next_token_loss
from lablib.parallel.tensor.regions import TENSOR, Group, Region, chunk_size, gather_from_ranks, shard_range
from lablib.signature import Count, checked


@checked
def padded_vocabulary(vocab_size: Count, world_size: Count, multiple_of: Count = 1) -> int:
    """V rounded up to the same number of rows on every rank, a multiple of `multiple_of`.

    >>> padded_vocabulary(50257, 8), padded_vocabulary(50257, 8, multiple_of=128)
    (50264, 51200)

    `multiple_of`: of each rank's rows; 128 suits the tiles of matrix products.
    """
    return chunk_size(vocab_size, world_size, multiple_of) * world_size


def shard_vocabulary(
    weight_VD: Float[Tensor, "V ..."], group: Group = None, *, pads: bool = False, multiple_of: int = 1
) -> Float[Tensor, "v ..."]:
    """This rank's rows of an embedding or a head, a copy; `pads`: rows of zeros for equal numbers on all ranks."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    start, end = shard_range(len(weight_VD), rank, world_size, multiple_of)
    num_rows = chunk_size(len(weight_VD), world_size, multiple_of) if pads else end - start
    rows = weight_VD.detach().new_zeros(num_rows, *weight_VD.shape[1:])
    rows[: end - start] = weight_VD.detach()[start:end]
    return rows


def vocabulary_embedding(
    tokens_BT: Int[Tensor, "B T"],
    weight_vD: Float[Tensor, "v D"],
    vocab_size: int,
    group: Group = None,
    region: Region = TENSOR,
    multiple_of: int = 1,
) -> Float[Tensor, "B T D"]:
    """The rows of all tokens, on all ranks (with `SEQUENCE`: of this rank's tokens). Communicates forward: g.

    `tokens_BT`: in [0, V), the same on all ranks; `weight_vD`, `multiple_of`: of `shard_vocabulary`; `vocab_size`: V.
    """
    first, num_words = _words_here(len(weight_vD), vocab_size, group, multiple_of)
    if num_words:
        row_BT, is_elsewhere = _row_here(tokens_BT, vocab_size, first, num_words)
        mine = F.embedding(row_BT, weight_vD).masked_fill(is_elsewhere.unsqueeze(-1), 0)
    else:  # more ranks than chunks; the sum keeps the weight in the graph, with gradient 0
        mine = weight_vD.new_zeros(*tokens_BT.shape, weight_vD.shape[1]) + 0 * weight_vD.sum()
    return region.leave(mine, group)


class VocabularyEmbedding(nn.Module):
    """This rank's rows of an embedding: `vocabulary_embedding` with its weight.

    Arguments:
        embedding: whole, the same on all ranks; without padding_idx, max_norm and the like.
        group: None for all ranks.
        region: exit of the rows.
        pads, multiple_of: as `shard_vocabulary`.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        group: Group = None,
        region: Region = TENSOR,
        *,
        pads: bool = False,
        multiple_of: int = 1,
    ):
        super().__init__()
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.group, self.region, self.multiple_of = group, region, multiple_of
        self.cuts = {"weight": (0, self.num_embeddings)}
        self.weight = _cut_parameter(embedding.weight, group, pads, multiple_of)

    def forward(self, tokens_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        sizes = (self.num_embeddings, self.group, self.region, self.multiple_of)
        return vocabulary_embedding(tokens_BT, self.weight, *sizes)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, of which {len(self.weight)} rows here"


class VocabularyHead(nn.Module):
    """This rank's columns of the logits.

    Arguments:
        linear: the head, whole, the same on all ranks.
        gathers: whether all ranks get the whole logits (naive).
        group, region, pads, multiple_of: as `VocabularyEmbedding`; here the region is the entrance of the input.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Group = None,
        region: Region = TENSOR,
        *,
        gathers: bool = False,
        pads: bool = False,
        multiple_of: int = 1,
    ):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.group, self.region, self.gathers, self.multiple_of = group, region, gathers, multiple_of
        self.cuts = {"weight": (0, self.out_features), "bias": (0, self.out_features)}
        self.weight = _cut_parameter(linear.weight, group, pads, multiple_of)
        self.bias = None if linear.bias is None else _cut_parameter(linear.bias, group, pads, multiple_of)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T v"]:
        logits_BTv = F.linear(self.region.enter(x_BTD, self.group), self.weight, self.bias)
        if not self.gathers:
            return logits_BTv
        return gather_logits(logits_BTv, self.out_features, self.group, self.multiple_of)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, of which {len(self.weight)} here"


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_Nv: Tensor, targets_N: Tensor, vocab_size: int, first: int, num_words: int, group: Group
    ) -> Tensor:
        # Widen half-precision logits: exp and the sum over V lose too much in 8 or 11 bits.
        exp_Nv = x_Nv.to(torch.promote_types(x_Nv.dtype, torch.float32), copy=True)
        if exp_Nv.shape[1] > num_words:
            exp_Nv[:, num_words:] = -torch.inf  # padding: exp(-inf) = 0
        row_N, is_elsewhere = _row_here(targets_N, vocab_size, first, num_words)
        # ---- 1. m ----
        max_N = exp_Nv.amax(1) if num_words else exp_Nv.new_full((len(exp_Nv),), -torch.inf)
        dist.all_reduce(max_N, dist.ReduceOp.MAX, group=group)
        exp_Nv -= max_N.unsqueeze(1)
        # ---- 2. x_target - m, before exp writes over it ----
        target_N = torch.zeros_like(max_N)
        if num_words:
            target_N = exp_Nv.gather(1, row_N.unsqueeze(1)).squeeze(1).masked_fill(is_elsewhere, 0)
        dist.all_reduce(target_N, group=group)
        # ---- 3. sum ----
        sum_N = exp_Nv.exp_().sum(1)
        dist.all_reduce(sum_N, group=group)
        ctx.save_for_backward(exp_Nv.div_(sum_N.unsqueeze(1)), row_N, is_elsewhere)
        ctx.dtype, ctx.has_words = x_Nv.dtype, num_words > 0
        return sum_N.log() - target_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        softmax_Nv, row_N, is_elsewhere = ctx.saved_tensors
        grad_Nv = softmax_Nv * grad_N.unsqueeze(1)
        if ctx.has_words:
            mine_N = grad_N.masked_fill(is_elsewhere, 0)
            grad_Nv.scatter_add_(1, row_N.unsqueeze(1), -mine_N.unsqueeze(1))
        return grad_Nv.to(ctx.dtype), None, None, None, None, None


def vocabulary_parallel_loss(
    logits_BTv: Float[Tensor, "B T v"],
    targets_BT: Int[Tensor, "B T"],
    vocab_size: int,
    group: Group = None,
    multiple_of: int = 1,
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats, of all tokens: the same on all ranks, as `next_token_loss` of the whole logits.

    Communicates: three all-reduces of one number per token, forward.

    Arguments:
        logits_BTv: this rank's columns: of `shard_vocabulary`'s rows, in the same order.
        targets_BT: in [0, V), the same on all ranks.
        vocab_size, multiple_of: V, without padding, and as in `shard_vocabulary`.
    """
    return _token_losses(logits_BTv, targets_BT.flatten(), vocab_size, group, multiple_of).mean()


def vocabulary_parallel_summed_loss(
    logits_BTv: Float[Tensor, "B T v"],
    targets_BT: Int[Tensor, "B T"],
    vocab_size: int,
    group: Group = None,
    multiple_of: int = 1,
) -> Float[Tensor, ""]:
    """The sum over tokens instead of their mean; a target below 0 is padding and has no loss. Arguments as above."""
    targets_N = targets_BT.flatten()
    losses_N = _token_losses(logits_BTv, targets_N.clamp(min=0), vocab_size, group, multiple_of)
    return losses_N.masked_fill(targets_N < 0, 0).sum()


def _token_losses(logits_BTv: Tensor, targets_N: Tensor, vocab_size: int, group: Group, multiple_of: int) -> Tensor:
    first, num_words = _words_here(logits_BTv.shape[-1], vocab_size, group, multiple_of)
    losses: Any = _CrossEntropy.apply(logits_BTv.flatten(0, -2), targets_N, vocab_size, first, num_words, group)
    return losses


def gathered_loss(
    logits_BTv: Float[Tensor, "B T v"],
    targets_BT: Int[Tensor, "B T"],
    vocab_size: int,
    group: Group = None,
    multiple_of: int = 1,
) -> Float[Tensor, ""]:
    """Naive: the logits of all ranks, gathered, and the loss of one device. Arguments as `vocabulary_parallel_loss`."""
    return next_token_loss(gather_logits(logits_BTv, vocab_size, group, multiple_of), targets_BT)


def gather_logits(
    logits_BTv: Float[Tensor, "B T v"], vocab_size: int, group: Group = None, multiple_of: int = 1
) -> Float[Tensor, "B T V"]:
    """The logits of all words on all ranks, without padding. Communicates: one all-gather forward."""
    _, num_words = _words_here(logits_BTv.shape[-1], vocab_size, group, multiple_of)
    return gather_from_ranks(logits_BTv[..., :num_words], -1, vocab_size, group, multiple_of)


def _cut_parameter(param: Tensor, group: Group, pads: bool, multiple_of: int) -> nn.Parameter:
    rows = shard_vocabulary(param, group, pads=pads, multiple_of=multiple_of)
    return nn.Parameter(rows, requires_grad=param.requires_grad)


def _words_here(num_rows: int, vocab_size: int, group: Group, multiple_of: int) -> tuple[int, int]:
    """The first word and the number of words of this rank. Raises ValueError for another number of rows."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    start, end = shard_range(vocab_size, rank, world_size, multiple_of)
    padded = chunk_size(vocab_size, world_size, multiple_of)
    if num_rows not in (end - start, padded):
        raise ValueError(
            f"rank {rank} of {world_size} must have {end - start} of {vocab_size} words, or {padded} rows with "
            f"padding: got {num_rows}; cut the weight with shard_vocabulary."
        )
    return start, end - start


def _row_here(words: Tensor, vocab_size: int, first: int, num_words: int) -> tuple[Tensor, Tensor]:
    """The row of each word on this rank, or 0, and a mask of the words of other ranks.

    A word outside the vocabulary stays outside all rows, so its lookup fails as on one device.
    """
    is_elsewhere = ((words < first) & (words >= 0)) | ((words >= first + num_words) & (words < vocab_size))
    return (words - first).masked_fill(is_elsewhere, 0), is_elsewhere
