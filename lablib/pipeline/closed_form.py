"""Time, bubble and activations of a pipeline schedule as formulas, for the millions of plans of a planner.

A schedule is a max-plus system: every action ends at the latest end of its dependencies, plus its own duration. So a
step takes as long as the longest path through its actions, and over many micro-batches that path repeats a cycle:

    makespan = m * period + fill and drain          period = the largest mean of a cycle, over one micro-batch

1F1B has few cycles. With t_r the seconds of rank r for one micro-batch and c the seconds of a message:

    stay on rank r               t_r        (a blocking message: + 2 c, or + c on the first and the last rank)
    from first to last and back  (sum t_r + 2 (p - 1) c) / p

Each schedule below takes the maximum over its few paths of fill + cycles + drain.

Bubble, idle time and activations for equal stages, free messages and F = I = W. The unit of idle time is F of a whole
stage. Activations are the peak of rank r, in micro-batches through all its layers (never more than m):

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

    * ranks start and end one after the other: 0 without a barrier before the optimizer step

Legend: p ranks (`num_stages`), v pieces on each (`num_chunks`), m micro-batches, F forward, I and W the two halves of
backward B. Numbers may be numpy arrays; the name of the schedule and `overlap` may not.
Source: Huang et al., 2018, arXiv 1811.06965 (GPipe); Narayanan et al., SC21, arXiv 2104.04473, section 2.2 (1F1B,
interleaved); Lamy-Poirier, 2022, arXiv 2211.05953 (breadth-first); Qi et al., 2023, arXiv 2401.10241 (zero bubble);
Qi et al., 2024, arXiv 2405.15362 (V-shaped). Max-plus: Baccelli et al., "Synchronization and Linearity", 1992, ch. 2.
Simplified: see replay.py, which these are tested against.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from lablib.cost.arrays import Numbers, is_array, minimum
from lablib.errors import unknown_name
from lablib.pipeline.longest_paths import breadth_first_s, gpipe_s, interleaved_s, one_f_one_b_s
from lablib.pipeline.longest_paths_split import dualpipe_v_s, v_half_s, zb_h1_s, zb_h2_s, zb_v_s
from lablib.pipeline.sums import PipelineSums, StageTime, where

V_SHAPED = ("zb-v", "dualpipe-v", "v-half")  # two pieces on each rank: the first rank holds the first and the last


class ClosedForm(NamedTuple):
    """The formulas of a schedule; `makespan` takes `PipelineSums`, the others are in the table above."""

    makespan: Callable[[PipelineSums], Numbers]
    idle: Callable[..., Numbers]  # of p, v: in seconds of F of a whole stage
    in_flight: Callable[..., Numbers]  # of p, m, v and the rank


CLOSED_FORMS: Mapping[str, ClosedForm] = MappingProxyType(
    {
        "gpipe": ClosedForm(gpipe_s, lambda p, v: 3 * (p - 1), lambda p, m, v, rank: m),
        "1f1b": ClosedForm(one_f_one_b_s, lambda p, v: 3 * (p - 1), lambda p, m, v, rank: p - rank),
        "interleaved": ClosedForm(
            interleaved_s,
            lambda p, v: 3 * (p - 1) / v,
            # One piece on each rank is 1F1B.
            lambda p, m, v, rank: where(v == 1, p - rank, p + (p - 1 - 2 * rank) / v),
        ),
        "breadth-first": ClosedForm(breadth_first_s, lambda p, v: 3 * (p - 1) / v, lambda p, m, v, rank: m),
        "zb-h1": ClosedForm(zb_h1_s, lambda p, v: p - 1, lambda p, m, v, rank: p),
        "zb-h2": ClosedForm(zb_h2_s, lambda p, v: p - 1, lambda p, m, v, rank: 2 * p - 1),
        "zb-v": ClosedForm(zb_v_s, lambda p, v: (p - 1) / 2, lambda p, m, v, rank: p),
        "dualpipe-v": ClosedForm(dualpipe_v_s, lambda p, v: (p - 1) / 2, lambda p, m, v, rank: p + 0.5),
        "v-half": ClosedForm(
            v_half_s, lambda p, v: (3 * (p - 1) - p % 2 * (p > 1)) / 2, lambda p, m, v, rank: (p + 2) // 2
        ),
    }
)
WITH_CLOSED_FORM = tuple(CLOSED_FORMS)
_OF_ONE_PIECE = {"interleaved": one_f_one_b_s, "breadth-first": gpipe_s}
_NONE_IF_STAGGERED = ("zb-h2", "zb-v")
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

    Arguments:
        schedule: one of `WITH_CLOSED_FORM`.
        num_stages, num_microbatches: p and m.
        num_chunks: v; 1 for gpipe, 1f1b and zb-h*, 2 for the V-shaped.
        middle: seconds of one micro-batch on one rank (all its pieces), the mean over ranks without the extras.
        first_extra: additional seconds of the first piece of the model (embedding).
        last_extra: additional seconds of the last piece (head, loss). V-shaped schedules have both on rank 0.
        send_s, overlap: of a message between ranks, as in `Costs`.
        busiest: seconds of a rank with more layers than the mean; None: all ranks are equal.
    """
    formulas = _formulas(schedule)
    counts = num_stages, num_microbatches, num_chunks
    sums = PipelineSums(*counts, middle, first_extra, last_extra, send_s, overlap, busiest)
    longest_s = formulas.makespan(sums)
    if schedule in _OF_ONE_PIECE:
        # One piece on each rank is plain 1F1B.
        is_plain = num_chunks == 1
        if is_plain.any() if is_array(is_plain) else is_plain:
            longest_s = where(is_plain, _OF_ONE_PIECE[schedule](sums), longest_s)
    return where(num_stages == 1, num_microbatches * sums.round_s, longest_s)


def bubble_fraction(
    schedule: str, num_stages: Numbers, num_microbatches: Numbers, num_chunks: Numbers = 1, is_staggered: bool = False
) -> Numbers:
    """The idle share of the ranks' time for equal stages, free messages and F = I = W, in [0, 1).

    Arguments:
        schedule, num_stages, num_microbatches, num_chunks: as in `makespan_s`; m of at least 2 p.
        is_staggered: count each rank's time from its first action to its last, as without a barrier before the
            optimizer step.
    """
    idle = _formulas(schedule).idle(num_stages, num_chunks)
    if is_staggered and schedule in _NONE_IF_STAGGERED:
        idle = 0.0 * num_stages
    return idle / (3 * num_microbatches + idle)


def in_flight(
    schedule: str, num_stages: Numbers, num_microbatches: Numbers, num_chunks: Numbers = 1, rank: Numbers = 0
) -> Numbers:
    """The most micro-batches with activations on a rank at once; a piece of a rank with v pieces counts 1 / v.

    Arguments:
        schedule, num_stages, num_microbatches, num_chunks: as in `makespan_s`.
        rank: 0 to p - 1.
    """
    held = _formulas(schedule).in_flight(num_stages, num_microbatches, num_chunks, rank)
    return minimum(held, num_microbatches)


def _formulas(schedule: str) -> ClosedForm:
    if schedule not in CLOSED_FORMS:
        raise unknown_name("schedule", schedule, WITH_CLOSED_FORM)
    return CLOSED_FORMS[schedule]
