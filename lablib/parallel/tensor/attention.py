"""Tensor-parallel attention: each rank computes some of the heads, up to their part of the output.

Heads are independent, so the matrices of queries, keys and values are cut by columns, a head's columns together, and
the output's matrix by rows: f before, g after, as in the MLP.

Grouped queries: H query heads share G key-value heads, H / G each, so fewer keys and values are computed and kept. If n
<= G every rank has G / n of them. If n > G, n / G ranks need the same one: all of them keep it (*replicated*). Each has
only the gradient from its own queries, so the gradients are summed over the ranks that share it.

    H = 8, G = 2, n = 4    rank        0      1      2      3
                           queries     0 1    2 3    4 5    6 7
                           key-value   0      0      1      1
                           gradients of keys and values: rank 0 + rank 1, rank 2 + rank 3

Cost for n ranks, B T tokens of w bytes per number, g = max(1, G / n) key-value heads here:
    FLOPs       (4 B T D (H + g n) K + 4 B T^2 H K) / n forward, without the mask's saving; twice that backward
    peak bytes  (2 D H / n + 2 D g) K w of weights; replicated keys and values cost n / G times their size
    sent bytes  2 * 2(n-1)/n B T D w per rank and step; if n > G also all-reduces of 2 (D + 1) K w over n / G ranks
Shapes: B batch, T time, D width, H heads, K width of a head, G key-value heads; h = H / n, g as above on this rank.
Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3 and figure 3b; Ainslie et al., "GQA", 2023,
arXiv 2305.13245, section 2.2 (grouped queries), and on their sharding Pope et al., "Efficiently Scaling Transformer
Inference", 2022, arXiv 2211.05102, section 3.3.
Simplified: heads are not cut: n divides H, and G divides n or n divides G; no rotary positions.
"""

from typing import NamedTuple

import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.tensor.linear import row_linear
from lablib.parallel.tensor.overlap import overlapped_columns
from lablib.parallel.tensor.regions import TENSOR, Group, Region, copy_to_ranks, shard_of
from lablib.signature import Count, checked
from lablib.text.units import largest_divisor, plural


class AttentionShard(NamedTuple):
    """A rank's shard of the parameters of attention: rows of heads, K each. Whole ones have the same form."""

    query_hD: Float[Tensor, "hK D"]
    query_bias_h: Float[Tensor, " hK"]
    key_gD: Float[Tensor, "gK D"]
    key_bias_g: Float[Tensor, " gK"]
    value_gD: Float[Tensor, "gK D"]
    value_bias_g: Float[Tensor, " gK"]
    out_Dh: Float[Tensor, "D hK"]
    out_bias_D: Float[Tensor, " D"]


@checked
def check_heads(num_heads: Count, num_kv_heads: Count, world_size: Count) -> None:
    """Check that heads can be split over these ranks.

    ValueError: ranks that do not divide the heads; key-value heads that are neither a multiple nor a divisor of the
    ranks, or do not divide the heads.
    """
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a multiple of num_kv_heads: got {num_heads} and {num_kv_heads}; "
            f"try {plural(largest_divisor(num_heads, num_kv_heads), 'key-value heads')}."
        )
    if num_heads % world_size:
        raise ValueError(
            f"num_heads must be a multiple of the ranks, as a head is not cut: got {num_heads} heads on {world_size} "
            f"ranks; try {plural(largest_divisor(num_heads, world_size), 'ranks')}."
        )
    if num_kv_heads % world_size and world_size % num_kv_heads:
        raise ValueError(
            f"key-value heads must be a multiple of the ranks, or divide them: got {num_kv_heads} on {world_size} "
            f"ranks; try {plural(largest_divisor(num_kv_heads, world_size), 'ranks')}."
        )


