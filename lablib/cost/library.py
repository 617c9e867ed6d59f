"""Collective algorithms of a library that has only one for each collective: gloo.

NCCL chooses among algorithms by formulas like those in collective.py; gloo has one for each collective:

    all_reduce        a ring with chunks in two segments:          4 (n-1) (alpha + S/2n beta)
    all_gather        half of that:                                2 (n-1) (alpha + S/2n beta)
    reduce_scatter    an all_reduce of which each rank keeps its part (torch's gloo backend)
    broadcast         a binomial tree, for any size
    all_to_all        one message after another, as processes that share cores send them
    barrier           a dissemination barrier:                     ceil(log2 n) alpha

With two segments a rank adds one while the other is in flight. Where processes share cores there is no such overlap:
the cost is the number of messages, each of which must wake its receiver, and that is twice the ring's.

Source: facebookincubator/gloo, gloo/allreduce.cc (two segments or more a chunk), allgather.cc, broadcast.cc,
barrier.cc; torch, ProcessGroupGloo.cpp (reduce_scatter). D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
synchronization", Int. J. Parallel Programming 17 (1988): dissemination.
Simplified: segments follow one another; chunks of more than two segments (above 1 MB each) count as two.
"""

from collections.abc import Iterator

from lablib.cost.algorithms import RING_ALL_REDUCE, RING_GATHER, Algorithm, Paths, Term, no_messages, none_sent


def _segmented(ring: Algorithm) -> Algorithm:
    """Twice as many rounds of half the bytes."""

    def rounds(g: Paths, size: float, root: int) -> Iterator[Term]:
        return ((2 * count, share, edges) for count, share, edges in ring.rounds(g, size / 2, root))

    return Algorithm("segmented ring", rounds, ring.sent, ring.messages)


def _disseminated(g: Paths, size: float, root: int) -> Iterator[Term]:
    # A tree barrier goes up and down; here every rank sends in each round, so no second pass is needed.
    return ((1, 0.0, step) for step in g.tree)


SEGMENTED_RING_ALL_REDUCE, SEGMENTED_RING_GATHER = _segmented(RING_ALL_REDUCE), _segmented(RING_GATHER)
DISSEMINATION_BARRIER = Algorithm("dissemination", _disseminated, none_sent, no_messages)
