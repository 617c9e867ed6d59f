"""Makespan of the schedules that split B into I and W, as the longest of a few paths.

ZB-H1 and ZB-H2 are 1F1B with W in the waits, so a path may leave a rank before its W are done. In a V the first rank
holds the first piece and the last, with both extras: the longest path stays on it, or avoids it. The sums for the
V-shaped schedules were found from the order of actions in replays, and are exact for p >= 2 and m >= 2 p; with fewer
micro-batches they are close.

Legend: f, i, w seconds of F, I and W on a rank (in a V: of one of its two pieces); e0, e1, c as in longest_paths.py.
Source: see closed_form.py.
Simplified: blocking messages are counted on the path that is longest without them.
"""

from typing import Any

from lablib.cost.arrays import Numbers, ceil_div, maximum, minimum
from lablib.pipeline.sums import PipelineSums, StageTime, where


def zb_h1_s(sums: PipelineSums) -> Numbers:
    """ZB-H1: each rank runs as far ahead as in 1F1B."""
    p, m, held_s = sums.p, sums.m, sums.held_s
    return _zero_bubble(sums, 1, (2 * m + p - 3) * held_s, (3 * m + p - 4) * held_s)


def zb_h2_s(sums: PipelineSums) -> Numbers:
    """ZB-H2: twice as far ahead."""
    p, m, held_s = sums.p, sums.m, sums.held_s
    full_s = _zero_bubble(sums, 2, (2 * m - p) * held_s, (3 * m - p + 1) * held_s)
    # With few micro-batches all forwards come before the first gradient, and W delays actions that others wait for.
    (f_s, i_s, w_s), e0 = sums.mid, sums.e0
    inputs = ceil_div(m + 2 * p - 2, 2)
    few_s = (m + p - 1) * f_s + inputs * i_s + m * w_s + sums.e1[0] + sums.e1[1] + 3 * p * held_s
    few_s = few_s + maximum(e0[0], e0[1]) * (m - p / 2) + m * e0[2]
    return where(m < 2 * p, maximum(full_s, few_s), full_s)


def _zero_bubble(sums: PipelineSums, depth: int, ends_held_s: Numbers, between_held_s: Numbers) -> Numbers:
    """1F1B with separate W: rank r runs depth * (p - 1 - r) forwards ahead, and leaves depth * r W to the end."""
    p, x, mid = sums.p, sums.x, sums.mid
    ends_s = maximum(_stay(sums, depth, 0, sums.e0), _stay(sums, depth, p - 1, sums.e1)) + ends_held_s
    over = StageTime(x[0] - mid[0], x[1] - mid[1], x[2] - mid[2])
    between_s = maximum(_stay(sums, depth, 1, over), _stay(sums, depth, p - 2, over)) + between_held_s
    return where(p > 2, maximum(ends_s, between_s), ends_s)


def _stay(sums: PipelineSums, depth: int, rank: Numbers, extra: Any) -> Numbers:
    """The path that stays on one rank: its work, its waits for ranks below, and the ways in and out."""
    (f_s, i_s, w_s), below, travels_s = sums.mid, sums.p - 1 - rank, sums.c_s - sums.held_s
    f_here_s, back_here_s = f_s + extra[0], i_s + w_s + extra[1] + extra[2]
    way_s = below * (f_s + i_s + 2 * travels_s) + where(below > 0, sums.e1[0] + sums.e1[1], 0.0)
    ahead = minimum(depth * below, sums.m - 1)
    once_s = maximum(way_s - ahead * minimum(f_here_s, back_here_s), 0.0)
    twice_s = maximum(way_s - ahead * f_here_s, 0.0) + maximum(way_s - ahead * back_here_s, 0.0)
    waits_s = where(sums.m > depth * below + 1, twice_s, once_s)
    into_s = rank * (f_s + travels_s) + where(rank > 0, sums.e0[0], 0.0)
    out_s = rank * (i_s + travels_s) - minimum(depth * rank, sums.m - 1) * (w_s + extra[2])
    out_s = out_s + where(rank > 0, sums.e0[1], 0.0)
    return into_s + sums.m * (f_here_s + back_here_s) + waits_s + maximum(out_s, 0.0)


