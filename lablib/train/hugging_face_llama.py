"""Weights of Llama in the files of Hugging Face: config.json and model.safetensors, written and read.

Both sides store a matrix as nn.Linear does, [out, in], and rotate the halves of a head, so only names differ:

    lablib                                      transformers                                  shape
    token_embedding                             model.embed_tokens                            [V, D]
    blocks.N.attention_norm, mlp_norm           model.layers.N.input_layernorm,
                                                post_attention_layernorm                      [D]
    blocks.N.attention.query, key, value        model.layers.N.self_attn.q_proj, k_, v_       [H K, D], [G K, D]
    blocks.N.attention.out                      model.layers.N.self_attn.o_proj               [D, H K]
    blocks.N.mlp.gate, up, down                 model.layers.N.mlp.gate_proj, up_, down_      [F, D], [D, F]
    final_norm, head                            model.norm, lm_head                           [D], [V, D]

A tied head is not stored. The files that Meta published rotate neighbours (x_2i, x_{2i+1}); transformers' script of
conversion has put the rows of q_proj and k_proj into the order of halves.

Legend: D width, H heads, G heads of keys and values, K width of a head, F hidden width, V vocabulary.
Source: LlamaForCausalLM of transformers 5.24 and convert_llama_weights_to_hf.py there.
Simplified: written as one file, in the dtype of the model; read from one or several. Biases, experts
(Mixtral) and scaled rotary angles (Llama 3.1 and later) are refused.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from lablib.configs.hugging_face import read_hugging_face
from lablib.configs.reading import read_json
from lablib.models import Llama, LlamaConfig
from lablib.signature import checked, fits, shown
from lablib.text.files import write_text
from lablib.train.hugging_face import dense_weights, with_weights
from lablib.train.safetensors import read_safetensors, write_safetensors

_INDEX = "model.safetensors.index.json"  # of several files
_TABLE = ".rotary_emb.inv_freq"  # a buffer in old files
_OF_LAYER = {  # transformers' name: ours
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


@checked
def export_llama(model: Llama, folder: str | Path) -> None:
    """Write a model for `LlamaForCausalLM.from_pretrained(folder)`. Makes a missing folder. ValueError: experts."""
    config, folder, weights = model.config, Path(folder), dense_weights(model)
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_seq_len,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "intermediate_size": config.hidden_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,  # of transformers before 5
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.tied_head,
    }
    write_text(folder / "config.json", json.dumps(settings, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", {theirs: weights[ours] for theirs, ours in _names(config)})


@checked
def import_llama(folder: str | Path) -> Llama:
    """Read a Llama of transformers, in the dtype of the file.

    ValueError: another kind of model, biases, scaled rotary angles, or tensors that are missing, unknown or of another
    shape.
    """
    folder = Path(folder)
    sizes, settings = read_hugging_face(folder).record, read_json(folder / "config.json")
    rope: dict[str, Any] = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    for name, found, wanted in (
        ("model_type", settings["model_type"], "llama"),
        ("attention_bias", settings.get("attention_bias", False), False),
        ("mlp_bias", settings.get("mlp_bias", False), False),
        ("hidden_act", settings.get("hidden_act", "silu"), "silu"),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), "default"),
    ):
        if found != wanted:
            raise ValueError(f"{name} must be {shown(wanted)}: got {shown(found)} in {folder}; give another model.")
    shape = (sizes.num_layers, sizes.d_model, sizes.num_heads, sizes.vocab_size, sizes.max_seq_len, sizes.d_ff)
    base, eps = rope.get("rope_theta", settings.get("rope_theta", 10_000.0)), settings.get("rms_norm_eps", 1e-6)
    heads = (sizes.num_kv_heads, sizes.d_head)
    config = LlamaConfig(*shape, sizes.tied_head, *heads, float(base), float(eps))
    stored = {name: tensor for name, tensor in _stored(folder).items() if not name.endswith(_TABLE)}
    if config.tied_head:
        stored.pop("lm_head.weight", None)
    names = dict(_names(config))
    if odd := sorted(stored.keys() ^ names.keys()):
        where = "is missing" if odd[0] in names else "is not one"
        raise ValueError(f"model.safetensors must have the tensors of a Llama: {shown(odd[0])} {where} in {folder}.")
    weights = {ours: stored[theirs] for theirs, ours in names.items()}
    return with_weights(Llama, config, weights, folder)


def _stored(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, of one file or of those in the index."""
    if not (folder / _INDEX).exists():
        return read_safetensors(folder / "model.safetensors")
    places: Any = read_json(folder / _INDEX).get("weight_map")
    if not fits(places, dict[str, str]):
        raise ValueError(f"{_INDEX} must have a weight_map of names to files: got {shown(places)}; get the file again.")
    files = sorted(set(places.values()))
    return {name: tensor for file in files for name, tensor in read_safetensors(folder / file).items()}


def _names(config: LlamaConfig) -> Iterator[tuple[str, str]]:
    """Each stored tensor: its name, and ours."""
    yield "model.embed_tokens.weight", "token_embedding.weight"
    for layer in range(config.num_layers):
        for theirs, ours in _OF_LAYER.items():
            yield f"model.layers.{layer}.{theirs}.weight", f"blocks.{layer}.{ours}.weight"
    yield "model.norm.weight", "final_norm.weight"
    if not config.tied_head:
        yield "lm_head.weight", "head.weight"
