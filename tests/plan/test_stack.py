"""The software's record: every word of it has the effect it says, and none is without one."""

from dataclasses import fields, replace
from typing import Any

import pytest

from lablib.models import find_transformer, transformer_parameters
from lablib.plan import IDEAL, STACKS, Derating, Parallel, Stack, predict
from lablib.plan.stack import find_stack

SPLIT = Parallel(data=2, tensor=2, pipeline=4, zero_stage=1)
SHARDED = Parallel(data=16, zero_stage=3)
# The host falls behind, and every wire takes long enough to show.
SLOW_HOST = replace(IDEAL, dispatch_s=1e-3)
SLOW_WIRES = replace(IDEAL, intra_share=0.02, inter_share=0.02)


def plan(stack: str | Stack, derating: Derating = IDEAL, **changes: Any):
    arguments: dict[str, Any] = {"model": "gpt3-6.7b", "parallel": SPLIT, "batch": 64, "micro_batch": 2} | changes
    return predict(cluster="dgx-h100", seq_len=2048, **arguments, stack=stack, derating=derating)


def seconds(prediction):
    return prediction.step_time_s


def memory(prediction):
    return prediction.peak_memory_bytes


def of(category):
    return lambda prediction: sum(stage[category] for stage in prediction.memory)


def part(name):
    return lambda prediction: prediction.parts[name]


NO_MASTERS = replace(STACKS["torch"], has_master=False)
DEDUPLICATED = replace(STACKS["megatron-core"], dispatcher="deduplicated")
MIXTURE = {"model": "mixtral-8x7b", "parallel": Parallel(data=4, expert=4)}

# Field, a value that costs less, one that costs more, of what; how the plan differs from the usual one.
EFFECTS = [
    ("attention", "flash", "unfused", memory, {}),
    ("attention_generation", 3, 2, part("attention"), {"derating": Derating()}),
    ("has_dropout", False, True, of("activation"), {}),
    ("has_dropout", False, True, seconds, {"base": "megatron-2021"}),
    ("passes_norm", (2, 3), (2, 4), part("memory-bound kernels"), {}),
    ("passes_activation", (2, 3), (4, 3), part("memory-bound kernels"), {}),
    ("passes_residual", (2, 1), (3, 1), part("memory-bound kernels"), {}),
    ("passes_rms_norm", (2, 3), (18, 37), part("memory-bound kernels"), {"model": "llama-3-8b"}),
    ("passes_rotary", (2, 2), (10, 10), part("memory-bound kernels"), {"model": "llama-3-8b"}),
    ("passes_scores", (2, 3), (10, 14), part("memory-bound kernels"), {"base": "megatron-2021"}),
    ("passes_bfloat16_scores", (0, 0), (6, 5), part("memory-bound kernels"), {"base": "transformers-2022"}),
    ("gathers_matrices", False, True, part("data axis"), {"parallel": SHARDED, "batch": 32, "derating": Derating()}),
    ("passes_adapter_input", (1, 3), (1, 5), part("memory-bound kernels"), {"trainable": "lora"}),
    ("passes_adapter_output", (2, 2), (4, 2), part("memory-bound kernels"), {"trainable": "lora"}),
    ("adapts_all", False, True, part("memory-bound kernels"), {"trainable": "lora"}),
    ("widened_bytes", 2.5, 16.5, part("memory-bound kernels"), {"trainable": "qlora"}),
    ("widened_kernels", 1, 9, seconds, {"trainable": "qlora", "derating": SLOW_HOST}),
    ("keeps_widened", True, False, part("memory-bound kernels"), {"trainable": "qlora"}),
    ("owns_tensors", False, True, part("data axis"), {"base": "internevo", "derating": Derating()}),
    ("copies", 0, 4, part("memory-bound kernels"), {}),
    ("loss_bytes", 12, 20, part("embedding, head, loss"), {}),
    ("loss_saved_bytes", 2, 4, of("activation"), {}),
    ("loss_peak_bytes", 2, 8, of("activation"), {}),
    ("split_loss_peak_bytes", 8, 12, of("activation"), {}),
    ("calls_per_kernel", 1, 2, seconds, {"derating": SLOW_HOST}),
    ("selective", "products", "attention", memory, {"recompute": "selective"}),
    ("selective", "all but weights", "products", part("recomputation"), {"recompute": "selective"}),
    ("embeds_by_product", False, True, part("embedding, head, loss"), {"parallel": SHARDED, "batch": 32}),
    ("fetch_calls", 0, 100, part("launches"), {"parallel": SHARDED, "batch": 32, "derating": Derating()}),
    ("stops_recomputation", True, False, part("recomputation"), {"recompute": "full"}),
    ("gradient_bytes", 2, 4, of("gradient"), {}),
    ("float16_gradient_bytes", 2, 4, of("gradient"), {"precision": "float16"}),
    ("narrow_gradient_bytes", 2, 4, of("gradient"), {"precision": "float8"}),
    ("extra_gradient_bytes", 0, 2, of("gradient"), {}),
    ("fused_accumulation", True, False, part("memory-bound kernels"), {}),
    ("keeps_dummies", False, True, of("other"), {}),
    ("keeps_gradients", False, True, memory, {"parallel": SHARDED, "batch": 32}),
    ("updates_in_backward", True, False, of("gradient"), {}),
    ("has_master", False, True, of("optimizer state"), {}),
    ("has_reduce_scatter", True, False, part("data axis"), {"derating": SLOW_WIRES}),
    ("bucket_bytes", 0, 1e9, of("communication buffer"), {}),
    ("data_overlap", True, False, part("data axis"), {}),
    ("hides_backward_exchange", True, False, part("tensor axis"), {}),
    ("dispatcher", "deduplicated", "alltoall", part("expert axis"), MIXTURE),
    ("routing", "contiguous", "random", part("expert axis"), {**MIXTURE, "base": DEDUPLICATED}),
    ("hides_dispatch", True, False, part("expert axis"), MIXTURE),
    ("pipeline_overlap", True, False, part("bubble and messages"), {"derating": SLOW_WIRES}),
    ("splits_messages", True, False, part("bubble and messages"), {"derating": SLOW_WIRES}),
    ("keeps_outputs", False, True, of("communication buffer"), {}),
    ("is_eager", True, False, of("gradient"), {}),  # gradients of 2 bytes
    ("is_megatron", True, False, part("launches"), {"base": "torch", "derating": SLOW_HOST}),
    ("has_wide_shards", False, True, of("parameter"), {"base": NO_MASTERS, "parallel": SHARDED, "batch": 32}),
]


