"""The optimizer's step in closed form: bytes over bandwidth, divided by ZeRO; or over the host's link."""

from dataclasses import replace
from typing import Any

import pytest

from lablib.hardware import CLUSTERS, LINKS
from lablib.models.published import find_transformer
from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan import IDEAL, STACKS, Parallel, predict

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


def test_without_masters_gradients_and_moments_have_16_bits():
    # Gradient read (2), parameter and two moments read and written (4 + 8); the norm and unscaling (2 + 4).
    stack = replace(STACKS["torch-compile"], has_master=False, gradient_bytes=2)
    expected = PARAMETERS * (2 + 12 + 6) / DEVICE.memory_bandwidth_bytes_per_s
    assert optimizer_s(stack=stack) == pytest.approx(expected, rel=1e-6)
    state = {has: replace(stack, has_master=has) for has in (False, True)}
    bytes_ = {has: predict("gpt3-1.3b", PLAIN, batch=1, stack=each).memory[0] for has, each in state.items()}
    assert bytes_[False]["optimizer state"] == 4 * PARAMETERS and bytes_[True]["optimizer state"] == 12 * PARAMETERS


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 0), (8, 0), (8, 1), (8, 3), (16, 3)])
def test_on_the_host_the_link_or_the_memory_that_the_gpus_of_a_node_share_is_the_limit(ranks, stage):
    own = PARAMETERS / (ranks if stage else 1)
    link_s = own * (4 + 2) / LINKS["pcie4"].bandwidth_bytes_per_s
    host_s = own * (4 + 24 + 2) * min(ranks, 8) / 300e9  # gradient, master and moments, parameter
    plan = {"batch": ranks, "parallel": Parallel(data=ranks, zero_stage=stage)}
    found = optimizer_s(offload=("optimizer",), host_link="pcie4", **plan)
    assert found == pytest.approx(max(link_s, host_s), rel=1e-6)
    assert (link_s > host_s) == (ranks == 1)


def test_adapters_alone_cost_nothing():
    assert optimizer_s(trainable="lora") == 0
