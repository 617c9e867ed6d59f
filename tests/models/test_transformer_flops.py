"""FLOPs of a transformer: as torch counts them, as papers define them, and as published runs report them."""

from math import isclose

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from lablib import launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import (
    forward_flops,
    megatron_step_flops,
    palm_flops_per_token,
    recompute_flops,
    step_flops,
)
from lablib.models.transformer_sizes import transformer_parameters

SIZES = st.integers(1, 200)
A100, TPU_V4 = 312e12, 275e12


def korthikanti_flops(batch, s, layers, h, vocab_size, scores=1):
    """Of a step, appendix A: 72 B s l h^2 (1 + s/6h + V/12lh) model FLOPs.

    Hardware FLOPs, by which HFU are published, double the scores: s/3h. A second forward of them is a third of that, as
    `step_flops(recompute="selective")` counts.
    """
    return 72 * batch * s * layers * h**2 * (1 + scores * s / (6 * h) + vocab_size / (12 * layers * h))


def counted_by_hand(config: GPTConfig, batch: int, seq_len: int) -> int:
    """FLOPs of a forward pass: [M, K] x [K, N] is M N K multiply-adds, MACs, of two FLOPs each."""
    rows, d, f, pairs = batch * seq_len, config.d_model, config.hidden_size, batch * config.num_heads
    of_a_layer = [
        *[(rows, d, d)] * 4,  # query, key, value, out
        *[(seq_len, config.d_head, seq_len)] * pairs,  # queries with keys
        *[(seq_len, seq_len, config.d_head)] * pairs,  # scores with values
        (rows, d, f),  # up
        (rows, f, d),  # down
    ]
    products = of_a_layer * config.num_layers + [(rows, d, config.vocab_size)]
    macs = sum(m * k * n for m, k, n in products)
    return 2 * macs


@settings(max_examples=12)
@given(
    num_layers=st.integers(1, 3),
    num_heads=st.integers(1, 4),
    d_head=st.integers(1, 9),
    d_ff=st.integers(1, 40),
    vocab_size=st.integers(1, 99),
    seq_len=st.integers(1, 17),
    batch=st.integers(1, 3),
)
def test_by_hand_by_formula_by_torch_and_by_the_simulator(
    num_layers, num_heads, d_head, d_ff, vocab_size, seq_len, batch
):
    config = GPTConfig(num_layers, num_heads * d_head, num_heads, vocab_size, seq_len, d_ff)
    by_hand = counted_by_hand(config, batch, seq_len)
    flops = forward_flops(Transformer.of(config))
    assert batch * seq_len * sum(flops.values()) == by_hand
    tokens = torch.zeros(batch, seq_len, dtype=torch.int64, device="meta")
    model = GPT(config, device="meta")  # attention spelled out, the scores kept
    with FlopCounterMode(display=False) as forward:
        loss = next_token_loss(model(tokens), tokens)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert (forward.get_total_flops(), backward.get_total_flops()) == (by_hand, 2 * by_hand)

    def step() -> None:
        model, tokens = GPT(config), torch.zeros(batch, seq_len, dtype=torch.int64)
        next_token_loss(model(tokens), tokens).backward()

    spans = launch(step, ranks=1, fidelity="shapes").timeline.spans
    simulated = {phase: sum(s.flops for s in spans if s.phase == phase) for phase in ("forward", "backward")}
    # Fused attention keeps no scores: its backward makes them again, the first of forward's two products.
    again = batch * seq_len * flops["scores"] / 2
    assert simulated == {"forward": by_hand, "backward": 2 * by_hand + again}


@given(layers=SIZES, heads=SIZES, d_head=SIZES, vocab_size=SIZES, seq_len=SIZES, batch=SIZES)
def test_a_gpt_takes_the_flops_of_the_megatron_papers(layers, heads, d_head, vocab_size, seq_len, batch):
    model = Transformer("gpt", layers, heads * d_head, heads, vocab_size, seq_len)
    sizes = (batch, seq_len, layers, heads * d_head, vocab_size)
    assert isclose(step_flops(model, batch * seq_len), korthikanti_flops(*sizes), rel_tol=1e-12)
    full = step_flops(model, batch * seq_len, recompute="full")
    assert isclose(full, megatron_step_flops(*sizes), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "step_s", "mfu", "hfu"),
    [
        ("megatron-22b", 8, 4, 1.10, 0.415, 0.437),
        ("megatron-175b", 64, 64, 13.75, 0.514, 0.528),
        ("megatron-529.6b", 280, 280, 37.83, 0.560, 0.570),
        ("megatron-1008b", 512, 512, 71.49, 0.563, 0.570),
    ],
)
def test_korthikanti_table_5_follows_from_its_step_times(name, gpus, batch, step_s, mfu, hfu):
    model = find_transformer(name)
    sizes = (batch, 2048, model.num_layers, model.d_model, model.vocab_size)
    peak = step_s * gpus * A100
    # Times are printed with two digits after the point, shares with one: 0.5% of the shortest, half of a tenth.
    assert korthikanti_flops(*sizes) / peak == pytest.approx(mfu, rel=0.005, abs=0.0005)
    assert korthikanti_flops(*sizes, scores=2) / peak == pytest.approx(hfu, rel=0.005, abs=0.0005)


