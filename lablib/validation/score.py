"""Scores of the predictor: the error of every row, by family, in total, and for memory.

    error = predicted / measured - 1, in percent        mape: the mean of |error|;  median: of |error|;
    bias: the mean of error;  max: the largest |error|;  naive_mape: mape of the naive estimate (baseline.py)

Of the choices that a row leaves open (rule C11 of case.py), the fastest with a predicted memory that fits the GPU
counts; if none fits, the smallest. The naive estimate uses the first choice. A row that cannot be modelled, or that the
predictor refuses, is listed with the reason and counts as a failure: a prediction of 0, an error of -100%. Rows without
a measurement are listed and not counted: rows that the file excludes
("scorable": false), and rows with a figure that no GPU can have reached.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Protocol

from lablib.validation.architecture import transformer_of
from lablib.validation.baseline import naive_step_time_s
from lablib.validation.case import Case, cases_of
from lablib.validation.measured import MeasuredStep, measured_of
from lablib.validation.row_software import RowSoftware, software_of
from lablib.validation.rows import PublishedRow


class PredictionLike(Protocol):
    """The attributes of a prediction that are used."""

    @property
    def step_time_s(self) -> float: ...
    @property
    def peak_memory_bytes(self) -> float: ...
    @property
    def reserved_bytes(self) -> float: ...
    @property
    def device_bytes(self) -> float: ...
    @property
    def fits(self) -> bool: ...


REFUSED_ERROR = -100.0  # percent
# Called with the keyword arguments of `Case.arguments`.
Predictor = Callable[..., PredictionLike]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A row ready to be predicted: the runs it may describe, the measurement, and the naive estimate in seconds."""

    row: PublishedRow
    cases: tuple[Case, ...]
    measured: MeasuredStep
    naive_s: float


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that is not scored, with the reason; `row` is None if there is no measurement."""

    id: str
    line: int
    reason: str
    row: PublishedRow | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """One row: measured, predicted and naive step time in seconds, and memory in bytes if it was measured."""

    row: PublishedRow
    case: Case
    measured: MeasuredStep
    step_time_s: float
    memory_bytes: float
    naive_s: float

    @property
    def software(self) -> RowSoftware:
        """Software assumed for the row, with the reason."""
        return software_of(self.row, self.case.cluster)

    @property
    def error(self) -> float:
        """Predicted / measured - 1 of the step time, in percent."""
        assert self.measured.step_time_s is not None
        return 100 * (self.step_time_s / self.measured.step_time_s - 1)

    @property
    def naive_error(self) -> float:
        """Error of the naive estimate, in percent."""
        assert self.measured.step_time_s is not None
        return 100 * (self.naive_s / self.measured.step_time_s - 1)

    @property
    def memory_error(self) -> float:
        """Error of the memory, in percent."""
        assert self.measured.memory_bytes is not None
        return 100 * (self.memory_bytes / self.measured.memory_bytes - 1)


def statistics(errors: Sequence[float], naive_errors: Sequence[float] = (), refused: int = 0) -> dict[str, float]:
    """rows, refused, mape, median, bias, max and, if given, naive_mape of signed errors in percent.

    Each of the `refused` rows is one of `rows`, with an error of -100%; the naive estimate has no such rows.

    >>> statistics([10.0, -20.0])
    {'rows': 2, 'refused': 0, 'mape': 15.0, 'median': 15.0, 'bias': -5.0, 'max': 20.0}
    >>> statistics([10.0], refused=1)
    {'rows': 2, 'refused': 1, 'mape': 55.0, 'median': 55.0, 'bias': -45.0, 'max': 100.0}
    """
    errors = [*errors, *[REFUSED_ERROR] * refused]
    if not errors:
        return {"rows": 0}
    sizes = [abs(error) for error in errors]
    figures = {"rows": len(sizes), "refused": refused, "mape": fmean(sizes), "median": median(sizes)}
    figures |= {"bias": fmean(errors), "max": max(sizes)}
    return figures | ({"naive_mape": fmean(abs(error) for error in naive_errors)} if naive_errors else {})


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """All scored rows, and the others, in the order of the file."""

    scored: tuple[Scored, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def timed(self) -> tuple[Scored, ...]:
        """The rows that state the time of a step."""
        return tuple(one for one in self.scored if one.measured.step_time_s is not None)

    @property
    def weighed(self) -> tuple[Scored, ...]:
        """The rows that state memory."""
        return tuple(one for one in self.scored if one.measured.memory_bytes is not None)

    def refused(self, of_memory: bool = False) -> tuple[PublishedRow, ...]:
        """The rows that state a step time (or memory) and have no prediction."""
        rows = [one.row for one in self.skipped if one.row is not None]
        return tuple(row for row in rows if any(name.startswith("memory") == of_memory for name in row.measured))

    def families(self) -> dict[str, dict[str, float]]:
        """Statistics of the step time by the part of the id before the first "-"."""
        return _by(self.timed, self.refused(), lambda row: row.family, _time)

    def groups(self) -> dict[str, dict[str, float]]:
        """As `families`, by the first two parts, for families with several kinds of rows under one source's name."""
        groups: dict[str, dict[str, float]] = {}
        for family, figures in self.families().items():
            ones = [one for one in self.timed if one.row.family == family]
            parts = _by(ones, [row for row in self.refused() if row.family == family], lambda row: row.group, _time)
            # An id such as "mpt-L77" has a unique second part: no group.
            is_grouped = 1 < len(parts) and len(parts) * 3 <= figures["rows"]
            groups |= parts if is_grouped else {family: figures}
        return groups

    def all(self) -> dict[str, float]:
        """Statistics of the step time over all rows."""
        return _time(self.timed, len(self.refused()))

    def memory(self) -> dict[str, Any]:
        """Statistics of memory over all rows that state it, and by family."""
        refused = self.refused(of_memory=True)
        families = _by(self.weighed, refused, lambda row: row.family, _memory)
        return _memory(self.weighed, len(refused)) | {"families": families}

    def worst(self, number: int) -> list[Scored]:
        """The rows with the largest errors of time, worst first."""
        return sorted(self.timed, key=lambda one: (-abs(one.error), one.row.line))[:number]

    def to_json(self) -> dict[str, Any]:
        """The report as plain numbers, errors in percent."""
        skipped = [{"id": one.id, "line": one.line, "reason": one.reason} for one in self.skipped]
        software = {one.row.id: str(one.software) for one in self.scored}
        return {
            **{"families": self.families(), "all": self.all(), "memory": self.memory(), "skipped": skipped},
            "software": software,
        }


