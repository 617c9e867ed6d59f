"""Tensor-parallel MLP: the first matrix by columns, the second by rows, without communication between them.

    naive   H = gather(gelu(X W_r + b_r)), gather(H V_r + c_r)     two all-gathers forward, two all-reduces backward
    real    g( gelu(f(X) W_r + b_r) V_r ) + c                      one all-reduce forward, one backward

GELU works on each hidden column separately, so a rank can apply it to its own columns: h_r = gelu(x W_r). With the
first matrix cut by rows, the output would be a sum over ranks, and gelu of a sum is not the sum of gelus.

Cost for n ranks, B T tokens of w bytes per number:
    FLOPs       4 B T D F / n forward, twice that backward (naive: the same)
    peak bytes  2 D F w / n of weights; the hidden B T F w / n twice, before and after GELU (naive: once more, whole)
    sent bytes  2 * 2(n-1)/n B T D w per rank and step: forward and backward
                naive: (n-1)/n B T (F + D) w forward, 2(n-1)/n B T (D + F) w backward
Shapes: B batch, T time, D width, F hidden; f = F / n, d = D / n on this rank.
Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3, equations 1 to 3 and figure 3a.
Simplified: GELU (its tanh form), no dropout (`sequence_parallel.py` has it).
"""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.tensor.linear import column_linear, gathered_linear, row_linear
from lablib.parallel.tensor.overlap import overlapped_columns
from lablib.parallel.tensor.regions import TENSOR, Group, Region, shard_of


class MLPShard(NamedTuple):
    """A rank's shard of the four parameters of an MLP. Whole ones have the same form."""

    up_fD: Float[Tensor, "f D"]
    up_bias_f: Float[Tensor, " f"]
    down_Df: Float[Tensor, "D f"]
    down_bias_D: Float[Tensor, " D"]


def shard_mlp(whole: MLPShard, group: Group = None) -> MLPShard:
    """This rank's columns of the first matrix and rows of the second: views."""
    up_FD, up_bias_F, down_DF, down_bias_D = whole
    return MLPShard(shard_of(up_FD, 0, group), shard_of(up_bias_F, 0, group), shard_of(down_DF, 1, group), down_bias_D)


def naive_tensor_mlp(x_BTD: Float[Tensor, "B T D"], whole: MLPShard, group: Group = None) -> Float[Tensor, "B T D"]:
    """Both matrices of `whole` by columns, every output gathered. Communicates twice forward, twice backward."""
    up_FD, up_bias_F, down_DF, down_bias_D = whole
    up_fD, up_bias_f = shard_of(up_FD, 0, group), shard_of(up_bias_F, 0, group)
    h_BTF = F.gelu(gathered_linear(x_BTD, up_fD, up_bias_f, len(up_FD), group), approximate="tanh")
    down_dF, down_bias_d = shard_of(down_DF, 0, group), shard_of(down_bias_D, 0, group)
    return gathered_linear(h_BTF, down_dF, down_bias_d, len(down_DF), group)


def tensor_mlp(
    x_BTD: Float[Tensor, "B T D"],
    shard: MLPShard,
    group: Group = None,
    region: Region = TENSOR,
    *,
    overlaps: bool = False,
) -> Float[Tensor, "B T D"]:
    """Columns, then rows. Communicates: one all-reduce forward, one backward.

    `x_BTD`: the same on all ranks; with `SEQUENCE`, this rank's tokens. `shard`: from `shard_mlp`. `region`: how
    activations enter and leave. `overlaps`: whether backward hides its communication (`tensor/overlap.py`).
    """
    if overlaps:
        (up_BTf,) = overlapped_columns(x_BTD, [shard.up_fD], [shard.up_bias_f], group, region)
    else:
        up_BTf = column_linear(x_BTD, shard.up_fD, shard.up_bias_f, group, region)
    h_BTf = F.gelu(up_BTf, approximate="tanh")
    return row_linear(h_BTf, shard.down_Df, shard.down_bias_D, group, region)


def mlp_sent_bytes(tokens: int, width: int, hidden: int, world_size: int, element_bytes: int, *, naive: bool) -> float:
    """Bytes that a rank sends in forward and backward, by rings; for sizes that n divides."""
    share = (world_size - 1) / world_size * tokens * element_bytes
    return share * (3 * (width + hidden) if naive else 4 * width)
