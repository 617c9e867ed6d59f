"""Schedules are torch's where torch has them, their paper's where it has not, and steps fall where they should."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from lablib.batches import schedules

DECAYS = (schedules.linear_decay, schedules.cosine_decay, schedules.square_root_decay, schedules.exponential_decay)
few = settings(max_examples=30)
lengths = st.integers(1, 12)
finals = st.sampled_from([0.0, 0.1, 0.5, 1.0])


def rates(make_scheduler, num_steps: int) -> list[float]:
    """The rate of each step of an optimizer with peak rate 1, and one more."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler: lr_scheduler.LRScheduler = make_scheduler(optimizer)
    seen = []
    for _ in range(num_steps + 1):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def after_warmup(num_warmup: int, *then, at: tuple[int, ...] = ()):
    """torch's schedulers in sequence: linear warmup, and each of `then` from its milestone on."""

    def make(optimizer):
        warmup = lr_scheduler.LinearLR(optimizer, 1 / (num_warmup + 1), 1.0, total_iters=num_warmup)
        parts = [make_part(optimizer) for make_part in then]
        return (
            lr_scheduler.SequentialLR(optimizer, [warmup, *parts], [num_warmup, *at])
            if num_warmup
            else _bare(optimizer, then, at)
        )

    return make


def _bare(optimizer, then, at):
    parts = [make_part(optimizer) for make_part in then]
    return parts[0] if len(parts) == 1 else lr_scheduler.SequentialLR(optimizer, parts, list(at))


@few
@given(num_warmup=st.integers(0, 6), num_decay=lengths, final=finals)
def test_cosine_and_linear_are_torchs(num_warmup, num_decay, final):
    num_steps = num_warmup + num_decay
    theirs = {
        schedules.cosine: lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=num_decay, eta_min=final),
        schedules.linear: lambda o: lr_scheduler.LinearLR(o, 1.0, final, total_iters=num_decay),
    }
    for schedule, then in theirs.items():
        expected = rates(after_warmup(num_warmup, then), num_steps)
        ours = [schedule(step, num_steps, num_warmup, final) for step in range(num_steps + 1)]
        assert ours == pytest.approx(expected, abs=1e-12)


@few
@given(num_warmup=st.integers(1, 6), num_stable=lengths, num_decay=lengths, final=st.sampled_from([0.1, 0.5]))
def test_wsd_is_torchs_in_sequence(num_warmup, num_stable, num_decay, final):
    num_steps = num_warmup + num_stable + num_decay
    theirs = {
        schedules.linear_decay: lambda o: lr_scheduler.LinearLR(o, 1.0, final, total_iters=num_decay),
        schedules.cosine_decay: lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=num_decay, eta_min=final),
        schedules.exponential_decay: lambda o: lr_scheduler.ExponentialLR(o, gamma=final ** (1 / num_decay)),
    }
    for decay, last in theirs.items():
        make = after_warmup(num_warmup, lambda o: lr_scheduler.ConstantLR(o, 1.0), last, at=(num_warmup + num_stable,))
        ours = [
            schedules.warmup_stable_decay(step, num_steps, num_warmup, num_decay, final, decay)
            for step in range(num_steps + 1)
        ]
        assert ours == pytest.approx(rates(make, num_steps), abs=1e-12)


def test_torch_runs_it():
    make = partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: schedules.cosine(step, 10, 3, 0.1))
    assert rates(make, 10) == [schedules.cosine(step, 10, 3, 0.1) for step in range(11)]


@given(num_warmup=st.integers(0, 9), num_stable=lengths, num_decay=lengths, more=lengths, decay=st.sampled_from(DECAYS))
def test_until_its_decay_wsd_does_not_know_how_long_the_run_is(num_warmup, num_stable, num_decay, more, decay):
    num_steps = num_warmup + num_stable + num_decay
    for step in range(num_warmup + num_stable):
        short = schedules.warmup_stable_decay(step, num_steps, num_warmup, num_decay, 0.1, decay)
        assert short == schedules.warmup_stable_decay(step, num_steps + more, num_warmup, num_decay, 0.1, decay)
        assert short == schedules.constant(step, num_warmup)


@given(num_warmup=st.integers(0, 9), num_stable=lengths, num_decay=lengths, decay=st.sampled_from(DECAYS))
def test_up_then_level_then_down(num_warmup, num_stable, num_decay, decay):
    num_steps = num_warmup + num_stable + num_decay
    factors = [
        schedules.warmup_stable_decay(step, num_steps, num_warmup, num_decay, 0.05, decay)
        for step in range(num_steps + 3)
    ]
    up, level, down = factors[:num_warmup], factors[num_warmup:][: num_stable + 1], factors[num_warmup + num_stable :]
    assert up == sorted(set(up)) and all(0 < factor < 1 for factor in up)
    assert set(level) == {1.0}
    assert down == sorted(down, reverse=True) and down[num_decay:] == [0.05] * 3


@pytest.mark.parametrize("decay", DECAYS)
def test_every_decay_goes_from_1_to_final(decay):
    assert decay(0.0, 0.3) == pytest.approx(1.0) and decay(1.0, 0.3) == pytest.approx(0.3)


def test_a_run_without_decay_ends_at_final_only_after_its_last_step():
    assert [schedules.warmup_stable_decay(step, 3, 0, 0, 0.5) for step in range(5)] == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert [schedules.constant(step, 1) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 10, 6, 5), r"must fit into the run: got 6 \+ 5 of 10 steps; try a decay of 4"),
        ((0, 10, 11, 0), "try a decay of 0"),
        ((9, 10, 1, 5, 0.0, schedules.exponential_decay), "got 0.0; an exponential never reaches 0; try final=0.1"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        schedules.warmup_stable_decay(*arguments)
