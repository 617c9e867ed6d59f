"""Explain a measured step: the difference to its prediction by term, and the changed argument that comes nearest.

    explain({"model": "gpt3-13b", "cluster": "dgx-a100", "parallel": Parallel(data=8, zero_stage=3), "batch": 8}, 1.83)

Terms are the parts of `Prediction.parts`, or of a trace its kinds of work (lablib/record/step_terms.py). The parts by
kind: "other kernels" are memory-bound kernels, packing and the optimizer; "communication" is the exposed part of all
axes and of the host's link; "idle" is the bubble with its messages, launches and the fixed time. Recomputation counts
by the kind of its kernels, embedding and head in the proportion of theirs.

Each explanation is one change of the arguments, tested by its own prediction:

    software       another stack of stack.py
    no overlap     the same stack, with nothing hidden behind compute on the data, tensor, expert and pipeline axes
    recomputation  none, selective or full
    precision      of the products: float32, tfloat32, bfloat16, float16 or float8
    placement      tensor ranks far apart, on different nodes; or the planner's own order of the axes
    micro-batch    half or twice as many sequences
    sharding       another ZeRO stage
    host           starts each operator in 3 or 10 times the time
    network        between nodes at a half or a quarter of its bandwidth
    device         products at 0.8 of their rate: a lower clock

    gap = ( sum of |predicted - measured| of the measured terms + the same of the rest of the step ) / measured step

The nearest change has the smallest gap. With the seconds of the step alone, several changes may come equally near, to
1% of the step; of these the software of most published runs comes first, unless one is exact. Terms distinguish them.
On published runs with one wrong argument the right one comes first in about half of the cases by the step, in more than
four of five with terms (tests/validation/test_explain.py). A difference below the planner's usual error needs no
explanation.

Simplified: one change at a time; a change that the planner refuses is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lablib.cost.arrays import Numbers
from lablib.errors import unknown_name
from lablib.hardware.catalogue import find_cluster
from lablib.plan.arguments import possible, setup_of
from lablib.plan.derating import USUAL
from lablib.plan.layer import Cut, embedding, head, work_of
from lablib.plan.order import ORDER
from lablib.plan.parallel import Parallel
from lablib.plan.predict import parts_of, predict, prediction_of
from lablib.plan.prediction import Prediction
from lablib.plan.setup import Setup
from lablib.plan.stack import STACKS
from lablib.plan.step import StepTimes, step_of
from lablib.record.step_terms import KINDS, STEP, StepTerms, measured_step
from lablib.signature import checked
from lablib.text.markup import paragraph, table_html
from lablib.text.units import format_quantity
from lablib.validation.measured_runs import measured_runs

if TYPE_CHECKING:
    import pandas as pd

USUAL_ERROR = 0.071  # mean over the published runs: docs/validation.md
_NO_OVERLAP = {"data_overlap": False, "hides_backward_exchange": False, "hides_dispatch": False}
_NO_OVERLAP |= {"pipeline_overlap": False}
_PRECISIONS = ("float32", "tfloat32", "bfloat16", "float16", "float8")
_SAME = 1e-3  # changes of the step below it are no change
_CLOSE = 0.01  # changes whose gaps differ by less come equally near


@dataclass(frozen=True, slots=True)
class Change:
    """One changed argument, and the step that it predicts."""

    kind: str  # kind, text: a word of the list above, and the change in words
    text: str
    arguments: Mapping[str, Any]  # of `predict`, those that differ
    terms: Mapping[str, float]  # name -> predicted seconds, under the names of the measured terms
    step_s: float  # predicted seconds of the step
    gap: float  # distance from the measurement, as a share of the measured step


@dataclass(frozen=True, repr=False)
class Explanation:
    """A measured step next to its prediction."""

    prediction: Prediction  # with the given arguments
    measured: StepTerms  # the step, with its terms if they are known
    terms: Mapping[str, float]  # name -> predicted seconds: the parts of the prediction, or its kinds of work
    gap: float  # distance of the prediction from the measurement, as a share of the measured step
    # changed arguments, the nearest to the measurement first; of equally near ones the more usual
    changes: tuple[Change, ...]

    @property
    def nearest(self) -> Change | None:
        """The change nearest to the measurement; None if no change is nearer than the given arguments."""
        return self.changes[0] if self.changes and self.changes[0].gap < self.gap else None

    def rows(self) -> list[dict[str, Any]]:
        """One row per term, then the step: predicted and measured seconds, difference, and its percent of the step."""
        predicted = {**self.terms, STEP: self.prediction.step_time_s}
        measured = {**self.measured.terms, STEP: self.measured.step_s}
        rows = []
        for name, predicted_s in predicted.items():
            measured_s = measured.get(name)
            difference_s = None if measured_s is None else predicted_s - measured_s
            share = None if difference_s is None else 100 * difference_s / self.measured.step_s
            if predicted_s or measured_s:
                rows.append(
                    {
                        "term": name,
                        "predicted_s": predicted_s,
                        "measured_s": measured_s,
                        "difference_s": difference_s,
                        "difference_pct": share,
                    }
                )
        return rows

    def table(self) -> pd.DataFrame:
        """`rows` as a table; a term that was not measured has NaN."""
        import pandas as pd

        return pd.DataFrame(self.rows()).set_index("term").astype(float)

    def sentence(self) -> str:
        """The difference, and the nearest change with its prediction."""
        predicted_s, measured_s = self.prediction.step_time_s, self.measured.step_s
        text = (
            f"Predicted {format_quantity(predicted_s, 's')}, measured {format_quantity(measured_s, 's')}: "
            f"{predicted_s / measured_s - 1:+.1%}"
        )
        text += f"; the terms differ by {self.gap:.1%} of the step. " if self.measured.terms else ". "
        if self.gap <= USUAL_ERROR:
            text += f"That is within the planner's usual error ({USUAL_ERROR:.1%} on published runs). "
        if self.nearest is None:
            return f"{text}No single change of the list comes nearer."
        near = self.nearest
        if near.gap > self.gap / 2:
            text += "No single change of the list explains half of it. "
        text += f"Nearest is {near.kind}: with {near.text} the prediction is {format_quantity(near.step_s, 's')}"
        text += f" ({near.step_s / measured_s - 1:+.1%}"
        text += f", terms {near.gap:.1%})" if self.measured.terms else ")"
        close = sum(change.gap < near.gap + 0.01 for change in self.changes) - 1
        return f"{text}; {close} other changes come within 1% of it." if close else f"{text}."

    def __repr__(self) -> str:
        return f"Explanation({self.sentence()})"

    def _repr_html_(self) -> str:
        return paragraph(self.sentence()) + table_html(self.table(), float_format="{:.4g}".format, na_rep="-")


@checked
def explain(
    arguments: Mapping[str, Any], measured: float | str | Path | Mapping[str, float] | StepTerms
) -> Explanation:
    """Compare a measured step with its prediction, and find the changed argument that comes nearest.

    Arguments:
        arguments: keyword arguments of `lablib.plan.predict`, such as `search(...).plans.arguments(i)`.
        measured: seconds of the step; a mapping, or a JSON file, of seconds by term with "step"; a trace of torch's
            profiler or of `to_perfetto`; or the `StepTerms` of one.

    Raises ValueError: invalid arguments or measurement, or a term with an unknown name.
    """
    measured, names = measured_step(measured), list(signature(predict).parameters)
    for name in arguments:
        if name not in names:
            raise unknown_name("argument of predict", name, names)
    if missing := [name for name in names[:2] if name not in arguments]:
        raise ValueError(f"arguments must have {' and '.join(missing)}: got {', '.join(arguments) or 'none'}")
    setup, step = _evaluated(arguments)
    of_kind = measured.terms.keys() <= set(KINDS) and bool(measured.terms)
    terms = _terms(setup, step, of_kind)
    for name in measured.terms:
        if name not in terms:
            raise unknown_name("term", name, [*parts_of(step), *KINDS])
    prediction, changes = prediction_of(setup), list[Change]()
    for kind, text, changed in changes_of(arguments):
        try:
            other_setup, other = _evaluated({**arguments, **changed})
        except ValueError:
            continue
        found = _terms(other_setup, other, of_kind)
        moved = sum(abs(found[name] - seconds) for name, seconds in terms.items())
        if moved > _SAME * prediction.step_time_s:
            gap = _gap(found, float(other.step_s), measured)
            changes.append(Change(kind, text, changed, found, float(other.step_s), gap))
    changes.sort(key=lambda change: change.gap)
    if changes and changes[0].gap > _SAME:
        num_close = sum(change.gap < changes[0].gap + _CLOSE for change in changes)
        changes[:num_close] = sorted(changes[:num_close], key=_usual_first)
    return Explanation(prediction, measured, terms, _gap(terms, prediction.step_time_s, measured), tuple(changes))


@checked
def kinds_of(prediction: Prediction) -> dict[str, float]:
    """Predicted seconds by kind of work (lablib/record/step_terms.py); they add up to the step."""
    assert prediction.setup is not None
    return _terms(prediction.setup, step_of(prediction.setup), of_kind=True)


def _usual_first(change: Change) -> float:
    """Minus the number of published runs with a stack; another change counts as an average stack."""
    runs = Counter(run.question.software for run in measured_runs())
    stack = change.arguments.get("stack")
    return -(runs[stack] if change.kind == "software" and isinstance(stack, str) else runs.total() / len(runs))


def _evaluated(arguments: Mapping[str, Any]) -> tuple[Setup, StepTimes]:
    given = dict(arguments)
    order = given.pop("order", None)
    setup = possible(setup_of(**given), order)
    return setup, step_of(setup)


def _gap(predicted: Mapping[str, float], step_s: float, measured: StepTerms) -> float:
    apart = [abs(predicted[name] - seconds) for name, seconds in measured.terms.items()]
    rest = step_s - sum(predicted[name] for name in measured.terms)
    apart.append(abs(rest - (measured.step_s - sum(measured.terms.values()))))
    return sum(apart) / measured.step_s


def _terms(setup: Setup, step: StepTimes, of_kind: bool) -> dict[str, float]:
    """Predicted seconds by part, or by kind of work; they add up to the step."""
    parts = parts_of(step)
    if not of_kind:
        return {name: float(seconds) for name, seconds in parts.items()}
    ends, both = _ends(setup), step.ends_s
    axes = (step.tensor, step.context, step.expert, step.data, step.host)
    seconds = {
        "products": step.products_s + both * ends["products"],
        "attention": step.attention_s,
        "other kernels": step.memory_s + step.optimizer_s + step.data.copies_s + both * ends["other kernels"],
        "communication": sum(axis.exposed_s for axis in axes),
    }
    seconds["idle"] = step.step_s - sum(seconds.values())
    return {name: float(time_s) for name, time_s in seconds.items()}


def _ends(setup: Setup) -> dict[str, Numbers]:
    """Shares of the kinds of kernels in embedding and head, without communication."""
    cut = Cut.of(setup.machine, setup.model, setup.sizes)
    both = work_of(setup.machine, [*embedding(cut), *head(cut)])
    work = both.forward.plus(both.input).plus(both.weight)
    total_s = setup.machine.time_s(work) - work.communication_s or 1.0
    return {"products": work.product_s / total_s, "other kernels": work.memory_s / total_s}


def changes_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The changes of the list: kind, text, and the arguments that differ. Some may be impossible."""
    setup = setup_of(**{name: value for name, value in arguments.items() if name != "order"})
    machine, split = setup.machine, setup.parallel
    stack, derating, cluster = machine.stack, arguments.get("derating") or USUAL, find_cluster(arguments["cluster"])
    for name in STACKS:
        if STACKS[name] != stack:
            yield "software", f"the stack {name}", {"stack": name}
    yield "no overlap", "all communication exposed", {"stack": replace(stack, **_NO_OVERLAP)}
    for name in ("none", "selective", "full"):
        if name != setup.recompute.name:
            yield "recomputation", f"recompute {name}", {"recompute": name}
    for name in _PRECISIONS:
        if name != machine.precision:
            yield "precision", f"products in {name}", {"precision": name}
    if arguments.get("order") is not None:
        yield "placement", "tensor ranks next to each other", {"order": None}
    elif split.tensor > 1 and split.num_ranks > cluster.devices_per_node:
        order = ("tensor", *(axis for axis in ORDER if axis != "tensor"))
        yield "placement", "tensor ranks on different nodes", {"order": order}
    for size in (setup.micro_batch // 2, 2 * setup.micro_batch):
        if size:
            yield "micro-batch", f"micro-batches of {size}", {"micro_batch": size}
    for stage in (0, 1, 2, 3):
        if stage != split.zero_stage:
            yield "sharding", f"ZeRO stage {stage}", {"parallel": _staged(split, stage)}
    for times in (3, 10):
        slower = replace(derating, dispatch_s=times * (derating.dispatch_s or USUAL.dispatch_s))
        yield "host", f"operators started in {times} times the time", {"derating": slower}
    if split.num_ranks > cluster.devices_per_node:
        for share, words in ((0.5, "half"), (0.25, "a quarter")):
            slower = replace(derating, inter_share=share * derating.inter_share)
            yield "network", f"{words} of the bandwidth between nodes", {"derating": slower}
    slower = replace(derating, matmul_share=0.8 * derating.matmul_share)
    yield "device", "products at 0.8 of their rate", {"derating": slower}


def _staged(split: Parallel, stage: int) -> Parallel:
    """The split with another ZeRO stage, without the options of stage 3 alone."""
    if stage == 3:
        return replace(split, zero_stage=3)
    return replace(split, zero_stage=stage, reshard_after_forward=True, zero_plus_plus=())
