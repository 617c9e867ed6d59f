"""Cost of a step of many layers, from a step of few layers whose last ones repeat.

The ranks of a context ring wait for each other, so the first layers of a pass take unequal times: a rank with shorter
kernels runs ahead until a message holds it back. After some layers all take the same time on all ranks:

    seconds of forward    layer 0  1  2  3  4  5           rank 1 is held back from layer 3 on
                   rank 0       5  5  5  5  5  5
                   rank 1       4  4  4  5  5  5

If on every rank all spans of the last two layers are equal, measured from the begin of the layer, and each layer takes
the same time on all ranks, then ranks, streams and messages are in the same state at both ends. The simulator is
deterministic, so any further layer repeats them. The same is required of the last layers of two micro-batches. Then

    step(L, m) = step(l, 2) + m (L - l) layer + (m - 2) micro-batch + rest(L, m) - rest(l, 2)

with the rest of a step, reduction, clipping and update, simulated without micro-batches. The peak of memory is after
forward, where each further layer adds its activations, or after backward, or in the rest.

Cost: some passes over the spans of the short run.
Source: Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, chapter 3 (powers of a matrix in
max-plus algebra become periodic).
Simplified: one stage, as the longest path through a pipeline may change with the layers. The first kernels of a step
are launched while gradients are set to zero, which takes longer with more layers: this hides microseconds of launches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from lablib.record.memory import Memory
from lablib.record.step_terms import kind_of, timeline_step
from lablib.record.timeline import COMPUTE, Timeline

_SAME_S = 1e-10  # rounding of a time
REDUCE = "reduce"  # the phase that ends the last backward


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step, the peak of the fullest rank, and the seconds by kind of work (record/step_terms.py)."""

    step_s: float
    memory_bytes: float
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SimulatedStep:
    """One step: `timeline` and `memory` of the simulated ranks."""

    timeline: Timeline
    memory: Memory

    @property
    def cost(self) -> StepCost:
        peak = max(float(held.max(initial=0)) for _, held in map(self._held, self.timeline.ranks))
        return StepCost(self.timeline.makespan_s, peak, timeline_step(self.timeline).terms)

    def lane(self, rank: int) -> "_Lane":
        spans = self.timeline.select(rank)
        reduces_s = min((span.start_s for span in spans if span.phase == REDUCE), default=self.timeline.end_s)
        return _Lane(Timeline.of(spans, self.timeline.num_ranks, simulated=(rank,)), reduces_s, *self._held(rank))

    def _held(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Times since the begin of the step, and bytes held after them."""
        times_s, held = self.memory.curve(rank)
        since_s = times_s - self.timeline.origin_s
        return since_s[since_s >= 0], np.sum(list(held.values()), axis=0)[since_s >= 0]


@dataclass(frozen=True)
class _Lane:
    """A rank's spans and memory in a step, and the begin of its reduction."""

    timeline: Timeline
    reduces_s: float
    times_s: np.ndarray
    held: np.ndarray

    def passes(self, number: int, num_layers: int) -> list[list[float]]:
        """Of each pass of a micro-batch, the begins of the layers' attention: forward, again if recomputed, backward.

        Empty: not found.
        """
        found = list[list[float]]()
        backward = f"backward 0B{number}"
        for phase, is_backward in ((f"forward 0F{number}", False), (backward, False), (backward, True)):
            kernels = [span for span in self.timeline if span.phase == phase and span.stream == COMPUTE]
            kernels = [span for span in kernels if kind_of(span.name) == "attention"]
            begins = [span.start_s for span in kernels if span.name.endswith("_backward") == is_backward]
            each, rest = divmod(len(begins), num_layers)
            if rest:
                return []
            found += [begins[::each]] if each else []
        return found

    def content(self, start_s: float, end_s: float) -> list[tuple[str, str, float, float]]:
        found = self.timeline.spans
        inside = (span for span in found if start_s - _SAME_S <= span.start_s < end_s - _SAME_S)
        return [(span.stream, span.name, span.start_s - start_s, span.end_s - start_s) for span in inside]

    def terms(self, start_s: float, end_s: float) -> np.ndarray:
        return np.array(list(timeline_step(self.timeline.between(start_s, end_s)).terms.values()))

    def at(self, time_s: float) -> float:
        """Bytes held after the allocations at a time."""
        return float(self.held[np.searchsorted(self.times_s, time_s + _SAME_S) - 1])

    @property
    def before_reduction(self) -> float:
        return self.at(self.reduces_s - 2 * _SAME_S)

    def peak(self, start_s: float, end_s: float) -> float:
        inside = (self.times_s >= start_s - _SAME_S) & (self.times_s <= end_s + _SAME_S)
        return float(self.held[inside].max(initial=0))

    @cached_property
    def rest_bytes(self) -> float:
        return self.peak(self.reduces_s, float("inf"))


def extended(
    short: SimulatedStep, rests: Sequence[SimulatedStep], layers: Sequence[int], batches: Sequence[int]
) -> StepCost | None:
    """The cost of a step of layers[1] layers and batches[1] micro-batches; None: the short one's layers do not repeat.

    Arguments:
        short: a step of layers[0] layers and batches[0] micro-batches, one or two.
        rests: the steps of both sizes without micro-batches, of one rank.
    """
    cost, further, lanes = short.cost, layers[1] - layers[0], list(map(short.lane, short.timeline.ranks))
    first, last = ([lane.passes(number, layers[0]) for lane in lanes] for number in (0, batches[0] - 1))
    for earlier, passes in zip(zip(*first, strict=True), zip(*last, strict=True), strict=True):
        is_repeated = _repeats(lanes, earlier) and _repeats(lanes, passes)
        if not is_repeated or not _same([each[-1] for each in earlier], [each[-1] for each in passes]):
            return None
    if not first[0]:
        return None
    layer, batch = np.zeros(len(cost.terms)), np.zeros(len(cost.terms))
    before, after = (rest.lane(rest.timeline.ranks[0]) for rest in rests)
    static, peaks = after.before_reduction - before.before_reduction, list[float]()
    for lane, earlier, passes in zip(lanes, first, last, strict=True):
        for begins, following in pairwise([*passes, [lane.reduces_s] * 2]):
            layer += lane.terms(*begins[-2:]) / len(lanes)
            kept = lane.at(begins[-1]) - lane.at(begins[-2])
            if kept != lane.at(begins[-2]) - lane.at(begins[-3]):
                return None
            peaks.append(lane.peak(begins[-2], following[1]) + further * max(0.0, kept) + static)
        peaks.append(lane.rest_bytes + after.rest_bytes - before.rest_bytes)
        batch += lane.terms(earlier[-1][-1], passes[-1][-1]) / len(lanes) if batches[0] > 1 else 0
    times, more = batches[1] * further, batches[1] - batches[0]
    added = times * layer + more * batch
    terms = {
        name: value + float(added[i]) + rests[1].cost.terms[name] - rests[0].cost.terms[name]
        for i, (name, value) in enumerate(cost.terms.items())
    }
    return StepCost(sum(terms.values()), max(peaks), terms)


def _repeats(lanes: Sequence[_Lane], begins: Sequence[Sequence[float]]) -> bool:
    """Whether the last two layers of a pass are equal on each rank, and take the same time on all."""
    if any(len(each) < 3 for each in begins) or not _same([each[-1] for each in begins], [each[-2] for each in begins]):
        return False
    for lane, (a, b, c) in zip(lanes, (each[-3:] for each in begins), strict=True):
        first, second = lane.content(a, b), lane.content(b, c)
        if [each[:2] for each in first] != [each[:2] for each in second]:
            return False
        if not np.allclose([each[2:] for each in first], [each[2:] for each in second], rtol=0, atol=_SAME_S):
            return False
    return True


def _same(some: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the times of all ranks differ by the same amount."""
    differences = np.subtract(some, others)
    return bool(np.ptp(differences) <= _SAME_S)
