"""What a row leaves open is settled by rules, the same for every source."""

import pytest

from lablib.plan.parallel import Parallel
from lablib.plan.stack import find_stack
from lablib.validation.case import cases_of
from lablib.validation.machine import cluster_of
from lablib.validation.row_software import stack_of


def only(row):
    (case,) = cases_of(row)
    return case


def test_a_row_that_states_everything_is_one_case(row):
    case = only(row())
    assert (case.batch, case.micro_batch, case.num_microbatches, case.seq_len) == (64, 4, 8, 2048)
    assert case.parallel == Parallel(data=2, tensor=4, sequence_parallel=False)
    assert (case.precision, case.recompute, case.schedule) == ("bfloat16", "full", "1f1b")
    assert (case.optimizer, case.stack, case.trainable) == ("adamw", "megatron-2021", "all")


def test_every_published_row_can_be_modelled(published):
    for row in published:
        for case in cases_of(row):
            assert case.parallel.num_ranks == row.hardware["gpus"]
            assert case.num_microbatches * case.micro_batch * case.parallel.data == case.batch


def test_most_published_rows_leave_nothing_open(published):
    open_rows = {row.group for row in published if len(cases_of(row)) > 1}
    assert open_rows == {"megatron-sc21", "megatron-core"}


@pytest.mark.parametrize(
    ("batch", "size", "micro"),
    [
        ({"global": 64, "micro": 8}, 64, 8),
        ({"global": 64, "grad_accum": 4}, 64, 8),
        ({"micro": 2, "grad_accum": 4}, 16, 2),
        ({"local": 6}, 12, 6),
        ({"local": 6, "global": 12}, 12, 6),
    ],
)
def test_batch_and_micro_batch_come_from_whatever_is_stated(row, batch, size, micro):
    case = only(row({"batch": batch}))
    assert (case.batch, case.micro_batch) == (size, micro)


def test_a_local_batch_in_a_pipeline_is_cut_into_as_many_as_there_are_stages(row):
    changes = {"batch": {"local": 32}, "parallel": {"dp": 1, "tp": 1, "pp": 8}, "notes": "torchtitan"}
    case = only(row(changes))
    assert (case.batch, case.micro_batch, case.num_microbatches) == (32, 4, 8)


def test_a_benchmark_of_automodel_has_neighbouring_experts_and_transformer_engines_attention(row):
    title = {"title": "NeMo AutoModel performance", "url": "https://example.org"}
    notes = {"notes": "balanced router; TE + DeepEP", "source": title, "hardware.gpu": "H100"}
    stack = find_stack(only(row(notes)).stack)
    assert (stack.routing, stack.attention_generation) == ("contiguous", 4)
    assert only(row(notes | {"notes": "TE + FlexAttention"})).stack == "torch-compile"
    assert only(row({"notes": "balanced router, TE"})).stack == "megatron-2021"


def test_a_program_without_dropout_draws_no_masks(row):
    assert find_stack(only(row({"notes": "no dropout"})).stack).has_dropout is False
    assert find_stack(only(row()).stack).has_dropout is True
    assert find_stack(only(row({"notes": "dropout 0.1"})).stack).has_dropout is True


def test_the_micro_batches_of_other_pipelines_are_open(row):
    changes = {"batch": {"local": 32}, "parallel": {"dp": 1, "tp": 1, "pp": 8}, "notes": "Colossal-AI"}
    assert {case.micro_batch for case in cases_of(row(changes))} == {1, 2, 4, 8, 16}


def test_a_local_batch_with_an_interleaved_schedule_is_two_pieces_a_stage(row):
    changes = {"batch": {"local": 32}, "parallel": {"dp": 1, "tp": 1, "pp": 8}, "schedule": "Interleaved 1F1B"}
    changes["notes"] = "torchtitan"
    case = only(row(changes))
    assert (case.parallel.chunks, case.num_microbatches, case.schedule) == (2, 16, "interleaved")


def test_a_micro_batch_that_nobody_states_is_every_one_that_divides(row):
    assert [case.micro_batch for case in cases_of(row({"batch": {"global": 24}}))] == [1, 2, 4]


