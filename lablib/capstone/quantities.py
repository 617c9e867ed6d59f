"""Predicted and measured numbers under the same names, their errors, and the bands of a good prediction.

    step_s, memory_bytes, gpu_hours      of the large run: measured on shapes
    loss                                 of the large run: by the scaling law, as it is too large to run here
    small_loss, small_step_s, ...        of the small run: measured for real

The error of a loss is a difference in nats, predicted - measured; of the others predicted / measured - 1. A band is a
factor: within 1.2 a prediction may be 20% above the measurement, or the measurement 20% above the prediction.

A careful prediction reaches these bands: the planner's error on published runs has a band near 1.2
(`Prediction.evidence`); a machine shared with others changes its speed by a factor of two; a loss averaged over some
steps varies by 0.1 from one part of a corpus to the next.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean, median
from types import MappingProxyType

from lablib.capstone.report import LargeRun, Reconciled, Report, SmallRun
from lablib.signature import checked
from lablib.text.units import format_quantity


@dataclass(frozen=True)
class Quantity:
    """One number that is predicted and measured."""

    title: str
    unit: str  # of `format_quantity`; "nats" for a loss
    band: float  # a factor, or nats
    measured: Callable[[Report], float | None]

    @property
    def is_loss(self) -> bool:
        return self.unit == "nats"

    def error(self, predicted: float, measured: float) -> float:
        return predicted - measured if self.is_loss else predicted / measured - 1

    def is_within(self, predicted: float, measured: float, bands: float = 1.0) -> bool:
        """Whether a prediction is within so many bands of the measurement."""
        off = abs(predicted - measured) if self.is_loss else abs(log(predicted / measured))
        return off <= bands * (self.band if self.is_loss else log(self.band)) * (1 + 1e-9)

    def text(self, value: float) -> str:
        return f"{value:.3f} nats" if self.is_loss else format_quantity(value, self.unit)

    def error_text(self, error: float) -> str:
        if abs(error) >= 1e6:
            return f"{error:+.3g}" + " nats" * self.is_loss
        return f"{error:+.3f} nats" if self.is_loss else f"{error:+.1%}"


def final_loss(losses: tuple[float, ...]) -> float:
    """The mean of the last tenth of the steps, at least one."""
    return fmean(losses[-max(1, len(losses) // 10) :])


def median_step_s(seconds: list[float]) -> float:
    """The median after the first tenth, which warms up."""
    return median(seconds[len(seconds) // 10 :])


@checked
def gpu_hours(report: Report, step_s: float) -> float:
    """GPU hours of the whole large run with this step."""
    return report.brief.gpus * report.large.num_steps * step_s / 3600


def _large(of: Callable[[Report, LargeRun], float]) -> Callable[[Report], float | None]:
    return lambda report: None if report.large_run is None else of(report, report.large_run)


def _small(of: Callable[[SmallRun], float]) -> Callable[[Report], float | None]:
    return lambda report: None if report.small_run is None else of(report.small_run)


QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {
        "step_s": Quantity("a step of the large run", "s", 1.2, _large(lambda _, run: run.step_s)),
        "memory_bytes": Quantity("memory of a GPU", "B", 1.2, _large(lambda _, run: run.memory_bytes)),
        "gpu_hours": Quantity("GPU hours", "h", 1.2, _large(lambda report, run: gpu_hours(report, run.step_s))),
        "loss": Quantity("loss of the large run", "nats", 0.05, _large(lambda of, _: of.brief.loss(of.large))),
        "small_loss": Quantity("loss of the small run", "nats", 0.2, _small(lambda run: final_loss(run.losses))),
        "small_step_s": Quantity("a step of the small run", "s", 2.0, _small(lambda run: run.step_s)),
        "small_memory_bytes": Quantity("memory of the small run", "B", 1.5, _small(lambda run: run.memory_bytes)),
    }
)


@checked
def measured(report: Report) -> dict[str, float]:
    """The measured numbers of a report, those that are there."""
    values = {name: quantity.measured(report) for name, quantity in QUANTITIES.items()}
    return {name: value for name, value in values.items() if value is not None}


@checked
def errors(report: Report) -> dict[str, float]:
    """The error of each prediction that was measured."""
    pairs = {name: (getattr(report.predicted, name), value) for name, value in measured(report).items()}
    return {name: QUANTITIES[name].error(*pair) for name, pair in pairs.items() if pair[0] is not None}


@checked
def with_runs(report: Report, small: SmallRun | None = None, large: LargeRun | None = None) -> Report:
    """The report with these runs, and the error of each prediction; all explanations stay."""
    found = replace(report, small_run=small or report.small_run, large_run=large or report.large_run)
    rows = dict(report.reconciled)
    for name, error in errors(found).items():
        rows[name] = Reconciled(round(error, 4), rows[name].explanation if name in rows else "")
    return replace(found, reconciled={name: rows[name] for name in QUANTITIES if name in rows})


def mean_factor(report: Report) -> float | None:
    """The mean factor by which times and memory were off; 1.0 is exact. None without such numbers."""
    logs = [abs(log(1 + error)) for name, error in errors(report).items() if not QUANTITIES[name].is_loss]
    return exp(fmean(logs)) if logs else None
