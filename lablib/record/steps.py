"""Steps of a program: the ends of its optimizer's steps, and the numbers of each step.

A rank ends a step with the last operator of an unbroken sequence in `Optimizer.step` (the phase "optimizer"); step k
ends when the last rank ends it:

    end(k) = max over ranks of end(k, rank)         step k lasts from end(k - 1) to end(k)

So setup and the first step, which has no beginning, are in no step.
Simplified: updates inside backward, or without an optimizer of torch, are not found.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lablib.record.summary import Summary
from lablib.record.timeline import COMPUTE, Timeline

if TYPE_CHECKING:
    from lablib.run import Run


def step_ends_s(timeline: Timeline) -> list[float]:
    """The time at which each step ends on its last rank: as many as the fewest of a rank with any."""
    ends = [ends_s for rank in timeline.ranks if (ends_s := _ends_s(timeline, rank))]
    return [max(each) for each in zip(*ends, strict=False)]


def _ends_s(timeline: Timeline, rank: int) -> list[float]:
    ends: list[float] = []
    was_step = False
    for span in sorted(timeline.select(rank, COMPUTE), key=lambda span: span.start_s):
        is_step = "optimizer" in span.phase.lower()
        if is_step:
            ends[-1 if was_step else len(ends) :] = [span.end_s]
        was_step = is_step
    return ends


def step_metrics(run: "Run") -> Iterator[tuple[float, dict[str, float]]]:
    """The end in seconds and the numbers of each step after the first: seconds, shares of them, bytes.

    Shares are means over the ranks. `peak_bytes` is the largest memory of a rank during the step.
    """
    ends_s = step_ends_s(run.timeline)
    curves = [run.memory.curve(rank) for rank in run.memory.ranks] if len(run.memory) else []
    held = [(times_s, np.sum(list(by_category.values()), axis=0)) for times_s, by_category in curves]
    for start_s, end_s in zip(ends_s, ends_s[1:], strict=False):
        part = Summary.of(run.timeline.between(start_s, end_s), run.traffic)
        step_s = end_s - start_s
        metrics = {"step_s": step_s, "sent_bytes": float(sum(part.sent_bytes))}
        for name in ("busy", "exposed", "waiting", "idle"):
            metrics[f"{name}_share"] = float(np.mean(getattr(part, f"{name}_s"))) / step_s
        if held:
            peaks = [_peak(times_s, sizes, start_s, end_s) for times_s, sizes in held]
            metrics["peak_bytes"] = max(peaks)
        yield end_s, metrics


def _peak(times_s: np.ndarray, sizes: np.ndarray, start_s: float, end_s: float) -> float:
    """The most bytes that a rank held from `start_s`, including earlier allocations, to `end_s`."""
    first, last = np.searchsorted(times_s, (start_s, end_s), "right")
    return float(np.max(sizes[max(0, int(first) - 1) : int(last)], initial=0))
