"""Llama in the files of transformers: weights, names, and logits that transformers computed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lablib.models import GPT, GPTConfig, Llama, LlamaConfig
from lablib.parallel import with_experts
from lablib.train import export_gpt2, export_llama, import_llama, read_safetensors, write_safetensors

TINY = LlamaConfig(2, 12, 4, 50, 16, 20, num_kv_heads=2, head_dim=6, rope_base=100.0)
TOKENS = (torch.arange(16) ** 2 % 50)[None]


def test_names_and_shapes_are_those_of_the_published_llama(tmp_path: Path):
    """Of meta-llama/Meta-Llama-3-8B, one layer of an eighth of the width: heads of 128, a quarter with keys."""
    export_llama(Llama(LlamaConfig(1, 512, 4, 50, d_ff=1792, num_kv_heads=1)), tmp_path)
    stored = read_safetensors(tmp_path / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in stored.items()} == {
        "model.embed_tokens.weight": [50, 512],
        "model.layers.0.input_layernorm.weight": [512],
        "model.layers.0.self_attn.q_proj.weight": [512, 512],
        "model.layers.0.self_attn.k_proj.weight": [128, 512],
        "model.layers.0.self_attn.v_proj.weight": [128, 512],
        "model.layers.0.self_attn.o_proj.weight": [512, 512],
        "model.layers.0.post_attention_layernorm.weight": [512],
        "model.layers.0.mlp.gate_proj.weight": [1792, 512],
        "model.layers.0.mlp.up_proj.weight": [1792, 512],
        "model.layers.0.mlp.down_proj.weight": [512, 1792],
        "model.norm.weight": [512],
        "lm_head.weight": [50, 512],
    }


def made_by_formula(folder: Path) -> None:
    """Files of TINY in float64 with sin(1 + j + 0.7 i) / 2 as number i of the j-th name, and 1 more in norms."""
    export_llama(Llama(TINY, dtype=torch.float64), folder)
    stored = read_safetensors(folder / "model.safetensors")
    for place, (name, tensor) in enumerate(sorted(stored.items())):
        numbers = torch.sin(1 + place + 0.7 * torch.arange(tensor.numel(), dtype=torch.float64)) / 2
        stored[name] = numbers.view(tensor.shape) + (tensor.ndim == 1)
    write_safetensors(folder / "model.safetensors", stored)


def test_logits_are_those_that_transformers_computed(tmp_path: Path):
    """LlamaForCausalLM of transformers 5.24 with torch 2.13 on a CPU, with the same weights and tokens."""
    made_by_formula(tmp_path)
    logits_TV = import_llama(tmp_path)(TOKENS)[0]
    for place, words, wanted in (
        (0, slice(0, 4), [0.093862, 0.150564, -0.250234, 0.109324]),
        (7, slice(20, 24), [1.35221, -1.720204, 0.434354, 1.269093]),
        (15, slice(46, 50), [1.346685, 0.051113, -1.399771, 1.402656]),
    ):
        assert logits_TV[place, words].tolist() == pytest.approx(wanted, abs=5e-6)  # its angles are in float32


def test_several_files_and_tables_of_angles_are_read(tmp_path: Path):
    model = Llama(TINY, seed=2)
    export_llama(model, tmp_path)
    file = tmp_path / "model.safetensors"
    stored = read_safetensors(file) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}
    file.unlink()
    places = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(stored)}
    for part in set(places.values()):
        write_safetensors(tmp_path / part, {name: stored[name] for name in stored if places[name] == part})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert torch.equal(import_llama(tmp_path)(TOKENS), model(TOKENS))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": ["one"]}))
    with pytest.raises(ValueError, match="must have a weight_map of names to files: got .*one"):
        import_llama(tmp_path)


def change(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "mistral"}, "model_type must be 'llama': got 'mistral'"),
        ({"attention_bias": True}, "attention_bias must be False: got True"),
        ({"mlp_bias": True}, "mlp_bias must be False: got True"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu': got 'gelu'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_type must be 'default': got 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type must be 'default': got 'linear'"),
    ],
)
def test_another_kind_of_model_is_refused(tmp_path: Path, settings: dict[str, Any], message: str):
    export_llama(Llama(TINY), tmp_path)
    change(tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        import_llama(tmp_path)


@pytest.mark.parametrize("model", [Llama(TINY), GPT(GPTConfig(1, 8, 2, vocab_size=9, max_seq_len=4))], ids=type)
def test_experts_are_not_written(tmp_path: Path, model: Any):
    export = export_llama if isinstance(model, Llama) else export_gpt2
    with pytest.raises(ValueError, match="the files of a GPT-2 or Llama must have MLPs: got 4 experts; take"):
        export(with_experts(model, 4, 2), tmp_path)


def test_the_base_of_older_files_is_read(tmp_path: Path):
    export_llama(Llama(TINY), tmp_path)
    change(tmp_path, rope_parameters=None, rope_scaling=None)
    assert import_llama(tmp_path).config.rope_base == 100.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.norm.weight": None}, "must have the tensors of a Llama: 'model.norm.weight' is missing"),
        ({"model.layers.7.mlp.up_proj.weight": torch.ones(2)}, "'model.layers.7.mlp.up_proj.weight' is not one"),
        ({"model.norm.weight": torch.ones(3)}, "must fit its config.json .*final_norm"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, changes: dict[str, Tensor | None], message: str):
    export_llama(Llama(TINY), tmp_path)
    file = tmp_path / "model.safetensors"
    write_safetensors(file, {name: one for name, one in (read_safetensors(file) | changes).items() if one is not None})
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        import_llama(tmp_path)


@pytest.mark.parametrize("is_tied", [False, True])
def test_transformers_computes_the_same_logits_in_both_directions(tmp_path: Path, is_tied: bool):
    transformers: Any = pytest.importorskip("transformers")
    config = LlamaConfig(2, 12, 4, 50, 16, 20, is_tied, 2, 6, 100.0)
    model = Llama(config, seed=3)
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(5)
    export_llama(model, tmp_path / "ours")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS), rtol=1e-4, atol=1e-5)
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": is_tied}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, initializer_range=0.3)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    torch.testing.assert_close(import_llama(tmp_path / "theirs")(TOKENS), theirs(TOKENS).logits, rtol=1e-4, atol=1e-4)
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="2KB")
    assert (tmp_path / "parts" / "model.safetensors.index.json").exists()
    torch.testing.assert_close(import_llama(tmp_path / "parts")(TOKENS), theirs(TOKENS).logits, rtol=1e-4, atol=1e-4)
