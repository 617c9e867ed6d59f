"""Errors of the planner with more and with less knowledge of a row.

software of the row         rule C5 of case.py; also by the way in which it is known
one default for all         the usual software today, as for a user who names none
without its source          constants fitted on the rows of all other sources
without its software        constants fitted on the rows of all other software
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lablib.plan.default_stack import default_stack
from lablib.validation.cross_validate import HeldOut
from lablib.validation.machine import cluster_of
from lablib.validation.row_software import software_of
from lablib.validation.rows import PublishedRow
from lablib.validation.score import ScoreReport, Skipped, statistics

CONDITIONS_HEADING = ("condition", "rows", "mean error", "median", "bias", "worst", "refused")
REFUSED_HEADING = ("reason", "rows refused")


def with_default_software(rows: Iterable[PublishedRow]) -> list[PublishedRow]:
    """The rows as if each stated the usual software today. A row on an unknown GPU is unchanged."""
    changed = []
    for row in rows:
        try:
            name = default_stack(cluster_of(row).device).name if row.is_scorable else ""
        except ValueError:  # the same error refuses it in the report
            name = ""
        changed.append(replace(row, texts={**row.texts, "stack": name}) if name else row)
    return changed


def software_name(row: PublishedRow) -> str:
    """Name of a row's software, to leave it out of a fit."""
    return software_of(row, cluster_of(row)).name


def condition_lines(
    report: ScoreReport, default: ScoreReport, held_out: Sequence[HeldOut], without_software: Sequence[HeldOut]
) -> list[tuple[str, ...]]:
    """One line per condition: the columns of CONDITIONS_HEADING. Held-out errors are means over rows."""
    lines = [_line("software of the row (rule C5)", report.all())]
    for basis in sorted({one.software.basis for one in report.timed}, key=lambda basis: (basis != "named", basis)):
        errors = [one.error for one in report.timed if one.software.basis == basis]
        lines.append(_line(f"of these, {basis}", statistics(errors)))
    lines.append(_line("one default for all", default.all()))
    for name, results in (("source", held_out), ("software", without_software)):
        if results:
            rows, mean = mean_over_rows(results)
            lines.append((f"constants fitted without the row's {name}", str(rows), f"{mean:.1f}%", *[""] * 4))
    return lines


def mean_over_rows(results: Sequence[HeldOut]) -> tuple[int, float]:
    """Number of rows, and their mean held-out error in percent."""
    rows = sum(one.rows for one in results)
    return rows, sum(one.rows * one.held_out for one in results) / rows


def refused_lines(skipped: Iterable[Skipped]) -> list[tuple[str, ...]]:
    """Rows with a measurement that the planner cannot express, by reason: the columns of REFUSED_HEADING."""
    counts = Counter(one.reason.removeprefix("the predictor refuses: ").split(":")[0] for one in skipped if one.row)
    return [(reason, str(count)) for reason, count in counts.most_common()]


def _line(name: str, figures: dict[str, float]) -> tuple[str, ...]:
    if not figures["rows"]:
        return name, "0", *[""] * 5
    mean, middle, worst = (f"{figures[each]:.1f}%" for each in ("mape", "median", "max"))
    bias, refused = f"{figures['bias']:+.1f}%", f"{figures['refused']:.0f}"
    return name, f"{figures['rows']:.0f}", mean, middle, bias, worst, refused
