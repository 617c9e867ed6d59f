"""The cost of a program: the cost model's times, whoever of its ranks is simulated."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from lablib import CLUSTERS
from lablib.cost import GroupNetwork, collective_cost, matmul_time_s
from lablib.studies import layer_cost
from lablib.studies.layer_cost import dtype_of

NODE = CLUSTERS["dgx-h100"]


def product_and_sum(rows: int, columns: int) -> Callable[[], object]:
    x = torch.empty(rows, columns, dtype=torch.bfloat16)
    return lambda: dist.all_reduce(x @ x.t())


def test_a_product_and_its_sum_cost_what_the_cost_model_says():
    cost = layer_cost(product_and_sum, 8, NODE, 4096, 1024)
    product_s = (
        float(matmul_time_s(4096, 4096, 1024, "bfloat16", NODE.device)) / NODE.device.step_share + NODE.device.queued_s
    )
    sum_s = collective_cost("all_reduce", 2.0 * 4096**2, GroupNetwork(NODE, range(8))).time_s
    assert cost.compute_s == cost.seconds_of("aten.mm") == pytest.approx(product_s)
    assert cost.exposed_s == pytest.approx(sum_s) == cost.communication_s
    assert sum(cost.flops.values()) == 2 * 4096 * 4096 * 1024
    assert cost.seconds_of("aten.bmm") == 0


@pytest.mark.parametrize("ranks", [2, 64])
def test_one_simulated_rank_costs_what_all_do(ranks: int):
    one, every = (layer_cost(product_and_sum, ranks, NODE, 512, 64, simulate=some) for some in ([0], None))
    assert (one.time_s, one.sent_bytes) == (every.time_s, every.sent_bytes)
    assert layer_cost(product_and_sum, ranks, NODE, 512, 64) is every  # computed once


def test_a_width_without_a_type_is_refused():
    with pytest.raises(ValueError, match=r"element_bytes must be one of \[2, 4, 8\]: got 3; try 2"):
        dtype_of(3)