def score(rows: Iterable[PublishedRow], predict: Predictor) -> ScoreReport:
    """The report of all rows. `predict` is called with the keyword arguments of a `Case`."""
    ready, skipped = prepare(rows)
    return report(ready, predict, skipped)


def prepare(rows: Iterable[PublishedRow]) -> tuple[list[Prepared], list[Skipped]]:
    """The part of `score` before the predictor: cases and measurement of each row, and the skipped rows."""
    ready, skipped = [], []
    for row in rows:
        if not row.is_scorable:
            skipped.append(Skipped(row.id, row.line, 'the file says "scorable": false'))
            continue
        try:
            cases = cases_of(row)
        except ValueError as error:
            skipped.append(Skipped(row.id, row.line, str(error), row))
            continue
        try:
            model, case = transformer_of(row, pads_vocabulary=False), cases[0]
            stated = measured_of(row, model, case.cluster.device, case.batch, case.precision, case.recompute)
            ready.append(Prepared(row, cases, stated, naive_step_time_s(case)))
        except ValueError as error:  # an impossible figure: probably in another unit
            skipped.append(Skipped(row.id, row.line, str(error)))
    return ready, skipped


def report(ready: Iterable[Prepared], predict: Predictor, skipped: Sequence[Skipped] = ()) -> ScoreReport:
    """`score` of prepared rows, for repeated calls in a fit."""
    scored, refused = [], []
    for one in ready:
        try:
            case, prediction = best(one.cases, predict)
        except ValueError as error:
            refused.append(Skipped(one.row.id, one.row.line, f"the predictor refuses: {error}", one.row))
            continue
        time_s, memory = prediction.step_time_s, getattr(prediction, one.measured.memory_kind)
        scored.append(Scored(one.row, case, one.measured, time_s, memory, one.naive_s))
    return ScoreReport(tuple(scored), tuple(sorted([*skipped, *refused], key=lambda one: one.line)))


def best(cases: Sequence[Case], predict: Predictor) -> tuple[Case, PredictionLike]:
    """Rule C11: the fastest case that fits the device's memory, or the one with least memory.

    Raises ValueError: the predictor refuses every case; with the reason of the first.
    """
    predictions, reasons = [], []
    for case in cases:
        try:
            predictions.append((case, predict(**case.arguments())))
        except ValueError as error:
            reasons.append(error)
    if not predictions:
        raise reasons[0]
    fitting = [one for one in predictions if one[1].fits]
    if fitting:
        return min(fitting, key=lambda one: one[1].step_time_s)
    return min(predictions, key=lambda one: one[1].peak_memory_bytes)


Figures = dict[str, float]


def _by(
    ones: Iterable[Scored],
    refused: Iterable[PublishedRow],
    key: Callable[[PublishedRow], str],
    figures: Callable[[Sequence[Scored], int], Figures],
) -> dict[str, Figures]:
    groups: dict[str, list[Scored]] = {}
    for one in ones:
        groups.setdefault(key(one.row), []).append(one)
    counts = Counter(key(row) for row in refused)
    return {name: figures(groups.get(name, []), counts[name]) for name in dict.fromkeys((*groups, *counts))}


def _time(ones: Sequence[Scored], refused: int) -> Figures:
    return statistics([one.error for one in ones], [one.naive_error for one in ones], refused)


def _memory(ones: Sequence[Scored], refused: int) -> Figures:
    return statistics([one.memory_error for one in ones], (), refused)
