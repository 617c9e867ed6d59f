"""What to train in, by what a device multiplies."""

import pytest

from lablib import DEVICES, Device
from lablib.precision.best_format import best_format


@pytest.mark.parametrize(
    ("device", "num_bits", "format", "recipe", "needs_loss_scale"),
    [
        ("V100-32GB-SXM2", 16, "fp16", "fp16", True),
        ("V100-32GB-SXM2", 4, "fp16", "fp16", True),
        ("A100-80GB-SXM", 16, "bf16", "bf16", False),
        ("A100-80GB-SXM", 8, "bf16", "bf16", False),
        ("H100-80GB-SXM", 16, "bf16", "bf16", False),
        ("H100-80GB-SXM", 8, "e4m3", "fp8_current", False),
        ("H100-80GB-SXM", 4, "e4m3", "fp8_current", False),
        ("B200-SXM", 8, "e4m3", "mxfp8", False),
        ("B200-SXM", 4, "e2m1", "nvfp4", False),
        ("TPU-v4", 16, "bf16", "bf16", False),
        ("laptop-core", 16, "fp32", "fp32", False),
    ],
)
def test_the_choice(device, num_bits, format, recipe, needs_loss_scale):
    choice = best_format(DEVICES[device], num_bits=num_bits)
    assert (choice.format.name, choice.recipe, choice.needs_loss_scale) == (format, recipe, needs_loss_scale)
    assert device in choice.reason


def test_the_speedup_is_that_of_the_published_peaks():
    assert best_format(DEVICES["V100-32GB-SXM2"]).speedup == pytest.approx(125 / 15.7)
    assert best_format(DEVICES["A100-80GB-SXM"]).speedup == pytest.approx(312 / 19.5)


def test_fewer_bits_are_never_slower():
    for device in DEVICES.values():
        speeds = [best_format(device, num_bits=bits).speedup for bits in (16, 8, 4)]
        assert speeds == sorted(speeds)


def test_a_device_of_ones_own():
    own = Device("mine", {"float32": 1e12, "float16": 4e12}, 1e9, 1e9)
    assert best_format(own).needs_loss_scale
