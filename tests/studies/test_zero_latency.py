"""ZeRO-3's latency: the closed forms against collectives priced one by one, the simulator, and published runs."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import find_cluster, launch
from lablib.models.published import TRANSFORMERS, find_transformer
from lablib.models.training_compute import training_days
from lablib.models.transformer_flops import megatron_step_flops
from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan import Parallel, predict
from lablib.studies.zero_latency import GROUPINGS, smallest_batch, step_s, unit_params, zero3_time

A100 = find_cluster("dgx-a100")
few = settings(max_examples=10, deadline=None)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3-8b", "qwen3-30b-a3b", "deepseek-v3", "bloom-176b"])
def test_units_add_up_to_the_model(name, grouping):
    units, counts = unit_params(find_transformer(name), grouping), transformer_parameters(find_transformer(name))
    norms = counts.total - sum(units)  # a latent's norms have several widths: the mean of them is rounded
    assert norms == 0 if name != "deepseek-v3" or grouping != "parameter" else 0 <= norms < 4 * 61
    layers = counts.num_dense_layers + counts.num_expert_layers
    assert {"parameter": len(units) > 8 * layers, "layer": len(units) == layers + 1, "model": len(units) == 1}[grouping]


@few
@given(
    ranks=st.integers(1, 8),
    num_units=st.integers(1, 50),
    params=st.integers(0, 10**8),
    param_bytes=st.sampled_from([1, 2, 4]),
)
def test_inside_a_node_a_step_is_the_formula_of_the_head(ranks, num_units, params, param_bytes):
    link = A100.intra
    time = zero3_time([params] * num_units, A100, ranks, param_bytes, param_bytes, algorithm="ring")
    latency_s = num_units * (ranks - 1) * link.latency_s
    transfer_s = (ranks - 1) / ranks * num_units * params * param_bytes / link.bandwidth_bytes_per_s
    assert time.gather_s == pytest.approx(latency_s + transfer_s, rel=1e-9)
    assert (time.reduce_s, time.num_gathers) == (time.gather_s, num_units)
    assert time.step_s == pytest.approx(3 * (latency_s + transfer_s)) and time.latency_s == pytest.approx(3 * latency_s)
    assert time.held_bytes == min(2, num_units) * params * param_bytes


@few
@given(ranks=st.sampled_from([2, 3, 8, 16]), units=st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_the_simulator_takes_as_long(ranks, units):
    def program():
        for size in units:
            shard = torch.zeros(size, dtype=torch.bfloat16)
            full = torch.zeros(size * dist.get_world_size(), dtype=torch.bfloat16)
            dist.all_gather_single(full, shard)
            dist.all_gather_single(full, shard)
            dist.reduce_scatter_single(shard, full)

    run = launch(program, ranks=ranks, cluster="dgx-a100")
    talked_s = sum(span.duration_s for span in run.timeline.select(rank=0) if span.is_communication)
    assert zero3_time([size * ranks for size in units], A100, ranks).step_s == pytest.approx(talked_s, rel=1e-6)


@few
@given(
    name=st.sampled_from(["llama-3-8b", "gpt3-175b", "megatron-18.4b"]),
    grouping=st.sampled_from(GROUPINGS),
    ranks=st.sampled_from([2, 8, 64, 1024]),
    share=st.floats(0.1, 10),
)
def test_below_the_smallest_batch_a_rank_waits_and_above_it_does_not(name, grouping, ranks, share):
    params = transformer_parameters(TRANSFORMERS[name]).total
    time = zero3_time(unit_params(TRANSFORMERS[name], grouping), A100, ranks)
    tokens = share * smallest_batch(time, params, 2e14)
    compute_s = 6 * params * tokens / 2e14
    hidden, exposed = (step_s(time, params, 2e14, tokens, overlaps=each) for each in (True, False))
    assert exposed == pytest.approx(compute_s + time.step_s)
    assert (hidden > compute_s * (1 + 1e-9)) == (share < 1 - 1e-9) and hidden <= exposed


def test_without_latency_the_smallest_batch_does_not_know_the_model():
    """w F / (2 B), here with (n - 1) / n."""
    small, large = (smallest_batch(zero3_time([p], A100, 8, algorithm="ring"), p, 2e14) for p in (10**9, 10**12))
    assert small == pytest.approx(large, rel=1e-2)
    assert large == pytest.approx(7 / 8 * 2 * 2e14 / (2 * A100.intra.bandwidth_bytes_per_s), rel=1e-4)


def test_gathers_by_parameter_pay_their_latency_on_a_thousand_ranks():
    model = find_transformer("megatron-175b")
    times = {grouping: zero3_time(unit_params(model, grouping), A100, 1024) for grouping in GROUPINGS}
    latencies = [times[grouping].latency_s / times["model"].latency_s for grouping in GROUPINGS]
    assert latencies == pytest.approx([times[grouping].num_gathers for grouping in GROUPINGS])
    assert times["parameter"].step_s > 1.25 * times["layer"].step_s
    assert times["layer"].held_bytes < times["model"].held_bytes / 40


# ---- published runs ----
# GPT-3 and a model of 530 billion parameters on A100s, as ZeRO-3 (1 rank to a replica) and with Megatron's three axes
# (96, 280). Narayanan et al., SC21, arXiv 2104.04473, table 2: from memory; the two last columns, TFLOP/s of a GPU with
# recomputation and days for 300 billion tokens, agree by the paper's equation 4. It does not say how ZeRO-3 gathered.
GPT3, OF_530B = "megatron-175b", "megatron-529.6b"
ROWS = [  # model, ranks of a replica, sequences of a step, GPUs, sequences of a micro-batch, TFLOP/s, days
    (GPT3, 1, 1536, 384, 4, 144, 90),
    (GPT3, 1, 1536, 768, 2, 88, 74),
    (GPT3, 1, 1536, 1536, 1, 44, 74),
    (OF_530B, 1, 2560, 640, 4, 138, 169),
    (OF_530B, 1, 2240, 1120, 2, 98, 137),
    (OF_530B, 1, 2240, 2240, 1, 48, 140),
    (GPT3, 96, 1536, 384, 1, 153, 84),
    (GPT3, 96, 1536, 768, 1, 149, 43),
    (GPT3, 96, 1536, 1536, 1, 141, 23),
    (OF_530B, 280, 2240, 560, 1, 171, 156),
    (OF_530B, 280, 2240, 1120, 1, 167, 80),
    (OF_530B, 280, 2240, 2240, 1, 159, 42),
]


@pytest.mark.parametrize(("name", "replica", "batch", "gpus", "micro_batch", "tflops", "days"), ROWS)
def test_published_runs_are_between_the_bounds(name, replica, batch, gpus, micro_batch, tflops, days):
    """With three axes the planner is within 4.1%. For ZeRO-3 it is 19 to 59% too fast, as it gathers whole layers: what
    was measured is between hidden and exposed gathers of single parameters in one ring."""
    model, params = find_transformer(name), {GPT3: 174.6e9, OF_530B: 529.6e9}[name]
    assert transformer_parameters(model).total == pytest.approx(params, rel=1e-3)
    # Equation 4: days = 8 T P / (n X), which leaves out 2 to 3% of the FLOPs.
    assert 0.94 < training_days(8 * 300e9 * params, gpus, tflops * 1e12) / days < 1.01

    flops = megatron_step_flops(batch, 2048, model.num_layers, model.d_model, model.vocab_size)
    measured_s = flops / (tflops * 1e12 * gpus)
    tensor = min(8, replica)
    parallel = Parallel(gpus // replica, tensor, replica // tensor, zero_stage=3 if replica == 1 else 0)
    options: Any = {"precision": "float16", "recompute": "full", "stack": "megatron-2021"}
    planned = predict(model, A100, parallel, batch, micro_batch=micro_batch, **options)
    if replica > 1:
        assert abs(planned.step_time_s / measured_s - 1) < 0.041
        return
    assert -0.60 < planned.step_time_s / measured_s - 1 < -0.18
    width, vocab_size = model.d_model, model.vocab_size
    matrices = [share * width**2 for share in (3, 1, 4, 4)]  # queries, keys and values are one
    vectors = [share * width for share in (3, 1, 4, 1, 1, 1, 1, 1)]
    units = model.num_layers * (matrices + vectors) + [vocab_size * width, model.max_seq_len * width, width, width]
    gathers_s = zero3_time(units, A100, gpus, algorithm="ring").step_s
    compute_s = planned.step_time_s - planned.communication["data"][1]
    hidden, exposed = max(compute_s, gathers_s) / measured_s, (compute_s + gathers_s) / measured_s
    assert 0.63 <= hidden < 1 < exposed < 1.275


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: unit_params(find_transformer("gpt3-175b"), "block"),
            "grouping must be one of parameter, layer, model: got 'block'",
        ),
        (lambda: zero3_time([], A100, 8), r"units must be .*try units=\[10\*\*9\]"),
        (lambda: zero3_time([8], A100, 8, algorithm="tree"), "unknown all_gather algorithm"),
    ],
)
def test_bad_questions_get_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
