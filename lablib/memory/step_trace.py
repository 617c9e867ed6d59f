"""A training step as a list of operators, with the peak bytes during each.

A step is recorded in program order: an operator allocates tensors (`op`), and tensors are freed (`free`). Every size is
a fixed number of bytes plus a number per sequence of the micro-batch:

    held(B) = fixed + B * per_sequence

So one list serves every micro-batch B, and the largest that fits is the minimum over all operators of (limit - fixed) /
per_sequence.

Time: the maximum of arithmetic, memory traffic and launch of each operator (roofline).

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009 (time).
Simplified: no rounding and no fragmentation of an allocator, no workspaces of kernels, no overlap.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lablib.hardware.device import Device
from lablib.record.allocations import CATEGORIES

_LABLIB = Path(__file__).parents[1]


class StepOptions(NamedTuple):
    """Choices of a step besides model and micro-batch: precision, optimizer, recomputation."""

    width: int  # bytes of a weight
    has_master: bool  # whether the optimizer updates copies in 32 bits
    num_moments: int  # optimizer states per weight
    temporary_share: int  # temporaries of the optimizer per weight
    every: int  # layers per checkpoint; 0: no checkpoints
    num_microbatches: int  # micro-batches per step

    @property
    def state_width(self) -> int:
        """Bytes of a number of the optimizer's state."""
        return 4 if self.has_master else self.width


class Op(NamedTuple):
    """An operator: its name, when it runs, the line of the program that calls it, the layer (-1: none)."""

    name: str
    phase: str
    line: str
    layer: int = -1


class TracedAllocation(NamedTuple):
    """An allocation: its category, its bytes, and its bytes for each sequence of the micro-batch."""

    category: str
    fixed: int
    per_sequence: int = 0


class Trace:
    """Operators in order. `phase` and `layer` apply to the next operator."""

    def __init__(self) -> None:
        self.phase, self.layer = "forward", -1
        self.ops: list[Op] = []
        self._held = {name: [0, 0] for name in CATEGORIES}
        self._highest: list[list[int]] = []  # for each operator: fixed, per sequence, of each category in turn
        self._work: list[tuple[int, ...]] = []  # FLOPs per sequence; bytes moved, and allocated: fixed, per sequence

    def begin(self, line: str, *blocks: TracedAllocation) -> None:
        """Allocations from before the step, without an operator."""
        self.op("weights, state and data", line, blocks)
        self._work[-1] = (0, 0, 0, 0, 0)

    def op(
        self,
        name: str,
        line: str,
        makes: Iterable[TracedAllocation],
        reads: Iterable[TracedAllocation] = (),
        flops: int = 0,
    ) -> None:
        """An operator that allocates blocks, all at once; `flops` are per sequence."""
        makes = tuple(makes)
        for block in makes:
            held = self._held[block.category]
            held[0] += block.fixed
            held[1] += block.per_sequence
        self.ops.append(Op(name, self.phase, line, self.layer))
        self._highest.append([size for held in self._held.values() for size in held])
        moved = (*makes, *reads)
        sizes = [sum(b.fixed for b in moved), sum(b.per_sequence for b in moved)]
        made = [sum(b.fixed for b in makes), sum(b.per_sequence for b in makes)]
        self._work.append((flops, *sizes, *made))

    def free(self, *blocks: TracedAllocation) -> None:
        """Free these allocations."""
        for block in blocks:
            held = self._held[block.category]
            held[0] -= block.fixed
            held[1] -= block.per_sequence

    def finish(self) -> "StepTrace":
        """The list as arrays."""
        highest = np.array(self._highest, np.int64).reshape(len(self.ops), len(CATEGORIES), 2)
        return StepTrace(tuple(self.ops), highest[..., 0], highest[..., 1], np.array(self._work, np.float64))


@dataclass(frozen=True, eq=False)
class StepTrace:
    """A trace as arrays, one row per operator."""

    ops: tuple[Op, ...]  # the operators
    fixed: np.ndarray  # fixed, per_sequence: bytes of each of CATEGORIES at the operator's peak
    per_sequence: np.ndarray
    # FLOPs per sequence; bytes read and written, fixed and per sequence; bytes allocated, fixed and per sequence
    work: np.ndarray

    def held(self, micro_batch: int) -> Mapping[str, np.ndarray]:
        """Bytes by category at the peak of each operator."""
        held = self.fixed + micro_batch * self.per_sequence
        return {name: held[:, i] for i, name in enumerate(CATEGORIES)}

    def made_bytes(self, micro_batch: int) -> np.ndarray:
        """Bytes that each operator allocates."""
        return (self.work[:, 3] + micro_batch * self.work[:, 4]).astype(np.int64)

    def largest_micro_batch(self, limit_bytes: float) -> int:
        """The most sequences with a peak within the limit; 0 if not even one fits."""
        fixed, per_sequence = self.fixed.sum(1), self.per_sequence.sum(1)
        if (fixed > limit_bytes).any():
            return 0
        grows = per_sequence > 0
        return int(((limit_bytes - fixed[grows]) // per_sequence[grows]).min())

    def times_s(self, micro_batch: int, device: Device, dtype: str) -> np.ndarray:
        """Seconds of each operator by its roofline; launches overlap with the operators before."""
        flops, moved = self.work[:, 0] * micro_batch, self.work[:, 1] + micro_batch * self.work[:, 2]
        compute_s = flops / (device.peak_flops_per_s[dtype] * device.matmul_efficiency)
        memory_s = moved / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
        is_work = (flops > 0) | (moved > 0)
        return np.maximum(compute_s, memory_s) + is_work * device.queued_s


@cache
def line_of(path: str, code: str) -> str:
    """ "gpt.py:96: return self.out(...)": the one line of a file of lablib with this code."""
    lines = (_LABLIB / path).read_text("utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if code in line]
    assert len(found) == 1, f"{code!r} is in lines {found} of {path}"
    return f"{path.rpartition('/')[2]}:{found[0]}: {lines[found[0] - 1].strip()}"
