"""Losses of real programs: contention, fixed times of collectives, unhidden ZeRO-3, added gradients, narrow weights."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS, DEVICES
from lablib.models import find_transformer, transformer_parameters
from lablib.plan import IDEAL, Parallel, predict
from lablib.plan.derating import USUAL, Derating
from lablib.plan.machine import Machine
from lablib.plan.pieces import QUANTIZED_BYTES
from lablib.plan.stack import STACKS

SECONDS = st.floats(0, 1e3)
GPT: dict[str, Any] = {"model": "gpt3-6.7b", "cluster": "dgx-a100", "batch": 64, "micro_batch": 2, "seq_len": 2048}
SHARDED = Parallel(data=32, zero_stage=3)


def machine(derating: Derating = USUAL, cluster: str = "dgx-a100") -> Machine:
    return Machine(CLUSTERS[cluster], STACKS["megatron-core"], derating, "bfloat16")


@given(wires=SECONDS, compute=SECONDS, contention=st.floats(0, 1))
def test_hidden_communication_costs_its_contention_and_the_rest_all_of_it(wires, compute, contention):
    exposed = machine(replace(IDEAL, contention=contention)).exposed_s(wires, compute)
    assert exposed == pytest.approx(max(wires - compute, 0) + contention * min(wires, compute))
    assert exposed <= wires * (1 + 1e-12)


@given(nodes=st.integers(1, 128), size=st.floats(0, 1e10), name=st.sampled_from(["all_gather", "reduce_scatter"]))
def test_a_ring_over_nodes_waits_for_each_hop(nodes, size, name):
    """NCCL's ring: hwLat of Simple, 14 us for each further node and 3.4 us for each rank of these."""
    slow, ideal = (machine(each).collective_s(name, size, 8 * nodes) for each in (fixed_times(), IDEAL))
    assert slow - ideal == pytest.approx(25e-6 + 7 * 9e-6 + (nodes - 1) * (14e-6 + 8 * 3.4e-6), rel=1e-6, abs=1e-9)
    tree = [machine(each).collective_s("all_reduce", size, 8 * nodes) for each in (fixed_times(), IDEAL)]
    assert tree[0] - tree[1] == pytest.approx(25e-6 + 7 * 9e-6, rel=1e-6, abs=1e-9)


def fixed_times() -> Derating:
    names = ("collective_s", "rank_s", "node_s", "hop_s")
    return replace(IDEAL, **{name: getattr(USUAL, name) for name in names})


def test_one_rank_and_other_accelerators_have_no_fixed_time_of_nccl():
    assert machine().collective_s("all_gather", 1e6, 1) == 0
    of_tpu = [machine(each, "tpu-v5e-slice").collective_s("all_gather", 1e9, 64) for each in (fixed_times(), IDEAL)]
    assert of_tpu[0] == of_tpu[1]


def test_without_overlap_all_of_zero_3_is_exposed():
    stack = STACKS["megatron-deepspeed"]
    hidden, shown = (
        predict(**GPT, parallel=SHARDED, stack=replace(stack, data_overlap=each)) for each in (True, False)
    )
    assert hidden.communication["data"][0] == pytest.approx(shown.communication["data"][0])
    total, exposed = shown.communication["data"]
    assert exposed == pytest.approx(total) and hidden.communication["data"][1] < total / 2


@pytest.mark.parametrize(("model", "matrices"), [("gpt3-6.7b", 4), ("llama-2-7b", 5)])
def test_a_matrix_at_a_time_adds_fixed_times_for_the_others_of_a_layer(model, matrices):
    stack = replace(STACKS["fsdp"], data_overlap=False)
    base = GPT | {"model": model, "parallel": SHARDED, "micro_batch": 1}
    whole, apart = (predict(**base, stack=replace(stack, gathers_matrices=each)) for each in (False, True))
    layers, m = find_transformer(model).num_layers, 2
    fixed_s = 2 * machine().collective_s("all_gather", 0, 32) + machine().collective_s("reduce_scatter", 0, 32)
    more = apart.communication["data"][0] - whole.communication["data"][0]
    # One layer of each micro-batch has no other before it: it is counted in both.
    assert more / (m * (matrices - 1) * fixed_s) == pytest.approx(layers + 2 / 3, abs=0.5)


def test_gradients_are_added_by_all_micro_batches_but_the_first_unless_a_buffer_is_kept():
    """Sum and gradient are read and the sum written: 12 bytes per parameter of the layers' matrices, in 32 bits."""
    plain = {"model": "gpt3-1.3b", "cluster": "dgx-a100", "batch": 4, "derating": IDEAL}
    matrices = 24 * 12 * 2048**2
    added_s = 12 * matrices / (DEVICES["A100-80GB-SXM"].memory_bandwidth_bytes_per_s * 0.85)
    for keeps, times in ((False, 3), (True, 4)):
        stacks = [replace(STACKS["fsdp"], keeps_gradients=keeps, fused_accumulation=each) for each in (False, True)]
        apart, fused = (predict(**plain, stack=each).parts["memory-bound kernels"] for each in stacks)
        assert apart - fused == pytest.approx(times * added_s, rel=0.02)


def test_weights_of_4_bits_take_half_a_byte_and_are_widened_by_every_pass():
    lora, qlora = (predict("llama-2-7b", "dgx-a100", batch=1, trainable=each) for each in ("lora", "qlora"))
    count = transformer_parameters(find_transformer("llama-2-7b")).total
    assert qlora.memory[0]["parameter"] == pytest.approx(QUANTIZED_BYTES * count)
    assert lora.memory[0]["parameter"] == pytest.approx(2 * count)
    assert lora.step_time_s < qlora.step_time_s < 1.5 * lora.step_time_s


@given(dtype=st.sampled_from(["bfloat16", "float8", "float4"]), watts=st.floats(200, 3000))
def test_a_device_sustains_its_joules_in_each_dtype_and_no_more_than_a_step(dtype, watts):
    device = replace(DEVICES["B200-SXM"], power_w=watts)
    per_joule = {"bfloat16": 1.0e12, "float8": 2.35e12, "float4": 2.9e12}[dtype]
    share = USUAL.sustained_share(dtype, device)
    assert share == pytest.approx(min(USUAL.matmul_share, watts * per_joule / device.matmul_rate(dtype)))
