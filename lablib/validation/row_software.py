"""Software of a row: a generation of plan/stack.py by name, notes, date or device (rule C5 of case.py)."""

import re
from typing import NamedTuple

from lablib.hardware import Cluster
from lablib.plan.default_stack import NAMED, default_stack
from lablib.plan.stack import find_stack
from lablib.validation.rows import PublishedRow
from lablib.validation.synonyms import is_named

MEGATRON = ("megatron", "nemo", "simumax", "bigscience", "bloom", "vtrain", "reducing activation recomputation")
# Programs by name, the first that is found: the stack, and before it was usual on their GPUs an older one.
PROGRAMS = (
    (r"llm-foundry", "fsdp-flash", "llm-foundry's"),
    (r"xtuner|internevo", "internevo", "flash-attn's kernels"),
    (r"tinyllama|lit-?gpt|nanotron|flash-?attention training", "flash-attention", "flash-attn's kernels"),
    (r"llm\.c", "llm.c", "llm.c's"),
    (r"liger", "liger", "Liger's kernels"),
    (r"neuronx", "neuronx", "NeuronX's"),
    (r"jax|xla|maxtext|paxml|levanter|t5x|palm|gspmd|tpu|gaudi\d?", "xla", "XLA's"),
)
TORCH = "torchtitan|torchtune|fms-fsdp|automodel"
TE_LAYERS = r"transformer ?engine(?:'s)?(?: transformer)? ?layers?|te layers?"
HUGGING_FACE = "hugging ?face|transformers"
MEGATRON_CORE = ("megatron[-/ ]core", "megatron-bridge", "nemo")
DEEPSPEED = ("deepspeed", "bloom", "bigscience", "vtrain")
BEFORE_HOPPER = ("V100", "A100", "A800")
WITHOUT_FLASH, WITH_FLASH = 2022, 2023  # the last year of programs without flash attention, the first with it
_FLASH = r"flash[- ]?att(?:entio)?n(?:[- ]?\d)?"
# Programs that notes compare with, and Megatron as the author of a formula.
_ASIDE = re.compile(
    r"measured by the \S+ authors|(?:than|vs\.?|versus|against|unlike|instead of|compared (?:with|to))\s+\S+"
    r"|megatron(?=[\w' -]{0,6}(?:formula|flop|style|convention|definition))"
)


class RowSoftware(NamedTuple):
    """Software of a row: the generation, the reason, and the part of rule C5 that chose it."""

    name: str
    why: str
    rule: str

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"

    @property
    def basis(self) -> str:
        """ "named", "deduced by C5c" or "unknown"; the field `software` of the published rows has it, or the name."""
        return {"C5a": "named", "C5b": "named", "C5e": "unknown"}.get(self.rule, f"deduced by {self.rule}")


