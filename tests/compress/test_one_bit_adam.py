"""1-bit Adam: Adam while it warms up; then momentum with a frozen variance, exchanged exactly or by signs."""

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, launch
from lablib.compress import OneBit, OneBitAdam, StaleAverage, variance_ratio
from lablib.parallel import all_reduce_average

LR, BETAS, EPS, DECAY = 0.05, (0.9, 0.95), 1e-8, 0.1


def gradient(shape: tuple[int, ...], rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return 1.0 + torch.randn(shape, generator=generator, dtype=torch.float64)


SHAPES = ((3, 5), (4,))


def steps_of(num_steps: int, warmup_steps: int, **options) -> list[Tensor]:
    params = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in SHAPES]
    optimizer = OneBitAdam(params, warmup_steps, LR, BETAS, EPS, DECAY, **options)
    for step in range(num_steps):
        for param in params:
            param.grad = gradient(tuple(param.shape), dist.get_rank(), step)
        optimizer.step()
    return [param.detach() for param in params]


def mean_gradient(shape: tuple[int, ...], ranks: int, step: int) -> Tensor:
    return torch.stack([gradient(shape, rank, step) for rank in range(ranks)]).mean(0)


@settings(max_examples=8, deadline=None)
@given(ranks=st.integers(1, 4), num_steps=st.integers(1, 5))
def test_warmup_is_torchs_adamw_on_mean_gradients(ranks, num_steps):
    params = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in SHAPES]
    reference = torch.optim.AdamW(params, LR, BETAS, EPS, DECAY)
    for step in range(num_steps):
        for param in params:
            param.grad = mean_gradient(tuple(param.shape), ranks, step)
        reference.step()
    for found in launch(steps_of, num_steps, 99, ranks=ranks).values:
        torch.testing.assert_close(found, [param.detach() for param in params], rtol=1e-12, atol=1e-12)


def test_after_warmup_the_variance_stays_and_momentum_goes_on():
    """With an exact average in place of signs: the formulas, one device, 3 steps of warmup and 4 more."""
    expected = []
    for shape in SHAPES:
        w, m, v = torch.ones(shape, dtype=torch.float64), 0.0, 0.0
        for step in range(7):
            g = mean_gradient(shape, 3, step)
            m = BETAS[0] * m + (1 - BETAS[0]) * g
            v = BETAS[1] * v + (1 - BETAS[1]) * g**2 if step < 3 else v
            m_hat, v_hat = m / (1 - BETAS[0] ** (step + 1)), v / (1 - BETAS[1] ** min(step + 1, 3))
            w = w - LR * DECAY * w - LR * m_hat / (v_hat**0.5 + EPS)
        expected.append(w)
    run = launch(lambda: steps_of(7, 3, reduce=all_reduce_average), ranks=3)
    for found in run.values:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_signs_send_a_32nd_and_replicas_stay_equal():
    def program():
        w = nn.Parameter(torch.zeros(4096))
        optimizer = OneBitAdam([w], warmup_steps=2)
        for step in range(5):
            w.grad = gradient((4096,), dist.get_rank(), step).float()
            optimizer.step()
        return w.detach()

    run = launch(program, ranks=4)
    assert all(torch.equal(found, run.values[0]) for found in run.values)
    signs = 3 * 2 * 3 * (1024 / 8 + 4)
    assert run.traffic.sent_bytes() / 4 == pytest.approx(2 * 2 * 3 / 4 * 4 * 4096 + signs)


def test_feedback_finds_the_minimum_that_signs_alone_do_not():
    """A quadratic whose ranks pull to different sides: how far from the minimum of their mean each ends, of 1."""

    def program(reduce):
        w, target = nn.Parameter(torch.zeros(64)), torch.linspace(-1, 1, 64)
        optimizer = OneBitAdam([w], 5, 0.05, (0.9, 0.99), reduce=reduce())
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, 150)
        for _ in range(150):
            w.grad = w.detach() - target - (3.0 if dist.get_rank() == 0 else -1.0)
            optimizer.step()
            schedule.step()
        return (w.detach() - target).abs().max().item()

    kept, forgotten = (
        launch(program, reduce, ranks=4, trace=False).values[0]
        for reduce in (lambda: None, lambda: OneBit(has_server_feedback=False))
    )
    assert kept < 0.2 < 0.5 < forgotten


@settings(max_examples=20)
@given(beta2=st.floats(0.5, 0.99), before=st.integers(1, 50), apart=st.integers(1, 50))
def test_the_variance_of_gradients_of_one_size_settles_as_its_formula_says(beta2, before, apart):
    """v_t = (1 - beta2^t) g^2: the ratio is (1 - beta2^t) / (1 - beta2^(t + apart)), rising to 1."""
    g = torch.linspace(0.1, 2, 5, dtype=torch.float64)
    early, late = ((1 - beta2**t) * g**2 for t in (before, before + apart))
    expected = (1 - beta2**before) / (1 - beta2 ** (before + apart))
    assert variance_ratio(early, late) == pytest.approx(expected) == variance_ratio(late, early)


def test_adams_variance_changes_less_and_less():
    """Why it may be frozen: of noisy gradients, 1 / (1 - beta2) = 20 steps apart, near the formula above."""
    v, kept = torch.zeros(1000, dtype=torch.float64), []
    for step in range(101):
        if step % 20 == 0:
            kept.append(v.clone())
        v = 0.95 * v + 0.05 * gradient((1000,), 0, step) ** 2
    ratios = [variance_ratio(early, late) for early, late in zip(kept[1:], kept[2:], strict=False)]
    expected = [(1 - 0.95**t) / (1 - 0.95 ** (t + 20)) for t in (20, 40, 60, 80)]  # 0.74, 0.91, 0.97, 0.99
    assert ratios == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (torch.ones(2), torch.ones(3), r"must have the same shape: got \(2,\) and \(3,\)"),
        (-torch.ones(2), torch.ones(2), "at least 0, and some above: got sums of -2.0 and 2.0"),
        (torch.zeros(2), torch.zeros(2), "some above: got sums of 0.0 and 0.0"),
        (torch.full((2,), math.nan), torch.ones(2), "at least 0"),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2), "real numbers"),
    ],
)
def test_what_is_no_variance_is_one_error(before, after, message):
    with pytest.raises(ValueError, match=message):
        variance_ratio(before, after)


def test_bad_gradients_are_one_error():
    def program():
        param = nn.Parameter(torch.zeros(2))
        optimizer = OneBitAdam([param], 1, reduce=StaleAverage(0))
        for value in (1.0, math.nan):
            param.grad = torch.tensor([value, 1.0])
            optimizer.step()

    with pytest.raises(RankError, match="StaleAverage: gradients must be finite: got 1 NaN"):
        launch(program, ranks=1)
