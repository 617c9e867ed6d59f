"""Rebalancing of experts during a run, with placements from past loads.

`place_balanced` is only as good as its loads. In a run they are known one step late, and they change; so the plan of a
step uses the mean of some steps before it, and stays for some steps, as every new one sends experts with their states:

    steps      1 2 3 4 | 5 6 7 8 | 9 ...        every = 4, window = 2
    plan of    order     3, 4      7, 8

    in order   max / mean of the ranks with each expert in its original place
    planned    with the present plan
    known      with a plan of the step's own loads, which are not known in time: close to a lower bound

On the recorded runs (`expert_runs.py`: 8 experts, 2,048 choices per step, loads of every tenth step, each plan from the
one before; means of two layers and three seeds), on 4 ranks of 3 slots:

    run                in order   planned   known
    nothing            1.94       1.26      1.12        busy experts stay busy: past loads predict them
    auxiliary loss     1.42       1.36      1.06        the remaining imbalance changes from step to step
    bias               1.29       1.27      1.04

So copies and losses do the same work: if a loss has made the mean load even, past loads predict little.

Cost: a plan every so many steps; nothing runs on ranks. `moved` experts are sent: each 2 D F weights, and twice as many
numbers of Adam's state.
Legend: S steps, E experts.
Source: github.com/deepseek-ai/EPLB, 2025, README ("a common method is to use moving average of historical statistics");
DeepSeek-V3, 2024, arXiv 2412.19437, section 3.4.1 (loads of about ten minutes, in serving).
Simplified: a plan takes no time; copies share evenly; all experts have weights of equal size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Annotated

from lablib.parallel.experts.balance import place_balanced, place_in_order
from lablib.signature import Count, NonEmpty, checked


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The busiest rank over the mean, step by step.

    Attributes:
        in_order, planned, known: by placement, one number per step.
        moved: experts sent to ranks, over the run.
    """

    in_order: tuple[float, ...]
    planned: tuple[float, ...]
    known: tuple[float, ...]
    moved: int

    @property
    def gained(self) -> float:
        """The mean of `in_order` over the mean of `planned`: speedup of a step's experts."""
        return mean(self.in_order) / mean(self.planned)


@checked
def rebalance_over_run(
    counts: Annotated[Sequence[Sequence[float]], NonEmpty(), "give the counts of each step"],
    num_ranks: int,
    slots_a_rank: int,
    every: Count = 1,
    window: Count = 1,
) -> Rebalanced:
    """Imbalance over a run with plans of past loads.

    Arguments:
        counts: for each step, tokens per expert.
        num_ranks, slots_a_rank: as for `place_balanced`.
        every: steps that a plan stays; the first `every` steps have experts in order.
        window: number of steps before a plan; it uses their mean.

    Raises:
        ValueError: as `place_balanced` and `place_in_order`.
    """
    naive = plan = place_in_order(len(counts[0]), num_ranks, slots_a_rank)
    planned, moved = [], 0
    for step, loads in enumerate(counts):
        if step and step % every == 0:
            seen = counts[max(0, step - window) : step]
            before, plan = plan, place_balanced([mean(one) for one in zip(*seen, strict=True)], num_ranks, slots_a_rank)
            moved += plan.num_moved(before)
        planned.append(plan.imbalance(loads))
    return Rebalanced(
        in_order=tuple(naive.imbalance(loads) for loads in counts),
        planned=tuple(planned),
        known=tuple(place_balanced(loads, num_ranks, slots_a_rank).imbalance(loads) for loads in counts),
        moved=moved,
    )
