"""Sizes of GPTs by name: published ones, and small ones for the labs.

The GPT-3 rows are Table 2.1 of the paper, with two of its figures corrected, because heads x head width must be the
model's width: "XL" is printed with 24 heads of 128 for a width of 2048 (16 give its 1.3B parameters), and "13B" with a
width of 5140 for 40 heads of 128 (5120). GPT-2 counts come from the released checkpoints; the paper's table is too
low (117M for 124M).

Sources: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, Table 2;
Brown et al., "Language Models are Few-Shot Learners", 2020, arXiv 2005.14165, Table 2.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from lablib.errors import unknown_name
from lablib.models.sizes import GPTConfig
from lablib.signature import checked

_OURS = "lablib: a byte-level model for the labs"
_GPT2 = "Radford et al. 2019, Table 2"
_GPT3 = "Brown et al. 2020, arXiv 2005.14165, Table 2.1"


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model by name: its sizes and their source."""

    name: str
    config: GPTConfig
    source: str


def _lab(name: str, num_layers: int, d_model: int, num_heads: int) -> ModelRecord:
    return ModelRecord(name, GPTConfig(num_layers, d_model, num_heads, vocab_size=256, max_seq_len=256), _OURS)


def _gpt2(name: str, num_layers: int, d_model: int, num_heads: int) -> ModelRecord:
    return ModelRecord(name, GPTConfig(num_layers, d_model, num_heads, max_seq_len=1024), _GPT2)


def _gpt3(name: str, num_layers: int, d_model: int, num_heads: int) -> ModelRecord:
    return ModelRecord(name, GPTConfig(num_layers, d_model, num_heads, max_seq_len=2048), _GPT3)


_RECORDS = (
    #     name            layers  width  heads
    _lab("tiny", 2, 64, 4),
    _lab("mini", 4, 128, 4),
    _lab("small", 8, 256, 8),
    _gpt2("gpt2", 12, 768, 12),
    _gpt2("gpt2-medium", 24, 1024, 16),
    _gpt2("gpt2-large", 36, 1280, 20),
    _gpt2("gpt2-xl", 48, 1600, 25),
    _gpt3("gpt3-125m", 12, 768, 12),
    _gpt3("gpt3-350m", 24, 1024, 16),
    _gpt3("gpt3-760m", 24, 1536, 16),
    _gpt3("gpt3-1.3b", 24, 2048, 16),
    _gpt3("gpt3-2.7b", 32, 2560, 32),
    _gpt3("gpt3-6.7b", 32, 4096, 32),
    _gpt3("gpt3-13b", 40, 5120, 40),
    _gpt3("gpt3-175b", 96, 12288, 96),
)

MODELS: Mapping[str, ModelRecord] = MappingProxyType({record.name: record for record in _RECORDS})


@checked
def model_config(name: str, **changes: Any) -> GPTConfig:
    """The sizes of a model in the catalogue, with changes: `model_config("tiny", num_layers=8)`.

    ValueError: an unknown name (the nearest ones are given), or the changed sizes do not fit together.
    """
    if name not in MODELS:
        raise unknown_name("model", name, list(MODELS))
    return replace(MODELS[name].config, **changes)
