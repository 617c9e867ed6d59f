"""Phase of unnamed work: forward if a backward pass follows, otherwise "compute".

A program that names no phases still runs forward and backward, and autograd reveals backward. The rest is inferred:

    forward     work before a backward pass
    compute     work after the last backward pass, or between one and the optimizer's step that uses it, or in a program
                without any: the additions of a ring all-reduce, the division after it, clipping

Simplified: weight updates without an optimizer of torch count as "forward" if another backward pass follows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from lablib.record.allocations import Allocations
from lablib.record.timeline import COMPUTE, Span

UNNAMED = ""  # phase of unnamed work until the run has ended
FORWARD, OTHER = "forward", "compute"


class Passes:
    """The times of one rank's backward passes and optimizer steps, from (start_s, phase) of its compute spans."""

    def __init__(self, work: Iterable[tuple[float, str]]):
        marks = sorted([(start_s, kind) for start_s, phase in work if (kind := _kind(phase))])
        self._times_s = np.array([start_s for start_s, _ in marks])
        self._is_backward = np.array([kind == "backward" for _, kind in marks], dtype=bool)

    def is_forward(self, times_s: Sequence[float] | np.ndarray) -> np.ndarray:
        """Whether unnamed work that began at these seconds was forward."""
        following = np.searchsorted(self._times_s, times_s, "right")
        last = np.flatnonzero(self._is_backward)[-1] if self._is_backward.any() else -1
        # Padding: nothing before the first mark, nothing after the last.
        around = np.concatenate(([False], self._is_backward, [False]))
        is_after_backward, is_before_backward = around[following], around[following + 1]
        return (following <= last) & (is_before_backward | ~is_after_backward)

    def phases(self, given: Sequence[str], times_s: Sequence[float]) -> list[str]:
        """The phase of work that began at these times: the given one, or the inferred one."""
        is_forward = self.is_forward(times_s).tolist()
        return [phase or (FORWARD if ahead else OTHER) for phase, ahead in zip(given, is_forward, strict=True)]


@lru_cache(maxsize=1024)  # a run has few phases and many spans
def _kind(phase: str) -> str:
    words = phase.lower()
    return next((kind for kind in ("backward", "optimizer") if kind in words), "")


def passes_of(spans: Iterable[Span]) -> dict[int, Passes]:
    """The passes of each rank with compute spans."""
    work: dict[int, list[tuple[float, str]]] = {}
    for span in spans:
        if span.stream == COMPUTE:
            work.setdefault(span.rank, []).append((span.start_s, span.phase))
    return {rank: Passes(of_rank) for rank, of_rank in work.items()}


def with_phases(spans: Sequence[Span]) -> list[Span]:
    """The spans of a run, each with a phase."""
    unnamed: dict[int, list[int]] = {}
    for index, span in enumerate(spans):
        if span.phase == UNNAMED:
            unnamed.setdefault(span.rank, []).append(index)
    passes, named = passes_of(spans) if unnamed else {}, list(spans)
    for rank, indices in unnamed.items():
        phases = passes.get(rank, Passes(())).phases([UNNAMED] * len(indices), [spans[i].start_s for i in indices])
        for index, phase in zip(indices, phases, strict=True):
            named[index] = replace(spans[index], phase=phase)
    return named


def allocations_with_phases(blocks: Allocations, passes: Mapping[int, Passes]) -> Allocations:
    """The storages of a run, each with the phase of the work that made it."""
    unnamed = np.array([phase == UNNAMED for _, phase, _ in blocks.labels], dtype=bool)
    if not unnamed.any():
        return blocks
    # Each label without a phase becomes two: forward in place, "compute" after all others.
    places = np.cumsum(unnamed) - 1 + len(blocks.labels)
    labels = [(name, phase or FORWARD, line) for name, phase, line in blocks.labels]
    labels += [(name, OTHER, line) for name, phase, line in blocks.labels if phase == UNNAMED]
    columns = dict(blocks.columns)
    label, ranks, start_s = columns["label"].copy(), columns["rank"], columns["start_s"]
    chosen = unnamed[label]
    for rank in np.flatnonzero(np.bincount(ranks[chosen])).tolist():  # np.unique imports numpy.ma, a third of a launch
        here = np.flatnonzero(chosen & (ranks == rank))
        is_forward = passes.get(rank, Passes(())).is_forward(start_s[here])
        label[here] = np.where(is_forward, label[here], places[label[here]])
    return Allocations(columns | {"label": label}, labels)
