"""All schedules at equal memory: the least bubble of each with the same number of activations.

ZB-H2 has no bubble and holds twice the activations of 1F1B; V-Half has a larger bubble and holds half. To compare them,
each schedule gets the same memory and its best settings:

    memory for M micro-batches per rank (of all its layers); the step has m micro-batches
    flushes       a schedule that would hold too many runs the step in n parts of m / n micro-batches (accumulation),
                  each with its own bubble: GPipe always, 1F1B for M < p
    pieces        interleaved and breadth-first try every number of pieces up to `max_chunks`
    bubble        1 - (busy seconds) / (n makespans), with a barrier between parts

Of the n that divide m, the smallest that fits is taken: more micro-batches in a part mean a smaller bubble.

Cost: a replay for each schedule, number of pieces and n that is tried.
Legend: p ranks, m micro-batches, M the memory in activations of a micro-batch on a rank, v pieces.
Source: the comparisons at equal memory of Qi et al., "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241 (1F1B
next to ZB-1p and ZB-2p), and "Pipeline Parallelism with Controllable Memory", 2024, arXiv 2405.15362.
Simplified: the time of a micro-batch does not depend on their number; parameters and message buffers are not counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from lablib.pipeline.closed_form import WITH_CLOSED_FORM, makespan_s
from lablib.pipeline.costs import Costs
from lablib.pipeline.plan import Plan
from lablib.pipeline.replay import replay
from lablib.pipeline.schedules import SCHEDULES, make
from lablib.pipeline.sums import StageTime
from lablib.signature import Count, NonNegative, OneOf, Positive, checked, shown

MAX_SIZE = 100_000  # of the largest plan that is replayed, in forwards


@dataclass(frozen=True, slots=True)
class Afforded:
    """The best settings of a schedule within the memory."""

    schedule: str  # its name
    num_chunks: int  # pieces on a rank
    num_microbatches: int  # micro-batches in one part of the step
    num_flushes: int  # parts of the step
    in_flight: float  # micro-batches that the fullest rank holds
    bubble_fraction: float  # of the step, by replay
    closed_form: float | None  # the same by formula; None if the schedule has no formula


@checked
def equal_memory(
    num_stages: Count,
    num_microbatches: Count,
    memory: Positive,
    schedules: Sequence[Annotated[str, OneOf(SCHEDULES)]] | None = None,
    *,
    max_chunks: Count = 4,
    forward_s: NonNegative = 1.0,
    input_s: NonNegative = 1.0,
    weight_s: NonNegative = 1.0,
) -> tuple[Afforded, ...]:
    """The schedules that fit a memory with their best settings, smallest bubble first; others are left out.

    Arguments:
        num_stages, num_microbatches: p and m.
        memory: M, the micro-batches with activations that fit on a rank; 1 is one micro-batch through all its layers.
        schedules: None: all.
        max_chunks: the most pieces on a rank, for the schedules that can choose.
        forward_s, input_s, weight_s: F, I and W of a whole rank.

    Raises ValueError: plans that are too large to replay.
    """
    if num_stages * num_microbatches * max_chunks > MAX_SIZE:
        raise ValueError(
            f"num_stages * num_microbatches * max_chunks must be {MAX_SIZE:,} or less: got "
            f"{shown(num_stages)} * {shown(num_microbatches)} * {shown(max_chunks)}; try 8 * 64 * 4."
        )
    time = StageTime(forward_s, input_s, weight_s)
    found = []
    for name in SCHEDULES if schedules is None else schedules:
        chunks = range(1, max_chunks + 1) if SCHEDULES[name].takes_chunks else (SCHEDULES[name].num_chunks,)
        ways = [way for v in chunks if (way := _afforded(name, num_stages, num_microbatches, v, memory, time))]
        found += [min(ways, key=lambda way: way.bubble_fraction)] if ways else []
    return tuple(sorted(found, key=lambda way: way.bubble_fraction))


def _afforded(name: str, p: int, m: int, v: int, memory: float, time: StageTime) -> Afforded | None:
    """The best settings of a schedule with v pieces per rank, in the fewest parts; None if nothing fits."""
    pieces = StageTime(time.forward_s / v, time.input_s / v, time.weight_s / v)
    costs = Costs(pieces.forward_s, None, pieces.input_s, pieces.weight_s)
    for num_flushes, plan in _plans(name, p, m, v):
        done = replay(plan, costs)
        if max(done.in_flight) > memory:
            continue
        part = plan.num_microbatches
        formula = None
        if name in WITH_CLOSED_FORM and time.total_s:
            formula = 1 - part * time.total_s / float(makespan_s(name, p, part, v, time))
        return Afforded(name, v, part, num_flushes, max(done.in_flight), done.bubble_fraction, formula)
    return None


def _plans(name: str, p: int, m: int, v: int) -> Iterator[tuple[int, Plan]]:
    """The plans of 1 / n of the step, for each n that divides it and has a plan."""
    for num_flushes in (n for n in range(1, m + 1) if m % n == 0):
        try:
            yield num_flushes, make(name, p, m // num_flushes, v)
        except ValueError:
            continue  # the schedule needs more micro-batches
