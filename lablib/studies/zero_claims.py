"""Common claims about ZeRO, recomputed: ranks and precision for which each is true, and its omissions.

A rank holds for each parameter w bytes that all ranks hold and 1/n of the s bytes that ZeRO splits. Both depend on the
stage and on the precision (parallel/zero/bytes.py), written as bytes of parameter + gradient + optimizer:

    stage      w          s              2 + 2 + 12 (mixed precision, Adam)      4 + 4 + 8 (FP32, Adam)
    0          p + g + k  0              16                                      16
    1          p + g      k              4 + 12 / n                              8 + 8 / n
    2          p          g + k          2 + 14 / n                              4 + 12 / n
    3          0          p + g + k      16 / n                                  16 / n

    bytes per rank        P (w + s / n)
    saving                T / (w + s / n), below T / w for any n                 T of stage 0
    ranks for a saving k  n >= s / (T / k - w), if that is positive; otherwise impossible
    ranks to fit M bytes  n >= s / (M / P - w)

So "half" is exact on 3 ranks with mixed precision, and only a limit in FP32; "4x" and "8x" are limits that no number of
ranks reaches; and "N times" is exact.

Source: Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", 2019, arXiv
1910.02054, section 5, figure 1 and table 1. Of each claim, see `claims`.
Simplified as in the paper: no activations, buffers, gathered units, padding or fragmentation; `left_out_bytes` takes
known ones. A gigabyte is 10^9 bytes.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from math import ceil, floor, inf, isfinite
from types import MappingProxyType
from typing import Annotated

from lablib.parallel.zero.bytes import BF16, FP32, MIXED, MIXED_FP32_GRADIENTS, HeldBytes, TrainingPrecision, zero_bytes
from lablib.signature import Count, NonNegative, OneOf, Range, checked, shown

GB = 10**9
PARTS = ("parameter", "gradient", "optimizer")
_SUBSETS = tuple(parts for count in (3, 2, 1) for parts in combinations(PARTS, count))


# "Mixed precision" has several meanings, with different bytes.
PRECISIONS: Mapping[str, TrainingPrecision] = MappingProxyType(
    {
        "mixed": MIXED,  # the paper's: master copy and two moments in FP32
        "mixed, FP32 gradients": MIXED_FP32_GRADIENTS,  # Megatron-LM's
        "FP32": FP32,
        "BF16, FP32 moments": TrainingPrecision(2, 2, 0, 8),  # no master copy
        "BF16": BF16,
        "mixed, 8-bit Adam": TrainingPrecision(2, 2, 4, 2),
        "FP32, SGD": TrainingPrecision(4, 4, 0, 0),
    }
)
Precision = Annotated[str, OneOf(PRECISIONS)]
Stage = Annotated[int, Range(ge=0, le=3)]
Params = Annotated[float, Range(gt=0, lt=inf, example=7e9)]
Bytes = Annotated[float, Range(ge=0, lt=inf, example=80 * GB)]


@dataclass(frozen=True, slots=True)
class Interpretation:
    """One interpretation of a claim "from so many bytes to so many"."""

    precision: str
    parts: tuple[str, ...]  # the parts that count
    stage: int
    # min_ranks, max_ranks: the range for which it is true to its last digit; `max_ranks` may be infinite
    min_ranks: int
    max_ranks: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and the result of its check."""

    text: str
    source: str
    true_for: str  # where it holds, computed by the functions of this file
    left_out: str  # bytes that it does not count


@checked
def bytes_a_rank(
    params: NonNegative, stage: Stage, ranks: Count, precision: Precision = "mixed", left_out_bytes: NonNegative = 0
) -> float:
    """P (w + s / n), plus `left_out_bytes`: bytes of one rank.

    Arguments:
        params: P, of the model.
        stage: of ZeRO; 0: plain data parallelism.
        ranks: n, that share the states.
        left_out_bytes: activations, buffers, fragmentation, if known.
    """
    whole, split = _whole_and_split(stage, PRECISIONS[precision])
    return params * (whole + split / ranks) + left_out_bytes


@checked
def largest_saving(stage: Stage, precision: Precision = "mixed") -> float:
    """T / w: the limit of the saving for many ranks; infinite in stage 3. Arguments as `bytes_a_rank`."""
    whole = _whole_and_split(stage, PRECISIONS[precision])[0]
    return PRECISIONS[precision].total / whole if whole else inf


@checked
def ranks_for_saving(
    saving: Annotated[float, Range(ge=1, lt=inf, example=2)], stage: Stage, precision: Precision = "mixed"
) -> int | None:
    """The fewest ranks on which a rank holds 1 / saving of its bytes without ZeRO; None: impossible.

    Arguments:
        saving: 2 is "half".
        stage, precision: as `bytes_a_rank`.
    """
    whole, split = _whole_and_split(stage, PRECISIONS[precision])
    return _fewest_ranks(whole, split, Fraction(PRECISIONS[precision].total) / Fraction(saving))


