"""The scaler takes the scales, skips the steps and leaves the weights that torch's does; DeepSpeed's rule too."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lablib import launch
from lablib.precision.loss_scaling import LossScaler, ScaleRule, deepspeed_rule, static_scale, unscale

OVERFLOWS = st.lists(st.booleans(), min_size=1, max_size=60)


def parameter(values=(1.0, -2.0)) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values))


def train(scaler, optimizer, param: torch.nn.Parameter, overflows: list[bool]) -> list[tuple]:
    """A step for each entry; scale and weights after it. torch's scaler and ours have the same calls."""
    trace = []
    for step, overflow in enumerate(overflows):
        optimizer.zero_grad()
        loss = (param * (torch.inf if overflow else 0.1 * step)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scale = scaler.loss_scale if isinstance(scaler, LossScaler) else scaler.get_scale()
        trace.append((scale, *param.tolist()))
    return trace


@given(
    overflows=OVERFLOWS,
    initial=st.sampled_from([1.0, 1000.0, 2.0**16, 3.0e4]),
    interval=st.integers(1, 9),
    growth=st.sampled_from([2.0, 1.5, 4.0]),
    backoff=st.sampled_from([0.5, 0.25, 0.7]),
)
def test_same_scales_steps_and_weights_as_torch(overflows, initial, interval, growth, backoff):
    ours, theirs = parameter(), parameter()
    scaler = LossScaler(ScaleRule(initial, growth, backoff, interval, maximum=math.inf))
    reference = torch.amp.GradScaler(
        "cpu", init_scale=initial, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    got = train(scaler, torch.optim.SGD([ours], lr=0.5), ours, overflows)
    want = train(reference, torch.optim.SGD([theirs], lr=0.5), theirs, overflows)
    for (scale, *weights), (expected_scale, *expected) in zip(got, want, strict=True):
        assert scale == pytest.approx(expected_scale, rel=1e-5)  # torch keeps its scale in float32
        assert weights == pytest.approx(expected, rel=1e-5)


def deepspeeds_scales(overflows: list[bool], power: int, window: int, hysteresis: int, least: float) -> list[float]:
    """DeepSpeed's rule as its documentation tells it, by iteration numbers instead of a count of good steps."""
    scale, left, last_overflow, scales = 2.0**power, hysteresis, -1, []
    for iteration, overflow in enumerate(overflows):
        if overflow:
            if left == 1 or hysteresis == 1:
                scale = max(scale / 2, least)
            else:
                left -= 1
            last_overflow = iteration
        elif (iteration - last_overflow) % window == 0:
            scale, left = scale * 2, hysteresis
        scales.append(scale)
    return scales


@given(overflows=OVERFLOWS, power=st.integers(2, 20), window=st.integers(1, 8), hysteresis=st.integers(1, 4))
def test_same_scales_as_deepspeed(overflows, power, window, hysteresis):
    rule = deepspeed_rule(power, window, hysteresis, min_loss_scale=2.0)
    state, scales = rule.start(), []
    for overflow in overflows:
        state = rule.after(state, overflow)
        scales.append(state.scale)
    assert scales == deepspeeds_scales(overflows, power, window, hysteresis, 2.0)


@given(overflows=OVERFLOWS, interval=st.integers(1, 3), hysteresis=st.integers(1, 3))
def test_the_scale_stays_within_its_bounds(overflows, interval, hysteresis):
    rule = ScaleRule(1024.0, interval=interval, hysteresis=hysteresis, minimum=64.0)
    state = rule.start()
    for overflow in overflows:
        state = rule.after(state, overflow)
        assert 64.0 <= state.scale <= 2.0**24


def test_a_static_scale_skips_and_stays():
    param = parameter()
    scaler = LossScaler(static_scale(1000.0))
    trace = train(scaler, torch.optim.SGD([param], lr=1.0), param, [False, True, True, False])
    assert [scale for scale, *_ in trace] == [1000.0] * 4
    assert trace[0][1:] == trace[1][1:] == trace[2][1:] != trace[3][1:]


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    def program():
        param = parameter()
        optimizer = torch.optim.SGD([param], lr=1.0)
        scaler = LossScaler(ScaleRule(16.0))
        loss = (param * (torch.inf if dist.get_rank() == 2 else 1.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return param.tolist(), scaler.loss_scale

    assert launch(program, ranks=3).values == [([1.0, -2.0], 8.0)] * 3


def test_ranks_that_skip_together_can_be_a_group():
    def program():
        groups: list[Any] = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        param = parameter()
        scaler = LossScaler(ScaleRule(16.0), group=groups[dist.get_rank() // 2])
        scaler.scale((param * (torch.inf if dist.get_rank() == 0 else 1.0)).sum()).backward()
        scaler.step(torch.optim.SGD([param], lr=1.0))
        scaler.update()
        return scaler.loss_scale

    assert launch(program, ranks=4).values == [8.0, 8.0, 16.0, 16.0]


def test_gradients_are_true_after_unscaling_and_are_clipped_as_such():
    param = parameter((3.0, 4.0))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = LossScaler(ScaleRule(4096.0))
    scaler.scale((param**2).sum() / 2).backward()
    assert not scaler.unscale_(optimizer)
    assert param.grad is not None and param.grad.tolist() == [3.0, 4.0]
    torch.nn.utils.clip_grad_norm_([param], 1.0)
    scaler.step(optimizer)
    assert param.tolist() == pytest.approx([2.4, 3.2], rel=1e-5)


@given(data=st.data())
def test_many_gradients_are_unscaled_as_each_alone_is(data):
    bad = st.sampled_from([None, None, None, torch.inf, -torch.inf, torch.nan])
    drawn = data.draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 3), max_size=3),
                st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
                bad,
            ),
            max_size=8,
        )
    )
    scale = data.draw(st.sampled_from([1.0, 3.0, 2.0**16]))
    gradients, expected, overflow = [], [], False
    for number, (shape, dtype, value) in enumerate(drawn):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(dtype)
        if value is not None and gradient.numel():
            gradient.view(-1)[-1] = value
            overflow = True
        expected.append(gradient.clone().mul_(1 / scale))
        gradients.append(gradient)
    assert unscale(gradients, scale) == overflow
    for mine, theirs in zip(gradients, expected, strict=True):
        # a third of a number in bfloat16 may round to either neighbour; a power of two is exact
        rtol = torch.finfo(mine.dtype).eps if scale == 3.0 else 0
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=0, equal_nan=True)


