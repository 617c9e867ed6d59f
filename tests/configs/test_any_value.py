"""Every reader of a configuration answers any value of any field: a result, or one ValueError."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.configs.deepspeed import parse_deepspeed
from lablib.configs.hugging_face import parse_hugging_face
from lablib.configs.megatron import parse_megatron
from lablib.configs.torchtitan import parse_torchtitan

_ROWS = (Path(__file__).parent / "measured" / "transformers.jsonl").read_text("utf-8").splitlines()[1:]
CONFIGS = [json.loads(row)["config"] for row in _ROWS]
DEEPSPEED = {
    **{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1},
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "optimizer": {"type": "AdamW"},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "cpu_offload": False,
        "offload_optimizer": {"device": "none"},
        "offload_param": {"device": "none"},
        "zero_hpz_partition_size": 1,
        "zero_quantized_weights": False,
    },
    "activation_checkpointing": {"cpu_checkpointing": False, "partition_activations": False},
    "communication_data_type": "fp32",
    "pipeline": {"stages": "auto"},
}
TORCHTITAN = {
    "model": {"name": "qwen3", "flavor": "30B-A3B", "converters": ["float8"]},
    "optimizer": {"name": "AdamW", "implementation": "fused", "early_step_in_backward": False},
    "training": {"local_batch_size": 8, "global_batch_size": -1, "seq_len": 64, "dtype": "float32", "compile": False},
    "parallelism": {
        **dict.fromkeys(("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree"), 2),
        **dict.fromkeys(("context_parallel_degree", "pipeline_parallel_degree", "expert_parallel_degree"), 2),
        **{"pipeline_parallel_schedule": "1F1B", "pipeline_parallel_layers_per_stage": 26},
        **{"pipeline_parallel_split_points": ["layers.1"], "module_fqns_per_model_part": None},
    },
    "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"},
    "compile": {"enable": True, "components": ["model"]},
    "quantize": {"linear": {"float8": {"filter_fqns": ["output"]}}},
}
MEGATRON = (
    "num-layers hidden-size num-attention-heads ffn-hidden-size vocab-size seq-length swiglu normalization num-experts "
    "group-query-attention num-query-groups kv-channels recompute-granularity recompute-method recompute-num-layers "
    "multi-latent-attention moe-layer-freq fp8-format bf16 optimizer position-embedding-type context-parallel-size"
).split()
ANY = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
ANY |= st.lists(st.integers(0, 3) | st.text(max_size=2), max_size=2) | st.just({"enabled": 3})


def answers(parse, *arguments) -> None:
    try:
        parse(*arguments)
    except ValueError as error:
        assert str(error)


@settings(max_examples=300)
@given(data=st.data())
def test_hugging_face(data):
    config = dict(data.draw(st.sampled_from(CONFIGS)))
    config[data.draw(st.sampled_from(sorted(config)))] = data.draw(ANY)
    answers(parse_hugging_face, config, "m")


@settings(max_examples=300)
@given(data=st.data(), given=st.sampled_from([(DEEPSPEED, parse_deepspeed), (TORCHTITAN, parse_torchtitan)]))
def test_deepspeed_and_torchtitan(data, given):
    config, parse = json.loads(json.dumps(given[0])), given[1]
    place, name = config, data.draw(st.sampled_from(sorted(config)))
    while isinstance(place[name], dict) and data.draw(st.booleans()):
        place = place[name]
        name = data.draw(st.sampled_from(sorted(place)))
    place[name] = data.draw(ANY)
    answers(parse, config)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(MEGATRON), st.none() | st.integers(-2, 64) | st.text(max_size=4)), max_size=9)
)
def test_megatron(options):
    words = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 100 --seq-length 64"
    for name, value in options:
        words += f" --{name}" + ("" if value is None else f" {value}")
    answers(parse_megatron, words)
