"""What one device computes: the model, the batch and the raw gradients that every feature must give again.

Four residual blocks in float64, a batch of 16 rows, the mean of squares as the loss: a mean, so that a wrong scale
(a sum over ranks, a missing division by the micro-batches) shows in the gradients. An optimizer such as Adam would
hide it.

Legend: B rows of the batch, D width, F = 4 D hidden width.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lablib import launch
from lablib.run import Run

TOLERANCE = 1e-9  # for sums that are taken in another order, in float64
NUM_BLOCKS = 4
WIDTH = 8
BATCH = 16

Gradients = dict[str, Tensor]


class Block(nn.Module):
    """Two linear layers with a residual, as in a transformer."""

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def build(width: int = WIDTH, num_blocks: int = NUM_BLOCKS, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same blocks on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(num_blocks))).to(dtype)


def fsdp2(model: nn.Module) -> nn.Module:
    """FSDP2 on each block and on the whole."""
    for block in model.children():
        fully_shard(block)
    fully_shard(model)
    return model


def batch(size: int = BATCH, width: int = WIDTH, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows of normal numbers, shape [B, D]."""
    return torch.randn(size, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def my_part(whole: Tensor | None = None, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's equal share of the rows."""
    whole = batch() if whole is None else whole
    return whole.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def loss_of(y: Tensor, target: Tensor | None = None) -> Tensor:
    """Mean of squares; a pipeline gives a target, which is not used."""
    return y.square().mean()


def one_device(model: nn.Module | None = None, x: Tensor | None = None) -> Gradients:
    """Raw gradients of one model that sees the whole batch."""
    model = build() if model is None else model
    loss_of(model(batch() if x is None else x)).backward()
    return gradients(model)


def gradients(model: nn.Module, prefix: str = "") -> Gradients:
    """Raw gradients by the model's own names of its parameters, whole (of a DTensor: all its shards together)."""
    return {prefix + name: whole(param.grad, name) for name, param in plainly_named(model.named_parameters())}


def parameters(model: nn.Module) -> Gradients:
    """The parameters themselves, in the same form."""
    return {name: whole(param, name) for name, param in plainly_named(model.named_parameters())}


def plainly_named(named: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Without what wrappers (DDP, FSDP, checkpointing) put in front."""
    for name, param in named:
        for wrapper in ("module.", "_fsdp_wrapped_", "_checkpoint_wrapped_"):
            name = name.replace(wrapper, "")
        yield name.replace("module.", ""), param


def whole(tensor: Tensor | None, name: str) -> Tensor:
    assert tensor is not None, f"{name} has no gradient"
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def assert_same(found: Gradients, expected: Gradients, tolerance: float = TOLERANCE) -> None:
    """The same names, and the same numbers to a relative and absolute tolerance."""
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            found[name], expected[name], rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def launched(program: Callable[..., Gradients], *args: Any, expected: Gradients, ranks: int = 4, **options: Any) -> Run:
    """Run a program whose every rank returns whole gradients; all must be the expected ones."""
    run = launch(program, *args, ranks=ranks, **options)
    for found in run.values:
        assert_same(found, expected)
    assert run.traffic.sent_bytes() > 0 and run.timeline.makespan_s > 0
    return run
