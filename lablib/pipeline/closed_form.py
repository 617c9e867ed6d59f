"""What a pipeline schedule takes and holds, as formulas: for a planner that asks a million times.

A schedule is a max-plus system: every action ends at the latest of what it waits for, plus its own time. So a step
takes the longest path through its actions, and over many micro-batches that path repeats a cycle:

    makespan = m * period + fill and drain          period = the largest mean of a cycle, over one micro-batch

The cycles of 1F1B are few. Where t_r are the seconds of rank r for one micro-batch and c is a message:

    stay on rank r               t_r        (a blocking message: + 2 c, or + c on the first and the last rank)
    from first to last and back  (sum t_r + 2 (p - 1) c) / p

Each schedule below takes the maximum over its few paths of fill + cycles + drain.

What the schedules are chosen for, where stages are equal, messages free and F = I = W. Idle seconds are in those of F
of a whole stage; activations are what rank r holds at most, in those of one rank and micro-batch (never more than m):

                     bubble                      idle            activations
    gpipe            (p - 1) / (m + p - 1)       3 (p - 1)       m
    1f1b             (p - 1) / (m + p - 1)       3 (p - 1)       p - r
    interleaved      (p - 1) / (v m + p - 1)     3 (p - 1) / v   p + (p - 1 - 2 r) / v
    breadth-first    (p - 1) / (v m + p - 1)     3 (p - 1) / v   m
    zb-h1            (p - 1) / (3 m + p - 1)     p - 1           p
    zb-h2            none between a rank's       p - 1 *         2 p - 1
    zb-v             first and last action       (p - 1) / 2 *   p
    dualpipe-v       a sixth of 1f1b's           (p - 1) / 2     p + 1/2
    v-half           half of 1f1b's              3 (p - 1) / 2   (p + 2) / 2, rounded down

    * ranks start and end one after the other: 0 if none waits for all before its optimizer step

Legend: p ranks (`num_stages`), v pieces on each (`num_chunks`), m micro-batches, F forward, I and W the two halves of
backward B. Numbers may be numpy arrays; the name of the schedule and `overlap` may not.
Source: Huang et al., 2018, arXiv 1811.06965 (GPipe); Narayanan et al., SC21, arXiv 2104.04473, section 2.2 (1F1B,
interleaved); Lamy-Poirier, 2022, arXiv 2211.05953 (breadth-first); Qi et al., 2023, arXiv 2401.10241 (zero bubble);
Qi et al., 2024, arXiv 2405.15362 (V-shaped). Max-plus: Baccelli et al., "Synchronization and Linearity", 1992, ch. 2.
Simplified: see replay.py, which these are tested against.
"""

from typing import Any, NamedTuple

import numpy as np

from lablib.cost.arrays import Numbers, ceil_div, least, most
from lablib.errors import unknown_name

SCHEDULES = (
    "gpipe",
    "1f1b",
    "interleaved",
    "breadth-first",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "dualpipe-v",
    "v-half",
)
V_SHAPED = ("zb-v", "dualpipe-v", "v-half")  # two pieces on each rank: the first rank holds the first and the last


class StageTime(NamedTuple):
    """Seconds of one micro-batch on one rank (all its pieces together): F, I and W."""

    forward_s: Numbers = 0.0
    input_s: Numbers = 0.0
    weight_s: Numbers = 0.0

    @property
    def backward_s(self) -> Numbers:
        return self.input_s + self.weight_s

    @property
    def total_s(self) -> Numbers:
        return self.forward_s + self.input_s + self.weight_s


NOTHING = StageTime()


def makespan_s(
    schedule: str,
    num_stages: Numbers,
    num_microbatches: Numbers,
    num_chunks: Numbers,
    middle: StageTime,
    first_extra: StageTime = NOTHING,
    last_extra: StageTime = NOTHING,
    send_s: Numbers = 0.0,
    overlap: bool = True,
    busiest: StageTime | None = None,
) -> Numbers:
    """Seconds from the first action of a step to the end of its last.

    Args:
        schedule: one of `SCHEDULES`.
        num_stages, num_microbatches: p and m.
        num_chunks: v; 1 for gpipe, 1f1b and zb-h*, 2 for the V-shaped.
        middle: one rank's whole share of one micro-batch (all its pieces), the mean over ranks without the extras.
        first_extra: what the first piece of the model does besides (embedding).
        last_extra: what the last piece does besides (head, loss). V-shaped schedules have both on rank 0.
        send_s, overlap: of a message between ranks, as in `Costs`.
        busiest: of a rank that has more layers than the mean; None: all are equal.

    Raises:
        ValueError: for a schedule nobody knows.
    """
    if schedule not in _MAKESPANS:
        raise unknown_name("schedule", schedule, SCHEDULES)
    case = _Case(num_stages, num_microbatches, num_chunks, middle, first_extra, last_extra, send_s, overlap, busiest)
    return _where(num_stages == 1, num_microbatches * case.round_s, _MAKESPANS[schedule](case))


