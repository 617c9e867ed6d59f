"""What a communication library does by itself, where that is not the fastest algorithm: gloo.

NCCL chooses among algorithms by formulas like those of collective.py; gloo has one for each collective:

    all_reduce        a ring whose chunks travel as two segments:  4 (n-1) (alpha + S/2n beta)
    all_gather        the same for half of it:                     2 (n-1) (alpha + S/2n beta)
    reduce_scatter    an all_reduce of which each rank keeps its part (torch's gloo backend)
    broadcast         a binomial tree, whatever the size
    barrier           a dissemination barrier:                     ceil(log2 n) alpha

Two segments let a rank add one while the other travels. Where processes share cores there is no such overlap: what
counts is the number of messages, each of which must wake its receiver, and that is twice the ring's.

Source: facebookincubator/gloo, gloo/allreduce.cc (two segments or more a chunk), allgather.cc, broadcast.cc,
barrier.cc; torch, ProcessGroupGloo.cpp (reduce_scatter). D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
synchronization", Int. J. Parallel Programming 17 (1988): dissemination.
Simplified: segments follow one another; chunks of more than two segments (above 1 MB each) count as two.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from lablib.cost import collective
from lablib.cost.collective import Algorithm, CollectiveCost
from lablib.cost.network import GroupNetwork


def segmented_ring_all_reduce(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    return _times(2, collective.ring_all_reduce(net, size_bytes / 2))


def segmented_ring_all_gather(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    return _times(2, collective.ring_gather(net, size_bytes / 2))


def dissemination_barrier(net: GroupNetwork, size_bytes: float = 0.0, root: int = 0) -> CollectiveCost:
    # A tree barrier goes up and down; here every rank tells another in each round, and nobody need be told after.
    return replace(_times(0.5, collective.tree_barrier(net, size_bytes)), algorithm="dissemination")


def _times(count: float, cost: CollectiveCost) -> CollectiveCost:
    """The same rounds so many times."""
    sent_bytes = tuple(count * sent for sent in cost.sent_bytes)
    return CollectiveCost("segmented ring", count * cost.time_s, sent_bytes, count * cost.latency_s)


LIBRARIES: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "gloo": MappingProxyType(
            {
                "all_reduce": segmented_ring_all_reduce,
                "all_gather": segmented_ring_all_gather,
                "reduce_scatter": segmented_ring_all_reduce,
                "broadcast": collective.tree_broadcast,
                "barrier": dissemination_barrier,
            }
        )
    }
)
