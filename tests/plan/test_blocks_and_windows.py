"""Arrangements of a layer: attention next to the MLP, and attention to the nearest tokens only."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.cost.attention import mean_causal_keys
from lablib.hardware.catalogue import find_cluster
from lablib.models import Experts, GPTConfig, Window, find_transformer
from lablib.models.transformer_flops import forward_flops
from lablib.plan import IDEAL, Parallel, Prediction, predict, predict_many
from tests.plan import gpt_step
from tests.plan.agreement import agrees

LLAMA = find_transformer("llama-3-8b")
GPU = find_cluster("dgx-h100").device


class SideBySide(torch.nn.Module):
    """A block of gpt.py whose MLP does not wait for attention; with one norm, or with two."""

    def __init__(self, block, has_one_norm: bool):
        super().__init__()
        self.attention_norm, self.attention, self.mlp = block.attention_norm, block.attention, block.mlp
        self.mlp_norm = None if has_one_norm else block.mlp_norm

    def forward(self, x):
        y = self.attention_norm(x)
        return x + self.attention(y) + self.mlp(y if self.mlp_norm is None else self.mlp_norm(x))


@pytest.mark.parametrize("kind", ["one", "ddp"])
@pytest.mark.parametrize("block", ["parallel", "shared norm"])
def test_a_parallel_block_takes_as_long_and_as_much_memory_as_in_the_simulator(block, kind, monkeypatch):
    def build(job):
        model = gpt_step.GPT(job.config, dtype=job.dtype)
        model.blocks = torch.nn.ModuleList(SideBySide(each, block == "shared norm") for each in model.blocks)
        return model

    monkeypatch.setattr(gpt_step, "build", build)
    config = GPTConfig(vocab_size=1024, max_seq_len=512, d_model=512, num_heads=8, num_layers=6)
    job = gpt_step.Job(config, kind, ranks=1 if kind == "one" else 4, batch=4, micro_batches=2)
    run = launch(partial(gpt_step.train, job), ranks=job.ranks, cluster=job.cluster, fidelity="shapes")
    agrees(run, gpt_step.predicted(job, block=block), [0])


def _tensor(block: str, **split) -> Prediction:
    return predict(replace(find_transformer("megatron-7.5b"), block=block), "dgx-a100", **split)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("stack", ["torch-megatron", "megatron-core"])
def test_a_shared_norm_halves_the_sums_over_tensor_ranks_of_a_layer(stack, sequence_parallel):
    """And two norms leave the sum in forward: attention and MLP are added before it."""
    split = {"parallel": Parallel(tensor=8, sequence_parallel=sequence_parallel), "batch": 8, "stack": stack}
    of = {block: _tensor(block, **split) for block in ("sequential", "parallel", "shared norm")}
    wires_s = {block: each.communication["tensor"][0] for block, each in of.items()}
    ends_s = predict(replace(find_transformer("megatron-7.5b"), num_layers=1), "dgx-a100", **split)
    ends_s = ends_s.communication["tensor"][0] - wires_s["sequential"] / 36  # of embedding and head, to 1 / 36
    ends_s = ends_s * 36 / 35
    layers_s = {block: each - ends_s for block, each in wires_s.items()}
    assert layers_s["shared norm"] == pytest.approx(layers_s["sequential"] / 2, rel=1e-6)
    assert layers_s["parallel"] == pytest.approx(layers_s["sequential"] * 3 / 4, rel=1e-6)


@pytest.mark.parametrize("stack", ["torch", "torch-compile", "megatron-core", "transformers"])
def test_a_parallel_block_keeps_less_for_backward(stack):
    sizes = {"batch": 32, "micro_batch": 32, "optimizer": "sgd"}
    blocks = ("sequential", "parallel", "shared norm")
    kept = [_tensor(block, stack=stack, **sizes).memory[0]["activation"] for block in blocks]
    assert all(one >= other for one, other in pairwise(kept))
    assert kept[0] > kept[2]


def test_a_parallel_block_has_no_experts():
    with pytest.raises(ValueError, match="a block with experts is sequential: got block='parallel'"):
        replace(LLAMA, experts=Experts(8, 2, 64), block="parallel")


# ---- windows ----


def _step(window: Window | None, seq_len: Any = 16384, **how: Any) -> Prediction:
    how = {"stack": "megatron-core", "parallel": Parallel(tensor=8)} | how | {"seq_len": seq_len}
    return predict(replace(LLAMA, window=window), "dgx-h100", **how)


@pytest.mark.parametrize("stack", ["torch", "torch-compile", "megatron-core", "megatron-2021"])
@pytest.mark.parametrize("window", [Window(16384), Window(20000, 3), Window(64, 0), Window(16384, is_chunked=True)])
def test_a_window_of_all_tokens_or_of_no_layer_changes_nothing(stack, window):
    with_it, without = (_step(each, stack=stack) for each in (window, None))
    assert with_it.step_time_s == pytest.approx(without.step_time_s, rel=1e-12)
    assert with_it.model_flops == pytest.approx(without.model_flops, rel=1e-12)
    assert with_it.peak_memory_bytes == without.peak_memory_bytes


@given(tokens=st.integers(1, 16384), layers=st.integers(0, 32), is_chunked=st.booleans())
def test_attention_takes_as_long_as_its_layers_with_and_without_the_window(tokens, layers, is_chunked):
    some, all_, none = (_step(w) for w in (Window(tokens, layers, is_chunked), Window(tokens, 32, is_chunked), None))
    mean = (layers * all_.parts["attention"] + (32 - layers) * none.parts["attention"]) / 32
    assert some.parts["attention"] == pytest.approx(mean, rel=1e-9)
    assert all_.parts["attention"] <= none.parts["attention"] * (1 + 1e-9)
    assert some.memory == none.memory


@given(tokens=st.integers(1, 40000), layers=st.integers(0, 32), is_chunked=st.booleans())
def test_flops_of_a_window_are_those_of_its_pairs(tokens, layers, is_chunked):
    """The first w queries of a sliding window see fewer keys; a chunk is a sequence of its own."""
    length, model = 16384, replace(LLAMA, window=Window(tokens, layers, is_chunked))
    near = min(tokens, length)
    pairs = length * near - near * (near - 1) // 2
    if is_chunked:
        sizes = [min(tokens, length - begin) for begin in range(0, length, tokens)]
        pairs = sum(size * (size + 1) // 2 for size in sizes)
    pairs = layers * pairs + (32 - layers) * length * (length + 1) // 2
    scores = forward_flops(model, length, causal=True)["scores"] * length
    assert scores == pytest.approx(2 * 2 * model.num_heads * model.head_size * pairs, rel=1e-12)


def test_a_sliding_window_cuts_two_blocks_of_keys_and_a_chunk_one():
    full, sliding = mean_causal_keys(8192, GPU), mean_causal_keys(8192, GPU, 1024)
    chunked = mean_causal_keys(8192, GPU, 1024, is_chunked=True)
    assert full == 8193 / 2 + 64
    assert sliding == 1024 - 1024 * 1023 / 2 / 8192 + 128
    assert chunked == 1025 / 2 + 64


def test_unfused_attention_and_torchs_own_kernel_skip_nothing_of_a_window():
    """torch's takes it as a mask, which also ends the skipping of what comes later."""
    for stack, factor in (("megatron-2021", 1.0), ("torch", 2.0)):
        one, other = (
            _step(window, stack=stack, derating=IDEAL, parallel=None).parts["attention"]
            for window in (None, Window(64))
        )
        assert other == pytest.approx(factor * one, rel=0.05)  # of causal attention, half a block more


