"""Published transformers by name: their sizes for a planner, and the sources.

`find_transformer("llama-3-8b")` is a `Transformer`; the names of catalogue.py ("tiny", "gpt2-xl", "gpt3-175b") work
too. Vocabulary sizes are the weights', with padding: 51,200 for Megatron's GPTs. `max_seq_len` is the length of
pretraining, where it is known, not the longest that rotary positions allow later.

Not modelled: the norm after BLOOM's embedding (28,672 parameters), Qwen3's norms of queries and keys (256 per layer),
the second prediction module of DeepSeek-V3 (11.5B). Every second layer of Llama 4 Maverick is dense. The MPT rows are
from llm-foundry's table of throughput, with learned positions and biases; the released MPT-7B and MPT-30B have neither.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lablib.errors import unknown_name
from lablib.models.catalogue import MODELS
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Experts, Latent, Transformer, Window
from lablib.signature import checked

_SC21 = "Narayanan et al. 2021, arXiv 2104.04473, Table 1"
_KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198, Table 3"
_MPT = "github.com/mosaicml/llm-foundry, scripts/train/benchmarking: parameters of its rows"
_LLAMA2 = "Touvron et al. 2023, arXiv 2307.09288; config.json of the released weights"
_LLAMA3 = "Grattafiori et al. 2024, arXiv 2407.21783, Table 3; config.json of the released weights"
_PALM = "Chowdhery et al. 2022, arXiv 2204.02311, Table 1"
_DEEPSEEK = "github.com/deepseek-ai/DeepSeek-V3, inference/configs"
_QWEN3 = "Yang et al. 2025, arXiv 2505.09388, Tables 1 and 2; config.json of the released weights"


def _gpt(name: str, num_layers: int, d_model: int, num_heads: int, vocab_size: int, source: str) -> Transformer:
    return Transformer(name, num_layers, d_model, num_heads, vocab_size, max_seq_len=2048, source=source)


def _megatron(name: str, num_layers: int, d_model: int, num_heads: int, source: str = _SC21) -> Transformer:
    return _gpt(f"megatron-{name}", num_layers, d_model, num_heads, 51200, source)


def _mpt(name: str, num_layers: int, d_model: int, num_heads: int) -> Transformer:
    return _gpt(f"mpt-{name}", num_layers, d_model, num_heads, 50368, _MPT)


def _llama(
    name: str, num_layers: int, d_model: int, num_heads: int, num_kv_heads: int, d_ff: int, **sizes
) -> Transformer:
    """The usual modern architecture: grouped queries, SwiGLU, rotary positions, RMS norm, no biases, an untied head."""
    usual: dict[str, Any] = {
        "num_kv_heads": num_kv_heads,
        "d_ff": d_ff,
        "activation": "swiglu",
        "positions": "rotary",
        "norm": "rms",
        "has_bias": False,
        "tied_head": False,
    }
    sizes = usual | sizes
    return Transformer(name, num_layers, d_model, num_heads, **sizes)


def _palm(name: str, num_layers: int, d_model: int, num_heads: int) -> Transformer:
    sizes = {"vocab_size": 256000, "max_seq_len": 2048, "d_head": 256, "tied_head": True, "source": _PALM}
    return _llama(f"palm-{name}", num_layers, d_model, num_heads, 1, 4 * d_model, block="shared norm", **sizes)


_L2 = {"vocab_size": 32000, "max_seq_len": 4096, "source": _LLAMA2}
_L3 = {"vocab_size": 128256, "max_seq_len": 8192, "source": _LLAMA3}
_L4: dict[str, Any] = {
    "vocab_size": 202048,
    "max_seq_len": 8192,
    "window": Window(8192, 36, is_chunked=True),
    "source": "config.json of meta-llama/Llama-4-Scout-17B-16E and Llama-4-Maverick-17B-128E",
}
_MISTRAL: dict[str, Any] = {
    "vocab_size": 32000,
    "max_seq_len": 8192,
    "window": Window(4096),
    "source": "Jiang et al. 2023, arXiv 2310.06825, Table 1",
}
_MIXTRAL = {"vocab_size": 32000, "max_seq_len": 32768, "source": "Jiang et al. 2024, arXiv 2401.04088, Table 1"}
_MIXTRAL_22 = {"vocab_size": 32000, "max_seq_len": 65536, "source": "config.json of the released weights"}
_Q3 = {"vocab_size": 151936, "max_seq_len": 4096, "d_head": 128, "source": _QWEN3}
_V2 = {"vocab_size": 102400, "max_seq_len": 4096, "source": _DEEPSEEK}
_V3 = {"vocab_size": 129280, "max_seq_len": 4096, "source": _DEEPSEEK}
_MLA = Latent(query_rank=1536, kv_rank=512, d_rotary=64, d_plain=128, d_value=128)
_MLA_LITE = Latent(query_rank=0, kv_rank=512, d_rotary=64, d_plain=128, d_value=128)
_BLOOM = "Le Scao et al. 2022, arXiv 2211.05100, Table 3; model card of bigscience/bloom"

_RECORDS = (
    *(replace(Transformer.of(record.config, name), source=record.source) for name, record in MODELS.items()),
    #          name      layers  width  heads
    _megatron("1.7b", 24, 2304, 24),
    _megatron("3.6b", 30, 3072, 32),
    _megatron("7.5b", 36, 4096, 32),
    _megatron("18.4b", 40, 6144, 48),
    _megatron("39.1b", 48, 8192, 64),
    _megatron("76.1b", 60, 10240, 80),
    _megatron("145.6b", 80, 12288, 96),
    _megatron("310.1b", 96, 16384, 128),
    _megatron("529.6b", 105, 20480, 128),
    _megatron("1008b", 128, 25600, 160),
    _megatron("22b", 48, 6144, 64, _KORTHIKANTI),
    _megatron("175b", 96, 12288, 96, _KORTHIKANTI),
    _gpt("mt-nlg-530b", 105, 20480, 128, 51200, "Smith et al. 2022, arXiv 2201.11990, section 3.2"),
    Transformer("bloom-176b", 70, 14336, 112, 250880, 2048, positions="alibi", source=_BLOOM),
    _mpt("125m", 12, 768, 12),
    _mpt("350m", 24, 1024, 16),
    _mpt("760m", 24, 1536, 12),
    _mpt("1b", 24, 2048, 16),
    _mpt("3b", 32, 2560, 20),
    _mpt("7b", 32, 4096, 32),
    _mpt("13b", 40, 5120, 40),
    _mpt("30b", 48, 7168, 56),
    _mpt("70b", 80, 8192, 64),
    _palm("8b", 32, 4096, 16),
    _palm("62b", 64, 8192, 32),
    _palm("540b", 118, 18432, 48),
    #      name          layers width heads kv  hidden
    _llama("llama-2-7b", 32, 4096, 32, 32, 11008, **_L2),
    _llama("llama-2-13b", 40, 5120, 40, 40, 13824, **_L2),
    _llama("llama-2-70b", 80, 8192, 64, 8, 28672, **_L2),
    _llama("llama-3-8b", 32, 4096, 32, 8, 14336, **_L3),
    _llama("llama-3-70b", 80, 8192, 64, 8, 28672, **_L3),
    _llama("llama-3-405b", 126, 16384, 128, 8, 53248, **_L3),
    _llama("mistral-7b", 32, 4096, 32, 8, 14336, **_MISTRAL),
    _llama("qwen3-8b", 36, 4096, 32, 8, 12288, **_Q3),
    # Mixtures of experts: d_ff is the hidden width of the dense layers at the bottom, if there are any.
    _llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, experts=Experts(8, 2, 14336), **_MIXTRAL),
    _llama("mixtral-8x22b", 56, 6144, 48, 8, 16384, experts=Experts(8, 2, 16384), **_MIXTRAL_22),
    _llama("llama-4-scout", 48, 5120, 40, 8, 16384, experts=Experts(16, 1, 8192, 1), **_L4),
    _llama("llama-4-maverick", 48, 5120, 40, 8, 16384, experts=Experts(128, 1, 8192, 1, 24), **_L4),
    _llama("qwen3-30b-a3b", 48, 2048, 32, 4, 6144, experts=Experts(128, 8, 768), **_Q3),
    _llama("qwen3-235b-a22b", 94, 4096, 64, 4, 12288, experts=Experts(128, 8, 1536), **_Q3),
    _llama("deepseek-v2-lite", 27, 2048, 16, 16, 10944, latent=_MLA_LITE, experts=Experts(64, 6, 1408, 2, 1), **_V2),
    _llama("deepseek-v2", 60, 5120, 128, 128, 12288, latent=_MLA, experts=Experts(160, 6, 1536, 2, 1), **_V2),
    _llama("deepseek-v3", 61, 7168, 128, 128, 18432, latent=_MLA, experts=Experts(256, 8, 2048, 1, 3), **_V3),
)

TRANSFORMERS: Mapping[str, Transformer] = MappingProxyType({model.name: model for model in _RECORDS})


@checked
def find_transformer(model: str | Transformer | GPTConfig) -> Transformer:
    """The transformer of that name; a `Transformer` is returned unchanged, a `GPTConfig` as the record of its sizes.

    ValueError: an unknown name (the nearest ones are given).
    """
    if isinstance(model, Transformer):
        return model
    if isinstance(model, GPTConfig):
        return Transformer.of(model)
    if not isinstance(model, str) or model not in TRANSFORMERS:
        raise unknown_name("model", model, list(TRANSFORMERS))
    return TRANSFORMERS[model]
