"""Is a constant physics, or was it fitted to a source? Fit it on all other sources, and predict that one.

For each source: its rows are taken out, the constants are fitted to the rest, and the error on the rows that were out
is held out. Beside it stands the error when all sources were fitted: the nearer the two, the more the constants say of
machines and the less of the rows.

What is made small is the mean over sources of the mean |ln(predicted / measured)| of the step time: every source counts
the same, however many rows it has, and twice as long is as far off as half. The search goes along one constant at a
time, in steps that shrink (pattern search: Hooke and Jeeves, "Direct search", J. ACM 8(2), 1961): it needs no
derivative, repeats to the last bit, and never leaves the bounds.

Source of the procedure: Stone, "Cross-validatory choice and assessment of statistical predictions", JRSS B 36, 1974.
Simplified: a source is a family of row ids; the search finds a local minimum from the constants as they are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean

from lablib.plan.validation.rows import Row
from lablib.plan.validation.score import Predictor, Prepared, prepare, report


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that may be fitted: its value now, and the least and most that physics allows. All positive."""

    value: float
    least: float
    most: float

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.value <= self.most:
            raise ValueError(
                f"a constant needs 0 < least <= value <= most: got {self.least}, {self.value}, {self.most}"
            )


Values = Mapping[str, float]
# Makes a predictor of the values of the constants.
Maker = Callable[[Values], Predictor]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One source: mean |error| in percent when it was fitted with the others, and when it was left out."""

    source: str
    rows: int
    fitted: float
    held_out: float
    values: Values


def cross_validate(
    rows: Iterable[Row], constants: Mapping[str, Constant], predictor: Maker, *, rounds: int = 4
) -> list[HeldOut]:
    """The error of every source with constants that were fitted without it, in the order of the rows.

    Arguments:
        rows: of at least two sources.
        constants: name to value and bounds.
        predictor: called with the values of all constants, returns what `score` takes.
        rounds: passes over all constants, the steps halved from one to the next.

    Raises:
        ValueError: rows of a single source.
    """
    ready, _ = prepare(rows)
    ready = [one for one in ready if one.measured.step_time_s is not None]
    sources = list(dict.fromkeys(one.row.family for one in ready))
    if len(sources) < 2:
        raise ValueError(f"leaving one source out needs two or more: got {', '.join(sources) or 'none'}")
    fitted = fit(ready, constants, predictor, rounds=rounds)
    results = []
    for source in sources:
        inside = [one for one in ready if one.row.family == source]
        values = fit([one for one in ready if one.row.family != source], constants, predictor, rounds=rounds)
        with_all, without = (report(inside, predictor(v)).all().get("mape", float("nan")) for v in (fitted, values))
        results.append(HeldOut(source, len(inside), with_all, without, values))
    return results


def fit(
    ready: Sequence[Prepared], constants: Mapping[str, Constant], predictor: Maker, *, rounds: int = 4
) -> dict[str, float]:
    """The constants with the smallest loss near where they are, inside their bounds. Arguments as `cross_validate`."""
    values = {name: constant.value for name, constant in constants.items()}
    least, step = loss(ready, predictor(values)), 0.5
    for _ in range(rounds):
        for name, constant in constants.items():
            for factor in (1 + step, 1 / (1 + step)):
                # Keep going in a direction while it helps.
                while True:
                    tried = values | {name: min(constant.most, max(constant.least, values[name] * factor))}
                    found = loss(ready, predictor(tried)) if tried != values else least
                    if not found < least:
                        break
                    values, least = tried, found
        step /= 2
    return values


def loss(ready: Iterable[Prepared], predict: Predictor) -> float:
    """The mean over sources of the mean |ln(predicted / measured)| of the step time."""
    by_source: dict[str, list[float]] = {}
    for one in report(ready, predict).timed:
        ratio = one.step_time_s / (one.measured.step_time_s or 1.0)
        by_source.setdefault(one.row.family, []).append(abs(log(ratio)))
    return fmean(fmean(distances) for distances in by_source.values()) if by_source else float("inf")
