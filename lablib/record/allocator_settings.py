"""Settings of torch's caching allocator: the text of PYTORCH_ALLOC_CONF as a record.

    PYTORCH_ALLOC_CONF=max_split_size_mb:128,roundup_power2_divisions:[256:4,>:2],expandable_segments:True

The text is a list of `key:value`. torch 2.9 and later name the variable PYTORCH_ALLOC_CONF; PYTORCH_CUDA_ALLOC_CONF is
its older name and has the same format. Keys without an effect on sizes (pinned memory, locks, CUDA graphs) are accepted
here and have no effect in the model (caching_allocator.py).

Source: torch 2.13, c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h; "CUDA semantics", section
"Optimizing memory usage with PYTORCH_ALLOC_CONF".
Simplified: max_split_size_mb and max_non_split_rounding_mb must be at least 20; torch: at least large_segment_size_mb.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf
from typing import Any, NamedTuple

from lablib.signature import shown

MIB = 2**20
INTERVALS = 16  # of roundup_power2_divisions: sizes below 2 MiB, below 4 MiB, ..., from 32 GiB on
_PARTS = re.compile(r",(?![^\[]*\])")  # a comma outside brackets


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings that decide on sizes. The defaults are torch's."""

    # blocks of this size or more are not split, and serve only requests of this size or more
    max_split_size_bytes: float = inf
    # such a request takes a cached block that is at most this much larger
    max_non_split_rounding_bytes: float = 20 * MIB
    # for each interval of sizes, the steps between two powers of two to which requests are rounded up; 0 and 1: to 512
    # bytes
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    # share of the allowed memory above which cached segments are freed before a new one is allocated. Effective only
    # with a memory fraction, as in torch; 0: off.
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False  # one segment per pool, of which pages are mapped on demand
    large_segment_bytes: int = 20 * MIB  # segment for requests of 1 to 10 MiB, and page of an expandable segment
    # share of the device that this process may reserve; None: no limit was set
    per_process_memory_fraction: float | None = None

    @staticmethod
    def parse(text: str) -> "AllocatorSettings":
        """The settings of a text. Raises ValueError: an unknown key, or a value that torch refuses."""
        settings = AllocatorSettings()
        for part in filter(None, _PARTS.split("".join(text.split()))):
            key, _, value = part.partition(":")
            if key not in OPTIONS:
                near = get_close_matches(key, OPTIONS, n=1, cutoff=0.6)
                remedy = f"did you mean {near[0]!r}?" if near else "see torch's notes on CUDA semantics"
                raise ValueError(f"an option of the allocator must be one of {', '.join(OPTIONS)}: got {key}; {remedy}")
            option = OPTIONS[key]
            try:
                fields = option.fields(value)
            except (ValueError, TypeError):
                raise ValueError(
                    f"{key} must be {option.rule}: got {shown(value)}; try {key}:{option.example}"
                ) from None
            settings = replace(settings, **fields)
        return settings


def _megabytes(name: str, low: int) -> Callable[[str], dict[str, Any]]:
    return lambda text: {name: _whole(text, low) * MIB}


def _whole(text: str, low: int = 0) -> int:
    if not text.isdecimal() or int(text) < low:
        raise ValueError(text)
    return int(text)


def _share(name: str, holds: Callable[[float], bool]) -> Callable[[str], dict[str, Any]]:
    def fields(text: str) -> dict[str, Any]:
        if not holds(value := float(text)):
            raise ValueError(text)
        return {name: value}

    return fields


def _divisions(text: str) -> dict[str, Any]:
    """One number for all sizes, or a list such as [64:8,256:4,>:1] with sizes in MiB.

    The first entry also holds for all smaller sizes, ">" for all above the entry before it (above 1 MiB if it is the
    first); sizes between two entries have 0.
    """
    if not text.startswith("["):
        return {"roundup_power2_divisions": (_power_of_two(text),) * INTERVALS}
    if not text.endswith("]"):
        raise ValueError(text)
    divisions, last, entries = [0] * INTERVALS, 0, [entry.split(":") for entry in text[1:-1].split(",")]
    for number, (size, value) in enumerate(entries):
        division = 0 if value == "0" else _power_of_two(value)
        if size == ">":
            divisions[last + 1 :] = [division] * (INTERVALS - last - 1)
        else:
            last = min(_power_of_two(size).bit_length() - 1, INTERVALS - 1)
            divisions[0 if number == 0 else last : last + 1] = [division] * (last + 1 if number == 0 else 1)
    return {"roundup_power2_divisions": tuple(divisions)}


def _power_of_two(text: str) -> int:
    number = _whole(text, 1)
    if number & (number - 1):
        raise ValueError(text)
    return number


class AllocatorOption(NamedTuple):
    """An option: the fields that its value sets, the rule of the value, an example."""

    fields: Callable[[str], dict[str, Any]]
    rule: str
    example: str


def _nothing(values: str = "") -> Callable[[str], dict[str, Any]]:
    """An option without an effect on sizes, with one of these values; "": any whole number."""

    def fields(text: str) -> dict[str, Any]:
        if values and text not in values.split() or not values and _whole(text) < 0:
            raise ValueError(text)
        return {}

    return fields


_FLAG, _WHOLE = "True or False", "a whole number"
OPTIONS: Mapping[str, AllocatorOption] = {
    "max_split_size_mb": AllocatorOption(_megabytes("max_split_size_bytes", 20), f"{_WHOLE}, 20 or more", "128"),
    "max_non_split_rounding_mb": AllocatorOption(
        _megabytes("max_non_split_rounding_bytes", 20), f"{_WHOLE}, 20 or more", "64"
    ),
    "roundup_power2_divisions": AllocatorOption(
        _divisions, "a power of two, or a list [size in MB:divisions,...] of powers of two", "[256:4,>:1]"
    ),
    "garbage_collection_threshold": AllocatorOption(
        _share("garbage_collection_threshold", lambda value: 0 < value < 1), "a number between 0 and 1", "0.8"
    ),
    "expandable_segments": AllocatorOption(
        lambda text: {"expandable_segments": ("False", "True").index(text) == 1}, _FLAG, "True"
    ),
    "large_segment_size_mb": AllocatorOption(_megabytes("large_segment_bytes", 11), f"{_WHOLE}, 11 or more", "20"),
    "per_process_memory_fraction": AllocatorOption(
        _share("per_process_memory_fraction", lambda value: 0 <= value <= 1), "a number from 0 to 1", "0.9"
    ),
    "backend": AllocatorOption(_nothing("native cudaMallocAsync"), "native or cudaMallocAsync", "native"),
    **{
        name: AllocatorOption(_nothing("True False"), _FLAG, "True")
        for name in (
            "release_lock_on_cudamalloc",
            "release_lock_on_hipmalloc",
            "pinned_use_cuda_host_register",
            "pinned_use_hip_host_register",
            "pinned_use_background_threads",
            "graph_capture_record_stream_reuse",
            "pinned_free_catch_all",
            "throw_on_cudamalloc_oom",
        )
    },
    **{
        name: AllocatorOption(_nothing(), _WHOLE, "8")
        for name in (
            "pinned_num_register_threads",
            "pinned_reserve_segment_size_mb",
            "pinned_max_round_threshold_mb",
            "pinned_max_cached_size_mb",
        )
    },
}