def bubble_fraction(
    schedule: str, num_stages: Numbers, num_microbatches: Numbers, num_chunks: Numbers = 1, is_staggered: bool = False
) -> Numbers:
    """The share of the ranks' time that is idle where stages are equal, messages free and F = I = W, in [0, 1).

    Args:
        schedule, num_stages, num_microbatches, num_chunks: as in `makespan_s`; m of at least 2 p.
        is_staggered: count each rank's time from its own first action to its own last, as if no rank waited for all
            others before its optimizer step.
    """
    if schedule not in _IDLE:
        raise unknown_name("schedule", schedule, SCHEDULES)
    idle = (
        0.0 * num_stages if is_staggered and schedule in _NONE_IF_STAGGERED else _IDLE[schedule](num_stages, num_chunks)
    )
    return idle / (3 * num_microbatches + idle)


def in_flight(
    schedule: str, num_stages: Numbers, num_microbatches: Numbers, num_chunks: Numbers = 1, rank: Numbers = 0
) -> Numbers:
    """The most micro-batches whose activations a rank holds at once; a piece of a rank with v pieces counts 1 / v.

    Args:
        schedule, num_stages, num_microbatches, num_chunks: as in `makespan_s`.
        rank: 0 to p - 1.
    """
    if schedule not in _IN_FLIGHT:
        raise unknown_name("schedule", schedule, SCHEDULES)
    return least(_IN_FLIGHT[schedule](num_stages, num_microbatches, num_chunks, rank), num_microbatches)


class _Case:
    """One question, with the sums that every schedule needs."""

    __slots__ = (
        "b_s",
        "busiest_s",
        "c_s",
        "e0",
        "e1",
        "f_s",
        "halves",
        "held_s",
        "m",
        "mid",
        "on_first_s",
        "p",
        "round_s",
        "t0_s",
        "t1_s",
        "t_s",
        "v",
        "x",
    )

    def __init__(self, p: Any, m: Any, v: Any, mid: Any, e0: Any, e1: Any, send_s: Any, overlap: bool, busiest: Any):
        self.p, self.m, self.v, self.mid, self.e0, self.e1 = p, m, v, mid, e0, e1
        self.x = mid if busiest is None else busiest
        self.f_s, self.b_s = mid[0], mid[1] + mid[2]
        self.t_s = self.f_s + self.b_s
        self.t0_s = self.t_s + e0[0] + e0[1] + e0[2]
        self.t1_s = self.t_s + e1[0] + e1[1] + e1[2]
        self.c_s = send_s
        self.held_s = 0.0 * send_s if overlap else send_s  # of a message: what it holds up the ranks at its ends
        # Of the V-shaped schedules: one of a rank's two pieces, and what the first rank has to do.
        self.halves = (mid[0] / 2, mid[1] / 2, mid[2] / 2)
        self.on_first_s = self.t0_s + self.t1_s - self.t_s
        self.busiest_s = self.x[0] + self.x[1] + self.x[2]
        # One micro-batch through all ranks, forward and backward, without messages.
        self.round_s = self.t0_s + self.t1_s + (p - 2) * self.t_s


def _gpipe(case: _Case) -> Numbers:
    """All forward, then all backward: two flow shops, each as fast as its slowest rank."""
    e0, e1, x = case.e0, case.e1, case.x
    forward_s = most(x[0], case.f_s + most(e0[0], e1[0]))
    backward_s = most(x[1] + x[2], case.b_s + most(e0[1] + e0[2], e1[1] + e1[2]))
    period_s = forward_s + backward_s + 2 * case.held_s
    return case.round_s + 2 * (case.p - 1) * case.c_s + (case.m - 1) * period_s


