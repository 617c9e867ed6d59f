"""Cut a model into the pieces of a pipeline by cost, with embedding and head.

    GPT          embedding | block 0 | block 1 | ... | norm and head      its units; a piece is a run of units
    Sequential   layer 0 | layer 1 | ...

A piece is an `nn.Sequential` of the model's modules: the parameters are the same objects, so training the pieces trains
the model. Each takes one tensor and returns one. If the head is tied to the token embedding, the first and the last
piece hold the same parameter; on two ranks each has a copy, and the gradient is the sum over both (tied.py).

Cost of a unit, in FLOPs of a token's forward pass: 2 for each element of its matrices, and 4 T D for attention over T
positions (half of that is masked; kernels that skip masked blocks do half). A look-up in an embedding costs nothing.

Source: Narayanan et al., 2021, arXiv 2104.04473, section 2.2 (stages of layers); the FLOPs: Kaplan et al., 2020, arXiv
2001.08361, table 1.
Simplified: measured costs are better than FLOPs: pass `costs`.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from lablib.models import GPT, Llama
from lablib.models.gpt import Attention
from lablib.pipeline.balance import balanced_cut
from lablib.signature import checked, shown


class Embedding(nn.Module):
    """The first unit of a GPT: tokens [B, T] to the residual stream [B, T, D]."""

    def __init__(self, model: GPT | Llama):
        super().__init__()
        self.token_embedding = model.token_embedding
        self.position_embedding = getattr(model, "position_embedding", None)  # None: rotary, in the attention

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if self.position_embedding is None:
            return self.token_embedding(tokens_BT)
        seq_len, longest = tokens_BT.shape[1], len(self.position_embedding.weight)
        if seq_len > longest:
            raise ValueError(f"a sequence must have at most max_seq_len={longest} tokens: got {seq_len}.")
        positions_T = torch.arange(seq_len, device=tokens_BT.device)
        return self.token_embedding(tokens_BT) + self.position_embedding(positions_T)


class Head(nn.Module):
    """The last unit of a GPT: the residual stream [B, T, D] to logits [B, T, V]."""

    def __init__(self, model: GPT | Llama):
        super().__init__()
        self.final_norm, self.head = model.final_norm, model.head

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.head(self.final_norm(x_BTD))


@checked
def units_of(model: nn.Module) -> list[nn.Module]:
    """The units of a model: a GPT's embedding, blocks and head; the layers of an `nn.Sequential`."""
    if isinstance(model, GPT | Llama):
        return [Embedding(model), *model.blocks, Head(model)]
    if isinstance(model, nn.Sequential):
        return list(model)
    raise ValueError(
        f"a GPT or an nn.Sequential can be cut: got {type(model).__name__}; write it as an nn.Sequential of layers "
        "that each take one tensor and give one."
    )


@checked
def flops_of(unit: nn.Module, seq_len: int = 0) -> float:
    """FLOPs of one token's forward pass of a layer, or several (head of this file); `seq_len` 0: no attention."""
    looked_up = {id(layer.weight) for layer in unit.modules() if isinstance(layer, nn.Embedding)}
    products = {id(layer.weight) for layer in unit.modules() if isinstance(layer, nn.Linear)}
    # A tied head multiplies by the embedding's table.
    counted = [p for p in unit.parameters() if p.ndim >= 2 and (id(p) in products or id(p) not in looked_up)]
    attention = sum(4 * seq_len * layer.out.in_features for layer in unit.modules() if isinstance(layer, Attention))
    return float(sum(2 * param.numel() for param in counted) + attention)


@checked
def cut(model: nn.Module, num_pieces: int, costs: Sequence[float] | None = None) -> list[nn.Sequential]:
    """The pieces of a GPT or nn.Sequential, in order, with the smallest possible largest piece. Changes no model.

    `costs`: of each of `units_of(model)`, in any unit, such as measured seconds; None: FLOPs. ValueError: another kind
    of model, more pieces than units, or not one cost for each unit.
    """
    units = units_of(model)
    if costs is None:
        seq_len = model.config.max_seq_len if isinstance(model, GPT | Llama) else 0
        costs = [flops_of(unit, seq_len) for unit in units]
    if len(costs) != len(units):
        raise ValueError(f"costs must be one for each of the model's {len(units)} units: got {len(costs)}.")
    return [nn.Sequential(*(units[i] for i in piece)) for piece in balanced_cut(costs, num_pieces)]


@checked
def cut_at(model: nn.Module, starts: Sequence[int]) -> list[nn.Sequential]:
    """The pieces of a model that begin at these units: `cut_at(gpt, [0, 3, 5])`.

    ValueError: another kind of model, or starts that do not rise from 0, so that a piece has no layers.
    """
    units = units_of(model)
    bounds = [*starts, len(units)]
    if bounds[0] != 0 or any(start >= stop for start, stop in pairwise(bounds)):
        raise ValueError(
            f"every piece needs a layer: starts must rise from 0 and end below {len(units)}, the model's units: "
            f"got {shown(list(starts))}."
        )
    return [nn.Sequential(*units[start:stop]) for start, stop in pairwise(bounds)]
