"""Bias and GELU in one kernel are torch's two operators, forward and backward; their bytes by formula."""

# pyright: reportArgumentType=false

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.kernels.accesses import distinct_bytes, hbm_bytes, record_accesses
from lablib.kernels.bias_gelu import bias_gelu
from lablib.kernels.jit import cdiv
from tests.kernels.drawn import F64, TILE, assert_rounded, assert_same, narrow, numbers, sizes, unchecked

pytest.importorskip("triton")
forms = st.sampled_from(["none", "tanh"])
BLOCKS = {"block_T": 4, "block_D": TILE}


def torchs(x, b, dy, form):
    """y and the gradients of x and b, by torch."""
    x, b = x.detach().requires_grad_(), b.detach().requires_grad_()
    y = F.gelu(x + b, approximate=form)
    return [y.detach(), *torch.autograd.grad(y, [x, b], dy)]


def ours(x, b, dy, form, **blocks):
    x, b = x.detach().requires_grad_(), b.detach().requires_grad_()
    y = bias_gelu(x, b, form, **blocks)
    return [y.detach(), *torch.autograd.grad(y, [x, b], dy)]


@settings(max_examples=30)
@given(T=st.sampled_from([1, 3, 4, 5, 9]), D=sizes, form=forms, scale=st.sampled_from([1.0, 30.0]))
def test_kernels_equal_torch(T, D, form, scale):
    x, b, dy = scale * numbers(T, D), numbers(D, seed=1), numbers(T, D, seed=2)
    expected = torchs(x, b, dy, form)
    for mine, theirs in zip(ours(x, b, dy, form, **BLOCKS), expected, strict=True):
        assert_same(mine, theirs)


@settings(max_examples=20)
@given(T=st.integers(1, 5), D=sizes, form=forms, dtype=narrow)
def test_narrow_numbers_are_rounded_once(T, D, form, dtype):
    x, b, dy = (numbers(*shape, seed=len(shape), dtype=dtype) for shape in ((T, D), (D,), (T, D)))
    exact = torchs(x.double(), b.double(), dy.double(), form)
    for mine, theirs, about in zip(ours(x, b, dy, form, **BLOCKS), exact, (4.0, 4.0, 4.0 * T), strict=True):
        assert mine.dtype == dtype
        assert_rounded(mine, theirs, about)


@settings(max_examples=20)
@given(T=st.sampled_from([1, 3, 4, 5, 9]), D=sizes, dtype=st.sampled_from([F64, torch.bfloat16]))
def test_bytes_are_the_formulas(T, D, dtype):
    x, b = numbers(T, D, dtype=dtype).requires_grad_(), numbers(D, dtype=dtype).requires_grad_()
    with record_accesses() as forward:
        y = bias_gelu(x, b, **BLOCKS)
    with record_accesses() as backward:
        y.backward(torch.ones_like(y))
    size, R, wide = x.itemsize, cdiv(T, 4), 8 if dtype == F64 else 4
    P = cdiv(R, cdiv(R, min(R, cdiv(4, cdiv(D, TILE)))))  # four programs in all, on a CPU
    assert sum(hbm_bytes(forward).values()) == (2 * T * D + R * D) * size
    assert distinct_bytes(forward)["b"] == D * size
    moved = hbm_bytes(backward)
    assert moved.pop("partial") == P * D * wide
    assert sum(moved.values()) == (3 * T * D + P * D) * size


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_large_numbers_pass_or_are_shut_off(form):
    x, b = torch.tensor([[-1e30, -1e4, -50, 0, 50, 1e4, 1e30]], dtype=F64), torch.zeros(7, dtype=F64)
    y, dx, _ = ours(x, b, torch.ones_like(x), form)
    assert y.tolist() == [[0, 0, 0, 0, 50, 1e4, 1e30]]
    if form == "none":
        assert dx.tolist() == [[0, 0, 0, 0.5, 1, 1, 1]]


def test_no_tokens_have_no_gradient():
    x, b = numbers(0, 5, grad=True), numbers(5, grad=True)
    bias_gelu(x, b).sum().backward()
    assert b.grad is not None and b.grad.tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("x", "b", "block", "message"),
    [
        (torch.ones(3, 5), torch.ones(4), 8, "a number for each of x's last dimension"),
        (torch.ones(5, 3).T, torch.ones(5), 8, "x must be contiguous"),
        (torch.ones(3, 5).int(), torch.ones(5), 8, "x must be one of float16, .*: got torch.int32"),
    ],
)
def test_misuse_is_one_clear_error(x, b, block, message):
    with pytest.raises(ValueError, match=message):
        unchecked(bias_gelu)(x, b, block_T=block)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_compiled_kernels_equal_torch(form, dtype):
    x, b, dy = (numbers(*shape, seed=len(shape), dtype=dtype).cuda() for shape in ((999, 4097), (4097,), (999, 4097)))
    exact = torchs(x.double(), b.double(), dy.double(), form)
    for mine, theirs, about in zip(ours(x, b, dy, form), exact, (4.0, 4.0, 999.0), strict=True):
        assert_same(mine, theirs) if dtype == F64 else assert_rounded(mine, theirs, about)
