"""From one GPU that does not hold the model to a plan, axis by axis, each with a reason from the planner's numbers.

    1. one GPU        time and memory of the step on one GPU
    2. tensor         ranks double while the plan does not fit, within a node: each holds 1/t of every matrix. The
                      exposed communication across nodes is the reason to stop
    3. pipeline       stages double while the plan does not fit: each holds 1/p of the layers, for a bubble
    4. recompute      if activations still do not fit: the fastest policy that fits
    5. data           the other GPUs take other sequences
    6. ZeRO-1         optimizer states split over the data ranks, if that frees memory at almost no cost in time
    7. faster         free memory buys time: fewer stages, less recomputation, smaller pieces of the pipeline, or
                      sequences on more ranks where replicas have too few; as long as the plan fits and gains

If the longest pipeline with full recomputation does not hold the sequences, context ranks come before the pipeline.
Steps that change nothing are left out. The walk is greedy, so `lablib.plan.search` may find a faster plan.

Cost: some tens of predictions.
Source: Narayanan et al., SC21, arXiv 2104.04473, section 3, takeaways 1 to 3 (tensor within the node, pipeline across,
then data); Rajbhandari et al., 2019, arXiv 1910.02054 (stage 1).
Simplified: micro-batches of one sequence; no expert axis.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lablib.hardware.catalogue import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.plan.arguments import find_model
from lablib.plan.parallel import Parallel
from lablib.plan.predict import predict
from lablib.plan.prediction import Prediction
from lablib.signature import whole_number
from lablib.text.units import format_quantity, plural

GAIN = 0.01  # minimum gain in step time, as a share


@dataclass(frozen=True)
class AxisStep:
    """One step of the walk."""

    # the addition: "one GPU", "tensor", "context", "pipeline", "recompute", "data", "ZeRO-1", "fewer stages", "less
    # recompute" or "chunks"
    axis: str
    prediction: Prediction  # the plan with it
    reason: str  # the reason, with numbers

    @property
    def parallel(self) -> Parallel:
        return self.prediction.parallel

    @property
    def gpus(self) -> int:
        return self.prediction.num_gpus

    @property
    def memory_bytes(self) -> float:
        """Peak bytes of the fullest GPU."""
        return self.prediction.peak_memory_bytes

    @property
    def step_time_s(self) -> float:
        return self.prediction.step_time_s

    @property
    def fits(self) -> bool:
        return self.prediction.fits

    def row(self) -> dict[str, Any]:
        """As a row of a table: `pd.DataFrame([step.row() for step in steps])`."""
        return {
            "added": self.axis,
            "plan": str(self.parallel),
            "recompute": self.prediction.recompute,
            "GPUs": self.gpus,
            "memory (GB)": self.memory_bytes / 1e9,
            "fits": self.fits,
            "step (s)": self.step_time_s,
            "MFU": self.prediction.mfu,
            "reason": self.reason,
        }


def axis_by_axis(
    model: str | Transformer | GPTConfig, cluster: str | Cluster, batch: int, gpus: int, **options: Any
) -> tuple[AxisStep, ...]:
    """The steps from one GPU to a plan on all of them. The last one is the plan.

    Arguments:
        model, cluster, batch: as in `predict`.
        gpus: GPUs of the plan.
        options: of `predict`, the same for all steps: seq_len, stack, precision, optimizer, derating, ...

    Raises ValueError: no plan of this walk fits; an option that the walk chooses; arguments that `predict` refuses.
    """
    whole_number("batch", batch)
    whole_number("gpus", gpus)
    if taken := [name for name in ("parallel", "recompute", "micro_batch", "order", "schedule") if name in options]:
        raise ValueError(f"axis_by_axis chooses {taken[0]} itself: got it among the options; leave it out")
    return tuple(_Walk(find_model(model), find_cluster(cluster), batch, gpus, options).steps())


class _Walk:
    def __init__(self, model: Transformer, cluster: Cluster, batch: int, gpus: int, options: dict[str, Any]):
        self.model, self.cluster, self.batch, self.gpus, self.options = model, cluster, batch, gpus, options
        self.now = self.predicted(Parallel(), "none")

    def predicted(self, parallel: Parallel, recompute: str) -> Prediction:
        schedule = "interleaved" if parallel.chunks > 1 else "1f1b"
        options = {"recompute": recompute, "schedule": schedule, **self.options}
        return predict(self.model, self.cluster, parallel, self.batch, **options)

    def tried(self, recompute: str | None = None, **changes: Any) -> Prediction | None:
        """The plan with these changes; None if it is impossible or needs more GPUs than there are."""
        try:
            parallel = replace(self.now.parallel, **changes)
            if parallel.num_ranks > self.gpus:
                return None
            return self.predicted(parallel, self.now.recompute if recompute is None else recompute)
        except ValueError:
            return None

    def steps(self) -> Iterator[AxisStep]:
        yield AxisStep("one GPU", self.now, self._on_one())
        for add in (self._tensor, self._context, self._pipeline, self._recompute):
            if not self.now.fits:
                yield from add()
        if not self.now.fits:
            raise ValueError(
                f"no plan of this walk fits {self.model.name} on {plural(self.gpus, 'GPUs')} of {self.cluster.name}: "
                f"the last one keeps {_bytes(self.now)}; try more GPUs, or lablib.plan.search"
            )
        yield from self._data()
        yield from self._zero()
        while better := self._better():
            yield better

    def _taken(self, axis: str, found: Prediction, reason: str) -> AxisStep:
        self.now = found
        return AxisStep(axis, found, reason)

    def _on_one(self) -> str:
        one = self.now
        what, size = max(one.memory[0].items(), key=lambda item: item[1])
        times = one.peak_memory_bytes / one.memory_limit_bytes
        verb = "fits" if one.fits else f"does not fit, by {times:.3g} times"
        return f"{_bytes(one)}: it {verb}; most is {what}, {format_quantity(size, 'B')}."

    # ---- until it fits ----

    def _doubled(self, axis: str, most: int) -> Prediction | None:
        """The plan with the ranks of an axis doubled until it fits; None if none can be added."""
        found, size = None, getattr(self.now.parallel, axis)
        while size < most and not (found or self.now).fits:
            size *= 2
            more = self.tried(**{axis: size}) if size <= most else None
            if more is None or more.peak_memory_bytes >= (found or self.now).peak_memory_bytes:
                break
            found = more
        return found

    def _tensor(self) -> Iterator[AxisStep]:
        before, found = self.now, self._doubled("tensor", self.cluster.devices_per_node)
        if found is None:
            return
        t = found.parallel.tensor
        reason = f"{_from(before, found)}: every matrix in {t}, inside a node, where the axis leaves "
        reason += f"{_share(found, 'tensor')} of the step exposed"
        beyond = self.tried(tensor=2 * t)
        if beyond is not None and 2 * t > self.cluster.devices_per_node:
            reason += f"; {2 * t} would cross nodes: {_share(beyond, 'tensor')}"
        yield self._taken("tensor", found, reason + ".")

    def _context(self) -> Iterator[AxisStep]:
        """For sequences that the longest pipeline with full recomputation does not hold."""
        before, c, others = self.now, 1, self.now.num_gpus
        while c * others <= self.gpus:
            stages = min(self.model.num_layers, self.gpus // (others * c))
            most = self.tried("full", context=c, pipeline=2 ** (stages.bit_length() - 1))
            if most is None or most.fits:
                break
            c *= 2
        found = self.tried(context=c) if c > 1 else None
        if found is not None:
            reason = f"{_from(before, found)}: every sequence on {c} ranks, as no number of stages would hold the "
            yield self._taken("context", found, f"{reason}activations of whole ones.")

    def _pipeline(self) -> Iterator[AxisStep]:
        before, found = self.now, self._doubled("pipeline", self.model.num_layers)
        if found is None:
            return
        p, m = found.parallel.pipeline, found.num_microbatches
        message = found.communication["pipeline"][0]
        reason = f"{_from(before, found)}: layers in {p} stages, for a bubble of {found.bubble_fraction:.1%} with "
        reason += f"{plural(m, 'micro-batches')}; messages are {message / found.step_time_s:.2%} of the step"
        wider = self.tried(tensor=before.parallel.tensor * p)
        if wider is not None:
            slower = wider.step_time_s / found.step_time_s
            reason += f". As many tensor ranks instead: {slower:.2g} times the step"
        yield self._taken("pipeline", found, reason + ".")

    def _recompute(self) -> Iterator[AxisStep]:
        before = self.now
        found = [each for each in map(self.tried, ("selective", "full")) if each is not None]
        fitting = [each for each in found if each.fits] or found[-1:]
        if not fitting:
            return
        best = min(fitting, key=lambda each: each.step_time_s)
        slower = best.step_time_s / before.step_time_s - 1
        yield self._taken(
            "recompute",
            best,
            f"{_from(before, best)}: activations are recomputed ({best.recompute}), the step {slower:+.1%}.",
        )

    # ---- the other GPUs ----

    def _data(self) -> Iterator[AxisStep]:
        before = self.now
        for data in range(self.gpus // before.num_gpus, 1, -1):
            found = self.tried(data=data)
            if found is not None:
                faster = before.step_time_s / found.step_time_s
                reason = f"{data} times the GPUs, {faster:.3g} times as fast (efficiency {faster / data:.0%}): "
                reason += f"other sequences on each; gradients leave {_share(found, 'data')} of the step exposed, and "
                batches = plural(found.num_microbatches, "micro-batches")
                yield self._taken("data", found, f"{reason}the bubble is {found.bubble_fraction:.1%} with {batches}.")
                return

    def _zero(self) -> Iterator[AxisStep]:
        before, found = self.now, self.tried(zero_stage=1)
        if found is None or before.parallel.data == 1 or found.peak_memory_bytes >= before.peak_memory_bytes:
            return
        if found.step_time_s > (1 + GAIN) * before.step_time_s:
            return
        change = found.step_time_s / before.step_time_s - 1
        reason = f"{_from(before, found)}: optimizer states on {plural(found.parallel.data, 'data ranks')}, as many "
        yield self._taken("ZeRO-1", found, f"{reason}bytes sent; the step {change:+.1%}.")

    # ---- free memory for time ----

    def _better(self) -> AxisStep | None:
        """The change that fits and gains most time; None if none gains."""
        now, p = self.now, self.now.parallel
        changes: list[tuple[str, Callable[[], Prediction | None]]] = []
        if p.pipeline > 1 and p.pipeline % 2 == 0:
            chunks = p.chunks if p.pipeline > 2 else 1
            fewer = {"pipeline": p.pipeline // 2, "data": 2 * p.data, "chunks": chunks}
            for recompute in ("none", "selective", "full"):
                changes.append(("fewer stages", lambda recompute=recompute: self.tried(recompute, **fewer)))
        for less in {"full": ("selective", "none"), "selective": ("none",)}.get(now.recompute, ()):
            changes.append(("less recompute", lambda less=less: self.tried(less)))
        if p.data % 2 == 0:
            changes.append(("context", lambda: self.tried(context=2 * p.context, data=p.data // 2)))
        if p.pipeline > 1:
            changes.append(("chunks", lambda: self.tried(chunks=2 * p.chunks)))
        found = [(axis, made) for axis, change in changes if (made := change()) is not None and made.fits]
        if not found:
            return None
        axis, best = min(found, key=lambda each: each[1].step_time_s)
        if best.step_time_s > (1 - GAIN) * now.step_time_s:
            return None
        faster = f"the step {best.step_time_s / now.step_time_s - 1:+.1%}"
        bubble = f"the bubble {now.bubble_fraction:.1%} to {best.bubble_fraction:.1%}"
        reason = {
            "fewer stages": f"half the stages, twice the replicas fit now, {_bytes(best)}: {bubble}"
            + (f"; recomputation: {best.recompute}" if best.recompute != now.recompute else ""),
            "less recompute": f"{now.recompute} recomputation is not needed any more, {_bytes(best)}",
            "context": f"every sequence on {best.parallel.context} ranks, so that a replica has "
            f"{plural(best.num_microbatches, 'micro-batches')} instead of {now.num_microbatches}: {bubble}",
            "chunks": f"{best.parallel.chunks} pieces on each stage, {_bytes(best)}: {bubble}",
        }[axis]
        return self._taken(axis, best, f"{reason}; {faster}.")


def _bytes(found: Prediction) -> str:
    held, limit = (format_quantity(size, "B") for size in (found.peak_memory_bytes, found.memory_limit_bytes))
    return f"{held} of {limit} per GPU"


def _from(before: Prediction, found: Prediction) -> str:
    fits = "fits" if found.fits else "does not fit yet"
    return f"from {format_quantity(before.peak_memory_bytes, 'B')} to {_bytes(found)}, which {fits}"


def _share(found: Prediction, axis: str) -> str:
    return f"{found.communication[axis][1] / found.step_time_s:.1%}"
