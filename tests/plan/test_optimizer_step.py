"""The optimizer's step in closed form: bytes over bandwidth, divided by ZeRO; or over the host's link."""

from dataclasses import replace
from typing import Any

import pytest

from lablib.hardware import CLUSTERS, LINKS
from lablib.models.published import find_transformer
from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan import IDEAL, Parallel, predict

DEVICE = CLUSTERS["dgx-a100"].device
# Memory that streams all it can, whatever the size, and no cache.
PLAIN = CLUSTERS["dgx-a100"].replace(
    device=replace(DEVICE, memory_efficiency=1.0, cache_bytes=0.0, kernel_overhead_s=0.0, launch_s=0.0)
)
PARAMETERS = transformer_parameters(find_transformer("gpt3-1.3b")).total


def optimizer_s(**changes: Any) -> float:
    arguments: dict[str, Any] = {"batch": 8, "parallel": Parallel(data=8), "derating": IDEAL} | changes
    return predict("gpt3-1.3b", PLAIN, **arguments).parts["optimizer"]


def test_adamw_moves_42_bytes_a_parameter():
    # Gradient read (4), master and two moments read and written (8 + 16), parameter written (2); a norm for clipping
    # reads the gradient once more (4), unscaling reads and writes it (8).
    expected = PARAMETERS * (4 + 24 + 2 + 12) / DEVICE.memory_bandwidth_bytes_per_s
    assert optimizer_s() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_divides_it_by_the_ranks_that_share_the_states(stage):
    assert optimizer_s() / optimizer_s(parallel=Parallel(data=8, zero_stage=stage)) == pytest.approx(8, rel=1e-6)


def test_on_the_host_gradients_go_and_parameters_come_over_its_link():
    expected = PARAMETERS * (4 + 2) / LINKS["pcie4"].bandwidth_bytes_per_s
    assert optimizer_s(offload=("optimizer",), host_link="pcie4") == pytest.approx(expected, rel=1e-6)


def test_adapters_alone_cost_nothing():
    assert optimizer_s(trainable="lora") == 0
