"""Only adapters are trained (LoRA): no weight of the model's own has a gradient, in layers or at the ends."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS
from lablib.models import TRANSFORMERS
from lablib.plan import IDEAL, STACKS, Parallel, predict, predict_many
from lablib.plan.layer import Cut, Sizes, layer
from lablib.plan.layer.adapters import with_adapters
from lablib.plan.machine import Machine

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


@settings(deadline=None, max_examples=40)
@given(
    stack=st.sampled_from([name for name in sorted(STACKS) if not STACKS[name].is_eager]),
    tokens=st.integers(1, 9).map(lambda n: 512 * n),
    tensor=st.sampled_from([1, 2, 8]),
)
def test_an_adapter_reads_and_writes_its_layers_input_and_output(stack, tokens, tensor):
    cut = Cut.of(
        Machine(CLUSTERS["dgx-h100"], STACKS[stack], IDEAL, "bfloat16"), MODEL, Sizes(1, tokens, tensor, 1, 1, 1)
    )
    adapters = [op for op in with_adapters(cut, layer(cut)) if op.name == "adapter"]
    assert {op.name for op in layer(cut)} | {"adapter"} >= {op.name for op in with_adapters(cut, layer(cut))}
    # Inputs and outputs: of queries, keys and values, of the output, of up and gate, of down.
    t, heads = tensor, (4096, 6144 / tensor)
    matrices = (
        [heads, (4096 / t, 4096), (4096, 2 * 14336 / t), (14336 / t, 4096)] if STACKS[stack].adapts_all else [heads]
    )
    inputs, outputs = (2 * tokens * sum(side) for side in zip(*matrices, strict=True))
    for i, phase in enumerate(("forward", "input")):
        ways = STACKS[stack].passes_adapter_input[i], STACKS[stack].passes_adapter_output[i]
        moved = sum(op.size_bytes for op in adapters if op.phase == phase)
        assert moved == pytest.approx(inputs * ways[0] + outputs * ways[1], rel=1e-12)


def test_adapters_take_longer_with_dropout_and_none_are_on_experts():
    """Hu et al., 2021, section 4.2, adapt attention; a router and experts stay as they are."""
    mixture = replace(TRANSFORMERS["mixtral-8x7b"], num_layers=2)
    machine = Machine(CLUSTERS["dgx-h100"], STACKS["transformers"], IDEAL, "bfloat16")
    cut = Cut.of(machine, mixture, Sizes(1, 4096, 1, 1, 1, 1))
    assert sum(op.name == "adapter" for op in with_adapters(cut, layer(cut))) == 2 * 2
    compiled, eager, peft = (
        predict(MODEL, "dgx-h100", stack=name, trainable="lora", derating=IDEAL, seq_len=4096).parts
        for name in ("torch-compile", "fsdp", "transformers")
    )
    name = "memory-bound kernels"
    assert compiled[name] < eager[name] < peft[name]


@pytest.mark.parametrize("stack", ["torch-compile", "xla", "fsdp"])
def test_an_adapter_follows_the_last_product_which_is_recomputed_then(stack):
    question = {"model": MODEL, "cluster": "dgx-h100", "stack": stack, "derating": IDEAL, "recompute": "full"}
    every, adapters = (predict(**question, trainable=name) for name in ("all", "lora"))
    down_s = 4 * 2 * 8192 * 4096 * 14336 / CLUSTERS["dgx-h100"].device.peak("bfloat16")
    assert adapters.parts["recomputation"] - every.parts["recomputation"] > down_s
