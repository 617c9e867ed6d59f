"""Evidence for a prediction: measured runs near it, the planner's error there, and a band for the step time.

The distance of two runs is a sum; 1 is a model of twice the size:

    |log2| of FLOPs per token, |log2| of the sequence length, half of |log2| of the GPUs
    0 for the same device, otherwise 1 + the difference of the compute capabilities' major numbers, or 4 if one of the
    devices is not NVIDIA's
    2 for twice the width of the dtype, 1 for other software, 2 for a mixture of experts against a dense model
    infinity for a technique of which only one of them makes use (`Question.apart`)

The band is the predicted time times exp(+-w). w is the third largest |ln(predicted / measured)| of the nearest 12
runs, widened by a twentieth for each unit of their mean distance. If fewer than 12 runs are within RADIUS, there is no
band: "no evidence".

For exchangeable errors the third largest of 12 covers 10 of 13 new runs (Lei et al., "Distribution-free predictive
inference for regression", JASA 113, 2018, arXiv 1604.04173, section 2). Two sources are not exchangeable, so
weights, radius and widening were chosen, and are tested, with all runs of a source left out: 75 to 85% of the runs with
evidence must be in their band.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import exp, inf, log, log2
from statistics import median, quantiles
from typing import TYPE_CHECKING

from lablib.text.units import format_quantity, plural
from lablib.validation.measured_runs import MeasuredRun, Question, measured_runs, question_of

if TYPE_CHECKING:
    from lablib.plan.prediction import Prediction

NEAREST = 12
RADIUS = 5.5
_WIDENING = 0.05  # of the band, per unit of distance


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for one prediction."""

    num_runs: int  # measured runs within RADIUS
    error: float | None = None  # their median |predicted / measured - 1|; None without evidence
    # the quartiles of their predicted / measured; None without evidence
    ratios: tuple[float, float, float] | None = None
    band_s: tuple[float, float] | None = None  # limits of the measured step time in seconds; None without evidence
    reason: str = ""  # the reason for no evidence, or ""

    def __str__(self) -> str:
        if self.band_s is None or self.error is None:
            return f"no evidence: {self.reason}"
        low, high = (format_quantity(each, "s") for each in self.band_s)
        return f"{plural(self.num_runs, 'measured runs')} nearby, error {self.error:.0%}, band {low} to {high}"

    def sentence(self) -> str:
        """The same as a sentence: "Evidence: ..." or "No evidence: ..."."""
        return f"Evidence: {self}." if self.band_s else f"{str(self).replace('no', 'No', 1)}."


def evidence_of(prediction: Prediction) -> Evidence:
    """Evidence for a prediction, from the published runs of this package. ValueError: it is not from `predict`."""
    return evidence_at(question_of(prediction), prediction.step_time_s, measured_runs())


def evidence_at(question: Question, step_time_s: float, runs: Iterable[MeasuredRun]) -> Evidence:
    """Evidence for a predicted step time in seconds, from these runs."""
    known = [(distance(question, run.question), abs(log(run.ratio)), run) for run in runs]
    near = [each for each in known if each[0] <= RADIUS]
    if len(near) < NEAREST:
        return Evidence(len(near), reason=_reason(question, near, [run for *_, run in known]))
    nearest = nsmallest(NEAREST, near, key=lambda each: (each[0], each[2].id))
    mean_distance = sum(each[0] for each in nearest) / NEAREST
    width = sorted(each[1] for each in nearest)[-3] * (1 + _WIDENING * mean_distance)
    ratios = [run.ratio for *_, run in near]
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return Evidence(
        num_runs=len(near),
        error=median(abs(ratio - 1) for ratio in ratios),
        ratios=(low, middle, high),
        band_s=(step_time_s * exp(-width), step_time_s * exp(width)),
    )


def distance(one: Question, other: Question) -> float:
    """Distance of two runs, in doublings of the model's size; infinity if they cannot be compared."""
    if one.apart != other.apart:
        return inf
    return sum(_parts(one, other).values())


def _parts(one: Question, other: Question) -> dict[str, float]:
    """The distance as a sum, by name."""
    has_other_maker = not one.capability or not other.capability
    apart = 4.0 if has_other_maker else 1.0 + abs(one.capability - other.capability)
    return {
        "model size": abs(log2(one.flops_per_token / other.flops_per_token)),
        "sequence length": abs(log2(one.seq_len / other.seq_len)),
        "number of GPUs": abs(log2(one.num_gpus / other.num_gpus)) / 2,
        "device": 0.0 if one.device == other.device else apart,
        "dtype": 2 * abs(log2(one.bits / other.bits)),
        "software": float(one.software != other.software),
        "experts": 2.0 * (one.has_experts != other.has_experts),
    }


def _reason(question: Question, near: Sequence[object], runs: Sequence[MeasuredRun]) -> str:
    """One clause: the number of near runs, and the largest part of the distance to the nearest one."""
    found = f"only {plural(len(near), 'measured runs')} nearby" if near else "no measured run is near"
    comparable = [run for run in runs if run.question.apart == question.apart]
    if not comparable:
        return f"{found}, as none has {' and '.join(question.apart)}"
    closest = min(comparable, key=lambda run: (distance(question, run.question), run.id))
    parts = _parts(question, closest.question)
    largest = max(parts, key=lambda name: parts[name])
    needed = f" of {NEAREST} needed" if near else ""
    return f"{found}{needed}; the nearest, {closest.id}, differs most in {largest}"


def coverage(runs: Sequence[MeasuredRun]) -> tuple[int, int]:
    """Runs with evidence from all other sources, and how many of them are in their band."""
    is_inside = []
    for run in runs:
        others = [each for each in runs if each.source != run.source]
        # Times in units of the measured one: the prediction is the ratio, the measurement 1.
        if band := evidence_at(run.question, run.ratio, others).band_s:
            is_inside.append(band[0] <= 1.0 <= band[1])
    return len(is_inside), sum(is_inside)