def key_value_heads_of(rank: int, num_kv_heads: int, world_size: int) -> range:
    """The key-value heads that a rank keeps.

    >>> [list(key_value_heads_of(rank, 2, 4)) for rank in range(4)], list(key_value_heads_of(1, 4, 2))
    ([[0], [0], [1], [1]], [2, 3])
    """
    here = max(1, num_kv_heads // world_size)
    first = rank * num_kv_heads // world_size
    return range(first, first + here)


def shared_key_value_group(num_kv_heads: int, group: Group = None) -> Group:
    """A new group of the ranks that keep the same key-value heads as this one; None if no head is replicated.

    Every rank of `group` calls it, once. Communicates, to make the group.
    """
    world_size = dist.get_world_size(group)
    if world_size <= num_kv_heads:
        return None
    sharing = world_size // num_kv_heads
    first = dist.get_rank(group) // sharing * sharing
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)  # pyright: ignore[reportArgumentType]
    # Only members call `new_group`: ranks of other groups may not run this.
    return dist.new_group(ranks[first : first + sharing], use_local_synchronization=True)  # pyright: ignore


def shard_attention(whole: AttentionShard, num_heads: int, num_kv_heads: int, group: Group = None) -> AttentionShard:
    """This rank's heads, as views; key-value heads are repeated on all ranks that need them."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    check_heads(num_heads, num_kv_heads, world_size)
    d_head = len(whole.key_gD) // num_kv_heads
    heads = key_value_heads_of(rank, num_kv_heads, world_size)
    keys = slice(heads.start * d_head, heads.stop * d_head)
    key_gD, key_bias_g, value_gD, value_bias_g = (tensor[keys] for tensor in whole[2:6])
    return AttentionShard(
        shard_of(whole.query_hD, 0, group),
        shard_of(whole.query_bias_h, 0, group),
        key_gD,
        key_bias_g,
        value_gD,
        value_bias_g,
        shard_of(whole.out_Dh, 1, group),
        whole.out_bias_D,
    )


def tensor_attention(
    x_BTD: Float[Tensor, "B T D"],
    shard: AttentionShard,
    d_head: int,
    group: Group = None,
    region: Region = TENSOR,
    shared_group: Group = None,
    *,
    overlaps: bool = False,
) -> Float[Tensor, "B T D"]:
    """Causal attention of this rank's heads. Communicates: one all-reduce forward, one backward.

    Phases:
        1. shared heads  the gradients of replicated keys' and values' weights are summed, backward
        2. enter         f once, for queries, keys and values together
        3. attend        this rank's heads
        4. leave         rows, and g

    Arguments:
        x_BTD: the same on all ranks; with `SEQUENCE`, this rank's tokens.
        shard: from `shard_attention`.
        d_head: K.
        region: how activations enter and leave.
        shared_group: from `shared_key_value_group`.
        overlaps: whether backward hides its communication (`tensor/overlap.py`).
    """
    # ---- 1. shared heads ----
    key_gD, key_bias_g, value_gD, value_bias_g = (
        weight if shared_group is None else copy_to_ranks(weight, shared_group) for weight in shard[2:6]
    )
    # ---- 2. enter ----
    weights = [shard.query_hD, key_gD, value_gD]
    biases = [shard.query_bias_h, key_bias_g, value_bias_g]
    if overlaps:
        columns = overlapped_columns(x_BTD, weights, biases, group, region)
    else:
        x_BTD = region.enter(x_BTD, group)
        columns = [F.linear(x_BTD, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    # ---- 3. attend ----
    q_BhTK, k_BgTK, v_BgTK = (column.unflatten(-1, (-1, d_head)).transpose(1, 2) for column in columns)
    is_grouped = q_BhTK.shape[1] != k_BgTK.shape[1]
    y_BhTK = F.scaled_dot_product_attention(q_BhTK, k_BgTK, v_BgTK, is_causal=True, enable_gqa=is_grouped)
    # ---- 4. leave ----
    return row_linear(y_BhTK.transpose(1, 2).flatten(-2), shard.out_Dh, shard.out_bias_D, group, region)