def software_of(row: PublishedRow, cluster: Cluster) -> RowSoftware:
    """The software, and the reason for it. Raises ValueError for an unknown stated name."""
    if "stack" in row.texts:
        return RowSoftware(find_stack(row.texts["stack"]).name, NAMED, "C5a")
    title, notes = (_ASIDE.sub("", text) for text in (_title(row), row.text("notes")))
    words, is_old = f"{title} {notes}", cluster.device.name.startswith(BEFORE_HOPPER)
    is_torch = is_torchs(row)
    is_megatron = not is_torch and (any(word in title for word in MEGATRON) or is_named(notes, "megatron|nemo"))
    has_flash = cluster.device.has_flash_attention and not _is_without_flash(words)
    if is_torch:
        is_eager = is_named(notes, "eager") or not is_named(notes, r"(?:torch[. ]?)?compiled?|compile on|te")
        name = "fsdp" if is_eager and "fp8" not in row.text("precision") else _compiled(row)
        return RowSoftware(name, "torch's FSDP", "C5b")
    if not is_megatron and (found := next((one for one in PROGRAMS if is_named(words, one[0])), None)):
        _, name, why = found
        return RowSoftware("xla-2023" if name == "xla" and not has_flash else name, why, "C5b")
    year = _year_with_flash(row, f"{row.source.get('title', '').lower()} {notes}", is_old)
    if not is_megatron and is_named(words, HUGGING_FACE):
        if is_named(notes, TE_LAYERS):
            return RowSoftware("transformers-te", "Hugging Face's with Transformer Engine's layers", "C5b")
        is_2022 = not has_flash or (year or WITH_FLASH) <= WITHOUT_FLASH
        deepspeed = "-deepspeed" if is_named(words, "deepspeed") else ""
        return RowSoftware("transformers-2022" if is_2022 else f"transformers{deepspeed}", "Hugging Face's", "C5b")
    is_early = (year or WITH_FLASH) <= WITHOUT_FLASH
    if not is_megatron and (not has_flash or is_early) and is_named(notes, "eager(?! attention)"):
        return RowSoftware("transformers-2022", "eager without flash attention", "C5b")
    if not is_megatron and has_flash:
        if is_named(notes, r"torch[. ]?compiled?"):
            return RowSoftware(_compiled(row), "compiled by its notes", "C5b")
        if is_named(notes, "eager(?! attention)"):
            return RowSoftware("fsdp", "eager by its notes", "C5b")
    if is_megatron and is_old and any(is_named(words, word) for word in DEEPSPEED):
        return RowSoftware("megatron-deepspeed", "DeepSpeed's", "C5b")
    found = default_stack(cluster.device, year, is_megatron or not title.strip())
    if is_megatron and found.name == "megatron-core" and any(is_named(words, word) for word in MEGATRON_CORE):
        return RowSoftware(found.name, "Megatron-Core's", "C5b")
    why = found.why.replace("none was named", "Megatron was named") if is_megatron else found.why
    rule = "C5c" if "usual in" in why else "C5d" if is_megatron and not is_old else "C5e"
    return RowSoftware(found.name, why, rule)


def _is_without_flash(words: str) -> bool:
    return re.search(r"\b(?:no|not|without) flash", words) is not None


def _year_with_flash(row: PublishedRow, words: str, is_old: bool) -> int | None:
    """The year of a row, in the years of flash attention if the row names it, or if its GPU is of these years."""
    year = year_of(row)
    if is_old and _is_without_flash(words):
        return min(year or WITHOUT_FLASH, WITHOUT_FLASH)
    return max(year, WITH_FLASH) if year and (not is_old or is_named(_ASIDE.sub("", words), _FLASH)) else year


def stack_of(row: PublishedRow, cluster: Cluster) -> str:
    """Name of the software."""
    return software_of(row, cluster).name


def year_of(row: PublishedRow) -> int | None:
    """The year of a row: of its `date`; otherwise the latest of its source's title and address, or of its notes.

    An arXiv number begins with year and month; 202412 and 2024-12 are months, other long numbers are not.
    """
    texts = (row.text("date") or _title(row), row.text("notes"))
    return next((year for year in map(_latest_year, texts) if year), None)


def _latest_year(text: str) -> int | None:
    papers = re.findall(r"arxiv(?:\.org/abs/|[: ]*)(\d\d)\d\d\.\d{4,5}", text)
    years = re.findall(r"(?<![\w.])(20\d\d)(?:[-_ .,;:)/]|$)", text)
    months = re.findall(r"(?<!\d)(20\d\d)-?(?:0[1-9]|1[0-2])(?!\d)", text)
    return max(map(int, [*(f"20{paper}" for paper in papers), *years, *months]), default=None)


def is_torchs(row: PublishedRow) -> bool:
    """Whether the program is one of torch's FSDP programs, torchtitan among them."""
    return is_named(f"{_ASIDE.sub('', _title(row))} {_ASIDE.sub('', row.text('notes'))}", TORCH)


def _title(row: PublishedRow) -> str:
    return f"{row.source.get('title', '')} {row.source.get('url', '')} {row.texts.get('software', '')}".lower()


def _compiled(row: PublishedRow) -> str:
    year = year_of(row)
    return "torch-compile-2024" if year and year <= 2024 else "torch-compile"
