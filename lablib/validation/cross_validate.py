"""Leave-one-source-out cross-validation of the planner's fitted constants; also leave-one-software-out.

For each source: the constants are fitted to the rows of all other sources, and the error on the source's rows is the
held-out error. It is compared with the error after a fit to all sources: if the two are close, the constants describe
machines, not rows.

The loss is the mean over sources of the mean |ln(predicted / measured)| of the step time: every source has the same
weight, and a factor of 2 and of 1/2 are the same error. The search starts in the middle of the bounds, so it does not
depend on constants that were fitted with the source. It steps along one constant at a time, repeats the moves that
reduced the loss, and halves the step if none does (Hooke and Jeeves, "Direct search", J. ACM 8(2), 1961): it needs no
derivative and never leaves the bounds. A constant that does not affect the other sources keeps its value.

Source of the procedure: Stone, "Cross-validatory choice and assessment of statistical predictions", JRSS B 36, 1974.
Simplified: a source is a family of row ids; the search finds a local minimum; open choices of a row are made once, with
the present constants.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log, sqrt
from statistics import fmean
from typing import NamedTuple

from lablib.text.files import parse_json
from lablib.validation.rows import PublishedRow
from lablib.validation.score import Predictor, Prepared, Skipped, best, prepare, report

_FIRST_STEP, _LAST_STEP = 0.4, 0.05  # shares of a constant
_WORTHWHILE = 5e-4  # the share of the loss that a step must save


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that may be fitted: its present value, and its physical minimum and maximum. All positive."""

    value: float
    minimum: float
    maximum: float

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.value <= self.maximum:
            raise ValueError(
                f"a constant needs 0 < minimum <= value <= maximum: got {self.minimum}, {self.value}, {self.maximum}"
            )


Values = Mapping[str, float]
# Makes a predictor from the values of the constants.
Maker = Callable[[Values], Predictor]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One source: its mean |error| in percent with the present constants, fitted on all sources, and fitted without
    this one; and the constants of the last fit."""

    source: str
    rows: int
    as_is: float
    fitted: float
    held_out: float
    values: Values


def cross_validate(
    rows: Iterable[PublishedRow],
    constants: Mapping[str, Constant],
    predictor: Maker,
    *,
    progress: Callable[[str], None] = lambda source: None,
    group: Callable[[PublishedRow], str] = lambda row: row.family,
) -> list[HeldOut]:
    """The error of every source with constants that were fitted without it, in the order of the rows.

    Arguments:
        rows: of at least two sources.
        group: the name of a row's group, which is left out as a whole: its source, or its software.
        constants: name to value and bounds.
        predictor: called with the values of all constants, returns the `predict` of `score`.
        progress: called before each fit with the source that is left out, "none" first.

    Raises ValueError: rows of a single source.
    """
    as_is = predictor({name: constant.value for name, constant in constants.items()})
    ready, refused = _settled(rows, as_is)
    sources = list(dict.fromkeys(group(one.row) for one in ready))
    if len(sources) < 2:
        raise ValueError(f"leaving one source out needs two or more: got {', '.join(sources) or 'none'}")
    progress("none")
    fitted = predictor(fit(ready, constants, predictor))
    results = []
    for source in sources:
        progress(source)
        values = fit([one for one in ready if group(one.row) != source], constants, predictor)
        inside = [one for one in ready if group(one.row) == source]
        outside = [one for one in refused if one.row is not None and group(one.row) == source]
        reports = [report(inside, predict, outside).all() for predict in (as_is, fitted, predictor(values))]
        errors = [each["mape"] for each in reports]
        results.append(HeldOut(source, int(reports[0]["rows"]), errors[0], errors[1], errors[2], values))
    return results


def _settled(rows: Iterable[PublishedRow], predict: Predictor) -> tuple[list[Prepared], list[Skipped]]:
    """The rows that state a time, each with its best case, which stays fixed during a fit; and the refused rows."""
    ready, refused = prepare(rows)
    settled = []
    for one in ready:
        if one.measured.step_time_s is not None:
            try:
                settled.append(replace(one, cases=(best(one.cases, predict)[0],)))
            except ValueError as error:
                refused.append(Skipped(one.row.id, one.row.line, str(error), one.row))
    return settled, refused


def fit(ready: Sequence[Prepared], constants: Mapping[str, Constant], predictor: Maker) -> dict[str, float]:
    """The constants with the smallest loss inside their bounds. Arguments as `cross_validate`."""

    def at(values: Values) -> _Point:
        inside = {name: min(c.maximum, max(c.minimum, values[name])) for name, c in constants.items()}
        return _Point(loss(ready, predictor(inside)), inside)

    here, step = at({name: sqrt(c.minimum * c.maximum) for name, c in constants.items()}), _FIRST_STEP
    while step > _LAST_STEP:
        there = _explore(here, step, at)
        if there is here:
            step /= 2
        while there is not here:
            # A move that reduced the loss often does so twice: repeat it, and explore from there.
            leap = {name: there.values[name] ** 2 / here.values[name] for name in constants}
            here, beyond = there, _explore(at(leap), step, at)
            there = beyond if beyond.loss < here.loss * (1 - _WORTHWHILE) else here
    return here.values


class _Point(NamedTuple):
    """Constants, and their loss."""

    loss: float
    values: dict[str, float]


def _explore(here: _Point, step: float, at: Callable[[Values], _Point]) -> _Point:
    """One step up or down along each constant in turn, if it reduces the loss; `here` itself if none does."""
    for name in here.values:
        for factor in (1 + step, 1 / (1 + step)):
            there = at(here.values | {name: here.values[name] * factor})
            if there.loss < here.loss * (1 - _WORTHWHILE):
                here = there
                break
    return here


def loss(ready: Iterable[Prepared], predict: Predictor) -> float:
    """The mean over sources of the mean |ln(predicted / measured)| of the step time."""
    by_source: dict[str, list[float]] = {}
    for one in report(ready, predict).timed:
        ratio = one.step_time_s / (one.measured.step_time_s or 1.0)
        by_source.setdefault(one.row.family, []).append(abs(log(ratio)))
    return fmean(fmean(distances) for distances in by_source.values()) if by_source else float("inf")


def held_out_text(results: Iterable[HeldOut], constants: Mapping[str, Constant]) -> str:
    """The results as JSON, with the planner's constants: the file next to the page."""
    now = {name: constant.value for name, constant in constants.items()}
    return json.dumps({"constants": now, "sources": [asdict(one) for one in results]}, indent=1) + "\n"


def read_held_out(text: str) -> tuple[list[HeldOut], dict[str, float]]:
    """The results and the constants of `held_out_text`. Raises ValueError: the text is not from `held_out_text`."""
    try:
        record = parse_json(text)
        return [HeldOut(**one) for one in record["sources"]], record["constants"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the text is not a result of cross-validation ({error}): make one with --cross-validate"
        ) from None
