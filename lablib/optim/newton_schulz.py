"""Newton-Schulz: approximate the nearest orthogonal matrix by matrix products.

Of X = U S V^T the nearest matrix with orthonormal rows (or columns) is U V^T: all singular values become 1. A
decomposition would compute it slowly. Instead X is divided by its norm, and then, five times,

    X = a X + b (X X^T) X + c (X X^T)^2 X

which keeps U and V and maps each singular value s to a s + b s^3 + c s^5 (`singular_values_after`).

With (15/8, -10/8, 3/8) the values converge to 1, but small ones slowly: they grow by a factor of 1.9 per step. With
Muon's (3.4445, -4.7750, 2.0315) the factor is 3.4, but they do not converge: values of 0.01 and more end between 0.68
and 1.13, which is enough in practice.

Cost: num_steps (4 m^2 n + 2 m^3) FLOPs for an m x n matrix, m <= n; three matrices of m x n and two of m x m at a time.
Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, kellerjordan.github.io;
Bernstein and Newhouse, "Old Optimizer, New Norm", 2024, arXiv 2409.20325, appendix A.
Shapes: x_mn any matrix; the longer side is n, by transposing.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lablib.signature import checked

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@checked
def newton_schulz(
    x: Float[Tensor, "m n"],
    num_steps: int = 5,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    eps: float = 1e-7,
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "m n"]:
    """About U V^T of x = U S V^T, in `dtype`; x is not changed."""
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = x.to(dtype).T if tall else x.to(dtype)  # X X^T of the smaller side
    x = x / x.norm().clamp(min=eps)
    for _ in range(num_steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


@checked
def singular_values_after(
    singular_values: Float[Tensor, " n"], num_steps: int = 5, coefficients: tuple[float, float, float] = COEFFICIENTS
) -> Float[Tensor, " n"]:
    """Singular values after Newton-Schulz: divided by their norm, then mapped one by one."""
    a, b, c = coefficients
    s = singular_values / singular_values.norm()
    for _ in range(num_steps):
        s = a * s + b * s**3 + c * s**5
    return s
