"""Every policy of recomputation: what it keeps and what it repeats, in closed form."""

from dataclasses import replace

import pytest

from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import recompute_flops
from lablib.plan import predict, predict_many
from lablib.plan.layer import Sizes
from lablib.plan.machine import PassTime
from lablib.plan.recompute import recompute_policy
from tests.plan.layers import layer_work

S, B, H, A, LAYERS = 2048, 2, 4096, 32, 8
MODEL = Transformer("gpt", LAYERS, H, A, 51200, S)
PEAK = 1e15  # of the ideal device, in conftest.py
INPUT = 2 * S * B * H


@pytest.fixture
def asked(machine):
    """Of a text: the policy, the stack, a layer, and what the policy keeps of it."""

    def ask(text, stack="megatron-2021", tensor=1, is_split=False):
        on, policy = machine(stack), recompute_policy(text)
        shards = tensor if is_split else 1
        work = layer_work(on, MODEL, Sizes(B, S, tensor, 1, 1, shards))
        return policy, on.stack, work, policy.saved_bytes(work, on.stack, INPUT / shards, LAYERS)

    return ask


@pytest.mark.parametrize(("tensor", "is_split"), [(1, False), (8, False), (8, True)])
def test_what_is_kept_is_korthikantis_table_2(asked, tensor, is_split):
    # Korthikanti et al., 2022, arXiv 2205.05198, table 2 (full with sequence parallelism: the shard of the input).
    layer = 34 / tensor if is_split else 10 + 24 / tensor
    kept = {text: asked(text, tensor=tensor, is_split=is_split)[3] for text in ("none", "selective", "full")}
    sbh = S * B * H
    assert kept["none"] == pytest.approx(sbh * (layer + 5 * A * S / H / tensor), rel=1e-12)
    assert kept["selective"] == pytest.approx(sbh * layer, rel=1e-12)
    assert kept["full"] == sbh * 2 / (tensor if is_split else 1)


@pytest.mark.parametrize("text", ["none", "selective", "full"])
def test_what_is_repeated_are_the_flops_of_that_policy(asked, text):
    policy, stack, work, _ = asked(text)
    recomputed = policy.recomputed(work, stack, LAYERS)
    flops = S * B * recompute_flops(MODEL, S, recompute=text) / LAYERS
    assert recomputed.product_s == pytest.approx(flops / PEAK, rel=1e-12)
    if text == "none":
        assert recomputed == PassTime()


@pytest.mark.parametrize("text", ["none", "selective", "full", "first 2"])
def test_utilization_counts_the_products_that_a_stack_repeats(asked, text):
    """With products repeated and attention's output kept, no scores; they are no product where attention is fused."""
    policy, stack, work, _ = asked(text, "torch-compile")
    recomputed = policy.recomputed(work, stack, LAYERS)
    flops = S * B * policy.recomputed_flops(MODEL, stack, LAYERS, S) / LAYERS
    scores = 0.0 if text in ("none", "selective") else policy.share(LAYERS) * 4 * S * S * B * H
    assert recomputed.product_s == pytest.approx((flops - scores) / PEAK, rel=1e-12)


@pytest.mark.parametrize("stack", ["torch-compile", "fsdp", "xla", "torch"])
@pytest.mark.parametrize("model", [MODEL, replace(MODEL, activation="swiglu", d_ff=3 * H, num_kv_heads=8)])
def test_recomputation_that_stops_early_leaves_out_the_layers_last_product(asked, machine, stack, model):
    on = machine(stack)
    work = layer_work(on, model, Sizes(B, S, 1, 1, 1, 1))
    again = {text: recompute_policy(text).recomputed(work, on.stack, LAYERS) for text in ("full", "every 4")}
    last_s = 2 * S * B * H * model.hidden_size / PEAK
    assert work.forward.product_s - again["full"].product_s == pytest.approx(last_s, rel=1e-9)
    assert work.forward.product_s - again["every 4"].product_s == pytest.approx(last_s / 4, rel=1e-9)
    assert again["full"].attention_s == work.forward.attention_s
    assert again["full"].memory_s < work.forward.memory_s  # the residual
    to_the_end = replace(on.stack, stops_recomputation=False, is_eager=False)
    assert layer_work(replace(on, stack=to_the_end), model, Sizes(B, S, 1, 1, 1, 1)).skipped == PassTime()


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-2022", "transformers", "fsdp-flash"])
def test_other_programs_recompute_whole_layers(asked, stack):
    policy, on, work, _ = asked("full", stack)
    assert policy.recomputed(work, on, LAYERS) == work.forward


def test_hardware_flops_are_those_of_the_stack():
    found = predict(MODEL, "dgx-h100", recompute="selective", stack="torch-compile")
    recomputed = S * LAYERS * 12 * H * H  # half of 24 H^2 a token
    assert found.hardware_flops == pytest.approx(found.model_flops + recomputed, rel=1e-12)
    many = predict_many(MODEL, "dgx-h100", recompute="selective", stack="torch-compile")
    assert many.hfu[0] == pytest.approx(found.hfu, rel=1e-12)


def test_one_checkpoint_for_k_layers_keeps_a_k_th_and_works_on_k_layers(asked):
    policy, stack, work, kept = asked("every 4")
    assert kept == INPUT / 4
    assert policy.working_bytes(work, kept, LAYERS) == 4 * work.saved_bytes
    assert policy.working_bytes(work, kept, 2) == 2 * work.saved_bytes  # a stage of two layers has no more
    assert policy.recomputed(work, stack, LAYERS) == work.forward


def test_the_first_k_layers_are_as_full_and_the_others_as_none(asked):
    policy, stack, work, kept = asked("first 2")
    assert LAYERS * kept == pytest.approx(2 * INPUT + (LAYERS - 2) * work.saved_bytes)
    assert policy.recomputed(work, stack, LAYERS) == work.forward.times(2 / LAYERS)
    assert policy.recomputed(work, stack, 1) == work.forward


def test_selective_by_products_keeps_every_second_output_and_attentions(asked):
    # Linear layers give 3 h, h, 4 h and h numbers; attention h, and a number in 32 bits for each head.
    policy, stack, work, kept = asked("selective", "torch-compile")
    outputs, attention = 9 * H * 2, H * 2 + A * 4
    assert kept == pytest.approx(INPUT + S * B * (outputs / 2 + attention), rel=1e-12)
    recomputed = policy.recomputed(work, stack, LAYERS)
    assert recomputed.product_s == work.forward.product_s / 2
    assert recomputed.attention_s == recomputed.tensor_s == 0
    assert policy.working_bytes(work, kept, LAYERS) == work.saved_bytes - kept


@pytest.mark.parametrize("text", ["some", "every", "every 0", "first -1", "every 2.5", ""])
def test_a_policy_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match='try "every 4"'):
        recompute_policy(text)
