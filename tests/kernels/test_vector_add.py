"""Vector addition: exactly torch's, in three bytes a byte."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.kernels.accesses import distinct_bytes, hbm_bytes, record_accesses
from lablib.kernels.jit import FLOATS
from lablib.kernels.vector_add import vector_add
from tests.kernels.drawn import TILE, numbers, sizes, unchecked

pytest.importorskip("triton")


@settings(max_examples=40)
@given(n=st.integers(0, 40) | sizes, dtype=st.sampled_from(FLOATS))
def test_equals_torch_exactly_and_moves_three_numbers_for_one(n, dtype):
    x, y = numbers(n, dtype=dtype), numbers(n, seed=1, dtype=dtype)
    with record_accesses() as launches:
        z = unchecked(vector_add)(x, y, block=np.int64(TILE))  # pyright: ignore[reportArgumentType]
    assert torch.equal(z, x + y)
    assert sum(hbm_bytes(launches).values()) == 3 * n * x.itemsize
    assert hbm_bytes(launches) == distinct_bytes(launches)


def test_gradients_pass_through():
    x, y = numbers(2, 5, grad=True), numbers(2, 5, seed=1, grad=True)
    assert torch.autograd.gradcheck(lambda x, y: vector_add(x, y, TILE), (x, y))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(3), torch.ones(4), 8), r"one shape and dtype: got torch.float32 \(3,\), torch.float32 \(4,\)"),
        ((torch.ones(3), torch.ones(3).double(), 8), "must have one shape and dtype"),
        ((torch.ones(4, 2).T, torch.ones(4, 2).T, 8), "x must be contiguous"),
        ((torch.arange(3), torch.arange(3), 8), "x must be one of float16, .*: got torch.int64"),
    ],
)
def test_misuse_is_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        unchecked(vector_add)(*arguments)
