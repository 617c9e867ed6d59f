"""Numbers drawn from a seed, and a network with such weights, for the tests of parallel training."""

import torch
from torch import Tensor, nn


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def mlp(sizes: list[int], dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Linear layers with tanh between; the same weights whenever it is called."""
    generator = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = []
    for num_in, num_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(num_in, num_out, dtype=dtype), nn.Tanh()]
    module = nn.Sequential(*layers)
    for param in module.parameters():
        param.data = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(dtype)
    return module
