"""Models of torchtitan by name and flavor, as in its tables of model arguments.

    llama3        debugmodel, 8B, 70B, 405B
    llama4        17bx16e
    qwen3         debugmodel, 0.6B, 1.7B, 4B, 8B, 14B, 32B, debugmodel_moe, 30B-A3B, 235B-A22B
    deepseek_v3   debugmodel, 16B, 236B, 671B

Endings such as "_flex_attn" choose a kernel of attention with a mask within documents; the sizes are the same.

Source: github.com/pytorch/torchtitan at 238fa995 (2026-02-23), torchtitan/models/*/__init__.py and model/args.py: the
MLP of llama has 4 D * 2/3 * `ffn_dim_multiplier` hidden units, rounded up to `multiple_of`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lablib.configs.reading import Omission
from lablib.errors import unknown_name
from lablib.models import Experts, Latent, Transformer, find_transformer

_KERNELS = ("_flex_attn", "_varlen_attn", "_flex", "_varlen")
_CATALOGUE: Mapping[tuple[str, str], str] = MappingProxyType(
    {("llama3", size): f"llama-3-{size.lower()}" for size in ("8B", "70B", "405B")}
    | {("qwen3", size): f"qwen3-{size.lower()}" for size in ("8B", "30B-A3B", "235B-A22B")}
    | {("deepseek_v3", "16B"): "deepseek-v2-lite", ("deepseek_v3", "236B"): "deepseek-v2"}
    | {("deepseek_v3", "671B"): "deepseek-v3"}
)
_DEBUG_LATENT = Latent(query_rank=0, kv_rank=512, d_rotary=64, d_plain=128, d_value=128)
_SMALL = {"num_kv_heads": 8, "d_head": 128, "tied_head": True}
_WIDE = {"num_kv_heads": 8, "d_head": 128}
_TEST = {"vocab_size": 2048, "max_seq_len": 2048}
# (name, flavor) -> layers, width, heads, hidden width of the MLP, and others.
_SIZES: Mapping[tuple[str, str], tuple[int, int, int, int, Mapping[str, Any]]] = MappingProxyType(
    {
        ("llama3", "debugmodel"): (6, 256, 16, 768, _TEST),
        ("llama4", "17bx16e"): (
            *(48, 5120, 40, 16384),
            {"num_kv_heads": 8, "vocab_size": 202048, "experts": Experts(16, 1, 8192, 1)},
        ),
        ("qwen3", "debugmodel"): (8, 256, 16, 3072, _SMALL | _TEST),
        ("qwen3", "debugmodel_moe"): (8, 256, 16, 3072, _WIDE | _TEST | {"experts": Experts(64, 8, 768)}),
        ("qwen3", "0.6B"): (28, 1024, 16, 3072, _SMALL),
        ("qwen3", "1.7B"): (28, 2048, 16, 6144, _SMALL),
        ("qwen3", "4B"): (36, 2560, 32, 9728, _SMALL),
        ("qwen3", "14B"): (40, 5120, 40, 17408, _WIDE),
        ("qwen3", "32B"): (64, 5120, 64, 25600, _WIDE),
        ("deepseek_v3", "debugmodel"): (
            *(6, 256, 16, 1024),
            {**_TEST, "latent": _DEBUG_LATENT, "experts": Experts(8, 3, 256, 2, 1)},
        ),
    }
)
FLAVORS = (*_SIZES, *_CATALOGUE)
_USUAL = {"activation": "swiglu", "positions": "rotary", "norm": "rms", "has_bias": False, "tied_head": False}


def model_of(name: str, flavor: str, omissions: list[Omission]) -> Transformer:
    """The sizes of a flavor; parts that they leave out are appended to `omissions`.

    ValueError: an unknown name or flavor (the nearest ones are given).
    """
    if name not in {known for known, _ in FLAVORS}:
        raise unknown_name("model.name", name, sorted({known for known, _ in FLAVORS}))
    ending = next((ending for ending in _KERNELS if flavor.endswith(ending)), "")
    plain = flavor.removesuffix(ending) if ending else flavor
    if (name, plain) not in FLAVORS:
        raise unknown_name(f"model.flavor of {name}", flavor, [each for known, each in FLAVORS if known == name])
    model = sizes_of(name, plain)
    if ending or (name, plain) in _CATALOGUE and name == "deepseek_v3":
        omissions.append(Omission("attention only within documents: priced over the whole sequence"))
    if name == "qwen3":
        omissions.append(Omission("norms of queries and keys", model.num_layers * 2 * model.head_size))
    return model


def sizes_of(name: str, flavor: str) -> Transformer:
    """The sizes of a flavor of `FLAVORS`."""
    if (name, flavor) in _CATALOGUE:
        return find_transformer(_CATALOGUE[name, flavor])
    layers, width, heads, hidden, others = _SIZES[name, flavor]
    sizes = {"vocab_size": 151936, "max_seq_len": 4096, "d_ff": hidden, **_USUAL, **others}
    return Transformer(f"{name}-{flavor}", layers, width, heads, **sizes, source="torchtitan's model arguments")