def _one_f_one_b(case: _Case) -> Numbers:
    """The longest of four paths, each of m + p - 1 pairs of F and B."""
    p, m, c_s, held_s, t_s = case.p, case.m, case.c_s, case.held_s, case.t_s
    round_s = case.round_s + 2 * (p - 1) * c_s
    # Down to the last rank, m micro-batches there, and up.
    last_s = round_s + (m - 1) * (case.t1_s + held_s)
    # On the first rank: until its first gradient, in pairs, and from its last micro-batch on.
    f0_s, b0_s = case.f_s + case.e0[0], case.b_s + case.e0[1] + case.e0[2]
    below_s = round_s - case.t0_s
    until_s = most(below_s, (p - 1) * f0_s + p * held_s) + most(below_s, (p - 1) * b0_s + p * held_s)
    first_s = until_s + (m - p + 1) * case.t0_s + (m - p - 1) * held_s
    first_s = _where(m > p, first_s, round_s + (m - 1) * (most(f0_s, b0_s) + held_s))
    # Down and up, then on a rank between them, and down and up with the last micro-batch.
    below = least(p, m) - 2
    between_s = round_s + case.t1_s - t_s + (m - 1) * t_s + _where(held_s > 0, (2 * m - 3) * held_s, 2 * below * c_s)
    between_s = between_s + (case.busiest_s - t_s) * most(m - p / 2, 1)
    # Down and up all the time: the way on which messages weigh most.
    num_rounds = (m + p - 1) // p
    rest = m + p - 1 - num_rounds * p
    extra_s = _where(num_rounds > 1, most(case.t0_s, case.t1_s), case.t1_s) - t_s
    rest_s = rest * t_s + _where(rest > 0, extra_s + 2 * (rest - 1) * c_s, 0.0)
    longest_s = most(most(last_s, first_s), num_rounds * round_s + rest_s)
    return _where((p > 2) & (m > 1), most(longest_s, between_s), longest_s)


def _interleaved(case: _Case) -> Numbers:
    """1F1B on pieces: fill and drain are those of one piece a rank, and every piece sends its own messages.

    A rank with an extra does p pieces with it and then p (v - 1) without, so that ranks wait for each other:
    the path stays on the last rank, on the first, or goes to and fro at the price of the ways between them.
    """
    p, m, v, e0 = case.p, case.m, case.v, case.e0
    f_s, b_s = case.f_s / v, case.b_s / v
    f0_s, b0_s, e0_s, e1_s = e0[0], e0[1] + e0[2], case.t0_s - case.t_s, case.t1_s - case.t_s
    travels_s = case.c_s - case.held_s
    # In and out: p pieces on the first rank one after the other, or one piece and on through all ranks.
    into_s = f0_s + most((p - 1) * f0_s, p * travels_s) + b0_s + most((p - 1) * b0_s, p * travels_s)
    last_s = m * e1_s + into_s
    both_s = (m - p) * e0_s + least(m, 2 * p) * e1_s - f_s - b_s
    half_s = most((m - p) * f0_s + m * b0_s - (p - 1) * f_s - b_s, m * f0_s + (m - p) * b0_s - (p - 1) * b_s - f_s)
    first_s = most(half_s + p * e1_s, m * e0_s - (p - 1) * (f_s + b_s))
    ends_s = most(most(last_s, both_s), first_s) + ((2 * v - 1) * m + 2 * p - 3) * case.held_s
    # On a rank between them, every F and B sends a message; on the first and the last, one in 2 v does not.
    between_s = into_s + p * e1_s - 2 * least(f_s, b_s) + (2 * v * m + 2 * p - 6) * case.held_s
    between_s = between_s + m * (case.busiest_s - case.t_s)
    uneven_s = _where(p > 2, most(ends_s, between_s), ends_s)
    return m * case.t_s + (p - 1) * (f_s + b_s) + uneven_s + 2 * (p * v - p - 1) * travels_s


def _breadth_first(case: _Case) -> Numbers:
    """GPipe on pieces: the first piece's extra holds up its own pass, the last piece's another."""
    p, m, v = case.p, case.m, case.v
    extra_s = case.t0_s + case.t1_s - 2 * case.t_s
    busy_s = m * (case.t_s + most(extra_s, case.busiest_s - case.t_s))
    full_s = busy_s + (p - 1) * (case.t_s / v + 2 * case.c_s) + 2 * (m * v - 1) * case.held_s
    # Few micro-batches are through a rank before the first of them is back for its next piece.
    alone_s = case.round_s + 2 * (p * v - 1) * case.c_s
    alone_s = alone_s + (m - 1) * (case.t_s / v + most(case.t0_s, case.t1_s) - case.t_s + 2 * case.held_s)
    return most(full_s, alone_s)


