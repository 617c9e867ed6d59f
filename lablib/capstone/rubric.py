"""The rubric: points by criteria that a program judges, and criteria for an instructor.

    criterion      points    full                                       half
    consistent        15     nothing missing, nothing inconsistent      at most two findings
    within            10     memory, budget, deadline and sizes hold    -
    goal              10     the loss by the scaling law reaches the    within 0.05 nats of it
                             brief's goal
    predictions       15     each within its band: step 5, memory 4,    within twice the band
                             small loss 4, small step 2
    alternatives       5     two or more, of different kinds            one
    reconciled         5     each error beyond its band is explained    half of them
    instructor        40     reasons 15, explanations 15, conclusion 10

Nothing is scored against a best plan: thresholds are the brief's, so plans of different sizes, axes, precisions and
schedules get all points (tests/capstone/test_rubric.py has such plans for each brief). The order of good plans is the
leader board's.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lablib.capstone.consistency import Finding, changed
from lablib.capstone.quantities import QUANTITIES, errors, measured
from lablib.capstone.report import Report
from lablib.signature import checked
from lablib.text.units import plural
from lablib.train.config import TrainConfig

PREDICTIONS = {"step_s": 5, "memory_bytes": 4, "small_loss": 4, "small_step_s": 2}
INSTRUCTOR = {
    "reasons": (15, "each choice follows from a number of the brief or of an earlier lab"),
    "explanations": (15, "an error is traced to a term of the sum, and the trace is checked by a change of one input"),
    "conclusion": (10, "says what would be done differently, and what the report cannot show"),
}
_NEAR_NATS = 0.05
_FEWEST_WORDS = 8  # of an explanation
_NO_PLAN = ("model.seed", "data.seed", "data.corpus", "data.val_fraction")


@dataclass(frozen=True)
class Criterion:
    """Points of one criterion; `points` is None where an instructor judges."""

    name: str
    points: float | None
    most: int
    text: str


@checked
def rubric(report: Report, found: Sequence[Finding]) -> list[Criterion]:
    """All criteria, the program's first. `found`: of `findings(report)`."""
    judged = [_consistent(found), _within(report, found)]
    judged += [judge(report) for judge in (_goal, _predictions, _alternatives, _reconciled)]
    return judged + [Criterion(name, None, most, text) for name, (most, text) in INSTRUCTOR.items()]


@checked
def machine_points(criteria: Sequence[Criterion]) -> tuple[float, int]:
    """Points that the program gave, and their maximum."""
    judged = [each for each in criteria if each.points is not None]
    return sum(each.points or 0.0 for each in judged), sum(each.most for each in judged)


def _consistent(found: Sequence[Finding]) -> Criterion:
    count = sum(each.kind != "brief" for each in found)
    points = 15.0 if count == 0 else 7.5 if count <= 2 else 0.0
    return Criterion("consistent", points, 15, f"{plural(count, 'findings')} on missing or inconsistent parts")


def _within(report: Report, found: Sequence[Finding]) -> Criterion:
    """The rules of the brief, except the goal."""
    if report.large_run is None or report.small_run is None:
        return Criterion("within", 0.0, 10, "not run yet")
    if broken := [each for each in found if each.kind == "brief" and "scaling law" not in each.text]:
        return Criterion("within", 0.0, 10, f"broken: {plural(len(broken), 'rules')} of the brief")
    return Criterion("within", 10.0, 10, "sizes, memory, budget and deadline hold")


def _goal(report: Report) -> Criterion:
    loss, goal = report.brief.loss(report.large), report.brief.goal_loss
    points = 10.0 if loss <= goal else 5.0 if loss <= goal + _NEAR_NATS else 0.0
    return Criterion("goal", points, 10, f"{loss:.3f} nats by the scaling law; the goal is {goal:g}")


def _predictions(report: Report) -> Criterion:
    values, points, texts = measured(report), 0.0, list[str]()
    for name, most in PREDICTIONS.items():
        predicted, quantity = getattr(report.predicted, name), QUANTITIES[name]
        if predicted is None or name not in values:
            texts.append(f"{name}: none")
            continue
        bands = next((bands for bands in (1, 2) if quantity.is_within(predicted, values[name], bands)), None)
        points += most / bands if bands else 0.0
        texts.append(f"{name} {quantity.error_text(quantity.error(predicted, values[name]))}")
    return Criterion("predictions", points, sum(PREDICTIONS.values()), ", ".join(texts))


def _alternatives(report: Report) -> Criterion:
    """Alternatives count once for each set of fields that they change, among those that the planner prices."""
    kinds, plan = set[frozenset[str]](), _planned(report.large)
    for each in report.alternatives:
        try:
            other = _planned(changed(report.large, each.changes))
        except ValueError:
            continue
        if each.reason.strip() and (kind := frozenset(name for name, value in other.items() if value != plan[name])):
            kinds.add(kind)
    points = {0: 0.0, 1: 2.5}.get(len(kinds), 5.0)
    return Criterion("alternatives", points, 5, f"{plural(len(kinds), 'kinds')} of other plans with a reason")


def _planned(config: TrainConfig) -> dict[str, Any]:
    """The fields that make a plan; not seeds, rates, the length of the run, or the monitors."""
    sections = ("model", "data", "precision", "memory", "parallel")
    fields = {f"{name}.{key}": value for name in sections for key, value in asdict(getattr(config, name)).items()}
    fields["optimizer.name"] = config.optimizer.name
    return {name: value for name, value in fields.items() if name not in _NO_PLAN}


def _reconciled(report: Report) -> Criterion:
    if report.large_run is None or report.small_run is None:
        return Criterion("reconciled", 0.0, 5, "not run yet")
    pairs = {name: (getattr(report.predicted, name), value) for name, value in measured(report).items()}
    beyond = [name for name in errors(report) if not QUANTITIES[name].is_within(*pairs[name])]
    texts = {name: each.explanation for name, each in report.reconciled.items()}
    explained = [name for name in beyond if len(texts.get(name, "").split()) >= _FEWEST_WORDS]
    points = 5.0 if len(explained) == len(beyond) else 2.5 if 2 * len(explained) >= len(beyond) else 0.0
    text = f"{len(explained)} of {len(beyond)} errors beyond their band are explained" if beyond else "all within bands"
    return Criterion("reconciled", points, 5, text)