@pytest.mark.parametrize(
    ("name", "tokens", "gpus", "flops_per_s", "days"),
    [("megatron-175b", 300e9, 1024, 140e12, 34), ("megatron-1008b", 450e9, 3072, 163e12, 84)],
)
def test_sc21_training_days_follow_from_its_flops(name, tokens, gpus, flops_per_s, days):
    # Section 5.1 uses 8 T P / (n X): the same without the terms of the scores, which are 2.8% of the smaller model.
    model = find_transformer(name)
    time_s = step_flops(model, tokens, recompute="full") / (gpus * flops_per_s)
    assert time_s / 86400 == pytest.approx(days, rel=0.03)


@pytest.mark.parametrize(
    ("name", "tokens_per_s", "devices", "peak", "mfu"),
    [
        pytest.param("palm-540b", 238_300, 6144, TPU_V4, 0.462, id="PaLM, Table 3"),
        pytest.param("mt-nlg-530b", 65_430, 2240, A100, 0.302, id="MT-NLG, as PaLM's appendix B works it out"),
    ],
)
def test_palm_utilization_follows_from_its_tokens_per_second(name, tokens_per_s, devices, peak, mfu):
    model = find_transformer(name)
    n = transformer_parameters(model).total
    flops = palm_flops_per_token(n, model.num_layers, model.num_heads, model.head_size, model.max_seq_len)
    assert tokens_per_s * flops / (devices * peak) == pytest.approx(mfu, abs=0.0006)


def test_megatron_reports_800_tflops_for_its_llama_3_8b_tokens():
    # NVIDIA/Megatron-LM, examples/llama/README.md: 13,812 tokens/s a GPU at 8,192, "800 TFLOP/s".
    assert step_flops(find_transformer("llama-3-8b"), 13_812, 8192) == pytest.approx(800e12, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "tokens_per_s", "tflops"),
    [("llama-3-8b", 31_508, 1622), ("llama-3-70b", 4143, 1861), ("llama-3-405b", 793, 2002)],
)
def test_megatron_bridge_reports_model_flops_of_the_causal_half(name, tokens_per_s, tflops):
    # Its performance summary (docs/performance-summary-archive.md), GB200, sequences of 8,192.
    flops = step_flops(find_transformer(name), tokens_per_s, 8192, causal=True)
    assert flops == pytest.approx(tflops * 1e12, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "seq_len", "num_parameters", "tokens_per_s", "peak", "mfu"),
    [
        ("mpt-70b", 2048, 64_862_437_376, 1058, 989.4e12, 0.4336),
        ("mpt-3b", 16384, 2_688_537_600, 11_152, 989.4e12, 0.3634),
        ("mpt-125m", 65536, 174_070_272, 20_368, A100, 0.5413),
    ],
)
def test_llm_foundry_reports_utilization_by_palms_formula(name, seq_len, num_parameters, tokens_per_s, peak, mfu):
    model = find_transformer(name)
    flops = palm_flops_per_token(num_parameters, model.num_layers, model.num_heads, model.head_size, seq_len)
    assert tokens_per_s * flops / peak == pytest.approx(mfu, rel=2e-3)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "palm-62b"])
def test_a_token_multiplies_each_parameter_it_visits_once(name):
    model = find_transformer(name)
    parameters = transformer_parameters(model)
    norms = parameters.parts()["norms"]
    looked_up = 0 if model.tied_head else parameters.embedding
    flops = forward_flops(model, 512)
    assert sum(flops.values()) - flops["scores"] == 2 * (parameters.active - norms - looked_up)


def test_latent_attention_multiplies_wide_keys_and_narrower_values():
    # DeepSeek-V3: 128 heads, keys of 128 + 64, values of 128, 61 layers.
    assert forward_flops(find_transformer("deepseek-v3"), 4096)["scores"] == 61 * 128 * 4096 * 2 * (192 + 128)


def test_a_causal_mask_leaves_the_pairs_of_a_token_and_those_before_it():
    model, t = find_transformer("gpt2"), 7
    pairs = sum(range(1, t + 1))
    assert forward_flops(model, t, causal=True)["scores"] * t == forward_flops(model, 1)["scores"] * pairs


def test_recomputing_costs_the_scores_or_all_layers_again():
    model = find_transformer("llama-2-7b")
    flops = forward_flops(model)
    assert recompute_flops(model) == 0
    assert recompute_flops(model, recompute="selective") == flops["scores"]
    assert recompute_flops(model, recompute="full") == flops["attention"] + flops["scores"] + flops["mlp"]
    with pytest.raises(ValueError, match="unknown recompute 'half'"):
        recompute_flops(model, recompute="half")


def test_an_array_of_lengths_takes_what_each_of_them_takes():
    model, lengths = find_transformer("mixtral-8x7b"), np.array([128, 4096, 32768])
    together = step_flops(model, 1000, lengths, recompute="selective", causal=True)
    assert together.tolist() == [
        step_flops(model, 1000, int(length), recompute="selective", causal=True) for length in lengths
    ]
