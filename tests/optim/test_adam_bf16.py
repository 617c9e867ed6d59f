"""BF16 state: every rounding goes to a neighbour, right in the mean, and the step is AdamW's from what was kept."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.optim.adam_bf16 import AdamBF16, stochastic_bf16
from lablib.precision.formats import BF16
from lablib.precision.rounding import round_to
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run


def neighbours(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The BF16 numbers on both sides of x, in float64: towards zero, and one spacing (2^-7 of its power of two) on."""
    spacing = 2.0 ** (torch.frexp(x).exponent - 1 - 7).clamp(min=-126 - 7).double()
    below = (x.abs() / spacing).floor() * spacing * x.sign()
    return below, below + spacing * x.sign()


@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e20]))
def test_a_number_goes_to_one_of_its_neighbours(seed, scale):
    x = scale * drawn(100, seed=seed, dtype=torch.float32)
    got = stochastic_bf16(x, torch.Generator().manual_seed(seed)).double()
    below, above = neighbours(x.double())
    assert torch.all((got == below) | (got == above))
    nearest = round_to(x, BF16).double()  # by another road: one of the two as well
    assert torch.all((nearest == below) | (nearest == above))


@pytest.mark.parametrize("x", [1.0 + 2**-9, -3.14159, 1e-3, 2**-126 * 0.3])
def test_the_mean_is_right(x):
    many, rounds = torch.full((40_000,), x), 40_000
    got = stochastic_bf16(many, torch.Generator().manual_seed(0)).double()
    below, above = neighbours(many[:1].double())
    assert abs(float(got.mean() - many[0].double())) < 5 * float((above - below).abs()) / 2 / math.sqrt(rounds)
    assert len(got.unique()) == 2


def test_what_bf16_has_stays_and_so_do_nan_and_infinity():
    x = drawn(50, dtype=torch.bfloat16).float()
    assert torch.equal(stochastic_bf16(x).float(), x)
    strange = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0])
    assert torch.equal(stochastic_bf16(strange).float().nan_to_num(7.0), strange.bfloat16().float().nan_to_num(7.0))
    assert stochastic_bf16(strange)[2].isnan()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_each_step_is_the_papers_from_the_state_as_it_was_kept(dtype):
    lr, (beta1, beta2), eps, decay = 0.03, (0.8, 0.95), 1e-3, 0.7
    (w,), steps = parameters([(9, 5)], dtype), gradients([(9, 5)], 12, dtype)
    optimizer = AdamBF16([w], lr, (beta1, beta2), eps, decay, generator=torch.Generator().manual_seed(1))
    m = v = torch.zeros(9, 5, dtype=torch.float64)
    for t, (g,) in enumerate(steps, 1):
        before, g64 = w.detach().double(), g.double()
        m, v = beta1 * m + (1 - beta1) * g64, beta2 * v + (1 - beta2) * g64**2
        direction = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
        want = before - lr * decay * before - lr * direction
        run(optimizer, [[g]])
        state = optimizer.state[w]
        for mean, kept in ((m, state["exp_avg"]), (v, state["exp_avg_sq"])):
            below, above = neighbours(mean)
            assert kept.dtype == torch.bfloat16
            near = (above - below).abs() * 1e-3  # a mean computed in float32 may lie just beyond a neighbour
            assert torch.all((kept.double() - (below + above) / 2).abs() <= (above - below).abs() / 2 + near)
        if dtype == torch.float64:
            assert_near([w], [want])
        else:
            assert torch.all((w.double() - want).abs() <= 2**-7 * want.abs() + 1e-6)
        m, v = state["exp_avg"].double(), state["exp_avg_sq"].double()


def test_the_second_mean_does_not_stall():
    """g^2 = 1 from v = 0.5 on: rounded to nearest, v would stay; it must follow 1 - 0.5 * 0.999^t."""
    (w,) = parameters([(2000,)])
    optimizer = AdamBF16([w], generator=torch.Generator().manual_seed(0))
    w.grad = torch.ones_like(w)
    optimizer.step()
    optimizer.state[w]["exp_avg_sq"].fill_(0.5)
    for _ in range(200):
        optimizer.step()
    want = 1 - 0.5 * 0.999**200
    mean = float(optimizer.state[w]["exp_avg_sq"].double().mean())
    assert abs(mean - want) < 5 * math.sqrt(200) * 2**-8 / math.sqrt(2000)
    nearest = torch.tensor(0.5).bfloat16()
    assert nearest * 0.999 + 0.001 == nearest  # what stalls


def test_bf16_weights_move_by_steps_below_their_spacing():
    w = torch.nn.Parameter(torch.ones(4000, dtype=torch.bfloat16))
    optimizer = AdamBF16([w], lr=1e-4, weight_decay=0.0, generator=torch.Generator().manual_seed(0))
    for _ in range(100):
        w.grad = torch.ones_like(w)
        optimizer.step()
    moved = float((1 - w.detach().double()).mean())
    assert abs(moved - 100 * 1e-4) < 5 * math.sqrt(100) * 2**-9 / math.sqrt(4000)


def test_other_parameters_are_not_rounded():
    (half,) = parameters([(30,)], torch.float16)
    (g,) = gradients([(30,)], 1, torch.float16)[0]
    before = half.detach().float().clone()
    run(AdamBF16([half], lr=0.1, weight_decay=0.0), [[g]])
    g32 = g.float()
    assert_near([half], [(before - 0.1 * g32 / (g32.abs() + 1e-8)).half()], 1e-3)


def test_it_takes_4_bytes_a_parameter():
    params = parameters([(7, 5), (3,)], torch.float32)
    optimizer = AdamBF16(params)
    run(optimizer, gradients([(7, 5), (3,)], 1, torch.float32))
    assert optimizer.state_bytes() == 4 * 38
