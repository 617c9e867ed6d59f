"""One operator is one launch, but for lists and for the kinds that are several kernels."""

from math import isclose

import pytest
import torch

from lablib.hardware import Device

LAUNCH_S = 1e-3
DEVICE = Device(
    "late", {"float32": 1e30}, memory_bytes=1e30, memory_bandwidth_bytes_per_s=1e30, kernel_overhead_s=LAUNCH_S
)


def launches(costs) -> list[int]:
    counts = [cost.time_s / LAUNCH_S for _, cost in costs]
    assert all(isclose(count, round(count), abs_tol=1e-6) for count in counts)
    return [round(count) for count in counts]


@pytest.mark.parametrize(
    ("num_tensors", "numel", "lists", "expected"),
    [
        pytest.param(1, 1, 1, 1, id="one tensor"),
        pytest.param(110, 1, 1, 1, id="110 tensors in a list"),
        pytest.param(111, 1, 1, 2, id="one more"),
        pytest.param(64, 1, 2, 1, id="64 pairs"),
        pytest.param(65, 1, 2, 2, id="65 pairs"),
        pytest.param(1, 320 * 65536, 1, 1, id="320 chunks"),
        pytest.param(1, 320 * 65536 + 1, 1, 2, id="321 chunks"),
        pytest.param(2, 160 * 65536 + 1, 1, 2, id="a chunk belongs to one tensor"),
    ],
)
def test_a_list_of_tensors_takes_as_many_launches_as_hold_it(num_tensors, numel, lists, expected, priced):
    tensors = [[torch.empty(numel, device="meta") for _ in range(num_tensors)] for _ in range(lists)]
    op = torch.ops.aten._foreach_add_
    costs = priced(lambda: op(tensors[0], tensors[1]) if lists == 2 else op(tensors[0], 1.0), DEVICE)
    assert launches(costs) == [expected]


def test_a_fused_step_of_adam_has_four_lists_and_its_steps(priced):
    params = [torch.zeros(1, requires_grad=True) for _ in range(37)]
    for param in params:
        param.grad = torch.zeros(1)
    optimizer = torch.optim.AdamW(params, fused=True)
    costs = priced(optimizer.step, DEVICE)
    names = [name for name, _ in costs]
    # 37 tensors in 4 lists (parameter, gradient, two moments): 36 a launch.
    assert launches(costs)[names.index("aten::_fused_adamw_")] == 2


def test_layer_norm_is_one_launch_forward_and_two_backward_and_a_product_one(priced):
    x = torch.zeros(4, 8, requires_grad=True)
    norm, linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
    outs = []
    costs = priced(lambda: outs.append(norm(linear(x))), DEVICE)
    assert launches(costs) == [1, 1]
    costs = priced(lambda: outs[0].sum().backward(), DEVICE)
    backward = dict(zip([name for name, _ in costs], launches(costs), strict=True))
    assert backward["aten::native_layer_norm_backward"] == 2 and backward["aten::mm"] == 1
