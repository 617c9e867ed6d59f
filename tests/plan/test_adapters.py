"""Only adapters are trained (LoRA): no weight of the model's own has a gradient, in layers or at the ends."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS
from lablib.models import TRANSFORMERS
from lablib.plan import IDEAL, STACKS, Parallel, predict, predict_many

MODEL = replace(TRANSFORMERS["llama-3-8b"], num_layers=4)
# By hand: queries, keys, values, output, three matrices of the MLP, and the head.
NUMBERS = 4 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
SCORES = 4 * 4 * 4096  # FLOPs of a token and key: 4 layers, two products of 4096 numbers


@settings(deadline=None, max_examples=40)
@given(
    seq_len=st.sampled_from([512, 4096]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    stack=st.sampled_from(sorted(STACKS)),
)
def test_flops_are_two_products_for_a_matrix_three_for_the_scores_and_what_is_computed_again(seq_len, recompute, stack):
    question = {"model": MODEL, "cluster": "dgx-h100", "seq_len": seq_len, "recompute": recompute, "stack": stack}
    every, adapters = (predict(**question, trainable=trainable) for trainable in ("all", "lora"))
    assert every.model_flops == seq_len * (6 * NUMBERS + 3 * SCORES * seq_len)
    assert adapters.model_flops == seq_len * (4 * NUMBERS + 3 * SCORES * seq_len)
    again = every.hardware_flops - every.model_flops
    assert adapters.hardware_flops - adapters.model_flops == pytest.approx(again, rel=1e-9)
    many = predict_many(**question, trainable="lora")
    assert (many.mfu[0], many.hfu[0]) == pytest.approx((adapters.mfu, adapters.hfu), rel=1e-12)


@pytest.mark.parametrize("stack", sorted(STACKS))
def test_the_heads_weight_takes_no_product(stack):
    parts = [
        predict(MODEL, "dgx-h100", stack=stack, derating=IDEAL, seq_len=4096, trainable=trainable).parts
        for trainable in ("all", "lora")
    ]
    peak = CLUSTERS["dgx-h100"].device.peak("bfloat16")
    less_s = [parts[0][name] - parts[1][name] for name in ("embedding, head, loss", "products")]
    head = 4096 * 128256
    assert less_s[0] > 2 * 4096 * head / peak
    assert less_s[1] > 2 * 4096 * (NUMBERS - head) / peak


@pytest.mark.parametrize("stack", sorted(STACKS))
def test_nothing_is_added_to_gradients_that_are_not_there(stack):
    one, two = (predict(MODEL, "dgx-h100", batch=n, stack=stack, derating=IDEAL, trainable="lora") for n in (1, 2))
    assert two.step_time_s == pytest.approx(2 * one.step_time_s, rel=1e-9)


@pytest.mark.parametrize("stack", ["torch", "fsdp-flash", "megatron-core"])
def test_zero_3_gathers_all_parameters_twice_and_reduces_none(stack):
    question = (MODEL, CLUSTERS["dgx-h100"], Parallel(data=8, zero_stage=3), 8)
    every, adapters = (predict(*question, stack=stack, derating=IDEAL, trainable=name) for name in ("all", "lora"))
    wire = CLUSTERS["dgx-h100"].intra.bandwidth_bytes_per_s
    layers = NUMBERS - 4096 * 128256
    ends = 2 * 4096 * 128256  # the embedding and the head; torch gathers these once
    least_s = (2 * layers + ends) * 2 * 7 / 8 / wire
    assert least_s < adapters.communication["data"][0] < every.communication["data"][0]
    assert adapters.peak_memory_bytes < every.peak_memory_bytes
