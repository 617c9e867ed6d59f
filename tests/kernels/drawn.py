"""What the tests of row-wise kernels share: sizes about a tile, numbers, and how near a rounded result must be."""

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

F64 = torch.float64
TILE = 8
sizes = st.sampled_from([1, 2, 3, TILE - 1, TILE, TILE + 1, 2 * TILE, 2 * TILE + 1, 23])  # about a tile, and primes
narrow = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = F64, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(31 * size for size in shape))
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype).requires_grad_(grad)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Both in float64: only the order of some sums differs."""
    assert ours.dtype == theirs.dtype == F64
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def assert_rounded(ours: Tensor, exact: Tensor, about: float = 1.0) -> None:
    """Calculated in float32 and rounded once to its dtype: half a unit in the last place, and float32's own errors.

    Arguments:
        exact: in float64, of the same rounded inputs.
        about: the size of the terms that were summed, for an error that does not shrink with the result.
    """
    eps, own = torch.finfo(ours.dtype).eps, torch.finfo(torch.float32).eps
    rtol = eps / 2 if ours.dtype != torch.float32 else 0.0
    tiny = torch.finfo(ours.dtype).smallest_normal * eps  # below the normal numbers the units no longer shrink
    torch.testing.assert_close(ours.double(), exact, rtol=rtol + 16 * own, atol=16 * own * about + tiny)


def sum_error(length: int, dtype: torch.dtype) -> float:
    """Largest error of a sum of products, relative to the sum of their sizes, in the accumulator of a dtype.

    8 sqrt(n) u: rounding errors are independent, so they grow with the root of the number of terms, and are beyond 8
    times that with a probability of 2 exp(-32) (Higham and Mary, "A New Approach to Probabilistic Rounding Error
    Analysis", 2019, SIAM J. Sci. Comput. 41(5), theorem 3.1).
    """
    unit = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    return 8 * math.sqrt(length) * unit


def unchecked(function):
    """The function as in a notebook, where nobody checks shapes: without the tests' own checker."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