def _zb_h1(case: _Case) -> Numbers:
    p, m, held_s = case.p, case.m, case.held_s
    return _zero_bubble(case, 1, (2 * m + p - 3) * held_s, (3 * m + p - 4) * held_s)


def _zb_h2(case: _Case) -> Numbers:
    p, m, held_s = case.p, case.m, case.held_s
    full_s = _zero_bubble(case, 2, (2 * m - p) * held_s, (3 * m - p + 1) * held_s)
    # Few micro-batches are all ahead of the first gradient: W stand between those that others wait for.
    (f_s, i_s, w_s), e0 = case.mid, case.e0
    inputs = ceil_div(m + 2 * p - 2, 2)
    few_s = (m + p - 1) * f_s + inputs * i_s + m * w_s + case.e1[0] + case.e1[1] + 3 * p * held_s
    few_s = few_s + most(e0[0], e0[1]) * (m - p / 2) + m * e0[2]
    return _where(m < 2 * p, most(full_s, few_s), full_s)


def _zero_bubble(case: _Case, depth: int, ends_held_s: Numbers, between_held_s: Numbers) -> Numbers:
    """1F1B with W apart: rank r runs depth * (p - 1 - r) forwards ahead, and leaves depth * r weights to the end."""
    p, x, mid = case.p, case.x, case.mid
    ends_s = most(_stay(case, depth, 0, case.e0), _stay(case, depth, p - 1, case.e1)) + ends_held_s
    over = StageTime(x[0] - mid[0], x[1] - mid[1], x[2] - mid[2])
    between_s = most(_stay(case, depth, 1, over), _stay(case, depth, p - 2, over)) + between_held_s
    return _where(p > 2, most(ends_s, between_s), ends_s)


def _stay(case: _Case, depth: int, rank: Numbers, extra: Any) -> Numbers:
    """The path that stays on one rank: what this works, what it waits for from below, and the ways in and out."""
    (f_s, i_s, w_s), below, travels_s = case.mid, case.p - 1 - rank, case.c_s - case.held_s
    f_here_s, back_here_s = f_s + extra[0], i_s + w_s + extra[1] + extra[2]
    way_s = below * (f_s + i_s + 2 * travels_s) + _where(below > 0, case.e1[0] + case.e1[1], 0.0)
    ahead = least(depth * below, case.m - 1)
    once_s = most(way_s - ahead * least(f_here_s, back_here_s), 0.0)
    twice_s = most(way_s - ahead * f_here_s, 0.0) + most(way_s - ahead * back_here_s, 0.0)
    waits_s = _where(case.m > depth * below + 1, twice_s, once_s)
    into_s = rank * (f_s + travels_s) + _where(rank > 0, case.e0[0], 0.0)
    out_s = rank * (i_s + travels_s) - least(depth * rank, case.m - 1) * (w_s + extra[2])
    out_s = out_s + _where(rank > 0, case.e0[1], 0.0)
    return into_s + case.m * (f_here_s + back_here_s) + waits_s + most(out_s, 0.0)


def _zb_v(case: _Case) -> Numbers:
    """Where F = I = W all ranks work from their first action to their last, each starting a step later."""
    (f_s, i_s, w_s), e0, e1 = case.halves, case.e0, case.e1
    p, m, c_s, held_s = case.p, case.m, case.c_s - case.held_s, case.held_s
    fill_s = most(most((p - 1) * i_s, 2 * (p - 1) * (i_s - w_s)), (2 * p - 3) * f_s - (p - 2) * i_s)
    first_s = most((p - 2) * w_s - p * (e0[1] + e0[2]) - e1[2], 0.0) + (3 * m + 2 * p - 1) * held_s
    away_s = (
        fill_s + (2 * p - 1) * e0[0] + e1[0] + e1[1] + (5 * p - 7) * c_s + _where(p > 2, 6 * m - p - 1, 3 * m) * held_s
    )
    return _vee(case, first_s, away_s)


def _dualpipe_v(case: _Case) -> Numbers:
    """As ZB-V, with W apart only where that fills the ends: a gradient passes a rank in I + W."""
    (f_s, i_s, w_s), e0, e1 = case.halves, case.e0, case.e1
    q, m, c_s, held_s = case.p - 1, case.m, case.c_s - case.held_s, case.held_s
    fill_s = most(q * (f_s + 3 * c_s), q * (f_s + i_s - w_s + 4 * c_s))
    fill_s = most(fill_s, q * (2 * i_s - w_s + 6 * c_s) - f_s)
    first_s = most(q * (i_s - w_s - e0[1] - e0[2]), 0.0) + (3 * m + 2 * q - 2) * held_s
    away_s = fill_s + e0[0] + 2 * (e0[1] + e0[2]) + e1[1] + e1[2]
    return _vee(case, first_s, away_s + _where(case.p > 2, 4 * m + 2 * q - 1, 3 * m - 1) * held_s)