def test_the_host_waits_once_for_a_hundred_gradients():
    class Calls(TorchDispatchMode):
        names: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Calls() as calls:
        unscale([torch.ones(3) for _ in range(100)], 2.0)
    assert calls.names.count("_local_scalar_dense.default") == 1
    assert calls.names.count("_foreach_mul_.Scalar") == 1


def test_sparse_gradients_are_unscaled():
    places = torch.tensor([[1, 1, 3]])
    gradient = torch.sparse_coo_tensor(places, torch.tensor([2.0, 2.0, 8.0]), (5,), check_invariants=True)
    assert not unscale([gradient], 2.0)
    assert gradient.to_dense().tolist() == [0.0, 2.0, 0.0, 4.0, 0.0]
    gradient = torch.sparse_coo_tensor(places[:, :1], torch.tensor([torch.nan]), (5,), check_invariants=True)
    assert unscale([gradient], 2.0)


def test_a_saved_scaler_goes_on_as_the_other():
    overflows = [False, False, True, False, False, True, True, False]
    param, other = parameter(), parameter()
    scaler = LossScaler(ScaleRule(64.0, interval=3, hysteresis=2))
    train(scaler, torch.optim.SGD([param], lr=0.1), param, overflows[:4])
    resumed = LossScaler()
    resumed.load_state_dict(scaler.state_dict())
    train(scaler, torch.optim.SGD([param], lr=0.1), param, overflows[4:])
    train(resumed, torch.optim.SGD([other], lr=0.1), other, overflows[4:])
    assert resumed.state_dict() == scaler.state_dict()


def test_another_scalers_state_is_refused():
    with pytest.raises(ValueError, match=r"has the entries rule, scale, good_steps, overflows_left: got scale, growth"):
        LossScaler().load_state_dict(torch.amp.GradScaler("cpu").state_dict())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rule": {"initial": 2.0}}, "a scaler's rule has the entries initial, growth, .*: got initial;"),
        ({"rule": None}, "a scaler's rule has the entries .*: got none;"),
        ({"scale": -1.0}, "scale must be a finite number, 0 or more: got -1.0"),
    ],
)
def test_a_state_of_another_shape_is_refused_and_changes_nothing(wrong, message):
    scaler = LossScaler(ScaleRule(8.0))
    before = scaler.state_dict()
    other = LossScaler(ScaleRule(4.0)).state_dict()
    with pytest.raises(ValueError, match=message):
        scaler.load_state_dict(other | wrong)
    assert scaler.state_dict() == before


def test_calls_out_of_order_are_refused():
    param = parameter()
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = LossScaler()
    with pytest.raises(RuntimeError, match="call step"):
        scaler.update()
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="call it once a step"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="call update"):
        scaler.step(optimizer)


def test_half_precision_gradients_are_refused():
    with pytest.raises(RuntimeError, match="keep master weights in float32"):
        unscale([torch.ones(2, dtype=torch.float16)], 2.0)


def test_a_scale_starts_within_its_bounds():
    with pytest.raises(ValueError, match="must start within its bounds: got 65536.0 outside 1000000000.0"):
        ScaleRule(minimum=1e9)
