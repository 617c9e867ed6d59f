"""Software, precision and recomputation of a row: rules C4, C5, C6 and C12 to C14 of case.py."""

import re
from dataclasses import replace

from lablib.hardware import Cluster
from lablib.plan.arguments import OFFLOAD
from lablib.plan.default_stack import NAMED, Software, default_stack
from lablib.plan.optimizers import OPTIMIZERS
from lablib.plan.stack import Stack, find_stack
from lablib.validation.rows import PublishedRow
from lablib.validation.synonyms import is_named, offload_named, recompute_named

MEGATRON = ("megatron", "nemo", "simumax", "bigscience", "bloom", "vtrain", "reducing activation recomputation")
BEFORE_HOPPER = ("V100", "A100", "A800")
DEEPSPEED = ("deepspeed", "bloom", "bigscience", "vtrain")
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
# Names of implementations of an optimizer: "FusedAdam" and "DeepSpeedCPUAdam" are Adam, "NAdam" is not.
_MAKERS = "(?:fused|paged|decoupled|distributed|(?:deepspeed)?cpu)?-?"


def software_of(row: PublishedRow, cluster: Cluster) -> Software:
    """A generation of software, and the reason for it (rule C5). Raises ValueError for an unknown stated name."""
    title = f"{row.source.get('title', '')} {row.source.get('url', '')}".lower()
    if "stack" in row.texts:
        return Software(find_stack(row.texts["stack"]).name, NAMED)
    if "llm-foundry" in title:
        return Software("fsdp-flash", "llm-foundry's")
    if "torchtitan" in title:
        return Software(_torchtitan(row), "torchtitan's")
    is_megatron = any(word in title for word in MEGATRON)
    if (
        is_megatron
        and cluster.device.name.startswith(BEFORE_HOPPER)
        and any(is_named(title, word) for word in DEEPSPEED)
    ):
        return Software("megatron-deepspeed", "DeepSpeed's")
    # Hopper came with flash attention: older software never ran on it.
    year = year_of(row) if cluster.device.name.startswith(BEFORE_HOPPER) else None
    return default_stack(cluster.device, year, is_megatron or not title.strip())


def stack_of(row: PublishedRow, cluster: Cluster) -> str:
    """Name of the software."""
    return software_of(row, cluster).name


def year_of(row: PublishedRow) -> int | None:
    """The year of a row: of its `date`, or the latest in its source's title and address; None without a year.

    An arXiv number begins with year and month; 202412 and 2024-12 are months, other long numbers are not.
    """
    text = row.text("date") or f"{row.source.get('title', '')} {row.source.get('url', '')}".lower()
    papers = re.findall(r"arxiv(?:\.org/abs/|[: ]*)(\d\d)\d\d\.\d{4,5}", text)
    years = re.findall(r"(?<![\w.])(20\d\d)(?:[-_ .,;:)/]|$)", text)
    months = re.findall(r"(?<!\d)(20\d\d)-?(?:0[1-9]|1[0-2])(?!\d)", text)
    return max(map(int, [*(f"20{paper}" for paper in papers), *years, *months]), default=None)


def _torchtitan(row: PublishedRow) -> str:
    notes, is_float8 = row.text("notes"), "fp8" in row.text("precision")
    is_compiled = is_named(notes, "compiled?") and not is_named(notes, "eager")
    if not (is_compiled or is_float8):
        return "fsdp-flash"
    year = year_of(row)
    return "torch-compile-2024" if year and year <= 2024 else "torch-compile"


def with_dispatcher(row: PublishedRow, stack: str) -> str | Stack:
    """The software with the dispatcher of tokens to experts (rule C12)."""
    is_deduplicated = any(name in row.text("dispatcher") for name in ("deepep", "hybridep"))
    is_hidden = row.parallel.get("ep_overlap", False)
    if not (is_deduplicated or is_hidden):
        return stack
    dispatcher = "deduplicated" if is_deduplicated else "alltoall"
    return replace(find_stack(stack), dispatcher=dispatcher, hides_dispatch=is_hidden)


def optimizer_of(row: PublishedRow) -> str:
    """Rule C13: the optimizer named in the text.

    Raises:
        ValueError: a text without any of the names.
    """
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
    """Rule C14: the states kept by the host.

    Raises:
        ValueError: a text without any of the words, or that also offloads parameters, which is not modelled.
    """
    text = offload_named(row.parallel.get("offload", ""))
    found = tuple(name for name in OFFLOAD if is_named(text, f"{name.rstrip('s')}s?"))
    if (text and not found) or is_named(text, r"param\w*|weights?|nvme"):
        raise ValueError(f"parallel.offload must name {' or '.join(OFFLOAD)}: got {row.parallel['offload']!r}")
    return found


def precision_of(row: PublishedRow, cluster: Cluster) -> str:
    """Rule C4: the precision of matrix products.

    Raises:
        ValueError: a text without any of the names.
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


def recompute_of(row: PublishedRow, stack: str) -> tuple[str, ...]:
    """Rule C6: the possible recomputation policies, one if it is stated, all three if it is open.

    Raises:
        ValueError: a text that begins with none of the words.
    """
    text = recompute_named(row.text("recompute"))
    if not text:
        return ("none",) if stack == "megatron-core" else RECOMPUTE
    if text in RECOMPUTE or text.startswith(("every ", "first ")):
        return (text,)
    raise ValueError(f"recompute must begin with none, selective or full: got {row.texts['recompute']!r}")
