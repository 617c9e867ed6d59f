"""What a communication library does by itself, where that is not the fastest algorithm: gloo.

NCCL chooses among algorithms by formulas like those of collective.py; gloo has one for each collective:

    all_reduce        a ring whose chunks travel as two segments:  4 (n-1) (alpha + S/2n beta)
    all_gather        the same for half of it:                     2 (n-1) (alpha + S/2n beta)
    reduce_scatter    an all_reduce of which each rank keeps its part (torch's gloo backend)
    broadcast         a binomial tree, whatever the size
    all_to_all        one message after another, as processes that share cores send them
    barrier           a dissemination barrier:                     ceil(log2 n) alpha

Two segments let a rank add one while the other travels. Where processes share cores there is no such overlap: what
counts is the number of messages, each of which must wake its receiver, and that is twice the ring's.

Source: facebookincubator/gloo, gloo/allreduce.cc (two segments or more a chunk), allgather.cc, broadcast.cc,
barrier.cc; torch, ProcessGroupGloo.cpp (reduce_scatter). D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
synchronization", Int. J. Parallel Programming 17 (1988): dissemination.
Simplified: segments follow one another; chunks of more than two segments (above 1 MB each) count as two.
"""

from collections.abc import Iterator

from lablib.cost.algorithms import (
    RING_ALL_REDUCE,
    RING_GATHER,
    Algorithm,
    Paths,
    Term,
    no_messages,
    none_sent,
)


def _segmented(ring: Algorithm) -> Algorithm:
    """Twice as many rounds of half the bytes."""

    def rounds(g: Paths, size: float, root: int) -> Iterator[Term]:
        return ((2 * count, share, edges) for count, share, edges in ring.rounds(g, size / 2, root))

    return Algorithm("segmented ring", rounds, ring.sent, ring.messages)


def _disseminated(g: Paths, size: float, root: int) -> Iterator[Term]:
    # A tree barrier goes up and down; here every rank tells another in each round, and nobody need be told after.
    return ((1, 0.0, step) for step in g.tree)


SEGMENTED_RING_ALL_REDUCE, SEGMENTED_RING_GATHER = _segmented(RING_ALL_REDUCE), _segmented(RING_GATHER)
DISSEMINATION_BARRIER = Algorithm("dissemination", _disseminated, none_sent, no_messages)
