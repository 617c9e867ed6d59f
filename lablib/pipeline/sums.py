"""Sums of the stages' times, the terms of the formulas in closed_form.py."""

from typing import Any, NamedTuple

from lablib.cost.arrays import Numbers, is_array, np


class StageTime(NamedTuple):
    """Seconds of one micro-batch on one rank (all its pieces together): F, I and W."""

    forward_s: Numbers = 0.0
    input_s: Numbers = 0.0
    weight_s: Numbers = 0.0

    @property
    def backward_s(self) -> Numbers:
        """I and W together."""
        return self.input_s + self.weight_s

    @property
    def total_s(self) -> Numbers:
        """F, I and W together."""
        return self.forward_s + self.input_s + self.weight_s


class PipelineSums:
    """The sums that every schedule needs, from the numbers of stages and micro-batches and the seconds per stage."""

    def __init__(self, p: Any, m: Any, v: Any, mid: Any, e0: Any, e1: Any, send_s: Any, overlap: bool, busiest: Any):
        self.p, self.m, self.v, self.mid, self.e0, self.e1 = p, m, v, mid, e0, e1
        self.x = mid if busiest is None else busiest
        self.f_s, self.b_s = mid[0], mid[1] + mid[2]
        self.t_s = self.f_s + self.b_s
        self.t0_s = self.t_s + e0[0] + e0[1] + e0[2]
        self.t1_s = self.t_s + e1[0] + e1[1] + e1[2]
        self.c_s = send_s
        self.held_s = 0.0 * send_s if overlap else send_s  # seconds that a message blocks the ranks at its ends
        # For V-shaped schedules: one of a rank's two pieces, and the work of the first rank.
        self.halves = (mid[0] / 2, mid[1] / 2, mid[2] / 2)
        self.on_first_s = self.t0_s + self.t1_s - self.t_s
        self.busiest_s = self.x[0] + self.x[1] + self.x[2]
        # One micro-batch through all ranks, forward and backward, without messages.
        self.round_s = self.t0_s + self.t1_s + (p - 2) * self.t_s


def where(is_so: Any, a: Numbers, b: Numbers) -> Numbers:
    """a where `is_so`, otherwise b; numbers stay numbers."""
    if is_array(is_so):
        return np.where(is_so, a, b)
    return a if is_so else b
