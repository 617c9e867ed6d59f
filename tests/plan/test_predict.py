"""The planner's front door: what adds up, what scales as theory says, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS, LINKS
from lablib.models import transformer_parameters
from lablib.models.published import find_transformer
from lablib.plan import IDEAL, Parallel, predict, predict_many
from lablib.plan.stack import find_stack

GPT3 = Parallel(data=8, tensor=8, pipeline=8)


def gpt3(**changes):
    arguments = {"parallel": GPT3, "batch": 1536, "recompute": "full"} | changes
    return predict("gpt3-175b", "dgx-a100", **arguments)


def test_one_gpu_without_derating_takes_its_flops_and_bytes():
    prediction = predict("gpt2", "dgx-a100", batch=8, derating=IDEAL, stack="torch")
    ideal_s = prediction.model_flops / 312e12
    assert ideal_s < prediction.step_time_s < 6 * ideal_s
    assert prediction.communication == dict.fromkeys(prediction.communication, (0.0, 0.0))


def test_a_gpt3_step_counts_its_flops_as_the_paper_does():
    # Narayanan et al., SC21, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh) with full recomputation.
    model = replace(find_transformer("gpt3-175b"), vocab_size=51200)
    batch, s, layers, h, vocab = 1536, 2048, 96, 12288, 51200
    paper = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    prediction = predict(model, "dgx-a100", GPT3, batch, recompute="full")
    assert prediction.hardware_flops == pytest.approx(paper, rel=1e-3)
    assert prediction.hfu / prediction.mfu == pytest.approx(4 / 3, rel=0.01)


def test_the_bubble_is_that_of_its_schedule():
    # 1F1B: (p - 1) / (m + p - 1) with equal stages; the embedding and the head make them a little unequal.
    p, m = 8, 24
    prediction = gpt3(batch=8 * m, derating=IDEAL)
    assert prediction.bubble_fraction == pytest.approx((p - 1) / (m + p - 1), abs=0.02)
    interleaved = gpt3(batch=8 * m, derating=IDEAL, schedule="interleaved", parallel=replace(GPT3, chunks=3))
    assert interleaved.bubble_fraction == pytest.approx((p - 1) / (3 * m + p - 1), abs=0.02)
    # Qi et al., 2023, table 1: (p - 1)(F + I - W) where 1F1B has (p - 1)(F + I + W). Without recomputation the three
    # are alike, but for messages and sums over ranks, which F and I have and W has not.
    kept, zero = (gpt3(batch=8 * m, derating=IDEAL, recompute="none", schedule=name) for name in ("1f1b", "zb-h1"))
    assert 1 / 3 < zero.bubble_fraction / kept.bubble_fraction < 0.5


def test_a_plan_that_does_not_fit_is_predicted_and_says_so():
    prediction = predict("gpt3-175b", "dgx-a100", Parallel(tensor=8), batch=8)
    assert not prediction.fits
    assert "does not fit" in prediction.sentence()
    assert prediction.peak_memory_bytes > 175e9 * 18 / 8


@pytest.mark.parametrize("tokens", [-1, float("nan"), float("inf"), "1e12", True])
def test_hours_and_energy_are_of_a_number_of_tokens(tokens):
    found = predict("gpt2", "dgx-a100")
    for of in (found.gpu_hours, found.energy_j):
        with pytest.raises(ValueError, match="tokens must be"):
            of(tokens)
    assert found.gpu_hours(0) == found.energy_j(0) == 0


def test_a_device_that_computes_in_no_time_has_a_step_of_communication_or_none():
    free = CLUSTERS["dgx-h100"].free_compute()
    for pipeline in (1, 2):
        found = predict("gpt2", free, Parallel(data=2, pipeline=pipeline), 4, derating=IDEAL)
        many = predict_many("gpt2", free, data=2, pipeline=pipeline, batch=4, derating=IDEAL)
        assert found.step_time_s == pytest.approx(many.step_time_s[0], rel=1e-12) and found.step_time_s > 0
        assert 0 <= found.bubble_fraction == many.bubble_fraction[0] <= 1 and found.mfu == 0
    with pytest.raises(ValueError, match="a step must take some time: got 0 s"):
        predict("gpt2", free, derating=IDEAL)
    with pytest.raises(ValueError, match="a step must take some time: got 0 s"):
        predict_many("gpt2", free, data=[1, 2], batch=2, derating=IDEAL)


def test_energy_is_known_where_the_catalogue_has_power():
    prediction = gpt3()
    assert prediction.energy_j() == pytest.approx(512 * 400 * prediction.step_time_s)
    assert prediction.gpu_hours(300e9) == pytest.approx(300e9 / prediction.tokens_per_s * 512 / 3600)


def sharded(batch, **changes):
    """GPT-3 1.3B with FSDP2 on 8 GPUs, a sequence each at once."""
    options = {"micro_batch": 1, "seq_len": 2048, "stack": "torch-compile", "derating": IDEAL} | changes
    return predict("gpt3-1.3b", "dgx-h100", Parallel(data=8, zero_stage=3), batch, **options)


def test_gradients_that_are_made_anew_are_not_there_when_activations_are_most():
    one, two = sharded(8).memory[0], sharded(16).memory[0]
    # With a second micro-batch those of the first are there when its activations are.
    assert one["gradient"] == 0 < two["gradient"]
    assert two["gradient"] == pytest.approx(2 * two["parameter"])  # 4 bytes of a number, and 2
    others = [name for name in one if name != "gradient"]
    assert [one[name] for name in others] == [two[name] for name in others]
    # Of few tokens backward ends with more than it begins with.
    short = [sharded(batch, seq_len=8).memory[0] for batch in (8, 16)]
    assert short[0]["gradient"] == short[1]["gradient"] > 0
    assert short[0]["activation"] < short[1]["activation"]


def test_a_loss_that_is_split_over_ranks_and_not_compiled_needs_a_fourth_tensor():
    # Of a logit three tensors of 4 bytes, or four (loss_parallel()). 8 times the sequences make their number the same.
    model, tokens = "llama-3-8b", 2048
    for stack, bytes_of_a_logit in (("torch-compile-2024", (12, 16)), ("torch-compile", (4, 4))):
        for tensor, size in zip((1, 8), bytes_of_a_logit, strict=True):
            plans = [
                predict(
                    replace(find_transformer(model), num_layers=1, vocab_size=vocabulary),
                    "dgx-h100",
                    Parallel(tensor=tensor),
                    tensor,
                    micro_batch=tensor,
                    seq_len=tokens,
                    stack=replace(find_stack(stack), keeps_gradients=True),
                    derating=IDEAL,
                )
                for vocabulary in (128_000, 256_000)
            ]
            logits = tokens * 128_000
            assert plans[1].memory[0]["activation"] - plans[0].memory[0]["activation"] == pytest.approx(size * logits)


def test_a_second_copy_in_each_node_is_paid_in_memory_and_gathered_in_16_bits():
    # Wang et al., ZeRO++, 2023, arXiv 2306.10209, section 3.2: backward gathers inside the node from a copy in 16 bits.
    numbers = transformer_parameters(find_transformer("gpt3-13b")).total
    for data, more in ((64, 2 * numbers / 8), (8, 0.0)):
        three = Parallel(data=data, zero_stage=3)
        kept = [
            predict("gpt3-13b", "dgx-a100", replace(three, zero_plus_plus=each), data).memory[0]["parameter"]
            for each in ((), ("qwZ",), ("hpZ",), ("qwZ", "hpZ"))
        ]
        assert kept == pytest.approx([kept[0], kept[0], kept[0] + more, kept[0] + more], rel=1e-9)
    three = Parallel(data=64, zero_stage=3)
    both, narrow, copied, plain = (
        predict("gpt3-13b", "dgx-a100", replace(three, zero_plus_plus=each), 64).communication["data"][0]
        for each in (("qwZ", "hpZ"), ("qwZ",), ("hpZ",), ())
    )
    # The first halves what forward gathers, and that of the ends in backward; the second replaces backward's gather.
    assert plain - narrow > copied - both > 0.4 * (plain - narrow)
    with pytest.raises(ValueError, match="torch's own FSDP has no zero_plus_plus: got .*'hpZ'.* stack 'torch'"):
        predict("gpt3-13b", "dgx-a100", replace(three, zero_plus_plus=("hpZ",)), 64, stack="torch")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 1537}, "data \\* micro_batch must divide batch: got 8 and 1537; try 1"),
        ({"parallel": Parallel(tensor=7)}, "tensor must divide num_heads: got 7 and 96; try 1"),
        ({"parallel": Parallel(pipeline=128), "batch": 128}, "a pipeline needs a layer for each piece"),
        ({"parallel": Parallel(data=8, expert=4), "batch": 8}, "expert > 1 needs a mixture of experts"),
        (
            {"recompute": "some"},
            'recompute is "none", "selective", "full", "every k" or "first k" layers: got \'some\'',
        ),
        ({"optimizer": "adamv"}, "did you mean 'adam' or 'adamw'"),
        ({"stack": "megatron"}, "unknown stack 'megatron'"),
        ({"seq_len": 2047, "parallel": Parallel(context=2)}, "seq_len=2047 for context 2 and tensor 1; try 2048$"),
        # The tail of a sequence makes up for its head: two pieces on each rank, as parallel/mesh/check.py has.
        ({"seq_len": 2046, "parallel": Parallel(context=2)}, "seq_len=2046 for context 2 and tensor 1; try 2048$"),
        ({"seq_len": 1, "parallel": Parallel(tensor=8)}, "tensor 8; try 8, or sequence_parallel=False"),
        ({"parallel": replace(GPT3, chunks=2)}, "schedule '1f1b' has one piece on each stage"),
        (
            {"parallel": replace(GPT3, chunks=2), "schedule": "interleaved", "batch": 72},
            "pipeline must divide the number",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(changes, words):
    with pytest.raises(ValueError, match=words):
        gpt3(**changes)


def test_names_nobody_knows_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="gpt3-175b"):
        predict("gpt3-170b", "dgx-a100", batch=1)
    with pytest.raises(ValueError, match="dgx-a100"):
        predict("gpt2", "dgx-a10", batch=1)


def test_activations_on_the_host_free_memory_and_take_its_link():
    plain, moved = (gpt3(recompute="none", offload=each) for each in ((), ("activations",)))
    total_s, exposed_s = moved.communication["host"]
    assert moved.peak_memory_bytes < plain.peak_memory_bytes
    assert moved.step_time_s >= plain.step_time_s
    assert 0 <= exposed_s < total_s and plain.communication["host"] == (0.0, 0.0)
    # Twice what is kept over the link: 31 GB/s of PCIe 4, every layer of every micro-batch.
    narrow = gpt3(recompute="none", offload=("activations",), host_link="pcie3", derating=IDEAL)
    assert narrow.communication["host"][1] > 0
    assert narrow.communication["host"][0] == pytest.approx(total_s * 31 / 15.75)


@given(
    data=st.sampled_from([2, 8, 64]),
    micro_batch=st.integers(1, 4),
    keeps=st.booleans(),
    link=st.sampled_from(["pcie3", "pcie4"]),
    model=st.sampled_from(["gpt3-13b", "llama-3-8b", "mixtral-8x7b"]),
)
def test_parameters_on_the_host_leave_one_or_two_layers_on_the_device(data, micro_batch, keeps, link, model):
    question: dict[str, Any] = {"cluster": "dgx-a100", "batch": data * micro_batch, "micro_batch": micro_batch}
    question["parallel"] = Parallel(data=data, zero_stage=3, reshard_after_forward=not keeps)
    plain, moved = (
        predict(model, stack="torch-compile", derating=IDEAL, host_link=link, offload=each, **question)
        for each in ((), ("parameters",))
    )
    sizes = transformer_parameters(find_transformer(model))
    shard, layers = sizes.layers / data / find_transformer(model).num_layers, find_transformer(model).num_layers
    assert [moved.memory[0][name] for name in ("parameter", "gradient", "optimizer state")] == [0, 0, 0]
    assert moved.peak_memory_bytes < plain.peak_memory_bytes and moved.step_time_s > plain.step_time_s
    # The shard comes before forward and, if it was dropped, before backward, while its gradient of 4 bytes goes.
    rate, total_s = LINKS[link].bandwidth_bytes_per_s, moved.communication["host"][0]
    assert total_s == pytest.approx(layers * shard * (2 + 4) / rate, rel=1e-6)
    assert 0 <= moved.communication["host"][1] <= total_s


@pytest.mark.parametrize("change", [{"parallel": Parallel(data=8, zero_stage=2)}, {"stack": "torch"}])
def test_parameters_on_the_host_are_shards_of_zero_3(change):
    question: dict[str, Any] = {"batch": 8, "parallel": Parallel(data=8, zero_stage=3), "stack": "torch-compile"}
    with pytest.raises(ValueError, match='offload of "parameters" is that of ZeRO-3\'s shards.*; try zero_stage=3'):
        predict("gpt2", "dgx-a100", offload=("parameters",), **(question | change))


@pytest.mark.parametrize("stack", ["torch-compile", "fsdp", "xla", "internevo"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_gradients_of_each_step_and_activations_are_not_there_at_once(stack, recompute):
    """On one device: the larger of all activations, and all gradients with those of one layer."""
    found = {}
    for keeps in (False, True):
        software = replace(find_stack(stack), keeps_gradients=keeps)
        found[keeps] = predict("gpt3-1.3b", "dgx-a100", batch=4, micro_batch=4, recompute=recompute, stack=software)
    gradient = found[True].memory[0]["gradient"]
    assert (
        gradient
        == transformer_parameters(find_transformer("gpt3-1.3b")).total * found[True].setup.machine.gradient_bytes
    )
    saved = found[True].peak_memory_bytes - found[False].peak_memory_bytes
    assert 0 < saved <= gradient and (saved == gradient) == (found[False].memory[0]["gradient"] == 0)
    later = predict("gpt3-1.3b", "dgx-a100", batch=8, micro_batch=4, recompute=recompute, stack=stack)
    assert later.memory[0]["gradient"] == gradient  # of the first micro-batch, in the second


def test_an_update_in_backward_keeps_no_gradients():
    stack = replace(find_stack("torch-compile"), updates_in_backward=True)
    plain, early = (predict("gpt3-1.3b", "dgx-a100", batch=8, stack=each) for each in ("torch-compile", stack))
    assert early.memory[0]["gradient"] == 0 and early.step_time_s == plain.step_time_s
    assert early.peak_memory_bytes < plain.peak_memory_bytes


def test_what_is_computed_again_is_a_part_of_its_own():
    none, full = gpt3(recompute="none"), gpt3(recompute="full")
    assert none.parts["recomputation"] == 0
    messages_s = full.parts["tensor axis"] - none.parts["tensor axis"]  # what is sent again is communication
    again_s = full.parts["recomputation"] + messages_s
    assert messages_s > 0 and again_s == pytest.approx(full.step_time_s - none.step_time_s, rel=0.15)
    for name in ("products", "attention", "memory-bound kernels"):
        assert full.parts[name] == pytest.approx(none.parts[name], rel=1e-9)


def test_deepseek_v3_takes_about_the_hours_that_were_published():
    # DeepSeek-V3, 2024, arXiv 2412.19437, table 1 and section 3: 2.664 million H800 hours for 14.8e12 tokens; pipeline
    # 16, experts over 64 ranks of 8 nodes, DualPipe, FP8. An H800 is an H100 with NVLink at 200 GB/s a direction. No
    # constant was fitted to it.
    h100 = CLUSTERS["dgx-h100"]
    h800 = h100.replace(intra=replace(h100.intra, bandwidth_bytes_per_s=200e9))
    parallel = Parallel(data=128, pipeline=16, expert=64, chunks=2, zero_stage=1)
    settings = {"seq_len": 4096, "precision": "float8", "schedule": "dualpipe-v"}
    prediction = predict("deepseek-v3", h800, parallel, 15360, **settings)
    assert prediction.gpu_hours(14.8e12) == pytest.approx(2.664e6, rel=0.2)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize(("layers", "stages"), [(3, 2), (27, 2), (7, 4), (5, 4), (14, 8)])
def test_stages_with_more_layers_than_others_take_what_a_replay_of_them_takes(schedule, layers, stages):
    from lablib.pipeline import Costs, replay
    from lablib.pipeline.schedules import make

    model = replace(find_transformer("gpt3-6.7b"), num_layers=layers, vocab_size=2, positions="alibi")
    free = CLUSTERS["dgx-a100"]
    free = free.replace(intra=replace(free.intra, latency_s=0.0, bandwidth_bytes_per_s=1e18), collective_overhead_s=0.0)
    found = predict(model, free, Parallel(pipeline=stages), 4 * stages, derating=IDEAL, schedule=schedule)
    one = [predict(replace(model, num_layers=n), free, batch=1, derating=IDEAL) for n in (1, 2)]
    layer_s = sum(one[1].parts.values()) - sum(one[0].parts.values())
    layer_s -= one[1].parts["optimizer"] - one[0].parts["optimizer"]
    # The extra layers are those of stages in the middle.
    few, extra = divmod(layers, stages)
    of_stage = [few] * stages
    for stage in range((stages - extra) // 2, (stages - extra) // 2 + extra):
        of_stage[stage] += 1
    whole_s = replay(
        make(schedule, stages, 4 * stages, 1),
        Costs(forward_s=[n * layer_s / 3 for n in of_stage], backward_s=[2 * n * layer_s / 3 for n in of_stage]),
    ).makespan_s
    assert found.step_time_s - found.parts["optimizer"] == pytest.approx(whole_s, rel=0.05)
    assert all(part >= -1e-9 * found.step_time_s for part in found.parts.values())


def test_a_v_has_embedding_and_head_on_its_first_rank():
    model = replace(find_transformer("llama-3-8b"), vocab_size=256000)
    parallel = Parallel(pipeline=4, chunks=2)
    held = predict(model, "dgx-h100", parallel, 16, schedule="zb-v", seq_len=1024).memory
    ends = 2 * model.vocab_size * model.d_model * 2
    assert held[0]["parameter"] - held[1]["parameter"] == pytest.approx(ends, rel=1e-3)
    assert held[3]["parameter"] == pytest.approx(held[1]["parameter"])
    assert held[0]["activation"] > held[3]["activation"]


def test_zero_3_gathers_and_sums_the_experts_too():
    # Per micro-batch two gathers and a reduce-scatter of all parameters: 2 * 2 + 4 bytes each, over 63 of 64 ranks.
    zero_3 = predict("mixtral-8x7b", "dgx-h100", Parallel(data=64, zero_stage=3), 64, seq_len=4096, derating=IDEAL)
    nic = CLUSTERS["dgx-h100"].inter.bandwidth_bytes_per_s
    at_least_s = 46.7e9 * 8 / (8 * nic) * 63 / 64  # eight cards a node carry a ring together
    assert zero_3.communication["data"][0] > 0.9 * at_least_s
    layer_bytes = 3 * 8 * 4096 * 14336 * 2
    assert zero_3.memory[0]["communication buffer"] > 2 * layer_bytes


def test_one_rank_packs_no_gradients():
    alone = predict("gpt2", "dgx-a100", batch=4, compression="one-bit")
    assert alone.communication["data"] == (0.0, 0.0)
    assert alone.memory[0]["communication buffer"] == 0.0


@pytest.mark.parametrize("precision", ["float8", "float4"])
def test_a_device_without_units_for_8_bits_computes_in_the_next_wider_ones(precision):
    narrow, plain = (predict("gpt3-6.7b", "dgx-a100", batch=4, precision=name) for name in (precision, "bfloat16"))
    assert narrow.peak_flops_per_s == plain.peak_flops_per_s == 312e12
    assert narrow.parts["products"] == pytest.approx(plain.parts["products"], rel=1e-6)
    assert predict("gpt3-6.7b", "dgx-h100", batch=4, precision="float4").peak_flops_per_s == 1979e12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recompute": None}, "recompute is "),
        ({"recompute": "every \u00b2"}, "recompute is "),
        ({"optimizer": None}, "unknown optimizer None"),
        ({"stack": []}, "unknown stack"),
        ({"compression": 3}, "unknown gradient compression 3"),
        ({"derating": "none"}, "derating must be a Derating or None: got 'none'; try lablib.plan.IDEAL"),
        ({"host_link": None}, "unknown link None"),
        ({"parallel": 8}, r"parallel must be a Parallel or None: got 8; try Parallel\(data=8\)"),
        ({"parallel": 0}, "parallel must be a Parallel or None: got 0"),
    ],
)
def test_an_argument_of_another_type_is_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        predict(**{"model": "gpt2", "cluster": "dgx-a100", "batch": 8, **changes})


def test_tensor_ranks_send_their_own_tokens_to_experts():
    # 4096 tokens to two experts each: 16-bit vectors of 4096, two ways, forward and backward; 7/8 leave the rank.
    one, two, whole = (
        predict("mixtral-8x7b", "dgx-h100", parallel, 64, seq_len=4096, derating=IDEAL)
        for parallel in (
            Parallel(data=64, expert=8),
            Parallel(data=64, tensor=2, expert=8),
            Parallel(data=64, tensor=2, expert=8, sequence_parallel=False),
        )
    )
    size = 4096 * 2 * 4096 * 2
    nvlink = CLUSTERS["dgx-h100"].intra.bandwidth_bytes_per_s
    assert one.communication["expert"][0] == pytest.approx(32 * 4 * size * 7 / 8 / nvlink, rel=0.3)
    assert two.communication["expert"][0] == pytest.approx(whole.communication["expert"][0] / 2, rel=0.05)


def test_whole_numbers_of_numpy_are_whole_numbers():
    sizes = np.array([8, 8, 8, 1536])
    data, tensor, pipeline, batch = sizes
    parallel = Parallel(data=data, tensor=tensor, pipeline=pipeline, zero_stage=np.arange(4)[0])
    prediction = gpt3(parallel=parallel, batch=batch)
    assert prediction.step_time_s == gpt3().step_time_s
    assert prediction.parallel == GPT3 and type(prediction.parallel.data) is int
