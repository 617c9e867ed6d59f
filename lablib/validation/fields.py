"""Fields of a row: name, kind, plausible range and unit of each, with an error for other values."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

COUNT, NUMBER, TEXT, FLAG, ANY = "a whole number", "a number", "text", "true or false", "anything"


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its kind, the plausible range of a number, and its unit."""

    kind: str
    minimum: float = 1
    maximum: float = 1e9
    unit: str = ""

    def rule(self) -> str:
        """The field in words: "a whole number from 1 to 10,000"."""
        if self.kind not in (COUNT, NUMBER):
            return self.kind
        return f"{self.kind} from {self.minimum:,g} to {self.maximum:,g}{self.unit and ' ' + self.unit}"


def _counts(names: str, maximum: float) -> dict[str, Field]:
    return {name: Field(COUNT, 1, maximum) for name in names.split()}


def _texts(names: str) -> dict[str, Field]:
    return {name: Field(TEXT) for name in names.split()}


_SHARE = Field(NUMBER, 1e-4, 1, "(a share of the peak: 0.43, not 43)")
_TFLOPS = Field(NUMBER, 0.01, 2e4, "TFLOP/s")
_RATE = Field(NUMBER, 1e-3, 1e10, "tokens a second")
_MEMORY = Field(NUMBER, 0.05, 1000, "of that unit for one GPU")

FIELDS: Mapping[str, Mapping[str, Field]] = {
    "": _texts(
        "id attention_flops date dispatcher graphs how_read kind notes optimizer precision recompute schedule software "
        "stack"
    )
    | {"scorable": Field(FLAG)},
    "model": _counts("layers experts experts_per_token shared_experts dense_layers mtp_layers", 10_000)
    | _counts("hidden heads kv_heads head_dim ffn expert_ffn vocab", 10_000_000)
    | _counts("seq", 100_000_000)
    | {"expert_imbalance": Field(NUMBER, 1, 1000, "(tokens of the busiest rank over the mean)")}
    | {"name": Field(TEXT), "params": Field(COUNT, 1000, 1e15), "params_b": Field(ANY)},
    "hardware": _texts("gpu interconnect cluster")
    | _counts("gpus nodes", 10_000_000)
    | _counts("gpus_per_node", 100_000),
    "parallel": _counts("dp tp pp cp ep etp model_parallel zero_shard_group", 10_000_000)
    | _counts("vpp", 10_000)
    | {
        "sequence_parallel": Field(FLAG),
        "ep_overlap": Field(FLAG),
        "zero_stage": Field(COUNT, 0, 3),
        "fsdp": Field(ANY),
        "offload": Field(TEXT),
    },
    "batch": _counts("global micro local grad_accum", 100_000_000),
    "measured": {
        "iteration_s": Field(NUMBER, 1e-5, 1e5, "s"),
        "tokens_per_s": _RATE,
        "tokens_per_s_per_gpu": _RATE,
        "model_tflops_per_gpu": _TFLOPS,
        "hw_tflops_per_gpu": _TFLOPS,
        "mfu": _SHARE,
        "hfu": _SHARE,
        "pct_peak": _SHARE,
        "memory_gib_per_gpu": _MEMORY,
        "memory_gb_per_gpu": _MEMORY,
    },
    "source": _texts("title url"),
}
# Fields for readers only: no prediction depends on them. `graphs` describes one CUDA graph, which is not modelled
# (doubts.py). Of several times in `measured` the first in the order of measured.py counts.
LABELS = ("graphs", "how_read", "kind", "hardware.cluster")
# A flag as text or as a number; and fields of text that some sources write as a flag.
_SWITCHED = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SWITCHES = ("recompute", "parallel.offload")
# Synonyms of fields, mainly of experts, which every table names differently.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "model": {
        **dict.fromkeys(("num_experts", "n_experts", "moe_experts"), "experts"),
        **dict.fromkeys(("top_k", "topk", "moe_top_k", "active_experts", "experts_active"), "experts_per_token"),
        **dict.fromkeys(("moe_ffn", "expert_hidden", "moe_hidden", "ffn_expert", "ffn_moe"), "expert_ffn"),
        **dict.fromkeys(("shared_expert", "n_shared_experts", "num_shared_experts"), "shared_experts"),
        **dict.fromkeys(("d_head", "head_size", "kv_channels"), "head_dim"),
    },
    "parallel": {"vp": "vpp"},
    "batch": {"gbs": "global", "mbs": "micro", "ga": "grad_accum"},
}
SECTIONS = tuple(name for name in FIELDS if name)
# The sizes of a model: all are required, or only a name that architecture.py has.
SIZES = ("layers", "hidden", "vocab")