@checked
def ranks_to_fit(
    params: Params, device_bytes: Bytes, stage: Stage, precision: Precision = "mixed", left_out_bytes: NonNegative = 0
) -> int | None:
    """The fewest ranks on which the model fits; None: it never fits.

    Arguments:
        params: P.
        device_bytes: memory of one device.
        Others as `bytes_a_rank`.
    """
    room_bytes = Fraction(device_bytes) - Fraction(left_out_bytes)
    return _fewest_ranks(*_whole_and_split(stage, PRECISIONS[precision]), room_bytes / Fraction(params))


@checked
def largest_model(
    device_bytes: Bytes,
    stage: Stage = 0,
    ranks: Count = 1,
    precision: Precision = "mixed",
    left_out_bytes: NonNegative = 0,
) -> float:
    """Parameters of the largest model that fits. With stage 0, up to this size nothing needs to be sharded.

    Arguments:
        device_bytes: memory of one device.
        Others as `bytes_a_rank`.
    """
    return max(0.0, device_bytes - left_out_bytes) / bytes_a_rank(1, stage, ranks, precision)


@checked
def readings(params: Params, after: str, before: str | None = None) -> tuple[Interpretation, ...]:
    """All interpretations of a claim "from so many bytes to so many": each precision, stage and part of the states.

    A number matches if it rounds to the stated one. A stage that splits none of the counted parts is left out. `after`,
    `before`: bytes on one rank with ZeRO and without, as stated: "35 GB", "1.2 TB"; None: not stated. Raises
    ValueError: a text that is no number of bytes.
    """
    least_after, most_after = _stated("after", after)
    least_before, most_before = _stated("before", before) if before is not None else (0, inf)
    found = []
    for (name, precision), parts in product(PRECISIONS.items(), _SUBSETS):
        counts_nothing = parts != PARTS and any(not sum(_whole_and_split(0, precision, (part,))) for part in parts)
        if counts_nothing or not least_before <= params * sum(_whole_and_split(0, precision, parts)) <= most_before:
            continue
        for stage in (1, 2, 3):
            sizes = _whole_and_split(stage, precision, parts)
            whole, split = (params * size for size in sizes)
            if sizes == _whole_and_split(stage - 1, precision, parts) or whole >= most_after:
                continue
            min_ranks = max(1, ceil(split / (most_after - whole)))
            max_ranks = floor(split / (least_after - whole)) if least_after > whole else inf
            if min_ranks <= max_ranks:
                found.append(Interpretation(name, parts, stage, min_ranks, max_ranks))
    return tuple(found)


