"""What functions take on a device that computes them more slowly than it reads."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lablib.cost.elements import function_time_s
from lablib.hardware import DEVICES, Device
from lablib.operators.op import op_cost
from lablib.operators.pricer import Pricer

CORE = Device("a core", {"float32": 1e11}, 1e9, 1e10, element_s={"gelu tanh": 2e-9, "gelu": 1e-9, "exp": 1e-12})


def test_time_is_elements_times_seconds_each_and_nothing_where_none_are_stated():
    assert function_time_s("gelu", 1000, CORE) == pytest.approx(1e-6)
    assert function_time_s("mul", 1000, CORE) == 0.0
    assert function_time_s("gelu", np.array([0, 10]), CORE).tolist() == pytest.approx([0, 1e-8])


def gelu_s(kind: str, device: Device = CORE) -> float:
    x = torch.empty(1000)
    return op_cost(torch.ops.aten.gelu.default, (x,), {"approximate": kind}, x, device).time_s


def test_the_longer_of_bytes_and_arithmetic_counts_and_a_word_chooses_the_function():
    assert gelu_s("none") == pytest.approx(1e-6)  # 8 kB take 0.8 us
    assert gelu_s("tanh") == pytest.approx(2e-6)
    assert gelu_s("tanh", replace(CORE, element_s={})) == pytest.approx(0.8e-6)
    x = torch.empty(1000)
    assert op_cost(torch.ops.aten.exp.default, (x,), {}, x, CORE).time_s == pytest.approx(0.8e-6)


def test_prices_that_are_remembered_tell_one_function_from_the_other():
    pricer, x = Pricer(CORE), torch.empty(1000)
    for _ in range(2):
        for kind in ("none", "tanh"):
            cost = pricer.cost(torch.ops.aten.gelu.default, (x,), {"approximate": kind}, x)
            assert cost.time_s == gelu_s(kind)


def test_scores_of_attention_cost_what_their_softmax_takes_beside_the_products():
    name = "_scaled_dot_product_flash_attention_for_cpu"
    slow = replace(CORE, element_s={name: 1e-8})
    q = torch.rand(2, 3, 8, 4)
    out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    costs = [op_cost(op, (q, q, q), {}, out, device).time_s for device in (CORE, slow)]
    assert costs[1] == pytest.approx(2 * 3 * 8 * 8 * 1e-8, rel=0.2) and costs[1] > 5 * costs[0]


def test_no_device_of_the_catalogue_is_slowed_by_functions():
    x = torch.empty(2**20)
    for device in DEVICES.values():
        bytes_alone = op_cost(torch.ops.aten.relu.default, (x,), {}, x, device).time_s
        assert op_cost(torch.ops.aten.gelu.default, (x,), {}, x, device).time_s == bytes_alone
