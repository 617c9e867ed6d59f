"""Tables of the report, one line per group of rows or per row, for a terminal and for a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any

from lablib.validation.cross_validate import HeldOut
from lablib.validation.measured import GIB
from lablib.validation.score import ScoreReport

# Target of the mean absolute error in percent, by group of rows; of memory at the end.
TARGETS: Mapping[str, float] = MappingProxyType(
    {
        "korthikanti22": 3.6,
        "megatron-sc21": 7.0,
        "bloom": 9.0,
        "vtrain-multi": 12.0,
        "vtrain-single": 20.0,
        "mpt": 10.0,
        "titan": 10.0,
        "mbridge": 10.0,
        "simumax": 10.0,
    }
)
MEMORY_TARGETS: Mapping[str, float] = MappingProxyType({"simumax": 3.0})
MEMORY_TARGET = 5.0
HEADING = ("rows of", "rows", "mean error", "median", "bias", "worst", "naive", "target")
SOFTWARE_HEADING = ("rows of", "software", "rows")
MEMORY_HEADING = ("memory of", *HEADING[1:6], "target")
HELD_OUT_HEADING = ("source", "rows", "as it is", "fitted on all", "fitted without it")
WORST_HEADING = ("row", "measured", "predicted", "error", "software")


def time_lines(report: ScoreReport) -> list[tuple[str, ...]]:
    """One line per group of rows, and one for all: the columns of HEADING."""
    rows = [*report.groups().items(), ("all", report.all())]
    return [(name, *_figures(s), _percent(s.get("naive_mape")), _percent(TARGETS.get(name))) for name, s in rows]


def memory_lines(report: ScoreReport) -> list[tuple[str, ...]]:
    """One line per family that states memory, and one for all: the columns of MEMORY_HEADING."""
    memory = report.memory()
    rows = [*memory["families"].items(), ("all", memory)]
    return [(name, *_figures(s), _percent(MEMORY_TARGETS.get(name, MEMORY_TARGET))) for name, s in rows]


def _figures(figures: Mapping[str, Any]) -> tuple[str, ...]:
    """rows (with the number of refused ones), mean, median, bias, worst of statistics."""
    bias = f"{figures['bias']:+.1f}%" if "bias" in figures else ""
    mean, middle, worst = (_percent(figures.get(name)) for name in ("mape", "median", "max"))
    refused = figures.get("refused")
    return f"{figures['rows']} ({refused} refused)" if refused else str(figures["rows"]), mean, middle, bias, worst


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}%"


def worst_lines(report: ScoreReport, number: int) -> list[tuple[str, ...]]:
    """The rows with the largest errors, worst first: the columns of WORST_HEADING."""
    return [
        (
            one.row.id,
            f"{one.measured.step_time_s:.4g} s",
            f"{one.step_time_s:.4g} s",
            f"{one.error:+.1f}%",
            str(one.software),
        )
        for one in report.worst(number)
    ]


def worst_memory_lines(report: ScoreReport, number: int) -> list[tuple[str, ...]]:
    """The rows with the largest errors of memory, worst first: the columns of WORST_HEADING."""
    worst = sorted(report.weighed, key=lambda one: (-abs(one.memory_error), one.row.line))
    return [
        (
            one.row.id,
            f"{(one.measured.memory_bytes or 0.0) / GIB:.1f} GiB",
            f"{one.memory_bytes / GIB:.1f} GiB",
            f"{one.memory_error:+.1f}%",
            str(one.software),
        )
        for one in worst[:number]
    ]


def software_lines(report: ScoreReport) -> list[tuple[str, ...]]:
    """Number of rows by assumed software and reason: the columns of SOFTWARE_HEADING."""
    counts = Counter((one.row.family, str(one.software)) for one in report.scored)
    return [(family, software, str(count)) for (family, software), count in counts.items()]


def held_out_lines(held_out: Sequence[HeldOut]) -> list[tuple[str, ...]]:
    """One line per source, and their mean: the columns of HELD_OUT_HEADING."""
    lines = [(one.source, str(one.rows), *map(_percent, (one.as_is, one.fitted, one.held_out))) for one in held_out]
    rows = str(sum(one.rows for one in held_out))
    return [*lines, ("mean of sources", rows, *map(_percent, held_out_means(held_out)))]


def held_out_means(held_out: Sequence[HeldOut]) -> tuple[float, float, float]:
    """Means over sources of the present error, fitted on all, and held out."""
    columns = zip(*((one.as_is, one.fitted, one.held_out) for one in held_out), strict=True)
    as_is, fitted, without = (fmean(column) for column in columns)
    return as_is, fitted, without
