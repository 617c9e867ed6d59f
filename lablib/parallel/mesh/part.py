"""This rank's part of a plain GPT: some layers, some tokens, a shard of each matrix.

    pipeline   which layers        other layers are left out
    context    which tokens        attention and positions over the tokens of all context ranks
    tensor     which rows          each layer replaced by its shard
    expert     which experts       each mixture replaced by one with its experts

in this order: layers of other ranks are never copied, and tensor parallelism cuts the layers that context parallelism
made. Modules keep their names in the whole model: "blocks.7.mlp.up.weight" is the same matrix on every rank with a
shard of it.

The pipeline needs all pieces of the model. Pieces of other ranks are placeholders without layers. A placeholder has a
tied parameter of this rank, so that the gradient is summed over both (lablib/pipeline/executor/tied.py).

Cost for P parameters of w bytes, on t tensor and p pipeline ranks: P w / (t p) for the part, more if layers do not
divide evenly; the whole model on the host during the cut, unless only shapes are computed.
Shapes: B batch, T time, D width; t of the tokens of a rank.
Source: Narayanan et al., SC 2021, arXiv 2104.04473, section 3; NVIDIA/Megatron-LM, megatron/core/transformer (layers
numbered through the stages).
Simplified: every rank draws the whole model and keeps its part, so it is bit-identical to the model of one device.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lablib.memory.checkpointing import checkpoint_each
from lablib.models.gpt import GPT
from lablib.models.llama import Llama
from lablib.parallel.context.model import ContextAttention, ContextParallel, ContextPositions
from lablib.parallel.experts.layer import mixtures
from lablib.parallel.experts.parallelize import ExpertParallel
from lablib.parallel.mesh.check import EXPERT, TENSOR, Combination
from lablib.parallel.tensor.parallelize import parallelize
from lablib.parallel.tensor.plan import fits
from lablib.parallel.tensor.regions import Group
from lablib.pipeline.executor.stages import Embedding, Head
from lablib.precision.autocast import autocast
from lablib.torch_compat import disable_current_modes


class ModelPart(nn.Module):
    """The modules of a GPT or Llama on this rank, by the model's names; parameters are this rank's.

    Arguments:
        model: whole, the same on all ranks; not changed.
        units: the numbers of the model's units on this rank; see `units_of`.
        context: assignment of tokens to ranks; None: all tokens are here.
        group, experts: the tensor ranks, and the ranks that share the experts.
    """

    def __init__(
        self,
        model: GPT | Llama,
        how: Combination,
        units: list[int],
        context: ContextParallel | None,
        group: Group,
        experts: Group,
    ):
        super().__init__()
        last = how.config.num_layers + 1
        # Modules are copied, but of the parameters only this rank's shards, below.
        shared: dict[int, Any] = {id(param): param for param in model.parameters()}
        if 0 in units:
            self.token_embedding = copied(model.token_embedding, shared)
            if isinstance(model, GPT):
                self.position_embedding = copied(model.position_embedding, shared)
        blocks = {str(i - 1): copied(model.blocks[i - 1], shared) for i in units if 0 < i < last}
        self.blocks = nn.ModuleDict(blocks)
        if last in units:
            self.final_norm, self.head = copied(model.final_norm, shared), copied(model.head, shared)
        # ---- context ----
        if context is not None:
            for block in self.blocks.values():
                block.attention = ContextAttention(block.attention, context)  # pyright: ignore
        # ---- tensor ----
        if how.size(TENSOR) > 1:
            names = [name for name, _ in self.named_modules()]
            plan = {key: style for key, style in how.tensor_plan.items() if any(fits(name, key) for name in names)}
            parallelize(self, group, plan, broadcasts=False)
        # ---- expert ----
        if how.size(EXPERT) * how.size(TENSOR) > 1 and any(mixtures(self)):
            tensor_group = group if how.size(TENSOR) > 1 else None
            parallel = ExpertParallel(experts, tensor_group, cuts_sequence=how.sequence_parallel)
            parallel.parallelize(self, broadcasts=False)
        if context is not None and 0 in units and isinstance(model, GPT):
            tensor_group = group if how.sequence_parallel else None
            self.position_embedding = ContextPositions(self.position_embedding, context, tensor_group)
        # ---- recomputation ----
        checkpoint_each(self.blocks.values(), how.recompute)
        self._take_over()

    def unit(self, number: int) -> nn.Module:
        """A unit of the model on this rank."""
        if number == 0:
            return Embedding(self)  # pyright: ignore
        name = str(number - 1)
        return self.blocks[name] if name in self.blocks else Head(self)  # pyright: ignore

    def _take_over(self) -> None:
        """Replace every parameter by a copy on this rank's device; tied parameters stay tied."""
        device, new = torch.empty(0).device, dict[nn.Parameter, nn.Parameter]()
        for owner in self.modules():
            for key, param in owner.named_parameters(recurse=False):
                if param not in new:
                    new[param] = nn.Parameter(param.detach().to(device, copy=True), param.requires_grad)
                setattr(owner, key, new[param])


class StagePiece(nn.Module):
    """Units in sequence, under autocast if the combination uses it."""

    def __init__(self, units: list[nn.Module], dtype: torch.dtype | None):
        super().__init__()
        self.units, self.dtype = nn.Sequential(*units), dtype

    def forward(self, x: Tensor) -> Tensor:
        if self.dtype is None:
            return self.units(x)
        with autocast("cuda" if x.is_cuda else "cpu", self.dtype):  # "meta" as on the CPU
            return self.units(x)


class Elsewhere(nn.Module):
    """Placeholder for a piece of another rank, which has the same parameter as this one, or none."""

    def __init__(self, tied: nn.Parameter | None):
        super().__init__()
        self.tied = tied


def make_model(how: Combination, seed: int, dtype: torch.dtype) -> GPT | Llama:
    """The whole model on the host, without memory if only shapes are computed. Not part of the simulation."""
    device = "meta" if torch.empty(0).is_meta else "cpu"
    with disable_current_modes():
        return how.model(seed, dtype=dtype, device=device)


def pieces_of(part: ModelPart, how: Combination, own: list[int]) -> list[nn.Module]:
    """All pieces of the pipeline, with placeholders for other ranks' pieces. `own`: numbers of this rank's pieces."""
    tied = tied_parameter(part) if how.config.tied_head else None
    ends = (0, len(how.units) - 1)
    return [
        StagePiece([part.unit(i) for i in units], how.autocast)
        if number in own
        else Elsewhere(tied if number in ends else None)
        for number, units in enumerate(how.units)
    ]


def tied_parameter(part: ModelPart) -> nn.Parameter | None:
    """The embedding, or the head that is tied to it, if one of them is here."""
    for name in ("token_embedding", "head"):
        if hasattr(part, name):
            return getattr(part, name).weight
    return None


def copied(module: nn.Module, shared: dict[int, Any]) -> Any:
    """A copy of a module with the same parameters."""
    return copy.deepcopy(module, dict(shared))
