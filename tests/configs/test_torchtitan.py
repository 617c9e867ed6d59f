"""The reader of torchtitan's TOML: its presets, its tables of sizes, each field as a setting, and refusals."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.configs.torchtitan import parse_torchtitan, read_torchtitan
from lablib.configs.torchtitan_models import FLAVORS, sizes_of
from lablib.models.transformer_sizes import transformer_parameters

# Presets of torchtitan at 238fa995, torchtitan/models/*/train_configs: the fields that are read.
LLAMA_70B = {
    "model": {"name": "llama3", "flavor": "70B"},
    "training": {"local_batch_size": 8, "seq_len": 8192, "steps": 1000},
    "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 8},
    "activation_checkpoint": {"mode": "full"},
    "compile": {"enable": False, "components": ["model", "loss"]},
}
LLAMA_405B = LLAMA_70B | {
    "model": {"name": "llama3", "flavor": "405B", "converters": ["float8"]},
    "training": {"local_batch_size": 2, "seq_len": 8192},
    "parallelism": {"tensor_parallel_degree": 8, "enable_async_tensor_parallel": True},
    "compile": {"enable": True, "components": ["model", "loss"]},
    "quantize": {"linear": {"float8": {"filter_fqns": ["output"], "enable_fsdp_float8_all_gather": True}}},
}
PIPELINE = {"pipeline_parallel_degree": 4, "data_parallel_shard_degree": 2}


@pytest.mark.parametrize(
    ("config", "gpus", "settings"),
    [
        (
            LLAMA_70B,
            64,
            {"tensor": [8], "data": [8], "zero_stage": [3], "batch": 64, "micro_batch": [8], "recompute": ["full"],
             "precision": "bfloat16", "stack": "fsdp-flash", "optimizer": "adamw", "seq_len": 8192},
        ),
        (LLAMA_405B, 128, {"data": [16], "batch": 32, "precision": "float8", "stack": "torch-compile"}),
        ({}, 8, {"data": [8], "batch": 64, "seq_len": 2048, "recompute": ["first 3"]}),  # all defaults; 6 layers
        ({"parallelism": {"data_parallel_replicate_degree": 4}}, 8, {"data": [8], "replicas": 4, "zero_stage": [3]}),
        ({"parallelism": {"data_parallel_replicate_degree": 8, "data_parallel_shard_degree": 1}}, 8,
         {"data": [8], "zero_stage": [0], "precision": "bfloat16"}),
        ({"parallelism": {"tensor_parallel_degree": 8}}, 8, {"zero_stage": [0], "precision": "float32"}),
        ({"parallelism": {"context_parallel_degree": 8}}, 8, {"data": [1], "context": [8], "zero_stage": [3]}),
        ({"parallelism": {"fsdp_reshard_after_forward": "never"}}, 8, {"reshard_after_forward": False}),
        ({"parallelism": PIPELINE}, 8, {"schedule": ["1f1b"], "chunks": [1], "reshard_after_forward": False}),
        ({"parallelism": PIPELINE | {"pipeline_parallel_schedule": "interleaved1f1b"}}, 8,
         {"schedule": ["interleaved"], "chunks": [2], "micro_batch": [1], "batch": 16}),
        ({"parallelism": PIPELINE | {"pipeline_parallel_degree": 2, "pipeline_parallel_layers_per_stage": 1,
          "pipeline_parallel_schedule": "LoopedBFS"}}, 4, {"schedule": ["breadth-first"], "chunks": [4]}),
        ({"training": {"batch_size": 2, "compile": True}}, 8, {"batch": 16, "stack": "torch-compile"}),
        ({"model": {"converters": "float8"}}, 8, {"precision": "float8"}),  # as in files of April 2025
        ({"compile": {"enable": True, "components": ["model"]}}, 8, {"stack": "torch-compile-2024"}),
        ({"activation_checkpoint": {"selective_ac_option": "op"}}, 8, {"recompute": ["selective"]}),
        ({"model": {"name": "deepseek_v3", "flavor": "16B"}, "parallelism": {"expert_parallel_degree": 8}}, 8,
         {"expert": [8], "expert_tensor": [1]}),
        ({"optimizer": {"name": "Adam"}, "training": {"global_batch_size": 128}}, 8,
         {"optimizer": "adam", "batch": 128, "micro_batch": [8]}),
    ],
)  # fmt: skip
def test_a_field_is_a_setting(config, gpus, settings):
    reading = parse_torchtitan(config, gpus)
    assert {name: reading.record[name] for name in settings} == settings
    assert reading.unknown == ()


# torchtitan/models/llama3/__init__.py: dim, n_layers, n_heads, n_kv_heads, ffn_dim_multiplier, multiple_of
LLAMA3 = {
    "debugmodel": (256, 6, 16, 16, 1.0, 256, 2048),
    "8B": (4096, 32, 32, 8, 1.3, 1024, 128256),
    "70B": (8192, 80, 64, 8, 1.3, 4096, 128256),
    "405B": (16384, 126, 128, 8, 1.2, 4096, 128256),
}


@pytest.mark.parametrize("flavor", LLAMA3)
def test_sizes_of_llama_are_those_of_its_table(flavor):
    width, layers, heads, kv_heads, multiplier, multiple, vocab = LLAMA3[flavor]
    hidden = -(-int(int(2 * 4 * width / 3) * multiplier) // multiple) * multiple
    model = sizes_of("llama3", flavor)
    assert (model.d_model, model.num_layers, model.num_heads, model.kv_heads, model.hidden_size, model.vocab_size) == (
        *(width, layers, heads, kv_heads, hidden, vocab),
    )


# Qwen3 without embeddings, in billions: Yang et al. 2025, arXiv 2505.09388, and the model cards of the weights.
@pytest.mark.parametrize(
    ("flavor", "billions"), [("0.6B", 0.44), ("1.7B", 1.4), ("4B", 3.6), ("14B", 13.2), ("32B", 31.2)]
)
def test_qwens_have_their_published_parameters(flavor, billions):
    model = sizes_of("qwen3", flavor)
    tables = model.vocab_size * model.d_model * (1 if model.tied_head else 2)
    assert (transformer_parameters(model).total - tables) / 1e9 == pytest.approx(billions, rel=0.02)


def test_every_flavor_is_read_and_its_parts_that_are_left_out_are_named():
    for name, flavor in FLAVORS:
        reading = parse_torchtitan({"model": {"name": name, "flavor": flavor}}, 8)
        assert reading.record["model"] == sizes_of(name, flavor)
        assert ("norms of queries" in str(reading.omissions)) == (name == "qwen3")
    flex = parse_torchtitan({"model": {"flavor": "8B_flex"}}, 8)
    assert flex.record["model"].name == "llama-3-8b" and "only within documents" in str(flex.omissions)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (LLAMA_405B, "enable_async_tensor_parallel"),
        ({"training": {"dtype": "bfloat16"}}, "training.dtype bfloat16"),
        ({"optimizer": {"implementation": "for-loop"}}, "optimizer.implementation"),
        ({"optimizer": {"early_step_in_backward": True}}, "early_step_in_backward"),
        ({"activation_checkpoint": {"selective_ac_option": "op"}}, "selective_ac_option op without compile"),
        ({"parallelism": {"context_parallel_degree": 2}}, "context_parallel_rotate_method"),
        ({"parallelism": PIPELINE, "training": {"global_batch_size": 64}}, "gradient accumulation"),
        ({"fault_tolerance": {"enable": True}}, "fault_tolerance"),
    ],
)
def test_a_choice_that_is_not_priced_is_named(config, text):
    assert any(text in omission.text for omission in parse_torchtitan(config, 128).omissions)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": {"name": "lama3"}}, "unknown model.name 'lama3': did you mean 'llama3'"),
        ({"model": {"flavor": "80B"}}, "unknown model.flavor of llama3 '80B'.* Valid: debugmodel, 8B, 70B, 405B"),
        ({"model": {"converters": ["int4"]}}, "unknown model.converters 'int4'"),
        ({"activation_checkpoint": {"mode": "memory_budget"}}, "memory_budget is not priced"),
        ({"activation_checkpoint": {"mode": "selectiv"}}, "unknown mode of .* 'selectiv': did you mean 'selective'"),
        ({"parallelism": PIPELINE | {"pipeline_parallel_schedule": "ZBVZeroBuble"}}, "did you mean 'ZBVZeroBubble'"),
        ({"parallelism": {"data_parallel_shard_degree": 0}}, "must be -1, or at least 1: got 0"),
        ({"parallelism": {"tensor_parallel_degree": 3}}, "GPUs must be a multiple of .* got 8 and 3"),
        ({"parallelism": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1,
                          "tensor_parallel_degree": 4}}, "replicates without shards on one axis only"),
        ({"training": {"global_batch_size": 12}}, "must be a multiple of training.local_batch_size \\* data ranks"),
        ({"optimizer": {"name": "Lion"}}, "unknown name of optimizer of .* 'Lion'.* Valid: AdamW, Adam"),
    ],
)  # fmt: skip
def test_an_impossible_or_unpriced_choice_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        parse_torchtitan(config, 8)


def test_fields_that_the_reader_does_not_know_are_named_and_files_have_near_names(tmp_path: Path):
    config = {
        "paralelism": {},
        "training": {"seq_length": 1},
        "job": {"anything": 1},
        "float8": {"recipe_nme": "rowwise"},
    }
    assert parse_torchtitan(config, 8).unknown == ("paralelism", "float8.recipe_nme", "training.seq_length")
    (tmp_path / "llama.toml").write_text('[model]\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n')
    assert read_torchtitan(tmp_path / "llama.toml", 4).record["batch"] == 4
    with pytest.raises(ValueError, match="cannot be read: No such file or directory; did you mean llama.toml"):
        read_torchtitan(tmp_path / "lama.toml")
    with pytest.raises(ValueError, match="config_registry.py cannot be read"):
        read_torchtitan("config_registry.py")
    (tmp_path / "broken.toml").write_text("[model")
    with pytest.raises(ValueError, match="broken.toml must be TOML"):
        read_torchtitan(tmp_path / "broken.toml")


@given(
    replicas=st.integers(1, 8), shards=st.integers(1, 64), tensor=st.sampled_from([1, 2, 8]), local=st.integers(1, 8)
)
def test_a_degree_of_minus_one_is_the_remaining_gpus(replicas, shards, tensor, local):
    axes = {"data_parallel_replicate_degree": replicas, "tensor_parallel_degree": tensor}
    config = {"parallelism": axes, "training": {"local_batch_size": local}}
    gpus = replicas * shards * tensor
    if shards == 1 and replicas > 1 < tensor:
        with pytest.raises(ValueError, match="on one axis only"):
            parse_torchtitan(config, gpus)
        return
    rest = parse_torchtitan(config, gpus)
    assert rest == parse_torchtitan(json.loads(json.dumps(config | {"parallelism": axes | {
        "data_parallel_shard_degree": shards}})), gpus)  # fmt: skip
    assert rest.record["data"] == [replicas * shards] and rest.record["batch"] == local * replicas * shards
    unknown = parse_torchtitan(config).record
    assert "data" not in unknown and "batch" not in unknown
