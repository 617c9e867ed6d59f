"""Makespan of GPipe, 1F1B, interleaved 1F1B and breadth-first as the longest of a few paths.

A path follows one micro-batch down the ranks and another one up. In between it stays where most time is spent: on the
slowest rank, or back and forth between ranks with slow messages. The order of actions determines which paths can be
longest. closed_form.py lists the assumptions, and tests compare with replays.

Legend: f, b, t seconds of F, of B and of both on a rank; e0, e1 extras of the first and the last piece; c a message.
Source: see closed_form.py.
Simplified: a rank with more layers than the mean is in the middle of the pipeline.
"""

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.pipeline.sums import PipelineSums, where


def gpipe_s(sums: PipelineSums) -> Numbers:
    """All forwards, then all backwards: two flow shops, each as fast as its slowest rank."""
    e0, e1, x = sums.e0, sums.e1, sums.x
    forward_s = maximum(x[0], sums.f_s + maximum(e0[0], e1[0]))
    backward_s = maximum(x[1] + x[2], sums.b_s + maximum(e0[1] + e0[2], e1[1] + e1[2]))
    period_s = forward_s + backward_s + 2 * sums.held_s
    return sums.round_s + 2 * (sums.p - 1) * sums.c_s + (sums.m - 1) * period_s


def one_f_one_b_s(sums: PipelineSums) -> Numbers:
    """The longest of four paths, each of m + p - 1 pairs of F and B."""
    p, m, c_s, held_s, t_s = sums.p, sums.m, sums.c_s, sums.held_s, sums.t_s
    round_s = sums.round_s + 2 * (p - 1) * c_s
    # Down to the last rank, m micro-batches there, and up.
    last_s = round_s + (m - 1) * (sums.t1_s + held_s)
    # On the first rank: until its first gradient, in pairs, and from its last micro-batch on.
    f0_s, b0_s = sums.f_s + sums.e0[0], sums.b_s + sums.e0[1] + sums.e0[2]
    below_s = round_s - sums.t0_s
    until_s = maximum(below_s, (p - 1) * f0_s + p * held_s) + maximum(below_s, (p - 1) * b0_s + p * held_s)
    first_s = until_s + (m - p + 1) * sums.t0_s + (m - p - 1) * held_s
    first_s = where(m > p, first_s, round_s + (m - 1) * (maximum(f0_s, b0_s) + held_s))
    # Down and up, then on a rank between them, and down and up with the last micro-batch.
    below = minimum(p, m) - 2
    between_s = round_s + sums.t1_s - t_s + (m - 1) * t_s + where(held_s > 0, (2 * m - 3) * held_s, 2 * below * c_s)
    between_s = between_s + (sums.busiest_s - t_s) * maximum(m - p / 2, 1)
    # Down and up all the time: the path with most messages.
    num_rounds = (m + p - 1) // p
    rest = m + p - 1 - num_rounds * p
    extra_s = where(num_rounds > 1, maximum(sums.t0_s, sums.t1_s), sums.t1_s) - t_s
    rest_s = rest * t_s + where(rest > 0, extra_s + 2 * (rest - 1) * c_s, 0.0)
    longest_s = maximum(maximum(last_s, first_s), num_rounds * round_s + rest_s)
    return where((p > 2) & (m > 1), maximum(longest_s, between_s), longest_s)


def interleaved_s(sums: PipelineSums) -> Numbers:
    """1F1B on pieces: fill and drain as with one piece per rank, and every piece sends its own messages.

    A rank with an extra runs p pieces with it and then p (v - 1) without, so ranks wait for each other: the path stays
    on the last rank, on the first, or alternates between them and pays for the messages.
    """
    p, m, v, e0 = sums.p, sums.m, sums.v, sums.e0
    f_s, b_s = sums.f_s / v, sums.b_s / v
    f0_s, b0_s, e0_s, e1_s = e0[0], e0[1] + e0[2], sums.t0_s - sums.t_s, sums.t1_s - sums.t_s
    travels_s = sums.c_s - sums.held_s
    # In and out: p pieces on the first rank one after the other, or one piece and on through all ranks.
    into_s = f0_s + maximum((p - 1) * f0_s, p * travels_s) + b0_s + maximum((p - 1) * b0_s, p * travels_s)
    last_s = m * e1_s + into_s
    both_s = (m - p) * e0_s + minimum(m, 2 * p) * e1_s - f_s - b_s
    half_s = maximum((m - p) * f0_s + m * b0_s - (p - 1) * f_s - b_s, m * f0_s + (m - p) * b0_s - (p - 1) * b_s - f_s)
    first_s = maximum(half_s + p * e1_s, m * e0_s - (p - 1) * (f_s + b_s))
    ends_s = maximum(maximum(last_s, both_s), first_s) + ((2 * v - 1) * m + 2 * p - 3) * sums.held_s
    # On a rank between them, every F and B sends a message; on the first and the last, one in 2 v does not.
    between_s = into_s + p * e1_s - 2 * minimum(f_s, b_s) + (2 * v * m + 2 * p - 6) * sums.held_s
    between_s = between_s + m * (sums.busiest_s - sums.t_s)
    uneven_s = where(p > 2, maximum(ends_s, between_s), ends_s)
    return m * sums.t_s + (p - 1) * (f_s + b_s) + uneven_s + 2 * (p * v - p - 1) * travels_s


def breadth_first_s(sums: PipelineSums) -> Numbers:
    """GPipe on pieces: v passes forward and v backward, each as fast as its slowest rank.

    The extra of the first piece delays one pass, the extra of the last piece another; a rank with more layers than the
    mean delays every pass that has no larger extra.
    """
    p, m, v, (e0, e1) = sums.p, sums.m, sums.v, (sums.e0, sums.e1)
    x, mid, has_middle = sums.x, sums.mid, 1.0 * (p > 2)
    forward_s = _held_up_s(has_middle * (x[0] - mid[0]), v, e0[0], e1[0])
    backward_s = _held_up_s(has_middle * (x[1] + x[2] - mid[1] - mid[2]), v, e0[1] + e0[2], e1[1] + e1[2])
    busy_s = m * (sums.t_s + forward_s + backward_s)
    full_s = busy_s + (p - 1) * (sums.t_s / v + 2 * sums.c_s) + 2 * (m * v - 1) * sums.held_s
    # With few micro-batches a rank is idle before the first returns for its next piece.
    alone_s = sums.round_s + 2 * (p * v - 1) * sums.c_s
    alone_s = alone_s + (m - 1) * (sums.t_s / v + maximum(sums.t0_s, sums.t1_s) - sums.t_s + 2 * sums.held_s)
    return maximum(full_s, alone_s)


def _held_up_s(over_s: Numbers, v: Numbers, e0_s: Numbers, e1_s: Numbers) -> Numbers:
    """Seconds beyond the mean of one micro-batch in v passes, each as fast as its slowest rank."""
    return maximum(e0_s, over_s / v) + maximum(e1_s, over_s / v) + (v - 2) * (over_s / v)
