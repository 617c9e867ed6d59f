"""Breadth-first: all micro-batches through a rank's first piece, then all through its second.

v pieces on each rank as in interleaved 1F1B, but in the order of GPipe. A piece is visited once forward and once
backward in a step: with ZeRO-3 its weights are gathered, and its gradients reduced, once instead of once for every p
micro-batches, and the computation of the other pieces can hide that.

    p = 2, v = 2     rank 0   0F0 0F1 2F0 2F1         2B1 2B0 0B1 0B0
                     rank 1       1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0

Cost: bubble (p-1)/(v m + p-1) of the step (with m >= p); activations of v m pieces on every rank, each a v-th of its
layers, as GPipe; v times the sent bytes of GPipe.
Legend: p ranks (`num_stages`), v pieces on each (`num_chunks`), m micro-batches.
Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022, arXiv 2211.05953, section 4.1.
Simplified: the backwards run from the last micro-batch to the first, as torch's LoopedBFS does; the order within a
piece changes neither time nor peak.
"""

from lablib.pipeline.plan import Action, Kind, Plan
from lablib.pipeline.schedules.row import check_sizes, loop


def breadth_first(num_stages: int, num_microbatches: int, num_chunks: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks, m = `num_microbatches` >= 1, v = `num_chunks` >= 1 pieces per rank."""
    check_sizes("breadth-first", num_stages=num_stages, num_microbatches=num_microbatches, num_chunks=num_chunks)
    microbatches = range(num_microbatches)
    rows = []
    for rank in range(num_stages):
        pieces = [rank + num_stages * chunk for chunk in range(num_chunks)]
        forwards = [Action(piece, Kind.F, m) for piece in pieces for m in microbatches]
        backwards = [Action(piece, Kind.B, m) for piece in reversed(pieces) for m in reversed(microbatches)]
        rows.append((*forwards, *backwards))
    return Plan("breadth-first", num_stages, num_microbatches, tuple(rows), loop(num_stages, num_chunks))
