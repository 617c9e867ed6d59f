"""The transform is orthogonal, scipy's matrix, and spreads an outlier."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.precision.hadamard import hadamard_matrix, hadamard_transform


@pytest.mark.parametrize("size", [1, 2, 4, 16, 128])
def test_the_matrix_is_sylvesters(size):
    """Entry (i, j) is (-1)^(number of ones that i and j have in common) / sqrt(n)."""
    expected = [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    assert torch.allclose(hadamard_matrix(size), torch.tensor(expected) / size**0.5)


@given(power=st.integers(0, 6), blocks=st.integers(1, 3), has_signs=st.booleans())
def test_a_product_stays_the_same(power, blocks, has_signs):
    n = 2**power
    generator = torch.Generator().manual_seed(power)
    a, b = (torch.randn(3, n * blocks, generator=generator, dtype=torch.float64) for _ in range(2))
    signs = torch.randint(0, 2, (n,), generator=generator).double() * 2 - 1 if has_signs else None
    product = hadamard_transform(a, n, signs) @ hadamard_transform(b, n, signs).T
    assert torch.allclose(product, a @ b.T, rtol=1e-6, atol=1e-6)  # the matrix is kept in float32


def test_an_outlier_is_spread_evenly():
    x = torch.zeros(1, 16)
    x[0, 5] = 8.0
    assert hadamard_transform(x, 16).abs().unique().tolist() == [2.0]


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="multiple of 16: got 24"):
        hadamard_transform(torch.ones(2, 24), 16)
