"""What must hold of every prediction, whatever the model, the cluster and the plan: no reference but sense.

A faster link or device never makes a step slower, nor more memory one that fits too large; recomputation only trades
time for memory; a ZeRO stage keeps no more than the one before; more work never takes less time.

Schedules that split B into I and W are left out of comparisons of time: there a longer I may come with a shorter W.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS, LINKS
from lablib.models import TRANSFORMERS, Experts
from lablib.plan import IDEAL, Parallel, Prediction, predict
from lablib.plan.arguments import NARROW, PRECISIONS
from lablib.plan.gradient_compression import COMPRESSIONS
from lablib.plan.optimizers import OPTIMIZERS
from lablib.plan.stack import find_stack

GPT = TRANSFORMERS["gpt3-6.7b"]
MODELS = (
    GPT,
    replace(GPT, num_layers=13, vocab_size=30001, tied_head=False),
    replace(TRANSFORMERS["llama-3-8b"], num_layers=1),
    TRANSFORMERS["llama-3-70b"],
    TRANSFORMERS["mixtral-8x7b"],
    TRANSFORMERS["deepseek-v3"],
)
STACKS = ("megatron-2021", "megatron-2022", "megatron-deepspeed", "fsdp-flash", "torch-compile", "megatron-core")
FEW = st.sampled_from([1, 2, 4, 8])


@st.composite
def questions(draw, stacks=(*STACKS, "torch", "torch-megatron")):
    """The arguments of a possible plan."""
    model, schedule = draw(st.sampled_from(MODELS)), draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    zero_stage, data = draw(st.integers(0, 3)), draw(st.sampled_from([1, 2, 3, 8, 64]))
    pipeline = draw(st.sampled_from([p for p in (1, 2, 3, 4, 8) if 2 * p <= model.num_layers] or [1]))
    parallel = Parallel(
        data=data,
        tensor=draw(FEW),
        pipeline=pipeline,
        context=draw(st.sampled_from([1, 1, 2, 4])),
        chunks=2 if schedule == "interleaved" and pipeline > 1 else 1,
        sequence_parallel=draw(st.sampled_from([None, True, False])),
        zero_stage=zero_stage,
        reshard_after_forward=draw(st.booleans()) if zero_stage == 3 else True,
        zero_plus_plus=draw(st.sampled_from([(), ("qwZ", "qgZ"), ("hpZ",)])) if zero_stage == 3 else (),
    )
    micro_batch, stack = draw(FEW), draw(st.sampled_from(stacks))
    if find_stack(stack).is_eager:
        parallel = replace(parallel, zero_plus_plus=(), zero_stage=1 if zero_stage == 2 else zero_stage)
    trainable = draw(st.sampled_from(["all", "all", "lora"]))
    is_summed = zero_stage < 3 and trainable == "all"
    refused = NARROW if find_stack(stack).is_eager else ()
    moved = [("parameters",)] if zero_stage == 3 and not find_stack(stack).is_eager else []
    return {
        "model": model,
        "cluster": CLUSTERS[draw(st.sampled_from(["dgx-v100", "pcie-a100", "dgx-h100", "gb200-nvl72"]))],
        "parallel": parallel,
        "batch": data * micro_batch * pipeline * draw(st.sampled_from([1, 2, 5, 64])),
        "micro_batch": micro_batch,
        "seq_len": draw(st.sampled_from([512, 2048, 8192])),
        "precision": draw(st.sampled_from([each for each in PRECISIONS if each not in refused])),
        "recompute": draw(st.sampled_from(["none", "selective", "full", "every 2", "first 3"])),
        "schedule": schedule,
        "optimizer": draw(st.sampled_from(sorted(OPTIMIZERS))),
        "stack": stack,
        "compression": draw(st.sampled_from(["none", *COMPRESSIONS])) if is_summed else "none",
        "offload": draw(
            st.sampled_from([(), (), ("optimizer",), ("activations",), ("optimizer", "activations"), *moved])
        ),
        "trainable": trainable,
        "derating": draw(st.sampled_from([None, IDEAL])),
        "host_link": draw(st.sampled_from(["pcie3", "pcie4"])),
    }


def states(prediction: Prediction) -> float:
    """Bytes of parameters, gradients and optimizer states of the stage that keeps most of them."""
    return max(sum(stage[name] for name in ("parameter", "gradient", "optimizer state")) for stage in prediction.memory)


@given(question=questions(), schedule=st.sampled_from([None, "zb-h1", "zb-h2"]))
def test_what_a_prediction_says_is_consistent(question, schedule):
    if schedule and question["parallel"].chunks == 1:
        question |= {"schedule": schedule}
    found = predict(**question)
    assert sum(found.parts.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert all(part >= -1e-9 * found.step_time_s for part in found.parts.values())
    assert -1e-12 <= found.bubble_fraction < 1
    for total_s, exposed_s in found.communication.values():
        assert -1e-9 * found.step_time_s <= exposed_s <= total_s * (1 + 1e-9)
    assert found.exposed_communication_s <= found.step_time_s * (1 + 1e-9)
    assert 0 < found.mfu <= found.hfu * (1 + 1e-12) and found.hfu <= 1
    assert found.peak_memory_bytes == max(found.stage_bytes)
    assert found.table()["time_s"].to_dict()["step"] == found.step_time_s
    assert max(found.memory_table()["peak_bytes"].tolist()) == found.peak_memory_bytes
    tokens = 1e12
    assert found.tokens_per_s * found.step_time_s == pytest.approx(found.batch * found.seq_len)
    assert found.gpu_hours(tokens) == pytest.approx(tokens / found.tokens_per_s * found.num_gpus / 3600)
    power_w = question["cluster"].device.power_w
    assert found.energy_j(tokens) == pytest.approx(found.gpu_hours(tokens) * 3600 * power_w)


@given(question=questions(), factor=st.sampled_from([1.3, 2, 10]))
def test_faster_hardware_is_never_slower_and_more_memory_never_too_small(question, factor):
    found, cluster = predict(**question), question["cluster"]
    device = cluster.device
    peaks = {dtype: factor * peak for dtype, peak in device.peak_flops_per_s.items()}
    joule = {"flops_per_joule": device.flops_per_joule and factor * device.flops_per_joule}
    joule["flops_per_joule_by_dtype"] = {dtype: factor * n for dtype, n in device.flops_per_joule_by_dtype.items()}
    faster = {
        "inter": cluster.replace(inter=_faster(cluster.inter, factor)),
        "intra": cluster.replace(intra=_faster(cluster.intra, factor)),
        "peak": cluster.replace(device=replace(device, peak_flops_per_s=peaks, **joule)),
        "reads": _with(cluster, memory_bandwidth_bytes_per_s=factor * device.memory_bandwidth_bytes_per_s),
        "power": _with(cluster, power_w=factor * device.power_w),
    }
    for what, changed in faster.items():
        assert predict(**(question | {"cluster": changed})).step_time_s <= found.step_time_s * (1 + 1e-9), what
    host = _faster(LINKS[question["host_link"]], factor)
    assert predict(**(question | {"host_link": host})).step_time_s <= found.step_time_s * (1 + 1e-9)
    assert predict(**(question | {"derating": IDEAL})).step_time_s <= found.step_time_s * (1 + 1e-9)
    larger = predict(**(question | {"cluster": _with(cluster, memory_bytes=factor * device.memory_bytes)}))
    assert larger.step_time_s == found.step_time_s and larger.fits >= found.fits


def _faster(link, factor):
    return replace(link, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s, latency_s=link.latency_s / factor)


def _with(cluster, **changes):
    return cluster.replace(device=replace(cluster.device, **changes))


@given(question=questions(STACKS))
def test_each_stage_of_zero_keeps_no_more_states_than_the_one_before(question):
    question |= {"compression": "none"}
    split = replace(question["parallel"], zero_plus_plus=(), reshard_after_forward=True)
    kept = [states(predict(**(question | {"parallel": replace(split, zero_stage=z)}))) for z in range(4)]
    assert all(later <= before * (1 + 1e-9) for before, later in zip(kept, kept[1:], strict=False))


@given(question=questions())
def test_twice_the_batch_takes_no_less_and_in_the_steady_state_twice_the_growth(question):
    pipeline = question["parallel"].pipeline
    batch = question["batch"] * 4 * pipeline
    once, twice, four = (predict(**(question | {"batch": n * batch})).step_time_s for n in (1, 2, 4))
    assert 0 < once < twice < four
    # As long as another rank may become the one that all wait for, twice is a little more.
    assert four - twice == pytest.approx(2 * (twice - once), rel=0.02)


@given(question=questions())
def test_recomputation_and_the_host_trade_time_for_memory(question):
    question |= {"recompute": "none", "offload": ()}
    plain = predict(**question)
    for policy in ("selective", "full"):
        found = predict(**(question | {"recompute": policy}))
        # A link that is busy all the time hides what is computed again.
        assert found.step_time_s >= plain.step_time_s * (1 - 1e-3)
        # Outputs that are kept have 16 bits: inputs of products in fewer, which are kept without a policy, are smaller.
        if policy == "selective" and question["precision"] in ("float8", "float4"):
            continue
        # With one layer, what is made again is all there is, and its input is kept besides.
        assert found.peak_memory_bytes <= plain.peak_memory_bytes * (1 + 0.05 * (plain.parallel.pipeline == 1))
    moved = predict(**(question | {"offload": ("activations",)}))
    assert moved.step_time_s >= plain.step_time_s * (1 - 1e-9)
    assert moved.peak_memory_bytes <= plain.peak_memory_bytes * (1 + 1e-9)


def test_what_waits_for_two_wires_waits_for_the_slower_one():
    # A layer's parameters come over the network while its activations go to the host: neither waits for the
    links = {"inter": replace(LINKS["ethernet-100"], bandwidth_bytes_per_s=1e8)}
    slow, both = CLUSTERS["dgx-a100"].replace(**links), {}
    for offload in ((), ("activations",)):
        both[offload] = predict(
            *("llama-3-8b", slow, Parallel(data=64, zero_stage=3), 64),
            **{"offload": offload, "derating": IDEAL, "stack": "fsdp-flash"},
        )
    plain, moved = both.values()
    assert moved.communication["host"][0] > 0 == plain.communication["host"][0]
    assert moved.step_time_s == pytest.approx(plain.step_time_s, rel=1e-9)


@given(question=questions(), context=st.sampled_from([2, 4]), tensor=st.sampled_from([1, 8]))
def test_every_stacks_context_ranks_send_keys_and_values_with_at_least_one_head(question, context, tensor):
    """Over wires that take no time but what their bandwidth says, hidden or not."""
    model = replace(TRANSFORMERS["llama-3-8b"], num_layers=16)
    alike = {"model": model, "recompute": "none", "offload": (), "derating": IDEAL}
    split = replace(question["parallel"], tensor=tensor, context=context, replicas=1)
    question |= alike | {"parallel": split}
    (total_s, exposed_s), narrow = predict(**question).communication["context"], {}
    passes = question["batch"] // split.data * model.num_layers / split.pipeline
    width = 4 if question["precision"] in ("float32", "tfloat32") else 2
    sent = 3 * 2 * question["seq_len"] * (8 // tensor) * 128 * width * (context - 1) / context
    cluster = question["cluster"]
    fastest = max(cluster.intra.bandwidth_bytes_per_s, cluster.inter.bandwidth_bytes_per_s)
    assert total_s > passes * sent / fastest * (1 - 1e-9) and 0 <= exposed_s <= total_s
    # A tensor rank has a whole head, however few there are.
    for heads in (1, 8):
        few = replace(model, num_kv_heads=heads)
        narrow[heads] = predict(**question | {"model": few}).communication["context"]
    assert (narrow[1] == narrow[8]) == (tensor == 8)


@given(question=questions())
def test_mlps_and_experts_that_no_layer_has_change_nothing(question):
    layers = 16
    few = {"num_layers": layers, "num_heads": 64, "num_kv_heads": 64, "d_head": 64}
    mixture, dense = replace(TRANSFORMERS["qwen3-30b-a3b"], **few), replace(TRANSFORMERS["llama-3-8b"], **few)
    none = replace(dense, experts=Experts(6, 2, 1407, 3, num_dense_layers=layers))
    for model, alike in ((replace(mixture, d_ff=64), replace(mixture, d_ff=10**6 + 1)), (dense, none)):
        found, other = (predict(**question | {"model": each}) for each in (model, alike))
        assert found.step_time_s == other.step_time_s and found.memory == other.memory
        assert found.communication == other.communication and found.mfu == other.mfu


def test_tensor_ranks_share_the_mlps_that_there_are():
    sizes = TRANSFORMERS["deepseek-v2-lite"]
    shared = replace(sizes, experts=Experts(64, 6, 1407, num_shared=3, num_dense_layers=1))
    split = Parallel(data=2, tensor=4, expert_tensor=1)
    with pytest.raises(ValueError, match="divide the hidden size of the shared experts: got 4 and 4221; try 1"):
        predict(shared, "dgx-h100", split, 8)
    with pytest.raises(ValueError, match="divide the hidden size of the MLP: got 4 and 5001; try 1"):
        predict(replace(sizes, d_ff=5001), "dgx-h100", split, 8)


def test_a_dense_mlp_that_no_layer_has_takes_no_room():
    mixture = TRANSFORMERS["mixtral-8x7b"]
    assert mixture.num_expert_layers == mixture.num_layers
    question = ("dgx-h100", Parallel(data=8, expert=8), 8)
    peaks = [predict(replace(mixture, d_ff=d_ff), *question).peak_memory_bytes for d_ff in (1024, 102400)]
    assert peaks[0] == peaks[1]
