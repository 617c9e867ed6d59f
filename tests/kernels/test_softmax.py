"""Softmax by kernels is torch's, forward and backward, at any size and extreme; its bytes by formula."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.kernels.accesses import hbm_bytes, record_accesses
from lablib.kernels.softmax import softmax
from tests.kernels.drawn import F64, TILE, assert_rounded, assert_same, narrow, numbers, sizes, unchecked

pytest.importorskip("triton")


def ours_and_torchs(x, dy, function):
    """y and the gradient of x, by both."""
    x = x.detach().requires_grad_()
    found = []
    for one in (function, lambda x: torch.softmax(x, -1)):
        y = one(x)
        found.append((y.detach(), *torch.autograd.grad(y, x, dy)))
    return found


def gradient_from(y, dy):
    """The gradient of x from the result, which may have been rounded."""
    return y * (dy - (y * dy).sum(1, keepdim=True))


@settings(max_examples=30)
@given(N=st.integers(1, 3), M=sizes, scale=st.sampled_from([1.0, 100.0]))
def test_kernels_equal_torch(N, M, scale):
    x, dy = scale * numbers(N, M), numbers(N, M, seed=1)
    (y, dx), (torch_y, torch_dx) = ours_and_torchs(x, dy, lambda x: softmax(x, block=TILE))
    assert_same(y, torch_y)
    assert_same(dx, torch_dx)


@settings(max_examples=20)
@given(N=st.integers(1, 3), M=sizes, dtype=narrow)
def test_narrow_numbers_are_rounded_once(N, M, dtype):
    x, dy = numbers(N, M, dtype=dtype), numbers(N, M, seed=1, dtype=dtype)
    (y, dx), _ = ours_and_torchs(x, dy, lambda x: softmax(x, block=TILE))
    assert_rounded(y, x.double().softmax(1))
    # backward knows y only as it was rounded
    assert_rounded(dx, gradient_from(y.double(), dy.double()))
    assert y.dtype == dx.dtype == dtype


@given(N=st.integers(1, 3), M=sizes, dtype=st.sampled_from([F64, torch.bfloat16]))
@settings(max_examples=20)
def test_bytes_are_the_formulas(N, M, dtype):
    x = numbers(N, M, dtype=dtype).requires_grad_()
    with record_accesses() as forward:
        y = softmax(x, block=TILE)
    with record_accesses() as backward:
        y.backward(torch.ones_like(y))
    size = N * M * x.itemsize
    assert hbm_bytes(forward) == {"x": size if M <= TILE else 2 * size, "y": size}
    again = 1 if M <= TILE else 2
    assert hbm_bytes(backward) == {"y": again * size, "dy": again * size, "dx": size}


INF = float("inf")
EXTREMES = {
    "large": [[1e4, -1e4, 1e4, 0.0] * 5],
    "equal": [[3.0] * 19],
    "first tile masked": [[-INF] * 9 + [1.0, 2.0]],
    "last tile masked": [[1.0, 2.0] + [-INF] * 15],
    "middle masked": [[1.0] + [-INF] * 17 + [2.0]],
    "all masked": [[-INF] * 17, [0.0] * 17],
    "infinite": [[INF] + [0.0] * 17],
    "not a number": [[float("nan")] + [0.0] * 17],
    "one number": [[-5.0]],
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("block", [TILE, 32])
def test_extreme_rows_are_torchs(name, block):
    x = torch.tensor(EXTREMES[name], dtype=F64)
    torch.testing.assert_close(softmax(x, block), x.softmax(1), rtol=1e-12, atol=0, equal_nan=True)


def test_any_leading_dimensions_and_none():
    x = numbers(2, 3, 11)
    assert_same(softmax(x, TILE), x.softmax(-1))
    assert_same(softmax(x[0, 0], TILE), x[0, 0].softmax(-1))
    assert softmax(x[:0], TILE).shape == (0, 3, 11)


def test_a_gradient_that_is_a_view_of_one_number():
    x = numbers(3, 11, grad=True)
    softmax(x, TILE).sum().backward()  # its gradient has strides 0
    assert x.grad is not None and x.grad.abs().max() < 1e-15


@pytest.mark.parametrize(
    ("x", "block", "message"),
    [
        (torch.ones(3, 0), 8, r"a row must have at least one number: got shape \(3, 0\)"),
        (torch.ones(()), 8, "at least one number"),
        (torch.ones(4, 2).T, 8, "x must be contiguous"),
        (torch.arange(8).reshape(4, 2), 8, "x must be one of float16, .*: got torch.int64; convert it"),
        (torch.ones(4, 2, dtype=torch.cfloat), 8, "x must be one of float16, bfloat16, float32, float64: got"),
    ],
)
def test_misuse_is_one_clear_error(x, block, message):
    with pytest.raises(ValueError, match=message):
        unchecked(softmax)(x, block)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("M", [1000, 8192, 50_257])
def test_compiled_kernels_equal_torch(dtype, M):
    x, dy = numbers(512, M, dtype=dtype).cuda(), numbers(512, M, seed=1, dtype=dtype).cuda()
    (y, dx), _ = ours_and_torchs(x, dy, softmax)
    if dtype == F64:
        assert_same(y, x.softmax(1))
        assert_same(dx, gradient_from(y, dy))
    else:
        assert_rounded(y, x.double().softmax(1))
        assert_rounded(dx, gradient_from(y.double(), dy.double()))
