"""Drift of replicas to the bit, on the simulator and gloo; spikes at the edges of the policy."""

import math
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lablib import CorruptGradient, launch
from lablib.batches.clipping import clip_grad_norm_
from lablib.train import Action, Drift, SpikeGuard, find_drift
from lablib.train.health import bit_sum

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.complex64]


def flipped(tensor: torch.Tensor, element: int, bit: int) -> torch.Tensor:
    copy = tensor.clone()
    of_bytes = copy.view(torch.uint8).flatten()
    of_bytes[element] ^= 1 << bit
    return copy


@given(st.sampled_from(DTYPES), st.integers(1, 50), st.data())
def test_any_flipped_bit_changes_the_sum(dtype, numel, data):
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)
    element = data.draw(st.integers(0, numel * dtype.itemsize - 1))
    assert bit_sum(flipped(tensor, element, data.draw(st.integers(0, 7)))) != bit_sum(tensor)


def test_the_sum_is_of_whole_numbers_modulo_2_to_the_64():
    assert bit_sum(torch.tensor([1.0, -2.0])) == 0x3F800000 + (0xC0000000 - 2**32)
    assert bit_sum(torch.tensor([2**63 - 1, 1])) == -(2**63)
    assert bit_sum(torch.empty(0)) == 0 and bit_sum(torch.tensor(1.0)) == 0x3F800000


