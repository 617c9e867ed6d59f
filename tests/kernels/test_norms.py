"""RMSNorm and LayerNorm by kernels are torch's, forward and backward; their bytes by formula."""

# pyright: reportCallIssue=false

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.kernels.accesses import hbm_bytes, record_accesses
from lablib.kernels.jit import cdiv
from lablib.kernels.layer_norm import layer_norm
from lablib.kernels.rms_norm import rms_norm
from lablib.kernels.row_checks import partial_lines
from tests.kernels.drawn import F64, assert_rounded, assert_same, narrow, numbers, sizes, unchecked

pytest.importorskip("triton")
EPS = 1e-3  # large enough to be seen
OURS = {"rms": lambda x, w, *b, **more: rms_norm(x, w, EPS, **more), "layer": lambda *a, **b: layer_norm(*a, EPS, **b)}
TORCHS = {
    "rms": lambda x, w: F.rms_norm(x, w.shape, w, EPS),
    "layer": lambda x, w, b: F.layer_norm(x, w.shape, w, b, EPS),
}
each = pytest.mark.parametrize("norm", ["rms", "layer"])
rows, programs = st.sampled_from([1, 2, 3, 4, 7]), st.integers(1, 4)


def inputs(norm, T, D, dtype=F64, mean=0.0):
    """x, w and, of LayerNorm, b."""
    x = (mean + numbers(T, D)).to(dtype).requires_grad_()
    return [x, *(numbers(D, seed=seed, dtype=dtype, grad=True) for seed in range(1 if norm == "rms" else 2))]


def with_gradients(function, given_, dy):
    y = function(*given_)
    return [y.detach(), *torch.autograd.grad(y, given_, dy)]


@each
@settings(max_examples=20)
@given(T=rows, D=sizes, tokens=programs, mean=st.sampled_from([0.0, 10.0]))
def test_kernels_equal_torch(norm, T, D, tokens, mean):
    given_, dy = inputs(norm, T, D, mean=mean), numbers(T, D, seed=5)
    expected = with_gradients(TORCHS[norm], given_, dy)
    kernels = with_gradients(lambda *x: OURS[norm](*x, tokens=tokens), given_, dy)
    for mine, theirs in zip(kernels, expected, strict=True):
        # a mean of 10 costs a digit in x - mean
        torch.testing.assert_close(mine, theirs, rtol=1e-12 * (1 + mean), atol=1e-12)


@each
@settings(max_examples=15)
@given(T=rows, D=st.sampled_from([3, 8, 17]), dtype=narrow)
def test_narrow_numbers_are_rounded_once(norm, T, D, dtype):
    given_, dy = inputs(norm, T, D, dtype), numbers(T, D, seed=5, dtype=dtype)
    found = with_gradients(lambda *x: OURS[norm](*x, tokens=2), given_, dy)
    wide = [x.detach().double().requires_grad_() for x in given_]
    exact = with_gradients(TORCHS[norm], wide, dy.double())
    for mine, theirs in zip(found, exact, strict=True):
        assert mine.dtype == dtype
        assert_rounded(mine, theirs, about=32.0)  # terms of up to 1 / sqrt(EPS) = 32 are summed


@each
@settings(max_examples=15)
@given(T=rows, D=sizes, tokens=programs, dtype=st.sampled_from([F64, torch.bfloat16]))
def test_bytes_are_the_formulas(norm, T, D, tokens, dtype):
    given_ = inputs(norm, T, D, dtype)
    with record_accesses() as forward:
        y = OURS[norm](*given_, tokens=tokens)
    with record_accesses() as backward:
        y.backward(torch.ones_like(y))
    b, a, P, vectors = y.itemsize, 8 if dtype == F64 else 4, cdiv(T, tokens), len(given_) - 1
    assert sum(hbm_bytes(forward).values()) == (2 * T * D + vectors * P * D) * b + vectors * T * a
    expected = (3 * T * D + P * D) * b + vectors * T * a + vectors * P * D * a
    assert sum(hbm_bytes(backward).values()) == expected