def _v_half(case: _Case) -> Numbers:
    """Less memory, more waits: a micro-batch has not enough others beside it to hide an I that is longer than F."""
    (f_s, i_s, w_s), e0, e1 = case.halves, case.e0, case.e1
    p, m, c_s, held_s = case.p, case.m, case.c_s - case.held_s, case.held_s
    odd = p % 2
    steady_s = (p + 1 - 2 * odd) * f_s + 3 * (p - 1) * (i_s + 2 * c_s) - (p + 1 - odd) * w_s
    long_i_s = m * (2 * i_s - 2 * f_s - w_s + 2 * c_s) + (2 * p + 3 - 3 * odd) * f_s + (2 * p - 5 + odd) * i_s
    long_i_s = long_i_s - (p + 2 - odd) / 2 * w_s + (5 * p - 8) * c_s
    long_f_s = m * 2 * (f_s - i_s) + (2 * p - 4) * f_s + (2 * p - 1 - odd) * i_s - (p - 2) * w_s + (6 * p - 8) * c_s
    fill_s = most(most(steady_s, long_i_s), long_f_s)
    away_s = (
        fill_s + 2 * (e0[0] + e0[1]) + e0[2] + e1[0] + e1[1] + _where(p > 2, 6 * m + 3.5 * p - 11, 3 * m + 1) * held_s
    )
    # On the first rank: the ways of the first and of the last micro-batch, less what it does meanwhile.
    half = (p - odd) / 2
    first_s = (3 * half - 1 + odd) * f_s - (half + 1) * w_s - half * (e0[0] + e0[1] + e0[2]) + e0[0] + e0[1] - e1[2]
    more_s = half * most(i_s - e0[0] - e1[0] - e1[1] - e1[2], 0.0)
    first_s = most(first_s + (3 * half - 1 + odd) * i_s + more_s, 0.0) + (3 * m + 2 * p) * held_s
    return _vee(case, first_s, away_s)


def _vee(case: _Case, first_s: Numbers, away_s: Numbers) -> Numbers:
    """With all extras on the first rank: the path that stays there, or the one that stays away from it."""
    return most(case.m * case.on_first_s + first_s, case.m * case.busiest_s + away_s)


def _where(is_so: Any, a: Numbers, b: Numbers) -> Numbers:
    """a where it is so, else b; numbers stay numbers."""
    if isinstance(is_so, np.ndarray):
        return np.where(is_so, a, b)
    return a if is_so else b


_MAKESPANS = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "breadth-first": _breadth_first,
    "zb-h1": _zb_h1,
    "zb-h2": _zb_h2,
    "zb-v": _zb_v,
    "dualpipe-v": _dualpipe_v,
    "v-half": _v_half,
}

_IDLE = {
    "gpipe": lambda p, v: 3 * (p - 1),
    "1f1b": lambda p, v: 3 * (p - 1),
    "interleaved": lambda p, v: 3 * (p - 1) / v,
    "breadth-first": lambda p, v: 3 * (p - 1) / v,
    "zb-h1": lambda p, v: p - 1,
    "zb-h2": lambda p, v: p - 1,
    "zb-v": lambda p, v: (p - 1) / 2,
    "dualpipe-v": lambda p, v: (p - 1) / 2,
    "v-half": lambda p, v: (3 * (p - 1) - p % 2 * (p > 1)) / 2,
}
_NONE_IF_STAGGERED = ("zb-h2", "zb-v")

_IN_FLIGHT = {
    "gpipe": lambda p, m, v, rank: m,
    "1f1b": lambda p, m, v, rank: p - rank,
    "interleaved": lambda p, m, v, rank: p + (p - 1 - 2 * rank) / v,
    "breadth-first": lambda p, m, v, rank: m,
    "zb-h1": lambda p, m, v, rank: p,
    "zb-h2": lambda p, m, v, rank: 2 * p - 1,
    "zb-v": lambda p, m, v, rank: p,
    "dualpipe-v": lambda p, m, v, rank: p + 0.5,
    "v-half": lambda p, m, v, rank: (p + 2) // 2,
}
