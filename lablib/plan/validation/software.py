"""Which software a row is about, at which precision, and what it recomputes: rules C4, C5, C6 and C12 of case.py."""

import re
from dataclasses import replace

from lablib.hardware import Cluster
from lablib.plan.stack import Stack, find_stack
from lablib.plan.validation.rows import Row
from lablib.plan.validation.spellings import recompute_named

MEGATRON = ("megatron", "nemo", "simumax", "bigscience", "bloom", "vtrain", "reducing activation recomputation")
BEFORE_HOPPER = ("V100", "A100")
OLD_MEGATRON = ("megatron-2021", "megatron-2022", "megatron-deepspeed")
PRECISIONS = (
    ("fp4", "float4"),
    ("fp8", "float8"),
    ("tf32", "tfloat32"),
    ("bf16", "bfloat16"),
    ("fp16", "float16"),
    ("fp32", "float32"),
)
RECOMPUTE = ("none", "selective", "full")


def stack_of(row: Row, cluster: Cluster) -> str:
    """The name of a generation of software (rule C5)."""
    title = f"{row.source.get('title', '')} {row.source.get('url', '')}".lower()
    if "llm-foundry" in title:
        return "fsdp-flash"
    if "torchtitan" in title:
        notes, is_float8 = row.text("notes"), "fp8" in row.text("precision")
        is_compiled = "compile" in notes and not any(word in notes for word in ("no compile", "without", "eager"))
        if not (is_compiled or is_float8):
            return "fsdp-flash"
        years = [int(year) for year in re.findall(r"(?<!\d)(20\d\d)-?(?:0[1-9]|1[0-2])(?!\d)", title)]
        return "torch-compile-2024" if years and max(years) <= 2024 else "torch-compile"
    if any(word in title for word in MEGATRON) or not title.strip():
        return _old_megatron(title) if cluster.device.name.startswith(BEFORE_HOPPER) else "megatron-core"
    return "megatron-2021" if cluster.device.name.startswith(BEFORE_HOPPER) else "torch-compile"


def _old_megatron(title: str) -> str:
    """Which Megatron before flash attention."""
    if any(word in title for word in ("deepspeed", "bloom", "bigscience", "vtrain")):
        return "megatron-deepspeed"
    numbers = [int(number) for number in re.findall(r"arxiv[: ]+(\d{4})\.\d{4,5}", title)]
    return "megatron-2022" if numbers and max(numbers) >= 2201 else "megatron-2021"


def with_dispatcher(row: Row, stack: str) -> str | Stack:
    """The same with the way in which tokens travel to experts (rule C12)."""
    is_deduplicated = any(name in row.text("dispatcher") for name in ("deepep", "hybridep"))
    is_hidden = row.parallel.get("ep_overlap", False)
    if not (is_deduplicated or is_hidden):
        return stack
    dispatcher = "deduplicated" if is_deduplicated else "alltoall"
    return replace(find_stack(stack), dispatcher=dispatcher, hides_dispatch=is_hidden)


def precision_of(row: Row, cluster: Cluster) -> str:
    """Rule C4: the precision of matrix products.

    Raises:
        ValueError: a text with none of the names in it.
    """
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


def recompute_of(row: Row, stack: str) -> tuple[str, ...]:
    """What is recomputed (rule C6): the policies that it may be, one if it is stated, all three where it stays open.

    Raises:
        ValueError: a text that begins with none of the words.
    """
    text = recompute_named(row.text("recompute"))
    if not text:
        return ("none",) if stack == "megatron-core" else RECOMPUTE
    if text in RECOMPUTE or text.startswith(("every ", "first ")):
        return (text,)
    raise ValueError(f"recompute must begin with none, selective or full: got {row.texts['recompute']!r}")
