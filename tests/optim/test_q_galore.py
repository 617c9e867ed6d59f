"""Q-GaLore: four bits, the step from what was kept, and gaps that grow where directions stay."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.optim.adam8bit import Adam8bit
from lablib.optim.blockwise import codebook
from lablib.optim.four_bits import dequantize_4bit, quantize_4bit
from lablib.optim.projection import strongest_directions
from lablib.optim.q_galore import QGaLore
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run


@given(numel=st.integers(1, 700), scale=st.sampled_from([1e-10, 1.0, 1e10]), shift=st.sampled_from([0.0, 3.0]))
def test_each_number_is_off_by_half_a_step_at_most(numel, scale, shift):
    x = scale * (drawn(numel) + shift)
    packed, ranges = quantize_4bit(x)
    assert packed.dtype == torch.uint8 and len(packed) == math.ceil(numel / 2) and len(ranges) == math.ceil(numel / 256)
    back = dequantize_4bit(packed, ranges, x.shape).double()
    for part, got in zip(x.split(256), back.split(256), strict=True):
        step = (part.max() - part.min()) / 15
        assert torch.all((got - part).abs() <= step / 2 + 1e-6 * part.abs().max())
        assert len(got.unique()) <= 16


def test_sixteen_even_steps_two_in_a_byte():
    x = torch.arange(16.0).reshape(2, 8) - 3
    packed, ranges = quantize_4bit(x)
    assert packed.tolist() == [low + 16 * (low + 1) for low in range(0, 16, 2)]
    assert ranges.tolist() == [[-3.0, 1.0]] and torch.equal(dequantize_4bit(packed, ranges, x.shape), x)
    constant = torch.full((5,), 0.3)
    assert torch.equal(dequantize_4bit(*quantize_4bit(constant), constant.shape), constant)


def kept_axes(state, shape, rank):
    """The directions by hand: two codes in a byte, the first below; one range, for fewer than 256 numbers."""
    codes = [code for byte in state["projection"].tolist() for code in (byte % 16, byte // 16)]
    ((low, step),) = state["projection_ranges"].double().tolist()
    numel = min(shape) * rank
    return torch.tensor([low + step * code for code in codes[:numel]], dtype=torch.float64).view(min(shape), rank)


def kept_mean(state, key, is_signed, size):
    values = codebook(is_signed).double()
    parts = zip(state[key].flatten().split(size), state[f"{key}_scale"].double(), strict=True)
    return torch.cat([values[codes.int()] * scale for codes, scale in parts]).view(state[key].shape)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_each_step_is_the_papers_from_the_state_as_it_was_kept(shape):
    lr, (b1, b2), eps, decay, rank, scale = 0.03, (0.8, 0.95), 1e-3, 0.7, 2, 0.6
    (w,), steps = parameters([shape]), gradients([shape], 9)
    optimizer = QGaLore([w], lr, (b1, b2), eps, decay, rank=rank, update_proj_gap=4, scale=scale, block_size=5)
    low_shape = (2, 6) if shape == (4, 6) else (6, 2)
    m = v = torch.zeros(low_shape, dtype=torch.float64)
    for t, (g,) in enumerate(steps, 1):
        before = w.detach().clone()
        run(optimizer, [[g]])
        state = optimizer.state[w]
        axes = kept_axes(state, shape, rank)
        if t in (1, 5, 9):
            exact = strongest_directions(g, rank)
            assert float((axes - exact).abs().max()) <= float(exact.max() - exact.min()) / 30 + 1e-6
        low = axes.T @ g if shape == (4, 6) else g @ axes
        m, v = b1 * m + (1 - b1) * low, b2 * v + (1 - b2) * low**2
        direction = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps)
        back = axes @ direction if shape == (4, 6) else direction @ axes.T
        assert_near([w], [before - lr * decay * before - lr * scale * back], 1e-5)
        m, v = kept_mean(state, "exp_avg", True, 5), kept_mean(state, "exp_avg_sq", False, 5)


def renewals(gradient_of, num_steps: int, **settings) -> list[int]:
    """The steps, from 0, at which directions were chosen."""
    (w,) = parameters([(4, 6)])
    optimizer, at, last = QGaLore([w], rank=1, update_proj_gap=2, **settings), [], -1
    for t in range(num_steps):
        run(optimizer, [[gradient_of(t)]])
        if (following := optimizer.state[w]["next_renewal"]) != last:
            at, last = [*at, t], following
    return at


def test_gaps_grow_where_directions_stay():
    """Gap 2; similar at 2 and 4: from 4 on 4, from 8 on 8, from 16 on 16. The sign of a gradient does not matter."""
    fixed = drawn(4, 6)
    assert renewals(lambda t: fixed * (-1) ** (t // 2), 33, queue_size=2) == [0, 2, 4, 8, 16, 32]
    assert renewals(lambda t: fixed, 33, queue_size=2, gamma_proj=3) == [0, 2, 4, 10, 28]
    assert renewals(lambda t: fixed, 9, queue_size=3) == [0, 2, 4, 6]


def test_gaps_stay_where_directions_turn():
    turning = [torch.diag(torch.eye(4, dtype=torch.float64)[t // 2 % 4]) @ drawn(4, 6) for t in range(12)]
    assert renewals(lambda t: turning[t], 12, queue_size=1) == [0, 2, 4, 6, 8, 10]
    # Turned once in between: the count begins anew.
    now_and_then = [turning[0]] * 6 + [turning[2]] * 2 + [turning[0]] * 6
    assert renewals(lambda t: now_and_then[t], 14, queue_size=3) == [0, 2, 4, 6, 8, 10, 12]


def test_the_threshold_is_of_the_cosine():
    a, b = torch.eye(4, dtype=torch.float64)[0], torch.eye(4, dtype=torch.float64)[1]
    row = drawn(1, 6)
    for angle, is_similar in ((math.acos(0.45), True), (math.acos(0.35), False)):
        turned = (math.cos(angle) * a + math.sin(angle) * b)[:, None] @ row
        at = renewals(lambda t, turned=turned: a[:, None] @ row if t < 2 else turned, 7, queue_size=1)
        assert (at == [0, 2, 6]) is is_similar and (at[:3] == [0, 2, 4]) is not is_similar


def test_vectors_and_groups_without_rank_are_adam_8_bits():
    shapes = [(50,), (9, 6)]
    ours, theirs, steps = parameters(shapes), parameters(shapes), gradients(shapes, 5)
    coding = {"lr": 0.1, "weight_decay": 0.0, "block_size": 16, "min_8bit_size": 51}
    run(QGaLore([{"params": ours[:1]}, {"params": ours[1:], "rank": None}], rank=2, **coding), steps)
    run(Adam8bit(theirs, **coding), steps)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_bad_input():
    with pytest.raises(ValueError, match=r"rank must be at most .* got 5 for one of shape \(4, 6\)"):
        QGaLore(parameters([(4, 6)]), rank=5)
