"""Synonyms in sources: other names of GPUs, schedules, recomputation and sharding.

Rules that ask for one of a few names (case.py, machine.py) take the names of papers, of Megatron, DeepSpeed and torch.
An unknown word is returned unchanged: the caller refuses it, with the known names.
"""

import re

_SCHEDULES = {
    "1f1b": "1f1b none fsdp ddp pipedreamflush noninterleaved noninterleaved1f1b 1f1bnoninterleaved",
    "gpipe": "gpipe afab allforwardallbackward fthenb",
    "interleaved": "interleaved interleaved1f1b 1f1binterleaved virtualpipeline vpp",
    "breadth-first": "breadthfirst loopedbfs bfs",
    "zb-h1": "zbh1 zb1p zerobubbleh1",
    "zb-h2": "zbh2 zb2p zerobubbleh2",
    "zb-v": "zbv zbvzerobubble zerobubblev",
    "dualpipe-v": "dualpipev",
    "v-half": "vhalf",
}
_RECOMPUTE = {
    "none": "none no off false never without 0",
    "selective": "selective sac op",
    "full": "full true yes on all uniform layer per-layer checkpointing",
}
_SHARDING = {
    "FULL_SHARD": "full fullshard fsdp fsdp2 zero3 true yes 1",
    "SHARD_GRAD_OP": "shardgradop gradop zero2",
    "HYBRID_SHARD": "hybrid hybridshard hsdp",
    "NO_SHARD": "noshard",
    "none": "none no false off 0",  # as if it were not stated
}
# Offload without an object: the optimizer's states, as in ZeRO-Offload.
_OFFLOAD = {
    "": "none no false off 0",
    "optimizer": "cpu host true yes on 1 cpuoffload hostoffload offload zerooffload cpumemory hostmemory",
}
_NOT_IN_FRONT = "".join(f"(?<!{word})" for word in ("no ", "not ", "non-", "without ", "[a-z]"))
# Words of a GPU's full name that do not identify it.
_ABOUT_GPUS = re.compile(
    r"nvidia|amd|intel|google|habana|geforce|ironwood|tesla|instinct|hgx|dgx|gpus?|tensor|core|nvl72|sxm\d?|hbm\d?e?|oam"
)


def is_named(text: str, pattern: str) -> bool:
    """Whether a text in lower case has this word as a whole word, without "no", "not" or "without" before it.

    >>> is_named("lora, rank 16", "lora"), is_named("an exploration", "lora"), is_named("without lora", "lora")
    (True, False, False)
    """
    return re.search(f"{_NOT_IN_FRONT}(?:{pattern})(?![a-z])", text) is not None


def _meant(text: str, names: dict[str, str]) -> str | None:
    return next((name for name, others in names.items() if text in others.split()), None)


def schedule_named(text: str) -> str:
    """The schedule of a text, by its words before any bracket.

    >>> schedule_named("ZBV"), schedule_named("Schedule1F1B (torch)"), schedule_named("interleaved for pp>1")
    ('zb-v', '1f1b', 'interleaved')
    """
    words = re.split(r"[(,;]", text.lower())[0].replace("schedule", " ").split()
    key = re.sub(r"[^a-z0-9]", "", "".join(words))
    first = re.sub(r"[^a-z0-9]", "", words[0]) if words else ""
    if not (found := _meant(key, _SCHEDULES)) and "interleaved" in key:
        return "interleaved"
    return found or _meant(first, _SCHEDULES) or (words[0] if words else "1f1b")


def recompute_named(text: str) -> str:
    """none, selective, full, "every k" or "first k"; "" if the text says unknown.

    >>> recompute_named("Full (use_checkpoint=true)"), recompute_named("gradient checkpointing"), recompute_named("No")
    ('full', 'full', 'none')
    """
    text = re.split(r"[(,;:]", text.lower())[0].strip()
    if re.match(r"(not |un)(stated|known|specified)", text) or not text:
        return ""
    if re.fullmatch(r"(every|first) \d+( layers?)?", text):
        return " ".join(text.split()[:2])
    if re.match(r"(activation|gradient) (re)?(checkpointing|computation)$", text):
        return "full"
    found = _meant(text.split()[0], _RECOMPUTE)
    return found or next((name for name in _RECOMPUTE if text.startswith(name)), text)


def sharding_named(text: str) -> str:
    """FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD or "none" (not stated), or the text itself.

    >>> sharding_named("HSDP"), sharding_named("full_shard"), sharding_named("64")
    ('HYBRID_SHARD', 'FULL_SHARD', '64')
    """
    return _meant(re.sub(r"[^a-z0-9]", "", text.lower()), _SHARDING) or text


def offload_named(text: str) -> str:
    """The meaning of a text without an object, such as "cpu" or "true", without brackets; others unchanged.

    >>> offload_named("CPU"), offload_named("false"), offload_named("activations"), offload_named("ZeRO-Offload (CPU)")
    ('optimizer', '', 'activations', 'optimizer')
    """
    found = _meant(re.sub(r"\(.*|[^a-z0-9(]", "", text.lower()), _OFFLOAD)
    return text.lower() if found is None else found


def gpu_key(name: str) -> str:
    """A GPU's name without punctuation, and without words that are common to all names.

    >>> gpu_key("NVIDIA H100-SXM5-80GB HBM3"), gpu_key("Tesla V100-SXM2-32GB"), gpu_key("DGX-GB200 NVL72")
    ('h10080gb', 'v10032gb', 'gb200')
    """
    words = re.findall(r"[a-z0-9.]+", name.lower())
    key = re.sub(r"[^a-z0-9]", "", "".join(word for word in words if not _ABOUT_GPUS.fullmatch(word)))
    return re.sub(r"^(hgx|dgx)|(sxm\d?|nvl72)$", "", key) or key
