"""A step of many layers from a step of few, next to the whole step; and layers that do not repeat yet."""

from dataclasses import replace
from typing import Any

import pytest

from lablib.capstone.large_run import _of_few_layers, _step, simulate_step
from lablib.train.config import DataConfig, MemoryConfig, ModelConfig, ParallelConfig, PrecisionConfig, TrainConfig

MODEL = ModelConfig(num_layers=10, d_model=512, num_heads=8, vocab_size=8192, max_seq_len=4096)


def config(batches: int, recompute: str = "none", **axes: Any) -> TrainConfig:
    ranks = axes.get("context", 2) * axes.get("tensor", 1)
    return TrainConfig(
        model=MODEL,
        data=DataConfig(batch_size=batches * 16 // ranks, micro_batch=1, seq_len=4096),
        parallel=ParallelConfig(**{"context": 2, "zero_stage": 1, **axes}),
        precision=PrecisionConfig(products="bfloat16"),
        memory=MemoryConfig(recompute=recompute),
    ).on(16)


@pytest.mark.parametrize(
    ("cluster", "batches", "recompute", "axes"),
    [
        ("pcie-a100", 3, "none", {}),
        ("rtx-4090", 1, "none", {}),  # 16 ranks on slow links
        pytest.param("pcie-a100", 3, "full", {}, marks=pytest.mark.thorough),
        ("pcie-a100", 4, "none", {"tensor": 2}),
    ],
)
def test_further_layers_and_micro_batches_cost_what_the_whole_step_costs(
    cluster: str, batches: int, recompute: str, axes: dict[str, int]
):
    """To the rounding of sums; the bytes but for a few numbers that a micro-batch leaves, such as its loss."""
    one = config(batches, recompute, **axes)
    found, whole = _of_few_layers(one, 8, cluster, 16), _step(one, cluster, 16).cost
    assert found is not None
    assert found.step_s == pytest.approx(whole.step_s, rel=1e-8)
    assert found.memory_bytes == pytest.approx(whole.memory_bytes, rel=1e-6)
    assert found.terms == pytest.approx(whole.terms, abs=1e-8 * whole.step_s)


def test_layers_that_do_not_repeat_yet_are_simulated_whole():
    """On NVLink a rank runs ahead for more than 8 of these layers, as its messages take so little of their time."""
    one = config(3)
    assert _of_few_layers(one, 8, "dgx-h100", 16) is None
    assert simulate_step(one, "dgx-h100", 16).step_s == _step(one, "dgx-h100", 16).cost.step_s


def test_too_few_layers_are_not_compared():
    one = replace(config(1), model=replace(MODEL, num_layers=4))
    assert _of_few_layers(one, 2, "pcie-a100", 16) is None
