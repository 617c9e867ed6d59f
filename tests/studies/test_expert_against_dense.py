"""A mixture beside dense models: what is compared is equal where it says so."""

from typing import Any

import pytest

from lablib import CLUSTERS
from lablib.cost import matmul_time_s
from lablib.models.published import find_transformer
from lablib.models.transformer_flops import forward_flops
from lablib.models.transformer_sizes import transformer_parameters
from lablib.studies import OLMOE, against_dense, dense_of_equal_flops, dense_of_equal_parameters, rows_of_an_expert

H100 = CLUSTERS["dgx-h100"].device


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3"])
def test_the_dense_models_have_as_many_flops_or_parameters_but_for_the_router(name: str):
    """To the rounding of a width over all layers, where some are dense."""
    mixture = find_transformer(name)
    active, total = dense_of_equal_flops(mixture), dense_of_equal_parameters(mixture)
    flops = forward_flops(mixture)
    assert sum(forward_flops(active).values()) == pytest.approx(sum(flops.values()) - flops["router"], rel=1e-4)
    sizes = transformer_parameters(mixture)
    routers = sizes.num_expert_layers * sizes.expert_layer.router
    assert transformer_parameters(total).total == pytest.approx(sizes.total - routers, rel=1e-4)
    assert active.experts is None and total.experts is None


def test_rows_of_an_expert_grow_with_the_ranks_that_share_experts():
    assert rows_of_an_expert(OLMOE, 4096) == 4096 * 8 / 64
    assert rows_of_an_expert(OLMOE, 4096, 64) == 64 * 512  # each expert has a rank of its own: k tokens of 64


def test_few_rows_reach_little_of_the_peak():
    """Half as many rows, half as fast, where weights are read from memory; a dense product of as many FLOPs is not."""
    times_s = [matmul_time_s(rows, 2048, 2048, "bfloat16", H100, batch=64) + H100.queued_s for rows in (32, 64, 4096)]
    few, twice, many = (rows / time_s for rows, time_s in zip((32, 64, 4096), times_s, strict=True))
    assert twice == pytest.approx(2 * few, rel=0.1) and many > 4 * twice
    # The bound of the head: reading the weights alone, at all of the memory's bandwidth, is slower than the product.
    rows = int(2 * 989.4e12 / (2 * 3.35e12) / 4)  # a quarter of w R / (2 M)
    weights_s = 64 * 2048 * 2048 * 2 / H100.memory_bandwidth_bytes_per_s
    assert matmul_time_s(rows, 2048, 2048, "bfloat16", H100, batch=64) >= weights_s
    assert 2 * 64 * rows * 2048 * 2048 / H100.peak("bfloat16") < weights_s / 3


def test_on_few_gpus_a_mixture_does_not_fit_and_then_is_slower_than_as_many_flops():
    """OLMoE on H100s: 127 GB of states want two of them, and there it recomputes or shares all that eight need not."""
    one, two, eight = against_dense(OLMOE, "dgx-h100", [1, 2, 8])
    assert one.mixture is None and one.speed is None and one.extra_s == {} and not one.pays(100.0)
    assert one.active is not None and one.least_bytes > 16 * transformer_parameters(OLMOE).total
    assert two.speed and eight.speed and two.speed < eight.speed < 1
    # Faster than the dense model of as many parameters, by less than the FLOPs say, for the same reasons.
    by_flops = sum(forward_flops(dense_of_equal_parameters(OLMOE)).values()) / sum(forward_flops(OLMOE).values())
    assert eight.speed_over_total and 1 < eight.speed_over_total < by_flops
    assert sum(two.extra_s.values()) == pytest.approx(two.mixture.step_time_s - two.active.step_time_s)  # pyright: ignore
    # 4 sequences of 4,096 tokens at once, all experts on each GPU; on two GPUs they share 4 sequences.
    assert (one.rows, two.rows, eight.rows) == (None, 2 * 4096 * 8 / 64, 4 * 4096 * 8 / 64)
    assert not eight.pays(1.0) and not two.pays(1.25) and eight.pays(1.25) and two.pays(3.0)


def test_less_memory_moves_the_crossing_to_more_gpus():
    found = against_dense(OLMOE, "dgx-v100", [4, 8], precision="float16")
    assert [row.pays(2.0) for row in found] == [False, True]
    assert found[0].mixture is None and found[0].active is not None


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (dense_of_equal_flops, ("llama-3-8b",), "the model must have experts: got 'llama-3-8b'"),
        (rows_of_an_expert, ("llama-3-8b", 8), "the model must have experts"),
    ],
)
def test_what_cannot_be_compared_is_refused(function: Any, arguments: Any, message: str):
    arguments = [find_transformer(a) if a == "llama-3-8b" else a for a in arguments]
    with pytest.raises(ValueError, match=message):
        function(*arguments)
