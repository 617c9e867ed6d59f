"""Experts over ranks: what each rank keeps, computes and sends, beside closed forms of the papers.

Liu et al., "MoE Parallel Folding", 2025, arXiv 2504.14960; Rajbhandari et al., ZeRO, 2019, arXiv 1910.02054, section 7.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS
from lablib.models import Experts, Transformer, find_transformer, transformer_parameters
from lablib.plan import IDEAL, Parallel, predict, predict_many, search
from lablib.plan.layer import Sizes
from tests.plan.layers import layer_work

MIXTRAL = find_transformer("mixtral-8x7b")
MIXTURE = Experts(8, 2, 14336)
DGX = CLUSTERS["dgx-h100"]
# Nodes whose wires take no time but for bytes.
WIRES = DGX.replace(
    intra=replace(DGX.intra, latency_s=0.0), inter=replace(DGX.inter, latency_s=0.0), collective_overhead_s=0.0
)
NVLINK = WIRES.intra.bandwidth_bytes_per_s
# (data, tensor, context, expert, expert_tensor): experts over all of these, in every way
FOLDED = [
    (1, 8, 1, 8, 1),
    (2, 4, 1, 4, 2),
    (2, 4, 1, 8, 1),
    (4, 2, 1, 2, 4),
    (2, 2, 2, 4, 2),
    (8, 1, 1, 2, 2),
    (8, 1, 1, 8, 1),
]


def folded(data, tensor, context, expert, expert_tensor, **others):
    return Parallel(data=data, tensor=tensor, context=context, expert=expert, expert_tensor=expert_tensor, **others)


def on_one_node(parallel, **changes):
    return predict(MIXTRAL, WIRES, parallel, 16, seq_len=4096, derating=IDEAL, **changes)


@pytest.mark.parametrize("axes", FOLDED)
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_all_ranks_together_keep_each_expert_as_often_as_it_has_copies(axes, zero_stage):
    data, tensor, context, expert, expert_tensor = axes
    memory = on_one_node(folded(*axes, zero_stage=zero_stage)).memory[0]
    sizes = transformer_parameters(MIXTRAL)
    one = sizes.expert_layer
    experts = sizes.num_expert_layers * one.experts
    # Routers and norms are whole on every tensor rank; the rest of the model is split over them.
    whole = sizes.num_expert_layers * (one.router + one.norms) + sizes.final_norm
    rest = sizes.total - experts - whole
    num_copies = {"shared": data * context, "experts": 8 // (expert * expert_tensor)}
    for category, size, from_stage in (("parameter", 2, 3), ("gradient", 4, 2), ("optimizer state", 12, 1)):
        is_split = zero_stage >= from_stage
        shared = (rest + tensor * whole) * (1 if is_split else num_copies["shared"])
        routed = experts * (1 if is_split else num_copies["experts"])
        assert 8 * memory[category] == pytest.approx(size * (shared + routed), rel=1e-12), category


@pytest.mark.parametrize("axes", FOLDED)
def test_zero_1_sums_expert_gradients_to_their_owners_and_gathers_the_parameters(axes):
    data, tensor, context, expert, expert_tensor = axes
    seconds = [on_one_node(folded(*axes, zero_stage=z)).communication["data"][0] for z in (0, 1)]
    sizes = transformer_parameters(MIXTRAL)
    one = sizes.expert_layer
    experts = sizes.num_expert_layers * one.experts / (expert * expert_tensor)
    whole = sizes.num_expert_layers * (one.router + one.norms) + sizes.final_norm
    shared = (sizes.total - sizes.num_expert_layers * one.experts - whole) / tensor + whole
    # Of n ranks each sends (n - 1) / n of the bytes: twice in an all-reduce of 4-byte gradients; once to scatter them
    # and once to gather the 2-byte parameters.
    left = [shared * (1 - 1 / (data * context)), experts * (1 - expert * expert_tensor / 8)]
    assert seconds[0] == pytest.approx(sum(left) * 2 * 4 / NVLINK, rel=1e-9)
    assert seconds[1] == pytest.approx(sum(left) * (4 + 2) / NVLINK, rel=1e-9)


@pytest.mark.parametrize("axes", FOLDED)
def test_tokens_travel_to_their_experts_and_back(axes):
    data, tensor, context, expert, expert_tensor = axes
    found = on_one_node(folded(*axes))
    # Each rank has its own tokens; each goes to two experts and comes back, forward and backward, as 4096 2-byte
    # numbers, of which those to its own expert rank stay.
    tokens = 16 * 4096 / 8
    sent = 2 * tokens * 4096 * 2 * (1 - 1 / expert)
    assert found.communication["expert"][0] == pytest.approx(32 * 4 * sent / NVLINK, rel=1e-9)
    # What arrived is gathered by the ranks that share an expert, and summed back to where it arrived. Attention gathers
    # and scatters its own over the tensor ranks; so do the ends: one all-reduce each way.
    gathered = 2 * tokens * expert_tensor * 4096 * 2 * (1 - 1 / expert_tensor)
    rows = 16 * 4096 / (data * context)
    attention, ends = (rows * 4096 * 2 * (1 - 1 / tensor) * n for n in (2 * 2, 2 * 2 / 32))
    assert found.communication["tensor"][0] == pytest.approx(32 * (4 * gathered + attention + ends) / NVLINK, rel=1e-9)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_the_products_of_experts_however_they_are_cut(machine, tensor, expert, expert_tensor):
    on = machine("megatron-core")
    whole = layer_work(on, MIXTRAL, Sizes(1, 512, 1, 1, 1, 1, 1))
    part = layer_work(on, MIXTRAL, Sizes(1, 512, tensor, 1, expert, tensor, expert_tensor))
    for name in ("forward", "input", "weight"):
        seconds = [getattr(each, name).product_s for each in (whole, part)]
        assert tensor * seconds[1] == pytest.approx(seconds[0], rel=1e-12)


def test_experts_over_tensor_ranks_stay_in_the_node():
    """Folding's point (arXiv 2504.14960, section 3): beside 8 tensor ranks, 8 expert ranks leave the node or do not."""
    parallel = Parallel(data=8, tensor=8, expert=8)
    across, inside, cut = (
        predict(MIXTRAL, DGX, each, 512, micro_batch=64, seq_len=4096)
        for each in (parallel, replace(parallel, expert_tensor=1), replace(parallel, expert=1))
    )
    assert inside.communication["expert"][0] < across.communication["expert"][0] / 5
    # One whole expert in the place of an eighth of each of eight: as many bytes, and no gathering of tokens.
    assert inside.memory[0]["parameter"] == cut.memory[0]["parameter"]
    assert inside.step_time_s < cut.step_time_s