def by_usual_names(section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a section under the names of FIELDS. Raises ValueError for a field stated under two names."""
    usual: dict[str, Any] = {}
    for key, value in given.items():
        name = ALIASES.get(section, {}).get(key, key)
        if name in usual and usual[name] != value:
            raise ValueError(f"field {path_of(section, name)}: stated under two names, one is {key}; leave one")
        usual[name] = value
    return usual


def unknown(section: str, given: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """Unknown fields. Raises ValueError for a field with nearly the name of a known field that is missing."""
    names = list(known)
    strangers = [key for key in given if key not in names]
    for key in strangers:
        near = _nearest(key, [name for name in names if name not in given])
        if near:
            raise ValueError(f"field {path_of(section, key)}: unknown; did you mean {path_of(section, near)}?")
    return [path_of(section, key) for key in strangers]


def _nearest(key: str, names: Iterable[str]) -> str | None:
    """The name that `key` is most likely a misspelling of; None if it looks like another word."""
    scored = [(SequenceMatcher(None, key.lower(), name).ratio(), name) for name in names]
    ratio, name = max(scored, default=(0.0, ""))
    return name if ratio >= 0.8 else None


def checked(section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The known fields of a section. Raises ValueError for a value of another kind or out of range."""
    return {key: _value(section, key, value) for key, value in given.items() if key in FIELDS[section]}


def _value(section: str, key: str, value: Any) -> Any:
    rule = FIELDS[section][key]
    if (section, key) == ("model", "params_b"):
        return billions(value)
    if rule.kind == FLAG and str(value).lower() in _SWITCHED:
        value = _SWITCHED[str(value).lower()]
    if path_of(section, key) in _SWITCHES and isinstance(value, bool):
        value = str(value).lower()
    kinds = {COUNT: int, NUMBER: (int, float), TEXT: str, FLAG: bool, ANY: object}
    if rule.kind == COUNT and isinstance(value, float) and value.is_integer():
        value = int(value)
    is_right_type = isinstance(value, kinds[rule.kind]) and (rule.kind in (FLAG, ANY) or not isinstance(value, bool))
    if not is_right_type or (rule.kind in (COUNT, NUMBER) and not rule.minimum <= value <= rule.maximum):
        raise ValueError(f"field {path_of(section, key)}: must be {rule.rule()}: got {shown(value)}")
    return value


def billions(value: Any) -> float:
    """Billions of parameters, from a number of them or from text. Raises ValueError for other values.

    >>> billions(7.1), billions("175b"), billions("1t"), billions("181B"), billions("350m")
    (7.1, 175.0, 1000.0, 181.0, 0.35)
    """
    a_billion = {"b": 1, "t": 0.001, "m": 1000}
    try:
        text = str(value).strip().lower()
        number = float(text[:-1]) / a_billion[text[-1]] if text[-1:] in a_billion else float(text)
    except ValueError:
        number = -1.0
    if isinstance(value, bool) or not 1e-6 <= number <= 1e6:
        raise ValueError(f'field model.params_b: must be billions of parameters, 7.1 or "7.1b": got {shown(value)}')
    return number


def path_of(section: str, key: str) -> str:
    """A field's name in errors: "model.layers"."""
    return f"{section}.{key}" if section else key


def shown(value: Any) -> str:
    """A value in errors: as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
