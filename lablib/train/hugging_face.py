"""Weights of GPT-2 in the files of Hugging Face: config.json and model.safetensors, written and read.

GPT-2 stores query, key and value as one matrix, and the matrices of its layers transposed (its class Conv1D multiplies
x w, while nn.Linear multiplies x w^T):

    lablib                                      transformers                     shape there
    token_embedding, position_embedding         wte, wpe                         [V, D], [P, D]
    blocks.N.attention_norm, mlp_norm           h.N.ln_1, ln_2                   [D]
    blocks.N.attention.query, key, value        h.N.attn.c_attn                  [D, 3 D]
    blocks.N.attention.out                      h.N.attn.c_proj                  [D, D]
    blocks.N.mlp.up, mlp.down                   h.N.mlp.c_fc, c_proj             [D, F], [F, D]
    final_norm, head                            ln_f, lm_head                    [D], [V, D]; a tied head is not stored

Legend: D width, F hidden width, V vocabulary, P positions.
Source: GPT2LMHeadModel of transformers 5.24; the files of openai-community/gpt2, which have no prefix "transformer."
and contain the masks h.N.attn.bias.
Simplified: one file, in the dtype of the model; no experts (Mixtral). Llama is in hugging_face_llama.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lablib.configs.hugging_face import read_hugging_face
from lablib.models import GPT, GPTConfig, Llama, LlamaConfig
from lablib.parallel.experts.layer import mixtures
from lablib.signature import checked, shown
from lablib.text.files import write_text
from lablib.train.safetensors import read_safetensors, write_safetensors

_PREFIX = "transformer."
_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers in old files
_OF_LAYER = {  # transformers' name: ours, of which one matrix there holds several
    "ln_1": ("attention_norm",),
    "attn.c_attn": ("attention.query", "attention.key", "attention.value"),
    "attn.c_proj": ("attention.out",),
    "ln_2": ("mlp_norm",),
    "mlp.c_fc": ("mlp.up",),
    "mlp.c_proj": ("mlp.down",),
}


@checked
def export_gpt2(model: GPT, folder: str | Path) -> None:
    """Write a model for `GPT2LMHeadModel.from_pretrained(folder)`. Makes a missing folder. ValueError: experts."""
    config, folder, weights = model.config, Path(folder), dense_weights(model)
    stored = {
        theirs: torch.cat([weights[name].T if is_transposed else weights[name] for name in ours], dim=-1)
        for theirs, ours, is_transposed in _names(config)
    }
    settings = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.max_seq_len,
        "n_embd": config.d_model,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.hidden_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": model.final_norm.eps,
        "tie_word_embeddings": config.tied_head,
    }
    write_text(folder / "config.json", json.dumps(settings, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", stored)


@checked
def import_gpt2(folder: str | Path) -> GPT:
    """Read a GPT-2 of transformers, in the dtype of the file.

    ValueError: another kind of model, or tensors that are missing, unknown or of another shape.
    """
    folder = Path(folder)
    sizes = read_hugging_face(folder).record
    if not sizes.has_bias or sizes.positions != "learned":
        raise ValueError(f"model_type must be gpt2: got {sizes.source} in {folder}; give the folder of a GPT-2.")
    shape = (sizes.num_layers, sizes.d_model, sizes.num_heads, sizes.vocab_size, sizes.max_seq_len, sizes.d_ff)
    config = GPTConfig(*shape, sizes.tied_head)
    stored = read_safetensors(folder / "model.safetensors")
    stored = {f"{_PREFIX * (not name.startswith((_PREFIX, 'lm_head.')))}{name}": one for name, one in stored.items()}
    if config.tied_head:
        stored.pop("lm_head.weight", None)
    weights: dict[str, Tensor] = {}
    for theirs, ours, is_transposed in _names(config):
        if theirs not in stored:
            raise ValueError(f"model.safetensors must have all tensors of a GPT-2: {theirs} is missing in {folder}.")
        parts = stored.pop(theirs).chunk(len(ours), dim=-1)
        weights |= {name: part.T if is_transposed else part for name, part in zip(ours, parts, strict=True)}
    if odd := [name for name in stored if not name.endswith(_MASKS)]:
        raise ValueError(f"model.safetensors must have only tensors of a GPT-2: got {shown(odd[0])} in {folder}.")
    return with_weights(GPT, config, weights, folder)


def dense_weights(model: GPT | Llama) -> dict[str, Tensor]:
    """The weights by our names. ValueError: a model with experts, as the files of GPT-2 and Llama have MLPs."""
    if mixture := next(mixtures(model), None):
        rule = "a model in the files of a GPT-2 or Llama must have MLPs"
        raise ValueError(f"{rule}: got {mixture.config.num_experts} experts; take Checkpoints, or a model without them")
    return model.state_dict()


def with_weights(kind: type[Any], config: GPTConfig | LlamaConfig, weights: dict[str, Tensor], folder: Path) -> Any:
    """A model of these weights, by our names, in their dtype. ValueError: other names or shapes."""
    model = kind(config, dtype=weights["token_embedding.weight"].dtype, device="meta")
    if config.tied_head:
        weights["head.weight"] = weights["token_embedding.weight"]
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(f"model.safetensors must fit its config.json in {folder}: {error}") from None
    if config.tied_head:
        model.head.weight = model.token_embedding.weight
    return model


def _names(config: GPTConfig) -> Iterator[tuple[str, list[str], bool]]:
    """Each stored tensor: its name, our names, and whether it is transposed."""
    yield f"{_PREFIX}wte.weight", ["token_embedding.weight"], False
    yield f"{_PREFIX}wpe.weight", ["position_embedding.weight"], False
    for layer in range(config.num_layers):
        for theirs, ours in _OF_LAYER.items():
            for kind in ("weight", "bias"):
                names = [f"blocks.{layer}.{one}.{kind}" for one in ours]
                yield f"{_PREFIX}h.{layer}.{theirs}.{kind}", names, kind == "weight" and "ln" not in theirs
    for kind in ("weight", "bias"):
        yield f"{_PREFIX}ln_f.{kind}", [f"final_norm.{kind}"], False
    if not config.tied_head:
        yield "lm_head.weight", ["head.weight"], False
