"""Projection of a gradient on its strongest singular vectors, the projection back, and the lost part.

Of all matrices of rank r, the one closest to G = U S V^T is U_r U_r^T G, with the first r columns of U: it loses the
squares of the other singular values,

    |G - P P^T G|^2 / |G|^2 = (s_{r+1}^2 + s_{r+2}^2 + ...) / (s_1^2 + s_2^2 + ...)          for P = U_r of the same G

and more for the P of an older gradient (`lost_share`). Projecting G P on the other side, with P = V_r, loses the same;
the smaller side has the smaller P.

Cost: about 4 min(m, n) FLOPs for each number of G to find P; 2 r to project and 2 r to project back.
Shapes: G (m, n), k = min(m, n); P (k, r) with orthonormal columns; projected (r, n) if m <= n, otherwise (m, r).
Source: Eckart and Young, "The approximation of one matrix by another of lower rank", 1936; Zhao et al., 2024, arXiv
2403.03507, section 3.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lablib.signature import checked


@checked
def strongest_directions(grad: Float[Tensor, "m n"], rank: int) -> Float[Tensor, "k r"]:
    """The first singular vectors of the smaller side, k = min(m, n), as orthonormal columns."""
    u, _, vh = torch.linalg.svd(grad.to(torch.promote_types(grad.dtype, torch.float32)), full_matrices=False)
    return (u[:, :rank] if grad.shape[0] <= grad.shape[1] else vh[:rank].T).to(grad.dtype)


@checked
def project(grad: Float[Tensor, "m n"], axes: Float[Tensor, "k r"]) -> Float[Tensor, "..."]:
    """P^T G (r, n) if m <= n, otherwise G P (m, r)."""
    return axes.T @ grad if grad.shape[0] <= grad.shape[1] else grad @ axes


@checked
def project_back(low: Float[Tensor, "..."], axes: Float[Tensor, "k r"], shape: torch.Size) -> Float[Tensor, "m n"]:
    """P R if m <= n, otherwise R P^T: the matrix of this shape."""
    return axes @ low if shape[0] <= shape[1] else low @ axes.T


@checked
def lost_share(grad: Float[Tensor, "m n"], axes: Float[Tensor, "k r"]) -> float:
    """Share of a gradient outside the directions: |G - P P^T G|^2 / |G|^2, 0 to 1; 0 for a gradient of zeros."""
    kept = project(grad, axes).square().sum()
    return max(0.0, float(1 - kept / grad.square().sum())) if grad.any() else 0.0  # rounding may give less
