"""Settings of the page: texts of its controls, as arguments of `predict`.

A link to the page holds the settings that differ from `DEFAULTS`, by these names.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lablib.configs.hugging_face import parse_hugging_face
from lablib.configs.reading import Reading
from lablib.hardware.catalogue import CLUSTERS
from lablib.models.published import TRANSFORMERS, find_transformer
from lablib.models.transformer import Experts, Transformer
from lablib.pipeline.closed_form import WITH_CLOSED_FORM
from lablib.pipeline.schedules import SCHEDULES
from lablib.plan.arguments import PRECISIONS
from lablib.plan.optimizers import OPTIMIZERS
from lablib.plan.parallel import SHARDING, Parallel
from lablib.plan.search_grid import RECOMPUTE
from lablib.plan.stack import STACKS

SIZES, CONFIG, OWN, ALL = "sizes by hand", "a config.json", "your own plan", "all"
_MODEL = {
    "model": "llama-3-70b",
    **{"layers": "32", "width": "4096", "heads": "32", "kv_heads": "8", "hidden": "14336", "vocabulary": "128256"},
    **{"positions": "8192", "activation": "swiglu", "experts": "0", "active": "2", "expert_hidden": "14336"},
    "config": "",
}
_SPLIT = {
    **{"cluster": "dgx-h100", "data": "8", "tensor": "8", "pipeline": "4", "context": "1", "expert": "1"},
    **{"expert_tensor": "", "chunks": "1", "zero_stage": "1"},
}
_STEP = {
    **{"batch": "512", "micro_batch": "1", "seq_len": "", "precision": "bfloat16", "recompute": "none"},
    **{"schedule": "1f1b", "optimizer": "adamw", "stack": ""},
}
_TRAINING = {"tokens": "1e12", "price": "2.5"}
_PIPELINE = {
    **{"follow": "yes", "p_schedule": "1f1b", "p_stages": "4", "p_microbatches": "8", "p_chunks": "1"},
    **{"p_forward": "1", "p_input": "1", "p_weight": "1", "p_send": "0", "p_overlap": "yes"},
    "p_own": "rank 0: F0 F1 F2 B0 F3 B1 B2 B3\nrank 1: F0 F1 B0 F2 B1 F3 B2 B3\nrank 2: F0 B0 F1 B1 F2 B2 F3 B3",
}
_SEARCH = {"schedules": ALL}
DEFAULTS: Mapping[str, str] = MappingProxyType({**_MODEL, **_SPLIT, **_STEP, **_TRAINING, **_PIPELINE, **_SEARCH})
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "model": (*TRANSFORMERS, SIZES, CONFIG),
        "activation": ("swiglu", "gelu"),
        "cluster": tuple(CLUSTERS),
        "zero_stage": tuple(map(str, SHARDING)),
        "precision": PRECISIONS,
        "recompute": RECOMPUTE,
        "schedule": WITH_CLOSED_FORM,
        "optimizer": tuple(OPTIMIZERS),
        "stack": ("", *STACKS),
        "p_schedule": (*SCHEDULES, OWN),
        "schedules": (ALL, "1f1b and the one above"),
    }
)
Settings = Mapping[str, str]


def arguments(settings: Settings) -> dict[str, Any]:
    """The arguments of `predict`. Raises ValueError: rule, value and remedy."""
    axes = ("data", "tensor", "pipeline", "context", "expert", "chunks")
    split: dict[str, Any] = {name: whole(settings, name) for name in axes}
    expert_tensor = whole(settings, "expert_tensor") if settings["expert_tensor"] else None
    return {
        "model": model_of(settings).record,
        "cluster": settings["cluster"],
        "parallel": Parallel(**split, expert_tensor=expert_tensor, zero_stage=whole(settings, "zero_stage", 0)),
        "batch": whole(settings, "batch"),
        "micro_batch": whole(settings, "micro_batch"),
        "seq_len": whole(settings, "seq_len") if settings["seq_len"] else None,
        **{name: settings[name] for name in ("precision", "recompute", "schedule", "optimizer")},
        "stack": settings["stack"] or None,
    }


def model_of(settings: Settings) -> Reading[Transformer]:
    """The model: of the catalogue, of the sizes, or of the text of a config.json."""
    if settings["model"] == CONFIG:
        try:
            values = json.loads(settings["config"])
        except ValueError as error:
            raise ValueError(f"config.json must be JSON: {error}; paste the whole file, from {{ to }}") from None
        return parse_hugging_face(values, "the model of the config.json")
    return Reading(_of_sizes(settings) if settings["model"] == SIZES else find_transformer(settings["model"]))


def _of_sizes(settings: Settings) -> Transformer:
    count = whole(settings, "experts", 0)
    experts = Experts(count, whole(settings, "active"), whole(settings, "expert_hidden")) if count else None
    is_gated = settings["activation"] == "swiglu"
    return Transformer(
        "your model",
        num_layers=whole(settings, "layers"),
        d_model=whole(settings, "width"),
        num_heads=whole(settings, "heads"),
        num_kv_heads=whole(settings, "kv_heads"),
        d_ff=whole(settings, "hidden"),
        vocab_size=whole(settings, "vocabulary"),
        max_seq_len=whole(settings, "positions"),
        activation=settings["activation"],
        **({"positions": "rotary", "norm": "rms", "has_bias": False, "tied_head": False} if is_gated else {}),
        experts=experts,
    )


def whole(settings: Settings, name: str, minimum: int = 1) -> int:
    """A whole number. Raises ValueError for any other text."""
    text = settings[name].strip().replace(",", "")
    if not text.isdecimal() or int(text) < minimum:
        raise ValueError(
            f"{name} must be a whole number, {minimum} or more: got {settings[name]!r}; try {DEFAULTS[name] or 1024}"
        )
    return int(text)


def number(settings: Settings, name: str) -> float:
    """A number, 0 or more and finite. Raises ValueError for any other text."""
    try:
        found = float(settings[name].replace(",", ""))
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise ValueError(f"{name} must be a number, 0 or more: got {settings[name]!r}; try {DEFAULTS[name]}")
    return found
