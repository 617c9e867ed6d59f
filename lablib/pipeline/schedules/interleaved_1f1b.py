"""Interleaved 1F1B: each rank holds v small pieces instead of one large piece, and the bubble shrinks v times.

The model is cut into p v pieces, dealt around the ranks in turn: a micro-batch goes around v times. Ranks take p
micro-batches through their first piece, the same p through the second, and so on, then the next p; backwards in the
same way from the last piece. Filling and draining the pipeline takes steps of a v-th of the size.

    p = 2, v = 2     rank 0   0F0 0F1 2F0 2F1 2B0 ...      pieces 0 and 2
                     rank 1   1F0 1F1 3F0 3B0 3F1 ...      pieces 1 and 3

Cost: bubble (p-1)/(v m + p-1) of the step; activations of (v-1) p + 2 (p-1-i) + 1 pieces on rank i, each a v-th of a
rank's layers: on rank 0 that is 1 + (p-1)/(p v) times 1F1B; v times the sent bytes of 1F1B.
Legend: p ranks (`num_stages`), v pieces on each (`num_chunks`), m micro-batches, i a rank.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021,
arXiv 2104.04473, section 2.2.2; the memory: Korthikanti et al., 2022, arXiv 2205.05198, section 4.2.3.
Simplified: with one chunk it is 1F1B. As in the paper, m must be a multiple of p (torch also takes rounds of other
sizes).
"""

from dataclasses import replace

from lablib.pipeline.plan import Action, Kind, Plan
from lablib.pipeline.schedules.one_f_one_b import one_f_one_b
from lablib.pipeline.schedules.row import check_sizes, loop


def interleaved_1f1b(num_stages: int, num_microbatches: int, num_chunks: int) -> Plan:
    """The plan of p = `num_stages` ranks with v = `num_chunks` pieces each; m = `num_microbatches`, a multiple of p."""
    check_sizes("interleaved", num_stages=num_stages, num_microbatches=num_microbatches, num_chunks=num_chunks)
    if num_chunks == 1:
        return replace(one_f_one_b(num_stages, num_microbatches), name="interleaved")
    if num_microbatches % num_stages:
        enough = -(-num_microbatches // num_stages) * num_stages
        raise ValueError(
            "interleaved: num_microbatches must be a multiple of num_stages: "
            f"got {num_microbatches} and {num_stages}; try {enough}."
        )
    rows = (_row(rank, num_stages, num_microbatches, num_chunks) for rank in range(num_stages))
    return Plan("interleaved", num_stages, num_microbatches, tuple(rows), loop(num_stages, num_chunks))


def _row(rank: int, num_stages: int, num_microbatches: int, num_chunks: int) -> tuple[Action, ...]:
    pieces = [rank + num_stages * chunk for chunk in range(num_chunks)]
    forwards = _in_rounds(Kind.F, pieces, num_stages, num_microbatches)
    backwards = _in_rounds(Kind.B, pieces[::-1], num_stages, num_microbatches)
    # Forwards before the first backward: each rank has two more than the next one.
    warm_up = min((num_chunks - 1) * num_stages + 2 * (num_stages - 1 - rank), len(forwards))
    steady = len(forwards) - warm_up
    turns = [action for pair in zip(forwards[warm_up:], backwards[:steady], strict=True) for action in pair]
    return (*forwards[:warm_up], *turns, *backwards[steady:])


def _in_rounds(kind: Kind, pieces: list[int], num_stages: int, num_microbatches: int) -> list[Action]:
    """p micro-batches through every piece, then the next p."""
    return [
        Action(piece, kind, microbatch)
        for first in range(0, num_microbatches, num_stages)
        for piece in pieces
        for microbatch in range(first, first + num_stages)
    ]