def zb_v_s(sums: PipelineSums) -> Numbers:
    """For F = I = W all ranks are busy from their first action to their last, each starting a step later."""
    (f_s, i_s, w_s), e0, e1 = sums.halves, sums.e0, sums.e1
    p, m, c_s, held_s = sums.p, sums.m, sums.c_s - sums.held_s, sums.held_s
    fill_s = maximum(maximum((p - 1) * i_s, 2 * (p - 1) * (i_s - w_s)), (2 * p - 3) * f_s - (p - 2) * i_s)
    first_s = maximum((p - 2) * w_s - p * (e0[1] + e0[2]) - e1[2] + 3 * (p - 1) * c_s, 0.0)
    first_s = first_s + (3 * m + 2 * p - 1) * held_s
    away_s = fill_s + (2 * p - 1) * e0[0] + e1[0] + e1[1] + (5 * p - 7) * c_s
    away_s = away_s + where(p > 2, 6 * m - p - 1, 3 * m) * held_s
    # Few micro-batches leave gaps: down the V and up, back the same way, and in between all I and W.
    (f_s, i_s, w_s), ends_s = sums.mid, e0[0] + e0[1] + e1[0] + e1[1]
    few_s = p * (f_s + i_s) + ends_s + w_s + (m - 1) * (i_s + w_s + e1[1] + e1[2]) + 4 * (p - 1) * sums.c_s
    full_s = _vee(sums, first_s, away_s)
    return where(m < 2 * p, maximum(full_s, few_s), full_s)


def dualpipe_v_s(sums: PipelineSums) -> Numbers:
    """As ZB-V, with separate W only at the ends: a gradient passes a rank in I + W."""
    (f_s, i_s, w_s), e0, e1 = sums.halves, sums.e0, sums.e1
    q, m, c_s, held_s = sums.p - 1, sums.m, sums.c_s - sums.held_s, sums.held_s
    fill_s = maximum(q * (f_s + 3 * c_s), q * (f_s + i_s - w_s + 4 * c_s))
    fill_s = maximum(fill_s, q * (2 * i_s - w_s + 6 * c_s) - f_s)
    first_s = maximum(q * (i_s - w_s - e0[1] - e0[2] + 4 * c_s), 0.0) + (3 * m + 2 * q - 2) * held_s
    away_s = fill_s + e0[0] + 2 * (e0[1] + e0[2]) + e1[1] + e1[2]
    return _vee(sums, first_s, away_s + where(sums.p > 2, 4 * m + 2 * q - 1, 3 * m - 1) * held_s)


def v_half_s(sums: PipelineSums) -> Numbers:
    """Less memory, more waits: too few micro-batches are in flight to hide an I much longer than F."""
    (f_s, i_s, w_s), e0, e1 = sums.halves, sums.e0, sums.e1
    p, m, c_s, held_s = sums.p, sums.m, sums.c_s - sums.held_s, sums.held_s
    q, odd = p - 1, p % 2
    even_s = 3 * q * (maximum(f_s, i_s) + 2 * c_s) + (p + 1 - 2 * odd) * minimum(f_s, i_s) - (p + 1 - odd) * w_s
    short_i_s = (2 * p - odd) * f_s + (p - 3) * i_s + (p - 2) * maximum(f_s - w_s, 0.0) + (6 * p - 8) * c_s
    # Every micro-batch waits for the part of I that F and W together do not hide, and the reverse.
    long_i_s = m * (2 * i_s - 2 * f_s - w_s + 2 * c_s) + (2 * p + 3 - 3 * odd) * f_s + (2 * p - 5 + odd) * i_s
    long_f_s = m * (2 * f_s - 2 * i_s - w_s + 2 * c_s) + (2 * p + 3 - 3 * odd) * i_s + (2 * p - 5 + odd) * f_s
    long_s = maximum(long_i_s, long_f_s) - (p - odd) / 2 * w_s + (5 * p - 8) * c_s
    fill_s = maximum(maximum(even_s, short_i_s), long_s)
    away_s = fill_s + 2 * (e0[0] + e0[1]) + e0[2] + e1[0] + e1[1]
    away_s = away_s + where(p > 2, 6 * m + 3.5 * p - 11, 3 * m + 1) * held_s
    # On the first rank: the ways of the first and the last micro-batch, less the work done during them.
    half = (p - odd) / 2
    first_s = (3 * half - 1 + odd) * f_s - (half + 1) * w_s - half * (e0[0] + e0[1] + e0[2]) + e0[0] + e0[1] - e1[2]
    more_s = half * maximum(i_s + 2 * c_s - e0[0] - e1[0] - e1[1] - e1[2], 0.0)
    first_s = maximum(first_s + (3 * half - 1 + odd) * i_s + more_s + 4 * q * c_s, 0.0) + (3 * m + 2 * p) * held_s
    return _vee(sums, first_s, away_s)


def _vee(sums: PipelineSums, first_s: Numbers, away_s: Numbers) -> Numbers:
    """With all extras on the first rank: the longer of the path that stays there and the path that avoids it."""
    return maximum(sums.m * sums.on_first_s + first_s, sums.m * sums.busiest_s + away_s)
