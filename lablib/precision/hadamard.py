"""Hadamard transform: spread an outlier over its neighbours before rounding, without loss.

H_n is an orthogonal matrix of n x n entries +-1/sqrt(n), n a power of two:

    H_1 = [1]        H_2n = 1/sqrt(2) [H_n   H_n]
                                      [H_n  -H_n]

A single large number becomes n numbers of 1/sqrt(n) of its size, so the scale of the block shrinks and small numbers
keep their bits. H H^T = 1, so a product does not change if both factors are transformed along the dimension that it
sums over: (A H)(B H)^T = A B^T. A random sign for each row of H (random Hadamard transform) also breaks up fixed
patterns of the data.

Cost: n log2 n additions per n numbers; here one product with H. Shapes: x_RC (..., C), H along C in blocks of n.
Source: Xi et al., "Training Transformers with 4-bit Integers", 2023, arXiv 2306.11987, section 3.2; Tseng et al.,
"QuIP#", 2024, arXiv 2402.04396, section 3 (random signs).
Simplified: powers of two only (other sizes exist); the butterfly is a matrix product.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from lablib.signature import PowerOfTwo, checked


@checked
def hadamard_matrix(size: Annotated[int, PowerOfTwo()]) -> Float[Tensor, "n n"]:
    """H_n in float32: symmetric and orthogonal."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


@checked
def hadamard_transform(
    x: Float[Tensor, "... C"], size: Annotated[int, PowerOfTwo()], signs: Float[Tensor, " n"] | None = None
) -> Float[Tensor, "... C"]:
    """`x H`, separately for each `size` neighbours of the last dimension; with `signs` (+-1), `x diag(signs) H`.

    ValueError: `size` does not divide the last dimension.
    """
    if x.shape[-1] % size:
        raise ValueError(f"the last dimension must be a multiple of {size}: got {x.shape[-1]}.")
    matrix = hadamard_matrix(size).to(x)
    if signs is not None:
        matrix = signs.to(x)[:, None] * matrix
    return (x.unflatten(-1, (-1, size)) @ matrix).flatten(-2)
