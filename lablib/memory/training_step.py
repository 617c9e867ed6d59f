"""One training step of the plain GPT; `step_script.py` lists its allocations.

    forward and backward of each micro-batch (gradients are summed); optimizer step; gradients are freed

Precision, in bytes for each of P parameters:

    precision                 weights  gradients  optimizer (AdamW)
    float32                   4        4          8
    bfloat16                  2        2          4
    bfloat16, float32 master  2        2          12: a float32 copy of the weight, and its two moments

With a master copy the optimizer works in 32 bits on widened gradients, and the weights are rounded from the master: an
update too small for 8 bits of mantissa is not lost.

Source: Micikevicius et al., "Mixed Precision Training", 2017, arXiv 1710.03740, section 3.1 (master copy).
Simplified: one device; the mean loss of a micro-batch is not divided by their number, which changes no byte.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lablib.models import GPT, next_token_loss
from lablib.signature import check_type, checked


class CheckpointedLayers(nn.Sequential):
    """Checkpointed layers: only the input is kept, and backward recomputes the rest."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)  # pyright: ignore[reportReturnType]


def checkpoint_layers(model: GPT, every: int) -> GPT:
    """Checkpoint each `every` layers of the model as one, in place."""
    blocks = list(model.blocks)
    model.blocks = nn.ModuleList(CheckpointedLayers(*blocks[i : i + every]) for i in range(0, len(blocks), every))
    return model


class MasterWeights:
    """Copies of a model's parameters in float32, which the optimizer updates instead."""

    @checked
    def __init__(self, params: Iterable[Tensor]):
        self.params = list(params)  # `params` may be an iterator
        check_type("MasterWeights: params", self.params, list[Tensor])
        self.masters = [param.detach().float() for param in self.params]

    def take_gradients(self) -> None:
        """Move the gradients to the masters, in 32 bits, one by one."""
        for param, master in zip(self.params, self.masters, strict=True):
            assert param.grad is not None
            master.grad = param.grad.float()
            param.grad = None

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the masters to the parameters, and free the gradients."""
        for param, master in zip(self.params, self.masters, strict=True):
            param.copy_(master)
            master.grad = None


def training_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    masters: MasterWeights | None = None,
) -> None:
    """One step on micro-batches of (tokens_BT, targets_BT); `optimizer` updates the masters if there are any."""
    for tokens_BT, targets_BT in micro_batches:
        loss = next_token_loss(model(tokens_BT), targets_BT)
        loss.backward()
        del loss
    if masters is not None:
        masters.take_gradients()
    optimizer.step()
    if masters is not None:
        masters.give_weights()
    optimizer.zero_grad()