@given(rows=st.integers(0, 10**7), columns=st.integers(1, 300), multiprocessors=st.integers(1, 160))
def test_partial_sums_have_lines_by_the_gpu_and_never_more_than_rows(rows, columns, multiprocessors):
    gpu = SimpleNamespace(multi_processor_count=multiprocessors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
        lines = partial_lines(rows, torch.device("cuda"), columns)
    assert min(rows, 1) <= lines <= rows
    assert lines == rows or 4 * multiprocessors <= lines * columns < 4 * multiprocessors + columns


@each
@settings(max_examples=15)
@given(T=st.sampled_from([0, 1, 3, 5, 9]), D=sizes)
def test_without_tokens_forward_takes_one_and_backward_shares_them_among_four_programs(norm, T, D):
    given_ = inputs(norm, T, D)
    with record_accesses() as launches:
        y = OURS[norm](*given_)
        y.backward(torch.ones_like(y))
    forward, backward = launches
    assert (forward.grid[0], backward.grid[0]) == (T, cdiv(T, cdiv(T, 4)) if T else 0)
    wanted = torch.autograd.grad(TORCHS[norm](*given_), given_, torch.ones_like(y))
    for one, theirs in zip(given_, wanted, strict=True):
        torch.testing.assert_close(one.grad, theirs, rtol=1e-12, atol=1e-12)


@each
def test_equal_numbers_and_zeros(norm):
    x = torch.tensor([[0.0] * 5, [7.0] * 5, [1e-30] * 5, [1e100, 0, 0, 0, 0]], dtype=F64)
    given_ = [x, *inputs(norm, 1, 5)[1:]]
    assert_same(OURS[norm](*given_).detach(), TORCHS[norm](*given_).detach())


def test_variance_beside_a_large_mean_keeps_its_digits():
    """mean x^2 - mu^2 would be 0 or negative here: 1e8 has eight digits in float32, and its square no room for 1."""
    x = torch.tensor([[4096.0, 4097.0, 4098.0, 4099.0]])
    w, b = torch.ones(4), torch.zeros(4)
    torch.testing.assert_close(layer_norm(x, w, b), F.layer_norm(x.double(), (4,)).float(), rtol=1e-6, atol=1e-6)


@each
def test_leading_dimensions_no_tokens_and_weights_of_another_dtype(norm):
    given_ = inputs(norm, 6, 5)
    whole = OURS[norm](*given_)
    assert_same(OURS[norm](given_[0].reshape(2, 3, 5), *given_[1:]).reshape(6, 5).detach(), whole.detach())
    OURS[norm](given_[0][:0], *given_[1:]).sum().backward()
    assert all(one.grad is not None and not one.grad.any() for one in given_)
    narrow_x = given_[0].detach().bfloat16()
    y = OURS[norm](narrow_x, *[one.float() for one in given_[1:]])
    assert y.dtype == torch.bfloat16


@each
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(5, 3).T}, "x must be contiguous"),
        ({"x": torch.ones(3, 0)}, r"a row of x must have 1 to 65,536 numbers: got shape \(3, 0\)"),
        ({"x": torch.ones(1, 65_537)}, "1 to 65,536 numbers"),
        ({"w": torch.ones(4)}, r"w must have 5 numbers, as x's rows have: got shape \(4,\)"),
        ({"x": torch.ones(3, 5).long()}, "x must be one of float16, .*: got torch.int64"),
        ({"w": torch.ones(5).int()}, "w must be one of float16, .*: got torch.int32"),
    ],
)
def test_misuse_is_one_clear_error(norm, change, message):
    arguments = {"x": torch.ones(3, 5), "w": torch.ones(5), "tokens": 4, "eps": EPS} | change
    x, w = arguments["x"], arguments["w"]
    function, more = (rms_norm, ()) if norm == "rms" else (layer_norm, (torch.ones(5),))
    with pytest.raises(ValueError, match=message):
        unchecked(function)(x, w, *more, arguments["eps"], arguments["tokens"])


@pytest.mark.gpu
@each
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("D", [1000, 4096])
def test_compiled_kernels_equal_torch(norm, dtype, D):
    given_ = [x.detach().cuda().requires_grad_() for x in inputs(norm, 1023, D, dtype)]
    dy = numbers(1023, D, seed=5, dtype=dtype).cuda()
    found = with_gradients(OURS[norm], given_, dy)
    exact = with_gradients(TORCHS[norm], [x.detach().double().requires_grad_() for x in given_], dy.double())
    for mine, theirs in zip(found, exact, strict=True):
        if dtype == F64:
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)
        else:
            assert_rounded(mine, theirs, about=100.0)
