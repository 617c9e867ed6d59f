"""8-bit state: each number the nearest of 256 values of its block, and AdamW on what is left."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.optim.adam8bit import Adam8bit
from lablib.optim.adamw import AdamW
from lablib.optim.blockwise import blocks, codebook, dequantize, num_blocks, outlier_errors, quantize
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run


def values_by_hand(is_signed: bool) -> list[float]:
    """In decade e the interval 0.1 to 1, cut into 2^e parts (twice as many without a sign), times 10^(e - 6)."""
    values = [0.0, 1.0]
    for e in range(7):
        parts = 2**e if is_signed else 2 ** (e + 1)
        middles = [(0.1 + 0.9 * (k + 0.5) / parts) * 10 ** (e - 6) for k in range(parts)]
        values += middles + ([-middle for middle in middles] if is_signed else [])
    return sorted(values)


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_values_of_a_byte(is_signed):
    values = values_by_hand(is_signed)
    assert len(values) == 256
    torch.testing.assert_close(codebook(is_signed), torch.tensor(values), rtol=1e-6, atol=0)


@given(
    numel=st.integers(1, 200),
    size=st.integers(1, 70),
    is_signed=st.booleans(),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e8]),
    power=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_each_number_is_the_nearest_value_of_its_block(numel, size, is_signed, scale, power, seed):
    x = scale * drawn(numel, seed=seed) ** power
    x = (x if is_signed else x.abs()).float()
    codes, scales = quantize(x, how := blocks(is_signed, size))
    assert codes.dtype == torch.uint8 and codes.shape == x.shape
    assert scales.shape == (num_blocks(numel, size),) == (math.ceil(numel / size),)
    values = torch.tensor(values_by_hand(is_signed), dtype=torch.float64)
    for part, got in zip(x.split(size), dequantize(codes, scales, how).split(size), strict=True):
        largest = part.abs().max().double()
        nearest = (part[:, None].double() - values * largest).abs().amin(1)
        off = (got.double() - part.double()).abs()
        # Half precision may move a share past a border by its own rounding: 2^-11 of it, or 2^-25 near zero.
        assert torch.all(off <= nearest + 2**-10 * part.abs() + 2**-24 * largest + 1e-6 * nearest)


def test_the_largest_of_a_block_is_kept_and_so_are_zeros():
    x = torch.tensor([0.0, 3.0, -0.5, 0.0, 0.0, 0.0])
    back = dequantize(*quantize(x, how := blocks(True, 3)), how)
    assert back[1] == 3.0 and torch.equal(back[[0, 3, 4, 5]], torch.zeros(4))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_in_its_block(bad):
    x = torch.ones(8)
    x[1] = bad
    back = dequantize(*quantize(x, how := blocks(True, 4)), how)
    assert not back[1].isfinite() and torch.equal(back[4:], x[4:])


def test_a_smaller_block_keeps_an_outlier_to_itself():
    """One scale for all: the others are coded by its smallest values. Blocks of 64: all but 63 as before."""
    x = drawn(4096, dtype=torch.float32)
    whole, coarse, fine = outlier_errors(x, [4096, 512, 64], outlier=1e5)
    (without,) = outlier_errors(x, [64], outlier=0.0)
    assert whole > 2.5 * coarse > 5 * fine and fine < 5 * without < 0.05
    assert x[0] == drawn(4096, dtype=torch.float32)[0]


def naive_step(w, m, v, g, t, lr, betas, eps, weight_decay):
    """The paper's step in float64: the new w, and m and v before they are quantized."""
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
    direction = (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
    return w - lr * weight_decay * w - lr * direction, m, v


def test_each_step_is_the_papers_from_the_state_as_it_was_kept():
    settings = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.7}
    size = 16
    (w,), steps = parameters([(9, 5)]), gradients([(9, 5)], 12)
    optimizer = Adam8bit([w], **settings, block_size=size, min_8bit_size=1)
    kept = {"exp_avg": torch.zeros(45), "exp_avg_sq": torch.zeros(45)}
    for t, (g,) in enumerate(steps, 1):
        before, (m, v) = w.detach().flatten().clone(), kept.values()
        want, *means = naive_step(before, m.double(), v.double(), g.flatten(), t, **settings)
        run(optimizer, [[g]])
        assert_near([w.flatten()], [want], 1e-6)  # dequantized in float32
        state = optimizer.state[w]
        for (key, is_signed), mean in zip({"exp_avg": True, "exp_avg_sq": False}.items(), means, strict=True):
            values = torch.tensor(values_by_hand(is_signed)).float()
            kept[key] = torch.cat(
                [
                    values[codes.int()] * scale
                    for codes, scale in zip(state[key].flatten().split(size), state[f"{key}_scale"], strict=True)
                ]
            )
            for one, part in zip(kept[key].split(size), mean.split(size), strict=True):
                nearest = (part[:, None] - values.double() * part.abs().max()).abs().amin(1)
                assert torch.all((one - part).abs() <= nearest + 2e-3 * part.abs() + 1e-6 * part.abs().max())


def test_small_tensors_are_adamws():
    shapes = [(63,), (8, 8)]
    ours, theirs, steps = parameters(shapes), parameters(shapes), gradients(shapes, 5)
    optimizer = Adam8bit(ours, lr=0.1, min_8bit_size=64)
    run(optimizer, steps)
    run(AdamW(theirs, lr=0.1), steps)
    assert torch.equal(ours[0], theirs[0]) and not torch.equal(ours[1], theirs[1])
    assert optimizer.state_bytes() == 2 * 8 * 63 + 2 * (64 + 4)


def test_a_quadratic_is_minimized_as_by_adamw():
    target, ends = drawn(4096), []
    for make in (AdamW, Adam8bit):
        w = torch.nn.Parameter(torch.zeros(4096, dtype=torch.float64))
        optimizer = make([w], lr=0.05, weight_decay=0.0)
        for _ in range(200):
            w.grad = w.detach() - target
            optimizer.step()
        ends.append(float((w.detach() - target).square().mean()))
    assert ends[1] < 1e-3 and ends[0] < 1e-3
