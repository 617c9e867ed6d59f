"""Precision, recomputation, optimizer and offload of a row: rules C4, C6 and C12 to C19 of case.py."""

import re
from dataclasses import replace

from lablib.hardware import Cluster
from lablib.plan.arguments import OFFLOAD
from lablib.plan.optimizers import OPTIMIZERS
from lablib.plan.stack import GPTQ, UNFUSED_RMS_NORM, Stack, find_stack
from lablib.validation.row_software import is_torchs
from lablib.validation.rows import PublishedRow
from lablib.validation.synonyms import is_named, offload_named, recompute_named

FLASH_MEGATRON = ("megatron-2023", "megatron-core")
OLD_MEGATRON = ("megatron-2021", "megatron-2022", "megatron-deepspeed")
PRECISIONS = (
    ("fp4", "float4"),
    ("fp8", "float8"),
    ("tf32", "tfloat32"),
    ("bf16", "bfloat16"),
    ("fp16", "float16"),
    ("fp32", "float32"),
    ("int8", "int8"),
)
RECOMPUTE = ("none", "selective", "full")
# Names of implementations of an optimizer: "FusedAdam" and "DeepSpeedCPUAdam" are Adam, "NAdam" is not.
_MAKERS = "(?:fused|paged|decoupled|distributed|(?:deepspeed)?cpu)?-?"


_NO_FUSION = r"no[- ]fused gradient[- ]accumulation|no-gradient-accumulation-fusion"
_NO_DROPOUT = r"no dropout|dropout (?:of )?0(?![.\d])"
_OTHER_ATTENTION = r"flexattention|(?:torch)?sdpa"
_BY_NOTES = (
    ("optimizer step in backward", {"updates_in_backward": True}),
    ("chunked cross-entropy", {"loss_peak_bytes": 0}),
    ("one-hot embedding", {"embeds_by_product": True}),
    ("gptq", GPTQ),
)
_NO_MASTERS = r"no (?:fp32|32-bit|float32)?[ -]?masters?|all (?:of the model |states )?in (?:bf16|fp16|16[ -]bits?)"


def stack_as_stated(row: PublishedRow, name: str) -> str | Stack:
    """The software with the dispatcher, masters, gradients and loss that the row states: C12, C15 to C19."""
    changes, title, notes = {}, row.source.get("title", "").lower(), row.text("notes")
    if is_named(f"{title} {notes}", "fms-fsdp"):
        changes["gradient_bytes"] = 2
    if name == "fsdp" and is_named(f"{title} {notes}", "fms-fsdp|torchtune"):
        changes["passes_rms_norm"] = UNFUSED_RMS_NORM
    if find_stack(name).has_dropout and re.search(_NO_DROPOUT, notes):
        changes["has_dropout"] = False
    if any(name in row.text("dispatcher") for name in ("deepep", "hybridep")):
        changes["dispatcher"] = "deduplicated"
    if is_named(title, "automodel") and is_named(notes, "balanced router"):
        changes["routing"] = "contiguous"
    if is_torchs(row) and is_named(notes, r"te(?=[ +,;]|$)") and not is_named(notes, _OTHER_ATTENTION):
        changes["attention_generation"] = find_stack("transformers-te").attention_generation
    if row.parallel.get("ep_overlap", False):
        changes["hides_dispatch"] = True
    for words, change in _BY_NOTES:
        changes |= change if words in notes else {}
    if re.search(_NO_FUSION, notes):
        changes["fused_accumulation"] = False
    if "no_batch_dim" in row.text("recompute"):
        changes["selective"] = "all but weights"
    if re.search(_NO_MASTERS, notes):
        changes |= {"has_master": False, "gradient_bytes": 2}
    return replace(find_stack(name), **changes) if changes else name


def optimizer_of(row: PublishedRow) -> str:
    """Rule C13: the optimizer named in the text. Raises ValueError: a text without any of the names."""
    text = row.text("optimizer").replace("_", "-")
    if not text:
        return "adamw"
    if is_named(text, rf"{_MAKERS}adamw?-?8-?bit|8-?bit[ -]adamw?"):
        return "adam-8bit"
    names = sorted(OPTIMIZERS, key=lambda name: (name != "muon", -len(name)))  # Muon is used together with AdamW
    if found := next((name for name in names if is_named(text, f"{_MAKERS}{name}(?!-?mini)")), None):
        return found
    raise ValueError(f"optimizer must name one of {', '.join(OPTIMIZERS)}: got {row.texts['optimizer']!r}")


def offload_of(row: PublishedRow) -> tuple[str, ...]:
    """Rule C14: the states kept by the host. ValueError: none of the words, or NVMe, which is not modelled."""
    text = offload_named(row.parallel.get("offload", ""))
    found = tuple(name for name in OFFLOAD if is_named(text, f"{name.rstrip('s')}s?"))
    if is_named(text, r"param\w*|weights?") and "parameters" not in found:
        found = (*found, "parameters")
    if (text and not found) or is_named(text, "nvme"):
        raise ValueError(f"parallel.offload must name {' or '.join(OFFLOAD)}: got {row.parallel['offload']!r}")
    return found


def precision_of(row: PublishedRow, cluster: Cluster) -> str:
    """Rule C4: the precision of matrix products. Raises ValueError: a text without any of the names."""
    text = row.text("precision").split("(")[0]
    half = "bfloat16" if "bfloat16" in cluster.device.peak_flops_per_s else "float16"
    if "bf16/fp16" in text and "bloom" in row.source.get("title", "").lower():
        return half if "load-balanced" in row.text("notes") else "float16"
    if text.strip() in ("", "half", "mixed", "amp") or ("bf16" in text and "/fp16" in text):
        return half
    for word, name in PRECISIONS:
        if word in text or (word == "fp4" and "mxfp4" in text):
            return name
    for name in ("bfloat16", "float16", "float32", "float8"):
        if name in text:
            return name
    names = ", ".join(word for word, _ in PRECISIONS)
    raise ValueError(f"precision must name one of {names}: got {row.texts['precision']!r}")


def recompute_of(row: PublishedRow, stack: str) -> tuple[str, ...]:
    """Rule C6: the possible recomputation policies, one if stated, all three if open. ValueError: another word."""
    text = recompute_named(row.text("recompute"))
    if not text:
        return ("none",) if stack in FLASH_MEGATRON else RECOMPUTE
    if text in RECOMPUTE or text.startswith(("every ", "first ")):
        return (text,)
    raise ValueError(f"recompute must begin with none, selective or full: got {row.texts['recompute']!r}")
