"""What real machines lose: each constant has its one effect, and without them a device gives all it has."""

from dataclasses import replace

import pytest

from lablib.hardware import CLUSTERS
from lablib.plan import IDEAL, Derating, Parallel, predict
from lablib.plan.machine import Machine
from lablib.plan.stack import STACKS, Stack


@pytest.fixture
def hot(ideal):
    """Of its 1,000 TFLOP/s it has power for 200."""
    return replace(ideal, power_w=400.0, flops_per_joule=0.5e12)


def test_a_device_keeps_up_what_its_power_pays_for(hot):
    derating = Derating(matmul_share=0.9)
    assert derating.sustained_share("bfloat16", hot) == pytest.approx(0.2)
    assert derating.sustained_share("bfloat16", replace(hot, power_w=800.0)) == pytest.approx(0.4)
    # Products reach 250 TFLOP/s of this device where power does not limit them: 200 are four fifths.
    assert derating.sustained_share("bfloat16", replace(hot, matmul_efficiency=0.25)) == pytest.approx(0.8)


def test_a_device_with_power_to_spare_or_unknown_loses_what_products_lose(hot):
    derating = Derating(matmul_share=0.9)
    assert derating.sustained_share("bfloat16", replace(hot, power_w=4000.0)) == 0.9
    assert derating.sustained_share("bfloat16", replace(hot, power_w=None)) == 0.9
    assert derating.sustained_share("bfloat16", replace(hot, flops_per_joule=None)) == 0.9


def test_a_dtype_of_twice_the_peak_is_limited_to_the_same_share(hot):
    twice = replace(hot, peak_flops_per_s=dict(hot.peak_flops_per_s) | {"float8": 2e15})
    assert Derating().sustained_share("float8", twice) == pytest.approx(Derating().sustained_share("bfloat16", twice))


def test_without_derating_a_device_never_tires(hot):
    assert IDEAL.sustained_share("bfloat16", hot) == 1.0


def small(derating: Derating, stack: str | Stack = "fsdp-flash"):
    split = Parallel(data=4, tensor=4)
    return predict("gpt3-6.7b", "dgx-h100", split, 64, derating=derating, stack=stack, seq_len=2048)


@pytest.mark.parametrize(
    "worse",
    [
        {"matmul_share": 0.5},
        {"memory_share": 0.5},
        {"intra_share": 0.5},
        {"inter_share": 0.05},
        {"dispatch_s": 1e-3},
        {"generation_share": 0.3, "has_generations": True},
    ],
)
def test_each_loss_makes_a_step_longer(worse):
    # fsdp-flash has the first flash attention, an H100's own is the third.
    assert small(replace(IDEAL, **worse)).step_time_s > 1.01 * small(IDEAL).step_time_s


def test_power_limits_an_h100():
    assert small(replace(IDEAL, is_power_limited=True)).step_time_s > small(IDEAL).step_time_s


def test_the_fixed_seconds_are_added_once_a_step():
    assert small(replace(IDEAL, step_s=1.0)).step_time_s == pytest.approx(1.0 + small(IDEAL).step_time_s)


def test_every_generation_behind_costs_attention_the_same_share():
    attention_s = {}
    for generation in (1, 2, 3, 4):
        stack = replace(STACKS["torch-compile"], attention_generation=generation)
        derating = replace(IDEAL, has_generations=True, generation_share=0.5)
        attention_s[generation] = small(derating, stack=stack).parts["attention"]
    assert attention_s[3] == attention_s[4]  # newer than the device: at its own rate
    assert attention_s[2] == pytest.approx(2 * attention_s[3], rel=1e-12)
    assert attention_s[1] == pytest.approx(4 * attention_s[3], rel=1e-12)


@pytest.mark.parametrize(("width", "factor"), [(128, 2), (64, 5 / 3), (256, 20 / 9), (16, 1)])
def test_an_older_kernel_has_one_rate_for_all_widths_and_never_more_than_the_newest(width, factor):
    """The newest has K / (K + 32) of the rate forward (cost/attention.py); half of that at 128 is 0.4."""
    h100, derating = CLUSTERS["dgx-h100"], replace(IDEAL, has_generations=True, generation_share=0.5)
    newest, older = (
        Machine(h100, replace(STACKS["torch-compile"], attention_generation=generation), derating, "bfloat16")
        for generation in (3, 2)
    )
    times = [on.attention_s(8, 32, 4096, 4096, width, backward=False) for on in (newest, older)]
    assert times[1] / times[0] == pytest.approx(factor, rel=1e-9)


def test_memory_that_is_not_the_programs_is_in_its_own_figures():
    nothing, some = small(IDEAL), small(replace(IDEAL, base_bytes=1e9, cached_share=0.1, driver_bytes=2e9))
    assert some.peak_memory_bytes == pytest.approx(nothing.peak_memory_bytes + 1e9)
    assert some.reserved_bytes == pytest.approx(1.1 * some.peak_memory_bytes)
    assert some.device_bytes == pytest.approx(some.reserved_bytes + 2e9)
    assert some.memory_limit_bytes == pytest.approx(nothing.memory_limit_bytes - 2e9)


def test_no_derating_goes_above_the_measured_share_within_a_step(hot):
    assert IDEAL.sustained_share("bfloat16", replace(hot, step_share=0.9)) == 0.9
    assert Derating(matmul_share=0.8).sustained_share("bfloat16", replace(hot, step_share=0.9, power_w=None)) == 0.8