def claims() -> tuple[Claim, ...]:
    """The claims, each with the results of the functions above. As a table: `pd.DataFrame(claims())`."""
    return (
        Claim(
            "stage 1 halves the memory",
            "in circulation",
            f"mixed precision: from {ranks_for_saving(2, 1)} ranks on. FP32: "
            f"{_limit(1, 'FP32')}. Without a master copy (BF16): {_limit(1, 'BF16')}",
            _STATES_ALONE,
        ),
        Claim(
            "stage 1 saves 4x, stage 2 8x, stage 3 as many times as there are ranks",
            'arXiv 1910.02054, figure 1 and the list after it ("up to")',
            f"mixed precision, stage 1: {_limit(1)}; 3.8x from {ranks_for_saving(3.8, 1)} ranks on. Stage 2: "
            f"{_limit(2)}; 7.6x from {ranks_for_saving(7.6, 2)} on. Stage 3: exact. FP32: the limits are "
            f"{largest_saving(1, 'FP32'):g}x and {largest_saving(2, 'FP32'):g}x",
            _STATES_ALONE + "; of stage 3 the units that are gathered, which no number of ranks makes smaller",
        ),
        Claim(
            "10B parameters take 20 GB instead of 80 GB",
            "in circulation; no source found",
            _in_words(readings(10e9, "20 GB", "80 GB")),
            _STATES_ALONE + f"; with mixed precision 10B take {bytes_a_rank(10e9, 0, 1) / GB:g} GB",
        ),
        Claim(
            "175B parameters take 35 GB a GPU instead of 1.2 TB",
            "in circulation. Hu et al., LoRA, 2021, arXiv 2106.09685, section 4.2, has 1.2 TB (to 350 GB) and 35 MB "
            "(from 350 GB), and not of ZeRO; from memory, not verified",
            f"1.2 TB: {_in_words(readings(175e9, '35 GB', '1.2 TB'))}. 35 GB alone, all states: "
            + _in_words(reading for reading in readings(175e9, "35 GB") if reading.parts == PARTS),
            _STATES_ALONE + f"; with mixed precision 175B take {bytes_a_rank(175e9, 0, 1) / GB:g} GB",
        ),
        Claim(
            "7B parameters train on one GPU",
            "in circulation",
            "80 GB: "
            + "; ".join(name for name in PRECISIONS if ranks_to_fit(7e9, 80 * GB, 0, name))
            + f". Plain mixed precision needs {bytes_a_rank(7e9, 0, 1) / GB:g} GB, or stage 1 on "
            f"{ranks_to_fit(7e9, 80 * GB, 1)} GPUs of 80 GB",
            _STATES_ALONE + "; fine-tuning with adapters keeps states for these alone",
        ),
        Claim(
            "1T parameters fit on 1024 GPUs of 16 GB",
            "in circulation; arXiv 1910.02054, section 1, has 16 GB of states a GPU, of 32 GB; table 1 has 15.6 GB",
            f"mixed precision, stage 3: from {ranks_to_fit(1e12, 16 * GB, 3)} ranks on, which leaves "
            f"{16 - bytes_a_rank(1e12, 3, 1024) / GB:.2f} GB on 1024. With 4 GB for everything not counted: from "
            f"{ranks_to_fit(1e12, 16 * GB, 3, 'mixed', 4 * GB)} on",
            _STATES_ALONE + "; table 1 says so: model states",
        ),
        Claim(
            "models of up to 1.4B parameters need no sharding on GPUs of 32 GB",
            "arXiv 1910.02054, section 1",
            f"mixed precision: the states of up to {largest_model(32 * GB) / GB:.1f}B fit in 32 GB, of "
            f"{largest_model(80 * GB) / GB:.0f}B in 80 GB, of {largest_model(141 * GB) / GB:.1f}B in 141 GB; "
            f"1.4B leave {32 - bytes_a_rank(1.4e9, 0, 1) / GB:.1f} GB of 32 for the rest",
            "nothing: it was measured. The rest is activations, buffers and fragmentation",
        ),
    )


_STATES_ALONE = "activations, buffers, fragmentation"


def _limit(stage: Stage, precision: Precision = "mixed") -> str:
    return f"never {largest_saving(stage, precision):g}x, which is the limit for many ranks"


def _in_words(found: Iterable[Interpretation]) -> str:
    """Each interpretation of all states as "FP32, stage 3, 4 ranks", and the number of those that count a part."""
    found = list(found)
    texts = []
    for each in (each for each in found if each.parts == PARTS):
        most = f" to {each.max_ranks:g}" if isfinite(each.max_ranks) else " or more"
        ranks = f"{each.min_ranks}{'' if each.min_ranks == each.max_ranks else most}"
        texts.append(f"{each.precision}, stage {each.stage}, {ranks} ranks")
    if num_partial := len(found) - len(texts):
        texts.append(f"and {num_partial} ways to count a part of the states alone")
    return "; ".join(texts) or "no precision and no part of the states gives both numbers"


def _stated(name: str, text: str) -> tuple[float, float]:
    """The range of numbers of bytes that round to this text."""
    match = re.fullmatch(r"(\d{1,9})(\.\d{1,9})? ?([kMGTP]?B)", text)
    if match is None:
        raise ValueError(f'{name} must be a number of bytes in words: got {shown(text)}; try "35 GB".')
    scale = 1000 ** ("B", "kB", "MB", "GB", "TB", "PB").index(match[3])
    value, half = float(match[1] + (match[2] or "")), 0.5 / 10 ** (len(match[2]) - 1 if match[2] else 0)
    return (value - half) * scale, (value + half) * scale


@cache
def _whole_and_split(stage: int, precision: TrainingPrecision, parts: tuple[str, ...] = PARTS) -> tuple[int, int]:
    """w and s of the head, of some parts: one parameter on one rank has w + s bytes, two on two have 2 w + s."""
    one, two = (_bytes_of(zero_bytes(stage, [n], n, precision), parts) for n in (1, 2))
    return two - one, 2 * one - two


def _bytes_of(held: HeldBytes, parts: tuple[str, ...]) -> int:
    by_part = {"parameter": held.parameter, "gradient": held.gradient, "optimizer": held.master + held.state}
    return sum(by_part[part] for part in parts)


def _fewest_ranks(whole: int, split: int, bytes_per_param: Fraction) -> int | None:
    """The smallest n with w + s / n <= bytes_per_param; exact, as 12 / (16 / 3 - 4) is 9 and not a little more."""
    room = bytes_per_param - whole
    if room < 0 or (room == 0 and split):
        return None
    return max(1, ceil(split / room)) if split else 1
