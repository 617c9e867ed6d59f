"""Tensor-parallel linear layers: each rank has a block of columns of the weight, or a block of rows.

    Y = X W, W [D, F]

    columns   W = [W_0 W_1]            Y = [X W_0, X W_1]        every rank needs X whole and has some columns of Y
    rows      W = [W_0; W_1]           Y = X_0 W_0 + X_1 W_1     every rank needs some columns of X; Y is a sum

The output of a column product is the input of a row product. In sequence they need one all-reduce forward (g, of the
sum) and one backward (f, of the input's gradient), and any function of single columns may be between them. That is
Megatron's MLP (`tensor/mlp.py`) and attention (`tensor/attention.py`).

The bias of a column product is cut like the columns. The bias of a row product is whole on every rank and added once,
after the sum; before the sum it would count n times.

Naive: `gathered_linear`, columns with an all-gather of the output after every product.

Cost for n ranks, X of B T tokens, w bytes per number:
    FLOPs       2 B T D F / n forward, twice that backward
    peak bytes D F w / n of weights; the output (B T F) / n w for columns, B T D w for rows (twice during the sum) sent
    bytes 2(n-1)/n B T D w per rank: columns backward, rows forward; gathered: also (n-1)/n B T F w forward
Shapes: B batch, T time, D width, F features; f = F / n, d = D / n on this rank. torch stores W as [out, in]: w_fD.
Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3.
Simplified: the whole weight exists before it is cut, on every rank (see `tensor/random.py`).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lablib.parallel.tensor.regions import TENSOR, Entrance, Group, Region, gather_from_ranks, shard_of


def gathered_linear(
    x_BTD: Float[Tensor, "B T D"],
    w_fD: Float[Tensor, "f D"],
    bias_f: Float[Tensor, " f"] | None,
    out_features: int,
    group: Group = None,
) -> Float[Tensor, "B T F"]:
    """A linear layer with the whole output on all ranks. Communicates: all-gather forward, all-reduce backward.

    `x_BTD`: the same on all ranks; `w_fD`, `bias_f`: this rank's rows, as `shard_of(w_FD, 0)` cuts them.
    """
    return gather_from_ranks(column_linear(x_BTD, w_fD, bias_f, group), -1, out_features, group)


def column_linear(
    x_BTD: Float[Tensor, "B T D"],
    w_fD: Float[Tensor, "f D"],
    bias_f: Float[Tensor, " f"] | None,
    group: Group = None,
    region: Region = TENSOR,
) -> Float[Tensor, "B T f"]:
    """This rank's columns of the output. Communicates: one all-reduce backward (f). Arguments as `gathered_linear`."""
    return F.linear(region.enter(x_BTD, group), w_fD, bias_f)


def row_linear(
    x_BTf: Float[Tensor, "B T f"],
    w_Df: Float[Tensor, "D f"],
    bias_D: Float[Tensor, " D"] | None,
    group: Group = None,
    region: Region = TENSOR,
) -> Float[Tensor, "B T D"]:
    """The whole output on all ranks. Communicates: one all-reduce forward (g).

    `x_BTf`: this rank's columns; `w_Df`: those of the weight, as `shard_of(w_DF, 1)` cuts them; `bias_D`: the same on
    all ranks, and so is its gradient.
    """
    y_BTD = region.leave(F.linear(x_BTf, w_Df), group)
    return y_BTD if bias_D is None else y_BTD + region.shared(bias_D, group)


class ColumnLinear(nn.Module):
    """This rank's columns of a linear layer: `column_linear` with its weights. Cut from a whole layer, a copy.

    Arguments:
        linear: whole, the same on all ranks.
        group: None for all ranks.
        region: entrance of the input; an `Entrance` if other layers read the same input.
        gathers: whether all ranks get the whole output.
        multiple_of: outputs that stay together, such as the outputs of one head.

    Attributes:
        weight, bias: [f, D], [f]; on the last ranks f is smaller if n does not divide F, or 0.
        in_features, out_features: D and F, of the whole layer.
        cuts: by name of a parameter, the dimension that is cut, and its whole size (for `tensor/state.py`).
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Group = None,
        region: Region | Entrance = TENSOR,
        *,
        gathers: bool = False,
        multiple_of: int = 1,
    ):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.group, self.region, self.gathers, self.multiple_of = group, region, gathers, multiple_of
        self.cuts = {"weight": (0, self.out_features), "bias": (0, self.out_features)}
        self.weight = shard_parameter(linear.weight, 0, group, multiple_of)
        self.bias = None if linear.bias is None else shard_parameter(linear.bias, 0, group, multiple_of)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T f"]:
        y_BTf = F.linear(self.region.enter(x_BTD, self.group), self.weight, self.bias)
        if not self.gathers:
            return y_BTf
        return gather_from_ranks(y_BTf, -1, self.out_features, self.group, self.multiple_of)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, of which {len(self.weight)} here"


class RowLinear(nn.Module):
    """This rank's rows of a linear layer, in the order of its input: `row_linear` with its weights.

    Arguments:
        linear, group: as `ColumnLinear`.
        region: exit of the sum.
        multiple_of: inputs that stay together, as in the column layer before it.

    `weight`, `bias`: [D, f], [D]; the bias is whole.
    """

    def __init__(self, linear: nn.Linear, group: Group = None, region: Region = TENSOR, *, multiple_of: int = 1):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.group, self.region, self.multiple_of = group, region, multiple_of
        self.cuts = {"weight": (1, self.in_features)}
        self.weight = shard_parameter(linear.weight, 1, group, multiple_of)
        self.bias = linear.bias

    def forward(self, x_BTf: Float[Tensor, "B T f"]) -> Float[Tensor, "B T D"]:
        return row_linear(x_BTf, self.weight, self.bias, self.group, self.region)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, of which {self.weight.shape[1]} here, out_features={self.out_features}"


def shard_parameter(param: Tensor, dim: int, group: Group = None, multiple_of: int = 1) -> nn.Parameter:
    """This rank's shard as a parameter with separate memory; trainable if the whole is."""
    shard = shard_of(param.detach(), dim, group, multiple_of).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(shard, requires_grad=param.requires_grad)