@pytest.mark.parametrize(("field", "less", "more", "measure", "changes"), EFFECTS)
def test_every_word_of_a_stack_costs_what_it_says(field, less, more, measure, changes):
    base = find_stack(changes.get("base", "megatron-core"))
    changes = {name: value for name, value in changes.items() if name != "base"}
    cheap, dear = (measure(plan(replace(base, **{field: value}), **changes)) for value in (less, more))
    assert cheap < dear


def test_no_word_of_a_stack_is_without_effect():
    assert {field for field, *_ in EFFECTS} == {field.name for field in fields(Stack)} - {"name"}


def test_wide_shards_keep_12_bytes_beside_a_gradient_and_send_6_where_4_were_sent():
    # Parameters and their two moments in 32 bits; parameters are gathered in 16, gradients summed in 32.
    narrow, wide = (replace(NO_MASTERS, has_wide_shards=is_wide) for is_wide in (False, True))
    few, many = (plan(wide, parallel=Parallel(data=d, zero_stage=3), batch=32, micro_batch=1) for d in (16, 32))
    states = [sum(each.memory[0][name] for name in ("parameter", "optimizer state")) for each in (few, many)]
    numbers = states[0] - states[1]  # what is whole is so in both
    assert numbers == pytest.approx(12 * transformer_parameters(find_transformer("gpt3-6.7b")).total / 32, rel=1e-9)
    kept = Parallel(data=32, zero_stage=3, reshard_after_forward=False)
    sent = [
        plan(stack, parallel=kept, batch=32, micro_batch=1, derating=SLOW_WIRES).communication["data"][0]
        for stack in (narrow, wide)
    ]
    assert sent[1] / sent[0] == pytest.approx(6 / 4, rel=0.01)


@pytest.mark.parametrize("changes", [{"has_master": True}, {"is_eager": False}])
def test_wide_shards_need_an_eager_stack_without_masters(changes):
    with pytest.raises(ValueError, match=r"try has_master=False"):
        replace(NO_MASTERS, **changes, has_wide_shards=True)


def test_wide_shards_need_shards():
    with pytest.raises(ValueError, match=r"got zero_stage=1; try zero_stage=3"):
        plan(replace(NO_MASTERS, has_wide_shards=True), parallel=Parallel(data=8, zero_stage=1), batch=32)


def test_messages_split_over_tensor_ranks_are_as_much_smaller():
    # Narayanan et al., SC21, section 4.1: each of t ranks sends 1/t of what all of them hold.
    whole, split = (
        plan(replace(STACKS["megatron-core"], splits_messages=s), derating=SLOW_WIRES) for s in (False, True)
    )
    ratio = whole.communication["pipeline"][0] / split.communication["pipeline"][0]
    assert ratio == pytest.approx(SPLIT.tensor, rel=0.01)


