"""Ulysses: an all-to-all exchanges some tokens of all heads for all tokens of some heads; another reverses it.

Attention works on each head separately, the rest of a transformer on each token separately. So tokens are cut outside
attention and heads inside, and the kernel in the middle is the one of a single device:

    rank r has      t tokens, H heads    ->  all-to-all  ->    T tokens, H / n heads    attention    ->  all-to-all back

The bytes sent shrink with n: a rank sends each other rank 1 / n of the heads of its t tokens, while a ring sends all
keys n - 1 times. But there can be no more ranks than heads, and each needs key-value heads: G < n of them are repeated
for the ranks that share them, which saves less (`check_heads`: n divides H, and G divides n or n divides G).

Every rank has the same work in any order of tokens, so contiguous pieces are enough; other orders are sorted by a copy.

Cost for n ranks, S = B t K w bytes of one head's tokens, g = max(G, n) key-value heads that are sent:
    time_s      2 all-to-alls forward, 2 backward, without overlap
    peak bytes  (2 H + 2 g) S more than attention keeps
    sent bytes  forward (n - 1) / n (2 H + 2 g) S: queries, keys and values, and the output; the same backward
Shapes: B batch, H heads, G key-value heads, K width of a head; t this rank's tokens, T all; h = H / n, g here g / n.
Source: Jacobs et al., "DeepSpeed Ulysses", 2023, arXiv 2309.14509, sections 3.1 and 3.2; repeated key-value heads: Fang
and Zhao, "USP", 2024, arXiv 2405.07719.
Simplified: queries, keys and values go in one message, without overlap with their computation.
"""

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.context.blocks import blocks_of
from lablib.parallel.context.merge import FUSED, BlockPasses, attention_in_blocks
from lablib.parallel.context.order import Documents, Order
from lablib.parallel.context.ring import require_shard
from lablib.parallel.tensor.attention import check_heads
from lablib.parallel.tensor.regions import Group, exchange_rows


def heads_of_all_tokens(
    q_BHtK: Float[Tensor, "B H t K"],
    k_BGtK: Float[Tensor, "B G t K"],
    v_BGtK: Float[Tensor, "B G t K"],
    lengths: tuple[int, ...],
    group: Group = None,
) -> tuple[Float[Tensor, "B h T K"], Float[Tensor, "B g T K"], Float[Tensor, "B g T K"]]:
    """This rank's heads of all ranks' tokens (`lengths`), in rank order. Communicates: one all-to-all, one backward."""
    heads, kv_heads, n = q_BHtK.shape[1], k_BGtK.shape[1], len(lengths)
    check_heads(heads, kv_heads, n)
    kv = [x.repeat_interleave(n // kv_heads, 1) for x in (k_BGtK, v_BGtK)] if n > kv_heads else [k_BGtK, v_BGtK]
    # One message for each rank: its heads of queries, keys and values.
    parts = [x.unflatten(1, (n, -1)) for x in (q_BHtK, *kv)]
    packed = torch.cat(parts, 2).permute(1, 3, 0, 2, 4)  # n t B heads K
    x_TBhK = exchange_rows(packed.flatten(0, 1), [packed.shape[1]] * n, lengths, group)
    sizes = [part.shape[2] for part in parts]
    return tuple(x.permute(1, 2, 0, 3) for x in x_TBhK.split(sizes, 2))  # pyright: ignore


def tokens_of_all_heads(
    o_BhTK: Float[Tensor, "B h T K"], lengths: tuple[int, ...], group: Group = None
) -> Float[Tensor, "B H t K"]:
    """All heads of this rank's tokens: the reverse. Communicates: one all-to-all, one backward."""
    n, t = len(lengths), lengths[dist.get_rank(group)]
    o_ntBhK = exchange_rows(o_BhTK.permute(2, 0, 1, 3), lengths, [t] * n, group).unflatten(0, (n, t))
    return o_ntBhK.permute(2, 0, 3, 1, 4).flatten(1, 2)


def ulysses_attention(
    q_BHtK: Float[Tensor, "B H t K"],
    k_BGtK: Float[Tensor, "B G t K"],
    v_BGtK: Float[Tensor, "B G t K"],
    order: Order,
    group: Group = None,
    *,
    documents: Documents | None = None,
    is_causal: bool = True,
    passes: BlockPasses = FUSED,
) -> Float[Tensor, "B H t K"]:
    """Attention of this rank's queries over the keys of all ranks. Communicates: two all-to-alls, two backward.

    Arguments and Raises as `ring_attention`; also for heads that cannot be split over the ranks (`check_heads`).
    """
    require_shard(q_BHtK, k_BGtK, order, group)
    q, k, v = heads_of_all_tokens(q_BHtK, k_BGtK, v_BGtK, order.lengths, group)
    pieces = [piece for rank in order.pieces for piece in rank]
    if not order.is_in_turn:
        back = torch.tensor(order.inverse(), device=q.device)
        q, k, v = (x.index_select(2, back) for x in (q, k, v))
        pieces = [range(order.seq_len)]
    o = attention_in_blocks(q, k, v, blocks_of(pieces, pieces, documents, is_causal), passes)
    if not order.is_in_turn:
        o = o.index_select(2, torch.tensor(order.permutation(), device=o.device))
    return tokens_of_all_heads(o, order.lengths, group)