def test_torchs_ring_of_context_ranks_has_no_windows():
    split: dict[str, Any] = {"parallel": Parallel(context=4), "stack": "torch", "batch": 1}
    with pytest.raises(ValueError, match="torch's ring attention has no windows: got context=4 with a window of 4,096"):
        _step(Window(4096), **split)
    assert _step(Window(4096), seq_len=4096, **split).step_time_s > 0
    assert _step(Window(4096), **split | {"stack": "megatron-core"}).step_time_s > 0


@pytest.mark.parametrize("stack", ["torch", "megatron-core"])
def test_many_plans_with_windows_are_as_each_of_them(stack):
    lengths = [2048, 4096, 6144, 8192, 10240]
    model = replace(LLAMA, window=Window(4096, 20, is_chunked=True))
    many = predict_many(model, "dgx-h100", data=8, batch=8, seq_len=lengths, stack=stack, recompute="full")
    for i, length in enumerate(lengths):
        each = predict(model, "dgx-h100", Parallel(data=8), batch=8, seq_len=length, stack=stack, recompute="full")
        assert many.step_time_s[i] == pytest.approx(each.step_time_s, rel=1e-9)
        assert many.mfu[i] == pytest.approx(each.mfu, rel=1e-9)


@pytest.mark.parametrize(
    ("window", "message"),
    [(Window(0), "tokens must be"), (Window(128, 33), "num_layers of the window must be 0 to 32: got 33")],
)
def test_a_window_of_no_tokens_or_of_too_many_layers_is_refused(window, message):
    with pytest.raises(ValueError, match=message):
        replace(LLAMA, window=window)