def test_what_a_rank_keeps_of_its_experts():
    """By hand, of one layer and bfloat16, with 4 experts of which a token visits 2, on 2 tensor ranks."""
    model = Transformer(
        "small", 1, 64, 4, 1000, 128, activation="swiglu", norm="rms", positions="rotary", has_bias=False,
        tied_head=False, experts=Experts(4, 2, 32),
    )  # fmt: skip
    on_dense, on_mixed = (
        predict(each, "dgx-h100", parallel, 1, seq_len=128, derating=IDEAL).memory[0]["activation"]
        for each, parallel in (
            (replace(model, d_ff=32, experts=None), Parallel(tensor=2)),
            (model, Parallel(tensor=2, expert=2, expert_tensor=1)),
        )
    )
    own = 64  # of 128 tokens
    # A dense layer keeps its input and, of all tokens, half of the width of gate and up and of their product. With
    # experts the router's input is kept, what arrived, and of that gate, up and product in full.
    dense = own * 64 * 2 + 128 * 16 * 3 * 2
    mixed = own * 64 * 2 + 2 * own * (64 * 2 + 32 * 3 * 2)
    # At work: gradients of the product, gate and up; of the dense layer's input and its gradient, of all tokens; of
    # what experts read and wrote. The logits need more than either.
    assert on_mixed - on_dense == pytest.approx(mixed - dense, rel=1e-12)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": 4, "expert": 8}, r"expert must divide data \* context: got 8 and 4 \* 1; try 4"),
        (
            {"data": 2, "tensor": 4, "expert": 4, "expert_tensor": 4},
            r"expert \* expert_tensor must divide tensor \* context \* data: got 4 \* 4 and 4 \* 1 \* 2; try expert=4, "
            "expert_tensor=2",
        ),
        (
            {"tensor": 2, "expert_tensor": 1, "sequence_parallel": False},
            "expert_tensor other than tensor needs sequence parallelism.*got expert_tensor=1 and tensor=2",
        ),
    ],
)
def test_experts_that_do_not_fit_the_ranks_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Parallel(**given)


def test_many_plans_break_the_same_rules():
    found = predict_many(
        "mixtral-8x7b", "dgx-h100", data=2, tensor=4, expert=[2, 4, 8, 2], expert_tensor=[4, 4, 1, 3], batch=8
    )
    assert list(found.obstacle >= 0) == [False, True, False, True]
    assert [found.numbers["expert_tensor"][i] for i in range(3)] == [4, 4, 1]
    assert "expert * expert_tensor must divide" not in found.reason(1)  # 4 tensor ranks: as if it were not given
    assert "expert * expert_tensor must divide" in found.reason(3)
    assert found[0].parallel == Parallel(data=2, tensor=4, expert=2)
    assert found[2].step_time_s == pytest.approx(found.step_time_s[2], rel=1e-12)
    dense = predict_many("llama-3-8b", "dgx-h100", tensor=4, expert_tensor=1)
    assert "expert_tensor needs a mixture of experts: got 1" in dense.reason(0)
    plain = predict_many("mixtral-8x7b", "dgx-h100", tensor=4, expert_tensor=1, sequence_parallel=False)
    assert "needs sequence parallelism" in plain.reason(0)
    odd = predict_many(replace(MIXTRAL, experts=Experts(8, 2, 100)), "dgx-h100", tensor=8)
    assert odd.reason(0).startswith("expert_tensor must divide the hidden size of an expert: got 8 and 100")


