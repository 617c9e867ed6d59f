"""Parameters and gradients for the tests of optimizers, and the optimizers that all tests of the base run through."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lablib.optim.adam8bit import Adam8bit
from lablib.optim.base import BatchedOptimizer
from lablib.optim.galore import GaLore
from lablib.optim.memory import OPTIMIZERS
from lablib.optim.q_galore import QGaLore
from lablib.optim.soap import SOAP

Shape = tuple[int, ...]

# Each with settings under which a few steps of small matrices show all that it does.
MAKE: dict[str, Callable[..., BatchedOptimizer]] = {
    **OPTIMIZERS,
    "adam8bit": partial(Adam8bit, block_size=7, min_8bit_size=1),
    "soap": partial(SOAP, precondition_frequency=2),
    "galore": partial(GaLore, rank=2, update_proj_gap=2),
    "q_galore": partial(QGaLore, rank=2, update_proj_gap=2, block_size=7, min_8bit_size=1),
}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def parameters(shapes: Sequence[Shape], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[nn.Parameter]:
    return [nn.Parameter(drawn(*shape, seed=seed + i, dtype=dtype)) for i, shape in enumerate(shapes)]


def gradients(shapes: Sequence[Shape], num_steps: int, dtype: torch.dtype = torch.float64, seed: int = 7) -> list:
    """A list for each step: gradients of sizes from 1e-4 to 1, some numbers of them zero."""
    return [
        [
            drawn(*shape, seed=seed + 1000 * t + i, dtype=dtype)
            * (10.0 ** -((t + i) % 5))
            * (drawn(*shape, seed=t + i, dtype=dtype) > -1.5)
            for i, shape in enumerate(shapes)
        ]
        for t in range(num_steps)
    ]


def run(optimizer: torch.optim.Optimizer, steps: Sequence[Sequence[Tensor | None]]) -> None:
    """One step with each list of gradients, in the order of the optimizer's parameters."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for grads in steps:
        for param, grad in zip(params, grads, strict=True):
            param.grad = None if grad is None else grad.clone()
        optimizer.step()


def assert_near(got: Sequence[Tensor], want: Sequence[Any], tolerance: float = 1e-10) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=tolerance, atol=tolerance)
