"""The reader of Megatron-LM's arguments: published runs as their plans, defaults, and refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.configs.megatron import parse_megatron
from lablib.models.published import find_transformer
from lablib.models.transformer import Window
from lablib.models.transformer_sizes import transformer_parameters

GPT3 = (
    "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 "
    "--vocab-size 50257 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --micro-batch-size 1 "
    "--global-batch-size 1536 --bf16 --sequence-parallel"
)
LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope"
)


def test_gpt3_is_the_published_model_and_its_plan():
    """The vocabulary is padded to a multiple of 128 * 8 (Narayanan et al., 2021: 51,200)."""
    record = parse_megatron(GPT3).record
    model = record["model"]
    assert model.vocab_size == 51200
    assert transformer_parameters(model).total == transformer_parameters(find_transformer("megatron-175b")).total
    assert (record["tensor"], record["pipeline"], record["batch"], record["precision"]) == ([8], [8], 1536, "bfloat16")
    assert "sequence_parallel" not in record and record["zero_stage"] == [0]
    assert record["schedule"] == ["1f1b"] and record["chunks"] == [1]


def test_llama_is_the_published_model():
    model, published = parse_megatron(LLAMA).record["model"], find_transformer("llama-3-8b")
    assert transformer_parameters(model) == transformer_parameters(published)
    assert (model.kv_heads, model.activation, model.norm) == (8, "swiglu", "rms")


def test_a_mixture_with_latents_is_described():
    """The sizes of DeepSeek-V2-Lite, but for its first dense layer."""
    words = (
        "--num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16 --vocab-size 102400 "
        "--seq-length 4096 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
        "--untie-embeddings-and-output-weights --multi-latent-attention --kv-lora-rank 512 --num-experts 64 "
        "--moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816 "
        "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
    )
    record = parse_megatron(words).record
    mine, published = record["model"], find_transformer("deepseek-v2-lite")
    assert mine.latent == published.latent
    assert (mine.experts.num_experts, mine.experts.num_active, mine.experts.num_shared) == (64, 6, 2)
    assert (record["expert"], record["expert_tensor"]) == ([8], [1])
    mine, published = transformer_parameters(mine), transformer_parameters(published)
    assert mine.expert_layer == published.expert_layer


@given(dense=st.integers(1, 40), others=st.integers(0, 40), is_short=st.booleans())
def test_dense_layers_at_the_bottom_are_a_pattern(dense, others, is_short):
    first = "[0]" if is_short and dense == 1 else f"[0]*{dense}"
    words = f"{LLAMA} --num-layers {dense + others} --num-experts 8 --moe-layer-freq ({first}+[1]*{others})"
    assert parse_megatron(words).record["model"].experts.num_dense_layers == dense
    with pytest.raises(ValueError, match="--moe-layer-freq must be a number of at least 1, or a list"):
        parse_megatron(f"{words} --num-layers {dense + others + 1}")


@given(layers=st.integers(1, 40), every=st.integers(1, 6))
def test_every_nth_layer_has_experts_or_attends_to_all_tokens(layers, every):
    """Megatron counts layers with experts from 0, and those without the window from 1."""
    words = f"{LLAMA} --num-layers {layers} --num-experts 8 --window-size (127,0)"
    model = parse_megatron(f"{words} --moe-layer-freq {every} --window-attn-skip-freq {every}").record["model"]
    assert model.num_expert_layers == len(range(0, layers, every))
    assert model.num_window_layers == layers - layers // every
    assert parse_megatron(words).record["model"].window == Window(128)


@pytest.mark.parametrize("pattern", ["([0]*1+[1]*1)*4", "[0,1]*4", "[0, 1, 0, 1, 0, 1, 0, 1]", "4*([1]+[0])"])
def test_lists_of_layers_are_read_as_python_would(pattern):
    words = f'{LLAMA} --num-layers 8 --num-experts 8 --window-size 511,0 --moe-layer-freq "{pattern}"'
    model = parse_megatron(f'{words} --window-attn-skip-freq "{pattern}"').record["model"]
    assert (model.num_expert_layers, model.window) == (4, Window(512, 4))


@pytest.mark.parametrize(
    "pattern", ["[1]*9", "[1]*10**9", "[1]*99*99*99*99*99", "open('x')", "[", "[1]*-8", "'11111111'"]
)
def test_a_list_that_is_none_or_does_not_fit_is_refused_without_being_run(pattern):
    with pytest.raises(ValueError, match="--moe-layer-freq must be a number of at least 1, or a list"):
        parse_megatron(f'{LLAMA} --num-layers 8 --num-experts 8 --moe-layer-freq "{pattern}"')


def test_a_capacity_factor_is_the_load_of_the_busiest_rank():
    words = f"{LLAMA} --num-layers 8 --num-experts 8"
    assert parse_megatron(words).record["model"].experts.imbalance == 1.0
    reading = parse_megatron(f"{words} --moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity")
    assert reading.record["model"].experts.imbalance == 1.25 and reading.unknown == ()
    with pytest.raises(ValueError, match="moe-expert-capacity-factor of .* must be a positive number: got 'much'"):
        parse_megatron(f"{words} --moe-expert-capacity-factor much")


@pytest.mark.parametrize(("size", "window"), [("-1,0", None), ("(-1, 0)", None), ("128,0", Window(129))])
def test_a_window_is_the_number_of_earlier_tokens(size, window):
    assert parse_megatron(f'{LLAMA} --num-layers 8 --window-size "{size}"').record["model"].window == window


@given(
    layers=st.integers(1, 8), pipeline=st.integers(1, 8), chunks=st.integers(1, 8), multiple=st.sampled_from([64, 128])
)
def test_two_ways_to_give_the_chunks_agree(layers, pipeline, chunks, multiple):
    words = (
        f"--num-layers {layers * pipeline * chunks} --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
        f"--vocab-size 100 --make-vocab-size-divisible-by {multiple} --pipeline-model-parallel-size={pipeline} "
    )
    one = parse_megatron(f"{words} --num-layers-per-virtual-pipeline-stage {layers}").record
    other = parse_megatron(f"{words} --num-virtual-stages-per-pipeline-rank {chunks}").record
    assert one == other and one["chunks"] == [chunks] and one["model"].vocab_size == -(-100 // multiple) * multiple


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        ("--recompute-activations", "recompute", ["selective"]),
        ("--recompute-granularity full --recompute-method uniform", "recompute", ["full"]),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", "recompute", ["every 4"]),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3", "recompute", ["first 3"]),
        ("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", "zero_stage", [1]),
        ("--fp8-format hybrid --fp8-recipe delayed", "precision", "float8"),
        ("--optimizer sgd", "optimizer", "sgd-momentum"),
        ("--context-parallel-size 2", "context", [2]),
        ("--use-megatron-fsdp", "zero_stage", [3]),  # its default strategy is optim_grads_params
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero_stage", [2]),
        ("--data-parallel-sharding-strategy optim_grads", "zero_stage", [0]),  # without effect
        ("--num-distributed-optimizer-instances 2", "replicas", 2),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer", "offload", ("optimizer",)),
        ("--fp4-format e2m1 --bf16", "precision", "float4"),
    ],
)
def test_an_option_is_a_setting(words, setting, value):
    reading = parse_megatron(f"{GPT3} {words}")
    assert reading.record[setting] == value
    assert reading.unknown == ()


def test_tensor_ranks_without_sequence_parallelism():
    assert parse_megatron(GPT3.replace("--sequence-parallel", "")).record["sequence_parallel"] is False


def test_unknown_options_are_named_and_those_without_cost_are_not():
    reading = parse_megatron(f"{GPT3} --lr 1e-4 --train-iters 500 --data-path a b --moe-grouped-gemm --flux 3")
    assert reading.unknown == ("--flux", "--moe-grouped-gemm")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-layers 4", "must have the field hidden-size"),
        (f"{GPT3} --num-layers four", "num-layers of the arguments of Megatron-LM must be a whole number"),
        (f"{GPT3} --normalization BatchNorm", "unknown --normalization 'BatchNorm'.* Valid: LayerNorm, RMSNorm"),
        (f"{GPT3} --optimizer adamm", "unknown --optimizer 'adamm': did you mean 'adam'"),
        (f"{GPT3} --fp8-format e5m2", "unknown --fp8-format 'e5m2'.* Valid: e4m3, hybrid"),
        (f"{GPT3} --recompute-granularity some", "unknown --recompute-granularity 'some'"),
        (f"{GPT3} --position-embedding-type relative", "unknown --position-embedding-type 'relative'"),
        (f"{GPT3} 'open", "must be words as in a shell: No closing quotation"),
        (f"{GPT3} --num-layers-per-virtual-pipeline-stage 5", "--num-layers must be a multiple of"),
        (f"{GPT3} --num-experts 8 --moe-layer-freq 0", "--moe-layer-freq must be a number of at least 1"),
        (f"{GPT3} --window-size 127,127", "--window-size must be the number of earlier tokens and 0: got 127,127"),
        (f"{GPT3} --num-experts 8 --moe-shared-expert-intermediate-size 100", "must be a multiple of the experts'"),
    ],
)
def test_a_choice_that_cannot_be_described_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        parse_megatron(words)