def test_a_stage_that_keeps_its_outputs_keeps_one_of_each_micro_batch_in_flight():
    kept, freed = (plan(replace(STACKS["megatron-core"], keeps_outputs=k)) for k in (True, False))
    message = 2 * 2048 * 4096 * 2 / SPLIT.tensor  # of sequence-parallel ranks each has its share
    for rank, (more, less) in enumerate(zip(kept.memory, freed.memory, strict=True)):
        in_flight = SPLIT.pipeline - rank  # 1F1B
        assert less["communication buffer"] == 2 * message  # one that comes in, one that goes out
        assert more["communication buffer"] == (1 + in_flight) * message


@pytest.mark.parametrize(("ranks", "owners"), [(8, 8), (64, 64), (1024, 7 * 32 + 3)])
def test_each_owner_of_whole_tensors_has_two_collectives_of_its_own(ranks, owners):
    """Their time is that of a ring over all ranks; with few ranks all own tensors, with many some own none."""
    split, model = Parallel(data=ranks, zero_stage=1), find_transformer("llama-2-7b")
    ring, own = (
        plan(replace(STACKS["internevo"], owns_tensors=o), Derating(), model=model, parallel=split, batch=8 * ranks)
        for o in (False, True)
    )
    inside = min(ranks, 8)
    fixed_s = 25e-6 + 9e-6 * (inside - 1) + 14e-6 * (ranks / inside - 1) + 3.4e-6 * (ranks - inside)
    more_s = own.step_time_s - ring.step_time_s
    wires_s = more_s / (2 * (owners - 1)) - fixed_s
    assert 0 <= wires_s < 10e-6 * ranks  # latency of the wires
    within = Parallel(data=ranks, zero_stage=1, replicas=ranks // 8)
    near = plan("internevo", Derating(), model=model, parallel=within, batch=8 * ranks).step_time_s
    assert ranks == 8 or near < own.step_time_s


@pytest.mark.parametrize(("tensor", "pipeline", "layers"), [(1, 2, 4), (2, 1, 4), (8, 1, 8)])
def test_an_empty_gradient_is_kept_of_each_weight_of_one_layer(tensor, pipeline, layers):
    """The weights of a layer have different shapes, and those of all layers the same; products are in 16 bits."""
    model = replace(find_transformer("llama-3-70b"), num_layers=layers)
    split = Parallel(data=4, tensor=tensor, pipeline=pipeline)
    kept, freed = (
        plan(replace(STACKS["megatron-core"], keeps_dummies=k), model=model, parallel=split) for k in (True, False)
    )
    weights = 8192 * (2 * 8192 + 2 * 1024 + 3 * 28672) / tensor + 2 * 8192
    for more, less in zip(kept.memory, freed.memory, strict=True):
        assert more["other"] - less["other"] == pytest.approx(2 * weights, rel=1e-3)
    mixture = {"model": "mixtral-8x7b", "parallel": Parallel(data=4, expert=2), "batch": 8, "micro_batch": 1}
    kept, freed = (plan(replace(STACKS["megatron-core"], keeps_dummies=k), **mixture) for k in (True, False))
    one_expert = 3 * 4096 * 14336 + 4096 * (2 * 4096 + 2 * 1024)
    assert kept.memory[0]["other"] - freed.memory[0]["other"] == pytest.approx(2 * one_expert, rel=1e-2)


def test_a_baseline_of_2022_has_its_operators_at_their_measured_rates():
    """As rows of tests/operators/measured/h200.jsonl have them: shares of the streaming rate."""
    stack = STACKS["transformers-2022"]
    assert stack.passes_norm == pytest.approx((4 / 0.55 + 3, 3 / 0.52 + 10 / 0.42))
    assert stack.passes_scores == pytest.approx((2 + 2.5 / 0.7 + 8.4 / 2 + 3, 3 / 0.52 + 5 / 0.49 + 2.5 / 0.7 + 2))
    assert stack.passes_bfloat16_scores == pytest.approx((3 / 0.52, 1 / 0.49 + 3))
    direct, cast = (
        part("memory-bound kernels")(plan(each, parallel=Parallel(data=8)))
        for each in (replace(stack, passes_bfloat16_scores=(0, 0)), stack)
    )
    scores = 64 / 8 * 32 * 32 * 2048**2 * 2  # bytes: sequences of a rank, layers, heads
    streamed_s = sum(stack.passes_bfloat16_scores) * scores / 3.35e12
    assert 1.0 < (cast - direct) / streamed_s < 1.3  # large copies reach 0.8 to 1 of the data sheet's rate


def test_a_stack_is_found_by_its_name_or_is_itself():
    mine = Stack("mine", bucket_bytes=1e9)
    assert find_stack(mine) is mine
    assert all(find_stack(name).name == name for name in STACKS)
    with pytest.raises(ValueError, match=r"megatron-core"):
        find_stack("megatron-cor")
    with pytest.raises(ValueError, match="dispatcher must be one of alltoall, deduplicated: got 'deepep'"):
        Stack("mine", dispatcher="deepep")
