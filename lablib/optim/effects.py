"""Effects of four optimizers on a gradient, as numbers for figures: singular values, signs, 8-bit blocks, projections.

    singular values    of a matrix, and after steps of Newton-Schulz               figure_singular_values
    signs              mean step for growing noise over the signal                 figure_sign_of_noise
    blocks             error of the others against the size of one outlier         figure_blocks
    projections        share lost against rank, for directions of several ages     figure_projection

Each function gives the arguments of its figure, in order.

Cost: a decomposition of the matrix; a few thousand random numbers.
Source: newton_schulz.py, lion.py, blockwise.py, projection.py. Adam's mean step, with converged means: mu over the root
of mu^2 + sigma^2, as v is a mean of squares.
Shapes: matrices (m, n), k = min(m, n).
Simplified: noise is normal and independent.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lablib.optim.base import Betas
from lablib.optim.blockwise import outlier_errors
from lablib.optim.lion import Lion, expected_sign
from lablib.optim.newton_schulz import singular_values_after
from lablib.optim.projection import lost_share, strongest_directions
from lablib.signature import checked


@checked
def singular_values(
    matrix: Float[Tensor, "m n"], steps: Sequence[int] = (1, 3, 5)
) -> tuple[list[float], dict[int, list[float]]]:
    """Singular values over the norm of all, largest first; and each of them after some steps."""
    values_k = torch.linalg.svdvals(matrix.detach().double())
    after = {count: singular_values_after(values_k, count).tolist() for count in steps}
    return (values_k / values_k.norm()).tolist(), after


@checked
def mean_steps(
    signal_to_noise: Sequence[float], betas: Betas = (0.9, 0.99), num_numbers: int = 4000, num_steps: int = 800
) -> tuple[list[float], dict[str, list[float]], dict[str, list[float]]]:
    """Lion's mean step over lr, by formula and measured in the last quarter of some steps, and Adam's by formula.

    `signal_to_noise`: mean over standard deviation of a gradient. Each of `num_numbers` parameters has other noise; the
    mean should have converged after three quarters of `num_steps`.
    """
    formula = [expected_sign(signal, betas) for signal in signal_to_noise]
    measured = [_measured_sign(signal, betas, num_numbers, num_steps) for signal in signal_to_noise]
    adam = [signal / math.sqrt(1 + signal**2) for signal in signal_to_noise]
    return list(signal_to_noise), {"Lion": formula, "Lion, measured": measured}, {"Adam": adam}


def _measured_sign(signal: float, betas: tuple[float, float], num_numbers: int, num_steps: int) -> float:
    generator = torch.Generator().manual_seed(0)
    param = nn.Parameter(torch.zeros(num_numbers, device=generator.device))
    optimizer = Lion([param], lr=1.0, betas=betas)
    total = 0.0
    for step in range(num_steps):
        param.grad = signal + torch.randn(num_numbers, generator=generator, device=generator.device)
        before = param.detach().clone()
        optimizer.step()
        if step >= num_steps * 3 // 4:
            total += float((before - param.detach()).mean())
    return total / (num_steps - num_steps * 3 // 4)


@checked
def block_errors(
    x: Float[Tensor, "..."], outliers: Sequence[float], block_sizes: Sequence[int]
) -> tuple[list[float], dict[str, list[float]]]:
    """Relative error of all numbers but one outlier, given in root mean squares, for each size of blocks."""
    errors = [outlier_errors(x.detach(), block_sizes, outlier) for outlier in outliers]
    names = [f"blocks of {size:,}" if size < x.numel() else "one scale for all" for size in block_sizes]
    return list(outliers), {name: [each[i] for each in errors] for i, name in enumerate(names)}


@checked
def lost_shares(
    grad: Float[Tensor, "m n"], sources: Mapping[str, Tensor], ranks: Sequence[int]
) -> tuple[list[int], dict[str, list[float]]]:
    """Share of a gradient that is lost at each rank, with directions of each of the sources: itself, older ones.

    `sources`: name -> gradient of the same shape, from which directions are taken. `ranks`: at most min(m, n).
    """
    axes = {name: strongest_directions(source, max(ranks)) for name, source in sources.items()}
    return list(ranks), {name: [lost_share(grad, one[:, :rank]) for rank in ranks] for name, one in axes.items()}
