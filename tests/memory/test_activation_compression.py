"""Activations in 8 bits: the error of every number and of every gradient within its bound, right in the mean."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lablib import launch
from lablib.memory.activation_compression import compress, compressed_activations, decompress
from lablib.memory.packed_memory import is_dense, packed_memory
from lablib.models import GPTConfig
from lablib.models.gpt import Block


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(
    numel=st.integers(1, 300),
    group_size=st.integers(2, 70),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    shift=st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_each_number_is_off_by_less_than_its_groups_scale(numel, group_size, scale, shift, seed):
    x = drawn(numel, seed=seed) * scale + shift
    kept = compress(x, group_size, torch.Generator().manual_seed(seed))
    back = decompress(kept)
    # The bound by hand, group by group.
    parts = x.split(group_size)
    spacing = torch.cat([((part.max() - part.min()) / 255).expand(len(part)) for part in parts])
    torch.testing.assert_close(kept.error_bound(), spacing)
    rounding = 1e-14 * x.abs().max()
    assert torch.all((back - x).abs() <= spacing + rounding)
    for part, again in zip(parts, back.split(group_size), strict=True):  # 256 values from the least to the largest
        assert part.min() - rounding <= again.min() and again.max() <= part.max() + rounding
    num_groups = -(-numel // group_size)
    assert kept.size_bytes == num_groups * (group_size + 16)  # float64: scale and offset of 8 bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes_and_shapes_come_back_as_they_were(dtype):
    x = drawn(3, 5, 7, dtype=dtype).transpose(0, 2)
    kept = compress(x, 16)
    back = decompress(kept)
    assert back.shape == x.shape and back.dtype == dtype
    assert kept.size_bytes == math.ceil(105 / 16) * (16 + 8)
    off = (back.double() - x.double()).abs() - kept.error_bound().double()
    assert torch.all(off <= 2 * torch.finfo(dtype).eps * x.double().abs().max())


def test_rounding_is_right_in_the_mean_and_exact_where_a_group_is_constant():
    x = drawn(64)
    generator, rounds = torch.Generator().manual_seed(0), 4000
    mean = sum(decompress(compress(x, 64, generator)) for _ in range(rounds)) / rounds
    spacing = float(x.max() - x.min()) / 255
    assert float((mean - x).abs().max()) < 5 * spacing / 2 / math.sqrt(rounds)  # five standard deviations
    constant = torch.full((100,), 0.3)
    assert torch.equal(decompress(compress(constant, 32)), constant)


def test_the_least_and_the_largest_keep_their_place():
    """Codes 0 and 255 are the ends of the range, so 255 steps lie between."""
    x = torch.linspace(-1, 1, 256, dtype=torch.float64)
    kept = compress(x, 256)
    assert int(kept.codes.min()) == 0 and int(kept.codes.max()) == 255
    torch.testing.assert_close(decompress(kept)[[0, -1]], x[[0, -1]])


def test_what_is_not_finite_comes_back_as_nan():
    x = drawn(8)
    x[1] = math.inf
    back = decompress(compress(x, 4))
    assert back[:4].isnan().all() and back[4:].isfinite().all()


def linear_gradients(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, **options) -> list[torch.Tensor]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    with compressed_activations([w], min_numel=1, **options):
        y = F.linear(x, w)
    return list(torch.autograd.grad(y, (x, w), dy))


@settings(max_examples=30)
@given(
    tokens=st.integers(1, 20),
    width=st.integers(1, 20),
    out=st.integers(1, 9),
    group_size=st.integers(2, 40),
    seed=st.integers(0, 99),
)
def test_the_gradient_of_a_product_is_within_the_bound(tokens, width, out, group_size, seed):
    x, w, dy = drawn(tokens, width, seed=seed), drawn(out, width, seed=1), drawn(tokens, out, seed=2)
    dx, dw = linear_gradients(x, w, dy, group_size=group_size)
    torch.testing.assert_close(dx, dy @ w)  # needs w alone
    bound = dy.abs().mT @ compress(x, group_size).error_bound()
    assert torch.all((dw - dy.mT @ x).abs() <= bound + 1e-12)


def test_the_measured_error_is_that_of_the_standard_deviation():
    x, w, dy = drawn(64, 32), drawn(8, 32, seed=1), drawn(64, 8, seed=2)
    generator, rounds = torch.Generator().manual_seed(0), 400
    off = torch.stack([linear_gradients(x, w, dy, generator=generator)[1] - dy.mT @ x for _ in range(rounds)])
    largest = torch.sqrt((dy**2).mT @ compress(x).error_bound() ** 2) / 2
    assert torch.all(off.mean(0).abs() < 5 * largest / math.sqrt(rounds))
    measured = float(off.std(0).norm() / largest.norm())
    assert 0.7 < measured < 1  # up or down with chance p and 1 - p: sqrt(p (1 - p)) is sqrt(1/6) in the mean, not 1/2


def test_the_gradient_of_an_elementwise_function_is_within_its_bound():
    x, dy = (drawn(1000)).requires_grad_(), drawn(1000, seed=1)
    with compressed_activations(min_numel=1, group_size=50):
        y = F.gelu(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    (want,) = torch.autograd.grad(F.gelu(x), x, dy)
    steepest = math.sqrt(2 / math.pi)  # gelu''(x) = (2 - x^2) exp(-x^2 / 2) / sqrt(2 pi), largest at 0
    assert torch.all((dx - want).abs() <= dy.abs() * compress(x, 50).error_bound() * steepest + 1e-12)
    assert not torch.equal(dx, want)


def test_a_block_keeps_a_quarter_and_its_gradients_are_near():
    torch.manual_seed(0)
    block = Block(GPTConfig(1, 32, 4, 32, 64), torch.device("cpu"), torch.float32)
    x = drawn(4, 64, 32, dtype=torch.float32)

    def gradients(context) -> torch.Tensor:
        with context:
            loss = (block(x) ** 2).mean()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(block.parameters()))])

    want = gradients(torch.enable_grad())
    got = gradients(compressed_activations(block.parameters(), generator=torch.Generator().manual_seed(0)))
    assert 0 < float((got - want).norm() / want.norm()) < 0.01


def kept_bytes(is_compressed: bool, depth: int = 6, numel: int = 4096) -> int:
    """What the memory tracker holds after the forward of a chain of tanh(x), beyond its input and its output."""

    def program() -> torch.Tensor:
        x = torch.randn(numel, requires_grad=True)
        with compressed_activations() if is_compressed else torch.enable_grad():
            for _ in range(depth):
                x = x.tanh()
        with torch.profiler.record_function("after"):
            torch.zeros(1)
        x.sum().backward()
        return x

    run = launch(program, ranks=1)
    (block,) = [b for b in run.memory.allocations if b.phase == "after"]
    held = [b.size_bytes for b in run.memory.allocations if b.start_s <= block.start_s < b.end_s and b.phase != "after"]
    return sum(held)


def test_the_tracker_sees_a_quarter():
    numel, depth = 4096, 6
    plain, packed = kept_bytes(False), kept_bytes(True)
    assert plain == 4 * numel * (depth + 1)
    codes = numel + 8 * numel // 256
    assert packed == 4 * numel * 2 + depth * codes


# ---- packed_memory ----


class Box:
    def __init__(self, flat: torch.Tensor):
        self.flat = flat.clone()


def gradients_and_boxes(forward, *inputs: torch.Tensor, **options):
    boxes: list[int] = []

    def pack(flat: torch.Tensor) -> Box:
        boxes.append(flat.numel())
        return Box(flat)

    with packed_memory(pack, lambda box: box.flat, **options):
        output = forward(*inputs)
    return torch.autograd.grad(output.sum(), inputs), boxes


def test_a_memory_is_packed_once_in_whatever_shape_it_is_saved():
    q, k = drawn(2, 3, 5, 4).requires_grad_(), drawn(2, 3, 5, 4, seed=1).requires_grad_()

    def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ k  # k is saved twice, once transposed; the softmax by two operators

    got, boxes = gradients_and_boxes(attention, q, k)
    want = torch.autograd.grad(attention(q, k).sum(), (q, k))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert sorted(boxes) == [120, 120, 150]


def test_a_changed_or_another_memory_is_packed_anew():
    x = drawn(6).requires_grad_()

    def changes(x: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        first = y * y  # saves y
        with torch.no_grad():
            y.add_(1.0)
        return first + y.exp() * 0 + (y * y)  # saves y as it is now

    _, boxes = gradients_and_boxes(changes, x)
    assert boxes.count(6) == 3  # y, exp, y again

    def addresses_are_used_again(x: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = (x + 0.1).tanh()
        return x

    got, boxes = gradients_and_boxes(addresses_are_used_again, x)
    torch.testing.assert_close(got, torch.autograd.grad(addresses_are_used_again(x).sum(), (x,)), rtol=0, atol=0)
    assert boxes == [6] * 50


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    start=st.integers(0, 2),
)
def test_views_of_every_kind_come_back(shape, order, start):
    dims = list(range(len(shape)))
    order.shuffle(dims)
    base = drawn(*shape, 3)
    assert is_dense(base.permute(len(shape), *dims))
    assert is_dense(base[..., start]) == (math.prod(shape) == 1)
    x = base.requires_grad_()

    def forward(x: torch.Tensor) -> torch.Tensor:
        view = x[..., start].permute(dims)
        return (view * view + x.permute(*dims, len(shape)).exp().sum(-1)).expand(2, *[shape[d] for d in dims])

    got, _ = gradients_and_boxes(forward, x)
    torch.testing.assert_close(got, torch.autograd.grad(forward(x).sum(), (x,)), rtol=0, atol=0)


def test_parameters_whole_numbers_and_small_tensors_stay():
    linear, norm = nn.Linear(8, 8).double(), nn.LayerNorm(8).double()
    x = drawn(16, 8).requires_grad_()

    def forward(x: torch.Tensor) -> torch.Tensor:
        return norm(linear(x))[torch.tensor([1, 2])]

    parameters = [*linear.parameters(), *norm.parameters()]
    _, boxes = gradients_and_boxes(forward, x, parameters=parameters, min_numel=17)
    assert boxes == [128, 128]  # x, the norm's input; not its means, its deviations, weights or the indices
    _, boxes = gradients_and_boxes(forward, x, parameters=parameters, min_numel=16)
    assert boxes == [128, 128, 16, 16]


def test_bad_input():
    with pytest.raises(ValueError, match="got 3 of torch.int64"):
        compress(torch.arange(3))
    with pytest.raises(ValueError, match="got 0 of torch.float32"):
        compress(torch.ones(0))