def test_a_search_tries_whole_experts_beside_tensor_parallel_attention():
    question = {"batch": 64, "nodes": 4, "seq_len": 4096, "schedule": "1f1b", "recompute": "none", "micro_batch": 1}
    found = search("mixtral-8x7b", "dgx-h100", **question)
    n = found.plans.numbers
    assert set(n["expert_tensor"]) == {1, 2, 4, 8}
    assert ((n["expert_tensor"] == 1) | (n["expert_tensor"] == n["tensor"])).all()
    only = search("mixtral-8x7b", "dgx-h100", **question, expert_tensor=2)
    assert set(only.plans.numbers["expert_tensor"]) == {2} and only.best.parallel.expert_tensor_ranks == 2


@given(
    model=st.sampled_from(["mixtral-8x7b", "deepseek-v2-lite", "llama-3-8b"]),
    data=st.sampled_from([2, 4, 16]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2]),
    stack=st.sampled_from(["megatron-2021", "fsdp-flash", "torch-compile", "megatron-core"]),
)
def test_as_many_copies_of_a_state_as_ranks_are_no_split_of_experts_either(
    model, data, tensor, pipeline, expert, stack
):
    expert = expert if find_transformer(model).experts else 1
    split = Parallel(data=data, tensor=tensor, pipeline=pipeline, expert=expert)
    question = {"batch": 2 * data * pipeline, "seq_len": 2048, "stack": stack}
    whole, copied = (
        predict(model, "pcie-a100", replace(split, **kind), **question)
        for kind in ({}, {"zero_stage": 1, "replicas": data})
    )
    assert copied.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert copied.stage_bytes == pytest.approx(whole.stage_bytes, rel=1e-9)


def test_a_hybrid_split_keeps_as_many_copies_of_the_experts_as_of_the_rest():
    states = []
    for replicas in (1, 2, 4):
        split = Parallel(data=8, expert=2, zero_stage=3, replicas=replicas)
        memory = predict("mixtral-8x7b", "dgx-h100", split, 16, seq_len=2048).memory[0]
        states.append(sum(memory[name] for name in ("parameter", "gradient", "optimizer state")))
    assert states[1:] == pytest.approx([2 * states[0], 4 * states[0]], rel=1e-9)


# ---- uneven load ----


def loaded(imbalance, parallel, **changes):
    model = replace(MIXTRAL, experts=replace(MIXTURE, imbalance=imbalance))
    return predict(model, WIRES, parallel, 16, seq_len=4096, derating=IDEAL, **changes)


@pytest.mark.parametrize("stack", ["torch", "megatron-core"])
@given(load=st.floats(1, 8))
def test_a_busy_rank_sends_and_multiplies_so_many_more_tokens(stack, load):
    even, uneven = (loaded(each, Parallel(data=8, expert=8), stack=stack) for each in (1.0, load))
    assert uneven.communication["expert"][0] == pytest.approx(load * even.communication["expert"][0], rel=1e-6)
    assert uneven.parts["products"] >= even.parts["products"] * (1 - 1e-9)
    assert uneven.peak_memory_bytes >= even.peak_memory_bytes
    assert uneven.model_flops == even.model_flops


@given(load=st.floats(1, 100))
def test_a_rank_with_all_experts_has_all_its_tokens_and_no_rank_more_than_there_are(load):
    alone = Parallel(data=8)
    assert loaded(load, alone).step_time_s == loaded(1.0, alone).step_time_s
    pair = Parallel(data=8, expert=2)
    assert loaded(load, pair).step_time_s == loaded(min(load, 2.0), pair).step_time_s


def test_many_plans_have_the_imbalance_of_each():
    model = replace(MIXTRAL, experts=replace(MIXTURE, imbalance=1.5))
    many = predict_many(model, DGX, data=8, expert=[1, 2, 4, 8], batch=16, seq_len=4096, zero_stage=1)
    for i, expert in enumerate((1, 2, 4, 8)):
        one = predict(model, DGX, Parallel(data=8, expert=expert, zero_stage=1), 16, seq_len=4096)
        assert many.step_time_s[i] == pytest.approx(one.step_time_s, rel=1e-9)


@pytest.mark.parametrize("imbalance", [0.0, -1.0, float("inf"), float("nan")])
def test_an_imbalance_that_is_no_factor_is_refused(imbalance):
    with pytest.raises(ValueError, match="imbalance must be a positive number"):
        loaded(imbalance, Parallel(data=8))
