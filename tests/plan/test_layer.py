"""A layer on one rank: its products are the model's FLOPs, its bytes Korthikanti's formulas."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS
from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import forward_flops
from lablib.plan import IDEAL, STACKS
from lablib.plan.layer import Cut, Sizes, work_of
from lablib.plan.layer.parts import exchange, linear
from lablib.plan.machine import Machine
from tests.plan.layers import layer_work

PEAK = 1e15  # of the ideal device, in conftest.py
GPT = Transformer("gpt", 4, 256, 8, 1000, 128)


def cut(micro_batch=1, tokens=128, tensor=1, context=1, expert=1, is_split=False):
    return Sizes(micro_batch, tokens, tensor, context, expert, tensor if is_split else 1, expert_tensor=tensor)


def products_flops(model, tokens):
    """Of one token, the linear layers of a mean layer."""
    flops = forward_flops(model, tokens)
    return sum(flops[part] for part in ("attention", "mlp", "experts", "shared_experts", "router")) / model.num_layers


@pytest.mark.parametrize(
    "name", ["gpt3-6.7b", "llama-3-70b", "palm-62b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3"]
)
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_a_layers_products_take_its_flops_at_the_peak_in_all_three_passes(machine, name, micro_batch):
    model = find_transformer(name)
    work = layer_work(machine("megatron-core"), model, cut(micro_batch, 1024))
    seconds = micro_batch * 1024 * products_flops(model, 1024) / PEAK
    passes = [work.forward.product_s, work.input.product_s, work.weight.product_s]
    assert passes == pytest.approx([seconds] * 3, rel=1e-12)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.booleans())
def test_tensor_and_context_ranks_share_the_products_evenly(machine, tensor, context, is_split):
    on = machine("megatron-core")
    whole = layer_work(on, GPT, cut(tokens=128))
    part = layer_work(on, GPT, cut(tokens=128 // context, tensor=tensor, context=context, is_split=is_split))
    assert part.forward.product_s * tensor * context == pytest.approx(whole.forward.product_s, rel=1e-12)
    assert part.weight.product_s * tensor * context == pytest.approx(whole.weight.product_s, rel=1e-12)


@given(st.sampled_from([1, 2, 4, 8]))
def test_expert_ranks_share_the_experts_but_each_works_on_as_many_tokens(machine, expert):
    # Every rank brings its tokens: fewer experts on a rank, each with more of them.
    on, model = machine("megatron-core"), find_transformer("mixtral-8x7b")
    alone, shared = (layer_work(on, model, cut(expert=e)) for e in (1, expert))
    assert shared.forward.product_s == pytest.approx(alone.forward.product_s, rel=1e-12)
    assert (shared.forward.expert_s > 0) == (expert > 1)


def test_unfused_attention_multiplies_queries_keys_and_values_forward_and_twice_as_much_backward(machine):
    on = machine("megatron-2021")
    work = layer_work(on, GPT, cut())
    scores_s = 128 * forward_flops(GPT, 128)["scores"] / GPT.num_layers / PEAK
    linear_s = 128 * products_flops(GPT, 128) / PEAK
    assert work.forward.product_s == pytest.approx(linear_s + scores_s, rel=1e-12)
    assert work.input.product_s == pytest.approx(linear_s + 2 * scores_s, rel=1e-12)
    assert work.weight.product_s == pytest.approx(linear_s, rel=1e-12)
    assert work.core.product_s == pytest.approx(scores_s, rel=1e-12)


@given(
    s=st.sampled_from([128, 512, 2048]),
    b=st.integers(1, 8),
    a=st.sampled_from([8, 16, 64]),
    d_head=st.sampled_from([32, 64, 128]),
    t=st.sampled_from([1, 2, 4, 8]),
    is_split=st.booleans(),
)
def test_a_gpt_layer_keeps_what_korthikanti_counts(machine, s, b, a, d_head, t, is_split):
    # Korthikanti et al., 2022, arXiv 2205.05198, equations 1 (t = 1), 2 (tensor) and 4 (tensor and sequence parallel).
    h = a * d_head
    model = Transformer("gpt", 2, h, a, 51200, s)
    saved = layer_work(machine("megatron-2021"), model, cut(b, s, t, is_split=is_split)).saved_bytes
    scores = 5 * a * s / h
    paper = s * b * h * ((34 + scores) / t if is_split else 10 + (24 + scores) / t)
    assert saved == pytest.approx(paper, rel=1e-12)


def test_flash_attention_keeps_a_number_a_row_in_the_place_of_the_scores(machine):
    # Dao et al., 2022, arXiv 2205.14135: the output and the logarithm of each row's sum, in 32 bits.
    on = machine(replace(machine("megatron-2021").stack, attention="flash"))
    s, b, h, a = 2048, 2, 4096, 32
    model = Transformer("gpt", 2, h, a, 51200, s)
    assert layer_work(on, model, cut(b, s)).saved_bytes == pytest.approx(s * b * (34 * h + 4 * a), rel=1e-12)


def test_without_dropout_a_layer_keeps_no_masks_and_no_second_copy_of_the_scores(machine):
    # Of the 34: two masks. Of the 5 of each score: its mask and its dropped-out copy, 1 + 2.
    on = machine(replace(machine("megatron-2021").stack, has_dropout=False))
    s, b, h, a = 2048, 2, 4096, 32
    model = Transformer("gpt", 2, h, a, 51200, s)
    assert layer_work(on, model, cut(b, s)).saved_bytes == pytest.approx(s * b * h * (32 + 2 * a * s / h), rel=1e-12)


def test_a_layer_has_two_exchanges_each_way_over_its_tensor_ranks_and_none_alone(machine):
    on = machine("megatron-core")
    at = cut(2, 128, 8)
    work = layer_work(on, GPT, at)
    all_reduce_s = on.collective_s("all_reduce", 2 * 128 * 256 * 2, 8)
    assert work.forward.tensor_s == work.input.tensor_s == 2 * all_reduce_s > 0
    assert work.weight.tensor_s == layer_work(on, GPT, cut(2, 128)).forward.tensor_s == 0
    halves = work_of(on, exchange(Cut.of(on, GPT, cut(2, 128, 8, is_split=True)))).forward.tensor_s
    assert halves == 2 * on.collective_s("all_gather", 2 * 128 * 256 * 2, 8)


def test_integers_are_cast_for_each_of_a_linear_layers_three_products(machine):
    on, at = machine("xla", "int8"), Cut.of(machine("xla", "int8"), GPT, cut())
    rows, k, n = 4096, 64, 128
    casts = {op.phase: op.size_bytes for op in linear(at, "linear", rows, k, n) if op.name == "cast"}
    x, w, g = rows * k, k * n, rows * n
    assert casts == {"forward": 5 * (x + w), "input": 5 * (g + w), "weight": 5 * (x + g)}
    assert (on.computed_in("int8"), on.is_narrow, on.plain) == ("bfloat16", True, "bfloat16")  # no units of its own


@pytest.mark.parametrize(("name", "ratio"), [("tpu-v4", 1), ("tpu-v5e-slice", 2), ("tpu-v5p-slice", 2)])
def test_a_tpus_integers_are_as_fast_as_its_data_sheet(name, ratio):
    device = CLUSTERS[name].device
    assert device.peak("int8") / device.peak("bfloat16") == ratio
    on = Machine(CLUSTERS[name], STACKS["xla"], IDEAL, "int8")
    wide = Machine(CLUSTERS[name], STACKS["xla"], IDEAL, "bfloat16")
    assert wide.product_s(8192, 8192, 8192) / on.product_s(8192, 8192, 8192) == pytest.approx(ratio, rel=1e-12)


def test_a_linear_layer_keeps_its_input_in_the_numbers_that_backward_multiplies(machine):
    def kept(precision, **how):
        on = machine("megatron-core", precision)
        return work_of(on, linear(Cut.of(on, GPT, cut()), "linear", 32, 64, 16, **how)).saved_bytes

    assert [kept(p) for p in ("float32", "bfloat16")] == [32 * 64 * 4, 32 * 64 * 2]
    # MXFP8, AQT's integers, and NVFP4: one byte; half a byte and an 8-bit scale for every 16 numbers.
    assert [kept(p) for p in ("float8", "int8", "float4")] == [32 * 64, 32 * 64, 32 * 64 / 2 + 32 * 64 / 16]
    assert kept("bfloat16", keeps=0.0) == 0
