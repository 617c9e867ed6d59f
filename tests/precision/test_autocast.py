"""Rules of autocast: those of torch's own documentation, real tensors beside fake ones; nothing stays switched on."""

import inspect

import pytest
import torch

from lablib.precision.autocast import COUNTERPARTS, OPERATORS, RULES, autocast, autocast_casts, find_rule
from lablib.precision.loss_scaling import deepspeed_rule

# torch 2.13, "Automatic Mixed Precision package", autocast op reference, of those in OPERATORS.
CUDA = {
    "lower": {"linear", "matmul", "conv1d", "scaled_dot_product_attention"},
    "float32": {"softmax", "log_softmax", "cross_entropy", "mse_loss", "layer_norm"}
    | {"exp", "log", "pow", "sum", "cumsum"},
    "widest": {"addcmul"},
}
CPU = {
    "lower": {"linear", "matmul", "conv1d", "scaled_dot_product_attention"},
    "float32": {"cross_entropy", "mse_loss"},
    "widest": {"cat"},
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("device_type", "documented"), [("cuda", CUDA), ("cpu", CPU)])
def test_rules_are_the_documented_ones(device_type, documented, dtype):
    rules = autocast_casts(device_type, dtype)
    assert list(rules) == list(OPERATORS) and set(rules.values()) <= set(RULES)
    for rule, names in documented.items():
        assert {name for name, found in rules.items() if found == rule} == names, rule


def test_real_tensors_have_the_rules_of_fake_ones():
    fake = autocast_casts("cpu", torch.bfloat16)
    assert {name: find_rule(op, "cpu", torch.bfloat16) for name, op in OPERATORS.items()} == fake


@pytest.mark.gpu
def test_a_real_gpu_has_them_too():
    fake = autocast_casts("cuda", torch.float16)
    assert {name: find_rule(op, "cuda", torch.float16) for name, op in OPERATORS.items()} == fake


def test_a_changed_parameter_is_cast_again():
    """torch keeps casts of parameters until the outermost context of all threads ends."""
    linear, x = torch.nn.Linear(4, 4, bias=False), torch.ones(1, 4)
    for _ in range(3):
        with autocast("cpu", torch.bfloat16):
            found = linear(x)
        torch.testing.assert_close(found, (x.bfloat16() @ linear.weight.bfloat16().T))
        with torch.no_grad():
            linear.weight.add_(1.0)
    assert torch.is_autocast_cache_enabled()


def test_nothing_stays_switched_on():
    for device_type in ("cpu", "cuda"):
        before = torch.get_autocast_dtype(device_type)
        autocast_casts(device_type, torch.float16)
        with pytest.raises(ZeroDivisionError):
            find_rule(lambda x, y: x / (1 // 0), "cpu", torch.float16)
        assert not torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) == before


def test_first_scales_and_intervals_are_those_of_the_code():
    """torch's from its signature; DeepSpeed's as loss_scaling.py has them."""
    rows = {row.what: row for row in COUNTERPARTS}
    defaults = inspect.signature(torch.amp.GradScaler).parameters
    assert defaults["init_scale"].default == 2**16 and "2^16" in rows["its first value"].torch
    window = rows["steps without overflow until it doubles"]
    assert str(defaults["growth_interval"].default) in window.torch
    assert str(deepspeed_rule().interval) in window.deepspeed
    assert deepspeed_rule().initial == 2**16 and "2^16" in rows["its first value"].deepspeed
