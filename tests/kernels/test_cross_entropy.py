"""Cross-entropy and its gradient in one pass are torch's, at any size, dtype and extreme; the bytes by formula."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.kernels.accesses import hbm_bytes, record_accesses
from lablib.kernels.cross_entropy import cross_entropy
from tests.kernels.drawn import F64, TILE, assert_rounded, assert_same, narrow, numbers, sizes, unchecked

pytest.importorskip("triton")
rows = st.integers(1, 4)
f64_or_half = st.sampled_from([F64, torch.half])


def targets(T, V, ignored=0, seed=0):
    """Random words; the first `ignored` do not count."""
    found = torch.randint(0, V, (T,), generator=torch.Generator().manual_seed(seed + T + V))
    found[:ignored] = -100
    return found


def with_gradient(function, x):
    x = x.detach().requires_grad_()
    loss = function(x)
    return loss.detach(), *torch.autograd.grad(loss, x, torch.tensor(3.0, dtype=loss.dtype, device=x.device))


@settings(max_examples=20)
@given(T=rows, V=sizes, scale=st.sampled_from([1.0, 100.0]), ignored=st.integers(0, 3))
def test_the_kernel_equals_torch(T, V, scale, ignored):
    x, target = scale * numbers(T, V), targets(T, V, min(ignored, T - 1))
    loss, dx = with_gradient(lambda x: cross_entropy(x, target, block=TILE), x)
    torch_loss, torch_dx = with_gradient(lambda x: F.cross_entropy(x, target), x)
    for mine, theirs in ((loss, torch_loss), (dx, torch_dx)):
        # log of a sum near 1, where one score is far above the others: absolute, in units of the scores
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13 * scale)


@settings(max_examples=15)
@given(T=rows, V=sizes, dtype=narrow)
def test_narrow_scores_are_widened_and_the_gradient_is_rounded(T, V, dtype):
    x, target = numbers(T, V, dtype=dtype), targets(T, V)
    x.requires_grad_()
    loss = cross_entropy(x, target, block=TILE)
    loss.backward()
    exact_loss, three_dx = with_gradient(lambda x: F.cross_entropy(x, target), x.double())
    assert loss.dtype == torch.float32 and x.grad is not None and x.grad.dtype == dtype
    assert_rounded(loss.detach(), exact_loss, about=8.0)
    assert_rounded(x.grad, three_dx / 3)


@settings(max_examples=20)
@given(
    T=rows, V=sizes, ignored=st.integers(0, 4), with_gradient=st.booleans(), dtype=st.sampled_from([F64, torch.half])
)
def test_bytes_are_the_formulas(T, V, ignored, with_gradient, dtype):
    ignored = min(ignored, T)
    x, target = numbers(T, V, dtype=dtype).requires_grad_(with_gradient), targets(T, V, ignored)
    with record_accesses() as launches:
        cross_entropy(x, target, block=TILE)
    K, b, a = T - ignored, x.itemsize, 8 if dtype == F64 else 4
    expected = K * (V + 1) * b + 8 * T + T * a
    if with_gradient:
        expected = K * (2 * V + 1) * b + T * V * b + 8 * T + T * a + K * a
    assert sum(hbm_bytes(launches).values()) == expected


def test_no_gradient_is_written_under_no_grad():
    x, target = numbers(3, 11, grad=True), targets(3, 11)
    with torch.no_grad(), record_accesses() as launches:
        cross_entropy(x, target, block=TILE)
    assert not hbm_bytes(launches, "store").get("dx")


@settings(max_examples=20)
@given(T=rows, V=sizes, power=st.integers(0, 17), dtype=narrow)
def test_a_scaled_loss_scales_the_gradient(T, V, power, dtype):
    x, target = numbers(T, V, dtype=dtype, grad=True), targets(T, V)
    (2.0**power * cross_entropy(x, target)).backward()
    exact = 2.0**power * with_gradient(lambda x: F.cross_entropy(x, target), x.detach().double())[1] / 3
    largest = torch.finfo(dtype).max
    assert x.grad is not None
    # Rounded when it was kept, before it is scaled: tiny entries lose digits in float16.
    eps = max(torch.finfo(dtype).eps, 1e-5)
    exact = exact.clamp(-largest, largest)
    torch.testing.assert_close(x.grad.double().clamp(-largest, largest), exact, rtol=eps, atol=2.0**power * 1e-6)


INF = math.inf
EXTREMES = {
    "large": ([[1e4, -1e4, 0.0] * 5], [0]),
    "large and wrong": ([[1e4, -1e4, 0.0] * 5], [1]),
    "equal": ([[3.0] * 17], [16]),
    "masked words": ([[-INF] * 9 + [1.0, 2.0]], [10]),
    "a masked target": ([[-INF] * 9 + [1.0, 2.0]], [0]),
    "all masked": ([[-INF] * 11], [0]),
    "one word": ([[5.0], [-5.0]], [0, 0]),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_scores_are_torchs(name):
    rows_, words = EXTREMES[name]
    x, target = torch.tensor(rows_, dtype=F64), torch.tensor(words)
    loss, dx = with_gradient(lambda x: cross_entropy(x, target, block=TILE), x)
    torch_loss, torch_dx = with_gradient(lambda x: F.cross_entropy(x, target), x)
    torch.testing.assert_close(loss, torch_loss, rtol=1e-12, atol=1e-15, equal_nan=True)
    torch.testing.assert_close(dx, torch_dx, rtol=1e-12, atol=1e-15, equal_nan=True)


def test_no_token_counts():
    x, target = numbers(3, 11), torch.full((3,), -100)
    loss, dx = with_gradient(lambda x: cross_entropy(x, target, block=TILE), x)
    assert loss.isnan() and F.cross_entropy(x, target).isnan()
    assert not dx.any()


def test_another_index_is_ignored_and_a_word_may_be():
    x, target = numbers(3, 5), torch.tensor([0, 4, 2])
    loss, dx = with_gradient(lambda x: cross_entropy(x, target, ignore_index=0), x)
    torch_loss, torch_dx = with_gradient(lambda x: F.cross_entropy(x, target, ignore_index=0), x)
    assert_same(loss, torch_loss)
    assert_same(dx, torch_dx)


def test_backward_may_be_asked_twice():
    x, target = numbers(3, 11, grad=True), targets(3, 11)
    loss = cross_entropy(x, target)
    once = torch.autograd.grad(loss, x, retain_graph=True)[0]
    assert torch.equal(once, torch.autograd.grad(loss, x)[0])


@pytest.mark.parametrize(
    ("x", "target", "message"),
    [
        (torch.ones(2, 5), torch.tensor([1, 5]), "targets must be ids from 0 to 4, or ignore_index -100: got 5"),
        (torch.ones(2, 5), torch.tensor([-1, 0]), "got -1"),
        (torch.ones(2, 5), torch.tensor([1]), "targets must be int64, one for each of 2 tokens: got 1 of torch.int64"),
        (torch.ones(2, 5), torch.tensor([1, 2], dtype=torch.int32), "got 2 of torch.int32"),
        (torch.ones(2, 5).long(), torch.tensor([1, 2]), "x must be one of float16, .*: got torch.int64"),
        (torch.ones(5, 2).T, torch.tensor([1, 2]), "x must be contiguous"),
    ],
)
def test_misuse_is_one_clear_error(x, target, message):
    with pytest.raises(ValueError, match=message):
        unchecked(cross_entropy)(x, target)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("V", [1000, 50_257])
def test_compiled_kernel_equals_torch(dtype, V):
    x, target = numbers(513, V, dtype=dtype).cuda().requires_grad_(), targets(513, V, 7).cuda()
    loss = cross_entropy(x, target)
    loss.backward()
    exact_loss, exact_dx = with_gradient(lambda x: F.cross_entropy(x, target), x.double())
    assert x.grad is not None
    if dtype == F64:
        assert_same(loss.detach(), exact_loss)
        assert_same(3 * x.grad, exact_dx)
    else:
        assert_rounded(loss.detach(), exact_loss, about=16.0)
        assert_rounded(x.grad, exact_dx / 3)


@pytest.mark.gpu
def test_a_wrong_target_on_a_gpu_makes_the_loss_nan():
    assert cross_entropy(torch.ones(2, 5).cuda(), torch.tensor([1, 5]).cuda()).isnan()