def drifting(changes: dict[int, int]) -> list[Drift]:
    """Replicas in which rank r has bit 0 of element `changes[r]` of the second bias flipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    if (element := changes.get(dist.get_rank())) is not None:
        with torch.no_grad():
            bias = model.get_parameter("1.bias")
            bias.copy_(flipped(bias, 8 * element, 0))
    return find_drift(model.named_parameters())


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_flipped_bit_is_found_with_its_rank_and_tensor(backend):
    run = launch(drifting, {2: 1}, ranks=4, backend=backend)
    assert run.values == [[Drift("1.bias", (2,), 4)]] * 4
    assert str(run.values[0][0]) == "1.bias differs on ranks 2 of 4 replicas"


@pytest.mark.parametrize(
    ("ranks", "changes", "found"),
    [(4, {}, None), (1, {0: 1}, None), (2, {1: 0}, (0, 1)), (5, {1: 0, 4: 1}, (1, 4)), (4, {0: 1, 3: 1}, (0, 1, 2, 3))],
)
def test_the_minority_is_named_and_all_without_a_majority(ranks, changes, found):
    expected = [] if found is None else [Drift("1.bias", found, ranks)]
    assert launch(drifting, changes, ranks=ranks).values == [expected] * ranks


def step_without_reduction() -> list[Drift]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    with torch.no_grad():
        for param in model.parameters():
            param -= 0.1 * param.grad  # pyright: ignore[reportOperatorIssue]
    return find_drift(model.named_parameters())


def test_a_corrupted_gradient_that_was_not_reduced_is_found():
    fault = CorruptGradient(1, "weight", kind="bit flip", bit=20)
    values = launch(step_without_reduction, ranks=3, faults=[fault]).values
    assert values == [[Drift("weight", (1,), 3)]] * 3


def guarded_steps() -> tuple[list[Action], bool]:
    """Six steps, of which the guard leaves out the bad ones; whether all weights are finite."""
    torch.manual_seed(0)
    model, guard, found = nn.Linear(3, 2), SpikeGuard(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)  # pyright: ignore[reportArgumentType]
        found.append(guard.judge(loss.item(), clip_grad_norm_(model.parameters(), math.inf).item())[0])
        if found[-1] is Action.GO_ON:
            optimizer.step()
        optimizer.zero_grad()
    return found, all(bool(param.isfinite().all()) for param in model.parameters())


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(kind):
    expected = [Action.SKIP if step == 3 else Action.GO_ON for step in range(6)]
    run = launch(guarded_steps, ranks=3, faults=[CorruptGradient(1, "weight", step=3, kind=kind)])
    assert run.values == [(expected, True)] * 3


# ---- spikes ----


def actions(guard: SpikeGuard, losses: list[float], norm: float = 1.0) -> list[Action]:
    return [guard.judge(loss, norm)[0] for loss in losses]


def noisy(number: int, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [2.0 + draw.gauss(0, 0.05) for _ in range(number)]


def test_normal_noise_and_a_falling_loss_are_no_spikes():
    guard = SpikeGuard()
    falling = [10 * math.exp(-step / 300) + noise for step, noise in enumerate(noisy(3000))]
    assert set(actions(guard, falling)) == {Action.GO_ON}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3.0])
@pytest.mark.parametrize("name", ["loss", "gradient norm"])
def test_one_bad_step_is_skipped_with_its_reason(bad, name):
    guard = SpikeGuard()
    for value in noisy(30):
        assert guard.judge(value, value) == (Action.GO_ON, "")
    action, reason = guard.judge(bad, 2.0) if name == "loss" else guard.judge(2.0, bad)
    assert action is Action.SKIP and reason.startswith(f"the {name} is {bad:.4g}")
    assert guard.judge(2.0, 2.0) == (Action.GO_ON, "")


def test_before_the_warm_up_ends_only_values_that_are_not_finite_are_bad():
    guard = SpikeGuard(warm_up=10)
    assert actions(guard, [*noisy(9), 1000.0]) == [Action.GO_ON] * 10
    assert actions(SpikeGuard(), [math.nan]) == [Action.SKIP]


def test_a_spike_does_not_move_the_limit():
    guard = SpikeGuard(most_skips=100)
    actions(guard, noisy(50))
    assert set(actions(guard, [3.0] * 50)) == {Action.SKIP}


def test_a_constant_loss_makes_any_rise_a_spike():
    guard = SpikeGuard()
    assert actions(guard, [2.0] * 30 + [2.0, 2.0001])[-2:] == [Action.GO_ON, Action.SKIP]


def test_bad_steps_are_skipped_then_rolled_back_then_the_run_stops():
    guard = SpikeGuard(most_skips=2, most_roll_backs=1)
    actions(guard, noisy(30))
    skip = [Action.SKIP] * 2
    assert actions(guard, [math.nan] * 6) == [*skip, Action.ROLL_BACK, *skip, Action.STOP]


def test_flapping_between_good_and_bad_is_rolled_back_as_well():
    guard = SpikeGuard(most_skips=3)
    actions(guard, noisy(30))
    found = actions(guard, [9.0, 2.0] * 4)
    assert found[:6:2] == [Action.SKIP] * 3 and found[6] is Action.ROLL_BACK


def test_bad_steps_further_apart_than_the_window_are_only_skipped():
    guard = SpikeGuard(window=20, warm_up=10, most_skips=1)
    actions(guard, noisy(20))
    assert {guard.judge(9.0, 1.0)[0] for _ in range(5) if set(actions(guard, noisy(25)))} == {Action.SKIP}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"most_skips": 0}, Action.ROLL_BACK), ({"most_skips": 0, "most_roll_backs": 0}, Action.STOP)],
)
def test_a_policy_may_roll_back_or_stop_at_once(options: dict[str, Any], expected):
    assert actions(SpikeGuard(**options), [math.nan]) == [expected]


@given(st.lists(st.sampled_from([2.0, 2.1, 1.9, 9.0, math.nan]), max_size=60), st.integers(0, 60))
def test_a_guard_resumes_from_its_state(losses, place):
    straight, first, resumed = (SpikeGuard(warm_up=3, window=10) for _ in range(3))
    expected = actions(straight, losses)
    found = actions(first, losses[:place])
    resumed.load_state_dict(first.state_dict())
    assert found + actions(resumed, losses[place:]) == expected


def test_a_warm_up_longer_than_the_window_is_refused():
    with pytest.raises(ValueError, match="warm_up must be at most window: got 20 and 10; try warm_up=10"):
        SpikeGuard(window=10)