def test_data_parallel_ranks_that_are_not_stated_are_what_is_left(row):
    assert only(row({"parallel": {"tp": 2, "pp": 2}})).parallel.data == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel.dp": 4}, "dp x tp x pp x cp must be the number of GPUs: got 16 and 8"),
        ({"batch.global": 63}, "the batch must be a multiple of dp: got 63 and 2"),
        ({"batch.micro": 3}, "the batch of a replica must be a multiple of the micro-batch: got 32 and 3"),
        ({"precision": "int7"}, "precision must name one of fp4, fp8, tf32, bf16, fp16, fp32, int8: got 'int7'"),
        ({"recompute": "some"}, "recompute must begin with none, selective or full: got 'some'"),
        ({"parallel.fsdp": "HALF"}, "fsdp must be FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD or a number"),
        ({"parallel.ep": 2}, "ep is 2, but no experts are stated and the model's name is not known"),
        ({"hardware.gpu": "H1000"}, "unknown GPU 'H1000'"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(row, changes, message):
    with pytest.raises(ValueError) as caught:
        cases_of(row(changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("fp16 (not stated in csv; Megatron-DeepSpeed)", "float16"),
        ("bf16/fp16 (section dependent)", "bfloat16"),
        ("bf16 (not stated in the table)", "bfloat16"),
        ("amp_bf16", "bfloat16"),
        ("amp_fp8", "float8"),
        ("fp8 linear + fp8 all-gather", "float8"),
        ("FP8-CS (FP8-MX)", "float8"),
        ("MXFP8", "float8"),
        ("NVFP4", "float4"),
        ("fp8 (25.09 table, not stated)", "float8"),
        ("tf32", "tfloat32"),
        ("fp32", "float32"),
        ("float32", "float32"),
        ("mixed", "bfloat16"),
        (None, "bfloat16"),
    ],
)
def test_a_precision_is_known_by_the_words_of_the_sources(row, text, precision):
    assert only(row({"precision": text})).precision == precision


def test_a_precision_that_is_not_stated_is_one_that_the_gpu_has(row):
    assert only(row({"precision": None, "hardware.gpu": "V100"})).precision == "float16"


@pytest.mark.parametrize(
    ("text", "recompute"),
    [
        ("full (use_checkpoint=true in config/validation)", ["full"]),
        ("selective (config default, not stated)", ["selective"]),
        ("none (file lists full/selective separately; not stated per row)", ["none"]),
        ("full, block 1", ["full"]),
        ("selective activation checkpointing", ["selective"]),
        ("SAC", ["selective"]),
        ("gradient checkpointing", ["full"]),
        ("true", ["full"]),
        ("No", ["none"]),
        ("every 4 layers", ["every 4"]),
        ("not stated", ["none", "selective", "full"]),
        (None, ["none", "selective", "full"]),
    ],
)
def test_recomputation_is_the_first_word_and_open_where_there_is_none(row, text, recompute):
    assert [case.recompute for case in cases_of(row({"recompute": text}))] == recompute


def test_recomputation_that_is_not_stated_is_none_where_attention_keeps_no_scores(row):
    assert only(row({"recompute": None, "hardware.gpu": "H100"})).recompute == "none"


def test_chunks_that_are_stated_make_the_schedule_interleaved(row):
    case = only(row({"parallel": {"dp": 1, "tp": 1, "pp": 8, "vpp": 2}}))
    assert (case.parallel.chunks, case.schedule) == (2, "interleaved")
    assert only(row({"parallel": {"dp": 1, "tp": 1, "pp": 8, "vpp": 1}})).schedule == "1f1b"


@pytest.mark.parametrize(
    ("text", "schedule", "chunks"),
    [
        ("1F1B (DeepSpeed)", "1f1b", 1),
        ("PipeDream-Flush", "1f1b", 1),
        ("AFAB", "gpipe", 1),
        ("zb_h1", "zb-h1", 1),
        ("ZBV", "zb-v", 2),
        ("DualPipe-V", "dualpipe-v", 2),
    ],
)
def test_a_schedule_is_known_by_the_names_that_papers_and_programs_give_it(row, text, schedule, chunks):
    case = only(row({"parallel": {"dp": 1, "tp": 1, "pp": 8}, "schedule": text}))
    assert (case.schedule, case.parallel.chunks) == (schedule, chunks)
    # Without a pipeline there is none to name.
    assert only(row({"parallel": {"dp": 8, "tp": 1, "pp": 1}, "schedule": text})).schedule == "1f1b"


def test_interleaved_without_chunks_is_every_number_that_divides_the_layers_of_a_stage(row):
    changes = {"parallel": {"dp": 1, "tp": 1, "pp": 8}, "schedule": "interleaved for pp>1 (from memory)"}
    cases = cases_of(row(changes))
    assert [(case.parallel.chunks, case.schedule) for case in cases] == [
        (1, "1f1b"),
        (2, "interleaved"),
        (4, "interleaved"),
    ]
    # 12 micro-batches are not in rounds of 8.
    assert [case.parallel.chunks for case in cases_of(row(changes | {"batch": {"global": 12, "micro": 1}}))] == [1]


@pytest.mark.parametrize(
    ("fsdp", "expected"),
    [
        ("FULL_SHARD", {"zero_stage": 3}),
        ("SHARD_GRAD_OP", {"zero_stage": 3, "reshard_after_forward": False}),
        ("NO_SHARD", {"zero_stage": 0}),
        ("HYBRID_SHARD", {"zero_stage": 3, "replicas": 8}),
        ("HSDP", {"zero_stage": 3, "replicas": 8}),
        ("zero3", {"zero_stage": 3}),
        (64, {"zero_stage": 3}),
        (16, {"zero_stage": 3, "replicas": 4}),
        (1, {"zero_stage": 3}),
        *((value, {"zero_stage": 2}) for value in (0, "0", False, "false", "none", "No", "off")),
        *((value, {"zero_stage": 3}) for value in (True, "true", "Yes", "1")),
    ],
)
def test_fsdp_is_read_as_its_sources_write_it(row, fsdp, expected):
    changes = {"hardware.gpus": 64, "parallel": {"dp": 64, "tp": 1, "pp": 1, "fsdp": fsdp, "zero_stage": 2}}
    parallel = only(row(changes | {"batch.micro": 1})).parallel
    assert parallel == Parallel(data=64, sequence_parallel=False, **expected)


@pytest.mark.parametrize("fsdp", [None, False, "none", "NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", 4])
@pytest.mark.parametrize("zero_stage", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("pp", [1, 2])
def test_parameters_stay_gathered_only_where_they_are_split(row, fsdp, zero_stage, pp):
    changes = {"parallel": {"dp": 8 // pp, "tp": 1, "pp": pp, "fsdp": fsdp, "zero_stage": zero_stage}}
    titan = {"source.title": "torchtitan benchmarks", "notes": "compile", "hardware.gpu": "H100"}
    parallel = cases_of(row(changes | titan | {"batch": {"global": 64}}))[0].parallel
    keeps = parallel.zero_stage == 3 and (pp > 1 or fsdp == "SHARD_GRAD_OP")
    assert parallel.reshard_after_forward == (not keeps)


@pytest.mark.parametrize("value", ["cpu", "CPU", True, "true", "yes", "ZeRO-Offload", "cpu (ZeRO-2)", "host memory"])
def test_an_offload_that_names_a_place_only_is_of_the_optimizer(row, value):
    assert only(row({"parallel.offload": value})).offload == ("optimizer",)


@pytest.mark.parametrize("value", [False, "false", "none", "No", "off", "none (fits)"])
def test_no_offload_is_none_however_it_is_spelled(row, value):
    assert only(row({"parallel.offload": value})).offload == ()


def test_an_offload_of_what_is_not_modelled_is_refused(row):
    for value in ("nvme", "parameters on nvme", "no activations"):
        with pytest.raises(ValueError, match=r"parallel.offload must name optimizer or activations"):
            cases_of(row({"parallel.offload": value}))
    assert only(row({"parallel.offload": "optimizer, not activations"})).offload == ("optimizer",)
    zero3 = {"parallel.fsdp": "FULL_SHARD", "notes": "torchtitan, compile"}
    for value in ("optimizer, params", "optimizer and weights"):
        assert only(row(zero3 | {"parallel.offload": value})).offload == ("optimizer", "parameters")


@pytest.mark.parametrize("value", [True, "true", "Yes", "on", 1, "1"])
def test_a_flag_may_be_text(row, value):
    assert only(row({"parallel.sequence_parallel": value})).parallel.has_sequence_parallel
    no = {"true": "False", "Yes": "no", "on": "off", "1": "0"}.get(value, type(value)(0))
    assert not only(row({"parallel.sequence_parallel": no, "hardware.gpu": "H100"})).parallel.has_sequence_parallel


@pytest.mark.parametrize(("value", "recompute"), [(True, "full"), (False, "none")])
def test_recomputation_may_be_a_flag(row, value, recompute):
    assert only(row({"recompute": value})).recompute == recompute


def test_what_is_sharded_by_default_depends_on_the_software(row):
    assert only(row()).parallel.zero_stage == 0
    assert only(row({"hardware.gpu": "H100"})).parallel.zero_stage == 1


@pytest.mark.parametrize(
    ("family", "stacks"),
    [
        ("korthikanti22", {"megatron-2022"}),
        ("bloom", {"megatron-deepspeed"}),
        ("vtrain", {"megatron-deepspeed"}),
        ("megatron", {"megatron-2021", "megatron-core"}),
        ("mpt", {"fsdp-flash"}),
        ("titan", {"torch-compile", "torch-compile-2024"}),
        ("mbridge", {"megatron-core"}),
        ("simumax", {"megatron-core"}),
    ],
)
def test_the_software_follows_from_the_source(published, family, stacks):
    assert {stack_of(row, cluster_of(row)) for row in published if row.family == family} == stacks


@pytest.mark.parametrize(
    ("notes", "precision", "stack"),
    [
        ("compile", "bf16", "torch-compile"),
        ("compile+float8", "fp8 linear", "torch-compile"),
        ("eager", "bf16", "fsdp"),
        ("no compile", "bf16", "fsdp"),
        ("not compiled", "bf16", "fsdp"),
        ("compile, without float8", "bf16", "torch-compile"),
        (None, "bf16", "fsdp"),
        (None, "fp8 linear + fp8 all-gather", "torch-compile"),
    ],
)
def test_torchtitan_is_compiled_where_it_says_so_or_multiplies_eight_bits(row, notes, precision, stack):
    source = {"source.title": "torchtitan benchmarks", "hardware.gpu": "H100"}
    assert only(row(source | {"notes": notes, "precision": precision})).stack == stack


@pytest.mark.parametrize(
    ("title", "stack"),
    [
        ("torchtitan benchmarks llama3_h100_202412_torchtitan.md", "torch-compile-2024"),
        ("torchtitan benchmarks asyncTP_llama3_h100_2025-06_torchtitan.md", "torch-compile"),
        ("torchtitan docs/performance.md", "torch-compile"),
        ("torchtitan at commit 2024123456", "torch-compile"),  # no month of a year
    ],
)
def test_torchtitan_compiles_its_loss_since_2025(row, title, stack):
    assert only(row({"source.title": title, "hardware.gpu": "H100", "notes": "compile"})).stack == stack


def test_experts_spread_over_the_tensor_ranks_too_count_for_those_of_the_data_axis(row):
    experts = {"model.name": "Qwen3 30B A3B", "model.hidden": 2048, "hardware.gpu": "H100"}
    assert only(row(experts | {"parallel.ep": 2})).parallel.expert == 2
    assert only(row(experts | {"parallel.ep": 8})).parallel.expert == 2  # of 2 data ranks; each expert in 4 parts


def test_sequence_parallel_is_as_stated_or_what_the_software_can(row):
    assert not only(row()).parallel.has_sequence_parallel
    assert only(row({"hardware.gpu": "H100"})).parallel.has_sequence_parallel
    assert not only(row({"hardware.gpu": "H100", "parallel.sequence_parallel": False})).parallel.has_sequence_parallel
    assert only(row({"parallel.sequence_parallel": True})).parallel.has_sequence_parallel


def test_lora_trains_adapters_only(row):
    assert only(row({"notes": "LoRA Performance"})).trainable == "lora"
    assert only(row({"notes": "QLoRA, rank 16"})).trainable == "qlora"
    for notes in ("SFT Performance", "an exploration of sizes", "without LoRA", "not LoRA"):
        assert only(row({"notes": notes})).trainable == "all"


def test_an_optimizer_is_known_by_its_name(row):
    assert only(row({"optimizer": "decoupled_adamw (yaml default)"})).optimizer == "adamw"
    assert only(row({"optimizer": "Adafactor"})).optimizer == "adafactor"
