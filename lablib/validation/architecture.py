"""Transformer of a row: its stated sizes, and rules for sizes that are not stated.

A1  Stated sizes are used. ffn not stated: 4 x hidden, with a gated MLP 8/3 x hidden, as a multiple of 256 (Touvron et
    al., Llama, 2023, arXiv 2302.13971, section 2.2). kv_heads not stated: equal to heads.
A2  The name determines the kind. Llama and its successors (GATED): SwiGLU, rotary positions, RMS norm, no biases, a
    separate head. GPT and its successors (NOT_GATED): GELU, learned positions, layer norm, biases, a tied head; BLOOM
    the same with ALiBi. Any other name: as Llama if ffn is stated and is not 4 x hidden, or if only an MLP of three
    matrices gives the stated count of parameters, to 8%; otherwise as GPT.
A3 An exact parameter count (`params`) determines whether the head is tied, positions are learned and there are biases:
    the combination with this count. A rounded count (`params_b`) decides only about the head, and only if its printed
    digits are enough.
A4 A mixture of experts with a known name (models/published.py, and MORE below) gets its experts, its latent and the
    width of its heads and its window from there; a row that states only a known name gets all sizes from there.
A5  Megatron pads the vocabulary to a multiple of 128 x tensor parallel ranks (its default); other software does not.
A6  Heads not stated: the divisor of the width, and multiple of the tensor parallel ranks, nearest to heads of 128.
A7 Layers that predict further tokens (mtp_layers: DeepSeek-V3, arXiv 2412.19437, section 2.2) are additional layers;
    their projection and their pass through the head are not counted.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from types import MappingProxyType
from typing import Any

from lablib.models import TRANSFORMERS, Experts, Transformer, Window, transformer_parameters
from lablib.validation.fields import SIZES
from lablib.validation.rows import PublishedRow
from lablib.validation.synonyms import is_named

GATED = (
    *("llama", "mixtral", "mistral", "qwen", "deepseek", "kimi", "gptoss", "grok", "gemma", "internlm", "baichuan"),
    *("vicuna", "olmo", "smollm", "phi3", "phi4", "chatglm", "glm4", "palm", "minicpm", "stablelm", "yi6b", "yi34b"),
)
NOT_GATED = (
    *("gpt", "mpt", "opt", "bloom", "turing", "mtnlg", "neox", "pythia", "falcon", "galactica", "starcoder", "phi2"),
    *("megatron", "cerebras", "nemotron"),
)
GPT_KIND: Mapping[str, Any] = {
    "activation": "gelu",
    "positions": "learned",
    "norm": "layer",
    "has_bias": True,
    "tied_head": True,
}
LLAMA_KIND: Mapping[str, Any] = {
    "activation": "swiglu",
    "positions": "rotary",
    "norm": "rms",
    "has_bias": False,
    "tied_head": False,
}
# Layers that are not attention (state space models): the planner has no price for them. Nemotron-H, Nemotron Nano and
# Nemotron 3 have such layers; Nemotron-340B, Nemotron-3-8B (2023) and Nemotrons made from a Llama do not.
NOT_TRANSFORMERS = re.compile(
    r"mamba|jamba|hyena|qwen3[ _-]?next(?![a-z])|nemotron[ _-]?h(?![a-z])|^(?!.*llama).*nemotron[ _-]?nano"
    r"|nemotron[ _-]?3(?!\d|[ _-]?(8|22)b)"
)
# Conventions that a source states once for all its tables.
HEADS_BY_SOURCE: Mapping[str, int] = MappingProxyType({"bigscience": 64})
_COUNT_ERROR = 0.08  # of a stated count of parameters, often rounded or without embeddings
_SOURCE = "config.json of the released weights, from memory, not verified"
_OSS = replace(
    TRANSFORMERS["llama-3-8b"],
    d_model=2880,
    num_heads=64,
    num_kv_heads=8,
    d_head=64,
    d_ff=2880,
    vocab_size=201088,
    has_bias=True,
    source=_SOURCE,
)
MORE = (
    replace(_OSS, name="gpt-oss-20b", num_layers=24, experts=Experts(32, 4, 2880)),
    replace(_OSS, name="gpt-oss-120b", num_layers=36, experts=Experts(128, 4, 2880)),
    replace(
        TRANSFORMERS["deepseek-v3"],
        name="kimi-k2",
        num_heads=64,
        num_kv_heads=64,
        vocab_size=163840,
        experts=Experts(384, 8, 2048, 1, 1),
        source=_SOURCE,
    ),
)


def transformer_of(row: PublishedRow, pads_vocabulary: bool) -> Transformer:
    """The model of a row, by the rules above. ValueError: sizes that do not fit together, or an unknown model's."""
    name = squeezed(row.model.get("name", ""))
    if NOT_TRANSFORMERS.search(row.model.get("name", "").lower()):
        raise ValueError(f"{row.model['name']} has layers that are not attention, which are not modelled; leave it out")
    known = _known(name)
    if not any(size in row.model for size in SIZES):
        if known is None:
            raise ValueError(f"the sizes of {row.model['name']!r} are not stated, and not known here")
        model = replace(known, max_seq_len=row.model["seq"])
    else:
        model = _stated(row, name, known)
    model = replace(model, num_layers=model.num_layers + row.model.get("mtp_layers", 0))
    if not pads_vocabulary:
        return model
    multiple = 128 * row.parallel.get("tp", 1)  # rule A5
    return replace(model, vocab_size=-(-model.vocab_size // multiple) * multiple)


def squeezed(name: str) -> str:
    """A name without punctuation, except the point of a number; Llama 3.1 has the sizes of Llama 3.

    >>> squeezed("Llama3.1-70B"), squeezed("llama 3 70b"), squeezed("GPT-3 1.3B")
    ('llama370b', 'llama370b', 'gpt31.3b')
    """
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]", "", name.lower()).replace("llama3.1", "llama3")


@lru_cache(maxsize=1024)
def _known(name: str) -> Transformer | None:
    """The published model with the longest name that is part of this one."""
    models = {squeezed(model.name): model for model in (*TRANSFORMERS.values(), *MORE)}
    # A number ends at a non-digit: "gpt2" is not part of "gpt20b" or "gpt2.7b".
    sized = [key for key in models if re.search(r"\d", key)]
    names = [key for key in sized if re.search(rf"{re.escape(key)}(?!(?<=\d)\.?\d+[bm])", name)]
    return models[max(names, key=len)] if names else None


def _stated(row: PublishedRow, name: str, known: Transformer | None) -> Transformer:
    """Rules A1 to A4 and A6: the sizes of the row, the rest by its name and its parameter count."""
    model = row.model
    heads = model.get("heads") or (known.num_heads if known else unstated_heads(row))
    make = partial(_transformer, row, known, heads)
    is_gated = _is_gated(model, name, make)
    transformer = make(is_gated)
    if known and known.experts:
        transformer = replace(
            transformer,
            d_ff=known.d_ff,
            latent=known.latent,
            d_head=model.get("head_dim", known.d_head),
            num_kv_heads=model.get("kv_heads", known.num_kv_heads),
            has_bias=known.has_bias,
            window=_window_of(known, transformer.num_layers),
        )
    elif "params" in model or "params_b" in model:
        transformer = _nearest_to_count(transformer, row)
    return transformer


def _window_of(known: Transformer, layers: int) -> Window | None:
    """The known model's window, in the same share of a model's layers."""
    if known.window is None:
        return None
    return replace(known.window, num_layers=round(layers * known.num_window_layers / known.num_layers))


def _is_gated(model: Mapping[str, Any], name: str, make: Callable[[bool], Transformer]) -> bool:
    """Rule A2: whether the MLP has three matrices."""
    if any(word in name for word in GATED):
        return True
    if any(word in name for word in NOT_GATED):
        return False
    if "ffn" in model and model["ffn"] != 4 * model["hidden"]:
        return True
    count = model.get("params") or model.get("params_b", 0) * 1e9
    errors = {
        gated: abs(transformer_parameters(make(gated)).total / count - 1) if count else 1.0 for gated in (False, True)
    }
    return errors[True] <= _COUNT_ERROR < errors[False]


def _transformer(row: PublishedRow, known: Transformer | None, heads: int, is_gated: bool) -> Transformer:
    model, kind = row.model, dict(LLAMA_KIND if is_gated else GPT_KIND)
    if "bloom" in squeezed(model.get("name", "")) or is_named(row.source.get("title", "").lower(), "bloom"):
        kind["positions"] = "alibi"
    usual = gated_width(model["hidden"]) if is_gated and not model.get("experts") else None
    return Transformer(
        name=model.get("name", row.id),
        num_layers=model["layers"],
        d_model=model["hidden"],
        num_heads=heads,
        num_kv_heads=model.get("kv_heads"),
        vocab_size=model["vocab"],
        max_seq_len=model["seq"],
        d_ff=model.get("ffn", usual),
        d_head=model.get("head_dim"),
        experts=_experts(model, known.experts if known else None),
        source=row.source.get("url", ""),
        **kind,
    )


def gated_width(hidden: int) -> int:
    """Hidden width of a gated MLP with as many parameters as one of 4 x hidden without a gate, rounded as in Llama.

    >>> gated_width(4096), gated_width(5120)
    (11008, 13824)
    """
    return -(-int(8 * hidden / 3) // 256) * 256


def _experts(model: Mapping[str, Any], known: Experts | None) -> Experts | None:
    """The experts of a row: stated sizes, the rest from the known model of that name."""
    stated = {
        "num_experts": model.get("experts"),
        "num_active": model.get("experts_per_token"),
        "d_ff": model.get("expert_ffn"),
        "num_shared": model.get("shared_experts"),
        "num_dense_layers": model.get("dense_layers"),
        "imbalance": float(model["expert_imbalance"]) if "expert_imbalance" in model else None,
    }
    stated = {name: value for name, value in stated.items() if value is not None}
    if known:
        # A model with fewer layers keeps a layer with experts.
        dense = {"num_dense_layers": min(known.num_dense_layers, model["layers"] - 1)}
        return replace(known, **(dense | stated))
    if model.get("experts", 1) == 1:
        return None
    usual = {"num_active": 2, "d_ff": model.get("ffn", 4 * model["hidden"])}
    return Experts(**(usual | stated))


def unstated_heads(row: PublishedRow) -> int:
    """Rule A6."""
    title = f"{row.source.get('title', '')} {row.source.get('url', '')}".lower()
    said = next((heads for word, heads in HEADS_BY_SOURCE.items() if word in title), None)
    if said and row.model["hidden"] % said == 0:
        return said
    return likely_heads(row.model["hidden"], row.parallel.get("tp", 1))


def likely_heads(hidden: int, tensor: int) -> int:
    """The number of heads with width nearest to 128 that divides the width and that `tensor` ranks can share.

    >>> likely_heads(4096, 1), likely_heads(14400, 8)
    (32, 120)
    """
    fitting = [heads for heads in range(tensor, hidden + 1, tensor) if hidden % heads == 0]
    return min(fitting or [1], key=lambda heads: (abs(heads - hidden / 128), heads))


def _nearest_to_count(model: Transformer, row: PublishedRow) -> Transformer:
    """Rule A3."""
    heads, positions, biases = (model.tied_head, not model.tied_head), (model.positions,), (model.has_bias,)
    if "params" in row.model:
        count, slack = row.model["params"], 0.5
        positions = (model.positions, "rotary" if model.positions == "learned" else "learned")
        biases = (model.has_bias, not model.has_bias)
    else:
        billions = row.model["params_b"]
        count, slack = billions * 1e9, 0.5e9 if billions == int(billions) else 0.05e9  # "175" means 174.5 to 175.5
    choices = [
        replace(model, tied_head=head, positions=position, has_bias=bias)
        for head, position, bias in product(heads, positions, biases)
    ]
    # The first choice is by name: it stays unless the count clearly excludes it.
    return min(choices, key=lambda choice: max(0.0, abs(transformer_parameters(choice).total - count) - slack))
