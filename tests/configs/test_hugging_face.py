"""The reader of config.json: parameters of transformers' own models, released files, changed and broken files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.configs import hugging_face
from lablib.configs.hugging_face import parse_hugging_face, read_hugging_face
from lablib.models.published import find_transformer
from lablib.models.transformer import Window
from lablib.models.transformer_sizes import transformer_parameters

_ABOUT, *ROWS = map(
    json.loads, (Path(__file__).parent / "measured" / "transformers.jsonl").read_text("utf-8").splitlines()
)
RELEASED_COUNTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "measured" / "released.jsonl").read_text("utf-8").splitlines()[1:]
]
KINDS = {row["config"]["model_type"]: row["config"] for row in reversed(ROWS)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["config"]["model_type"])
def test_parameters_are_those_of_transformers(row):
    """Exactly, once the parameters of the named omissions are added; no field of transformers is unknown."""
    reading = parse_hugging_face(row["config"], "m")
    omitted = sum(omission.parameters for omission in reading.omissions)
    assert transformer_parameters(reading.record).total + omitted == row["parameters"]
    assert reading.unknown == ()


def test_every_reader_was_compared():
    assert KINDS.keys() == hugging_face._READERS.keys()


# Released files (the sizes of the papers; only the fields that matter here).
RELEASED = {
    "llama-3-8b": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": False, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "num_experts_per_tok": 2, "num_local_experts": 8, "sliding_window": None,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 4096, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_file_is_the_published_model(name, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(RELEASED[name]))
    for path in (tmp_path / name, tmp_path / name / "config.json"):
        model = read_hugging_face(path).record
        assert model.name == name
        assert replace(model, source="") == replace(find_transformer(name), source="")


@given(data=st.data())
def test_a_field_that_is_read_changes_the_result_or_is_refused(data):
    """Whatever the reader does not list as without cost."""
    config = dict(KINDS[data.draw(st.sampled_from(sorted(KINDS)))])
    whole = [
        name
        for name, value in config.items()
        if isinstance(value, int) and not isinstance(value, bool) and name not in hugging_face._WITHOUT_COST
    ]
    name = data.draw(st.sampled_from(whole))
    before = parse_hugging_face(config, "m")
    if name in ("head_dim", "qk_head_dim") and before.record.latent:
        return  # follow from the latent's widths
    config[name] = data.draw(st.integers(1, 64).filter(lambda value: value != config[name]))
    try:
        after = parse_hugging_face(config, "m")
    except ValueError:
        return
    window = name == "sliding_window" and before.record.max_seq_len <= config[name]
    assert after != before or window or not config.get("use_sliding_window", True), name


@pytest.mark.parametrize("row", RELEASED_COUNTS, ids=lambda row: row["name"])
def test_a_released_file_has_the_parameters_and_layers_of_its_weights(row):
    reading = parse_hugging_face(row["config"], row["name"])
    model = reading.record
    total = transformer_parameters(model).total + sum(omission.parameters for omission in reading.omissions)
    assert total == row["parameters"]
    assert reading.unknown == ()
    window = model.window and [model.window.tokens, model.num_window_layers, model.window.is_chunked]
    assert (window, model.block, model.num_expert_layers) == (row["window"], row["block"], row["expert_layers"])


@pytest.mark.parametrize("row", [row for row in ROWS if "layer_types" in row["config"]], ids=lambda row: str(row)[-40:])
def test_the_layers_with_a_window_are_those_of_transformers(row):
    """A file without the list of layers has the one that transformers makes of the other fields."""
    plain = {name: value for name, value in row["config"].items() if name not in ("layer_types", "moe_layers")}
    assert parse_hugging_face(plain, "m").record == parse_hugging_face(row["config"], "m").record


@given(layers=st.integers(1, 40), every=st.integers(1, 5), without=st.sets(st.integers(0, 40)), first=st.integers(0, 9))
def test_layers_with_experts_are_counted_one_by_one(layers, every, without, first):
    """Qwen's, DeepSeek's and Llama 4's rules, as their models' classes state them."""
    config = KINDS["qwen3_moe"] | {"num_hidden_layers": layers, "decoder_sparse_step": every}
    found = parse_hugging_face(config | {"mlp_only_layers": sorted(without), "layer_types": None}, "m").record
    assert found.num_expert_layers == len([i for i in range(layers) if i not in without and (i + 1) % every == 0])
    config = KINDS["deepseek_v2"] | {"num_hidden_layers": layers, "moe_layer_freq": every}
    found = parse_hugging_face(config | {"first_k_dense_replace": first}, "m").record
    assert found.num_expert_layers == len([i for i in range(layers) if i >= first and i % every == 0])
    config = KINDS["llama4_text"] | {"num_hidden_layers": layers, "interleave_moe_layer_step": every}
    found = parse_hugging_face(config | {"moe_layers": None, "layer_types": None, "no_rope_layers": []}, "m").record
    assert found.num_expert_layers == len(range(every - 1, layers, every))


@pytest.mark.parametrize(("value", "tokens"), [(None, None), (64, 64), (0, None)])
def test_a_window_of_null_is_none_and_a_missing_one_is_that_of_the_class(value, tokens):
    config = {name: value for name, value in KINDS["mistral"].items() if name != "sliding_window"}
    window = parse_hugging_face(config | {"sliding_window": value}, "m").record.window
    assert (window and window.tokens) == tokens
    window = parse_hugging_face(config, "m").record.window
    assert window is not None and window.tokens == 4096  # MistralConfig's


def test_qwen_has_no_window_unless_it_says_so():
    config = {
        name: value for name, value in KINDS["qwen3"].items() if name not in ("use_sliding_window", "layer_types")
    }
    config |= {"sliding_window": 16, "max_window_layers": 1}
    assert parse_hugging_face(config, "m").record.window is None
    window = parse_hugging_face(config | {"use_sliding_window": True}, "m").record.window
    assert window == Window(16, config["num_hidden_layers"] - 1)


def test_a_soft_cap_and_a_quantized_file_are_named():
    reading = parse_hugging_face(KINDS["gemma2"] | {"quantization_config": {"bits": 4}}, "m")
    texts = [omission.text for omission in reading.omissions]
    assert any(text.startswith("attn_logit_softcapping, a tanh") for text in texts)
    assert any(text.startswith("quantization_config") for text in texts)


@given(data=st.data())
def test_a_wrong_value_is_refused_by_its_name(data):
    config = dict(KINDS[data.draw(st.sampled_from(sorted(KINDS)))])
    sizes = [name for name in config if name in ("num_hidden_layers", "hidden_size", "vocab_size", "n_layer", "n_embd")]
    name = data.draw(st.sampled_from(sizes))
    config[name] = data.draw(st.sampled_from([0, -3, 2.5, "32", True, [], None]))
    with pytest.raises(ValueError, match=name):
        parse_hugging_face(config, "m")


def test_fields_that_the_reader_does_not_know_are_named():
    reading = parse_hugging_face(KINDS["llama"] | {"num_memory_tokens": 4, "aux_head": True}, "m")
    assert reading.unknown == ("aux_head", "num_memory_tokens")
    assert reading.sentences() == ["Fields not understood: aux_head, num_memory_tokens."]


def test_the_text_model_of_a_model_of_images_is_read():
    nested = {"model_type": "gemma3", "text_config": KINDS["gemma3_text"], "vision_config": {}}
    reading = parse_hugging_face(nested, "m")
    assert reading.record == parse_hugging_face(KINDS["gemma3_text"], "m").record
    assert reading.omissions[0].text == "all but the text model (text_config)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "unknown model_type 'lama': did you mean 'llama'"),
        ({"model_type": None}, "unknown model_type None"),
        ({"hidden_act": "swiglu"}, "unknown hidden_act 'swiglu'"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder must be false: got true"),
        ({"model_type": "gemma2", "layer_types": ["linear_attention"] * 3}, "unknown layer_types 'linear_attention'"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "one word per layer: got 1 for 3 layers"),
        ({"model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
          "shared_expert_intermediate_size": 12}, "must be a multiple of moe_intermediate_size: got 12 and 8"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_described_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        parse_hugging_face(KINDS["llama"] | change, "m")


@pytest.mark.parametrize(("text", "message"), [("[1]", "must hold a JSON object"), ("{", "must be JSON")])
def test_a_file_that_is_no_object_is_one_error(text, message, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_hugging_face(tmp_path)
