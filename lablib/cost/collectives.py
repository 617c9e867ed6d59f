"""Table of collectives: payload, required agreement of ranks, minimum traffic and algorithms of each.

    payload       `payload`: S, from the bytes that ranks give and receive
    agreement     `calls`: functions of torch.distributed, and the properties that must be equal on all ranks
    traffic       `must_send`: bytes that leave a rank for any algorithm, by a ring or a chain; `mean_sent`
    algorithms    `algorithms`, of which the fastest is taken; also `in_the_switch`, if the cluster uses it;
                  `libraries`: the algorithm of a communication library, for any size

Used by the cost of a call (collective.py), the planner's closed forms (regular_group.py), routes (routes.py), the
simulator's check that the ranks of a call agree, and the bytes of real backends' calls.

Legend: n ranks, S bytes as in algorithms.py; a rank's place is counted from the root.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from lablib.cost import algorithms as by
from lablib.cost import library as gloo
from lablib.cost import nvls
from lablib.cost.algorithms import Algorithm
from lablib.cost.arrays import Numbers

Payload = Callable[[Sequence[float], Sequence[float], int], float]


@dataclass(frozen=True)
class Collective:
    """One row of the table."""

    # (bytes that each known rank gives, bytes that it receives, n) -> S. Some of the n ranks may be unknown: they do
    # the same as the known ones.
    payload: Payload
    # torch.distributed's name -> properties that must be equal on all ranks, by their names in messages
    calls: Mapping[str, tuple[str, ...]]
    must_send: Callable[[float, int, int], float]  # (S, n, place) -> bytes
    mean_sent: Callable[[Numbers, Numbers], Numbers]  # (S, n) -> its mean over the places; numbers or arrays
    algorithms: tuple[Algorithm, ...]  # the algorithms to choose from
    in_the_switch: tuple[Algorithm, ...] = ()  # algorithms with sums in the switch
    libraries: Mapping[str, Algorithm] = field(default_factory=dict)  # library -> its only algorithm


# ---- S ----


def _given(sent: Sequence[float], received: Sequence[float], n: int) -> float:
    """Bytes given per rank; with phantoms and roots, the largest."""
    return float(max(sent))


def _shards_of_all(sent: Sequence[float], received: Sequence[float], n: int) -> float:
    """Bytes that all ranks give together; with phantoms the bytes that each receives, which are equal."""
    return float(sum(sent) if len(sent) == n else max(received))


def _together(shards: Sequence[float], n: int) -> float:
    """Bytes that all ranks give, or receive, together."""
    total = float(sum(shards))
    return total if len(shards) == n else total * n / len(shards)


# ---- minimum traffic ----


def _once(size: Numbers, n: Numbers, place: int = 0) -> Numbers:
    return (n - 1) / n * size


def _twice(size: Numbers, n: Numbers, place: int = 0) -> Numbers:
    return 2 * (n - 1) / n * size


def _nothing(size: Numbers, n: Numbers, place: int = 0) -> Numbers:
    return 0.0 * size


def _mean_of_one_shard(size: Numbers, n: Numbers) -> Numbers:
    return (n - 1) / n * (size / n)


_ALIKE = ("dtype", "shape")

COLLECTIVES: Mapping[str, Collective] = MappingProxyType(
    {
        "all_reduce": Collective(
            payload=_given,
            calls={"all_reduce": ("reduction", *_ALIKE)},
            must_send=_twice,
            mean_sent=_twice,
            algorithms=(by.RING_ALL_REDUCE, by.TREE_ALL_REDUCE, by.HIERARCHICAL_ALL_REDUCE),
            in_the_switch=(nvls.NVLS, nvls.NVLS_TREE),
            libraries={"gloo": gloo.SEGMENTED_RING_ALL_REDUCE},
        ),
        "all_gather": Collective(
            payload=_shards_of_all,
            # Shards of a list may differ in size (as in NCCL); each output must fit its shard.
            calls={"all_gather": ("dtype", "output shapes"), "all_gather_into_tensor": _ALIKE},
            must_send=_once,
            mean_sent=_once,
            algorithms=(by.RING_GATHER, by.HIERARCHICAL_GATHER),
            libraries={"gloo": gloo.SEGMENTED_RING_GATHER},
        ),
        "reduce_scatter": Collective(  # an all-gather backwards
            payload=_given,
            calls={"reduce_scatter": ("reduction", *_ALIKE), "reduce_scatter_tensor": ("reduction", *_ALIKE)},
            must_send=_once,
            mean_sent=_once,
            algorithms=(by.RING_GATHER, by.HIERARCHICAL_GATHER),
            libraries={"gloo": gloo.SEGMENTED_RING_ALL_REDUCE},
        ),
        "broadcast": Collective(
            payload=_given,
            calls={"broadcast": ("root", *_ALIKE)},
            must_send=lambda size, n, place: 0.0 if place == n - 1 else size,  # a chain: all but the last rank send
            mean_sent=_once,
            algorithms=(by.TREE_BROADCAST, by.SCATTER_GATHER_BROADCAST),
            libraries={"gloo": by.TREE_BROADCAST},
        ),
        "reduce": Collective(
            payload=_given,
            calls={"reduce": ("root", "reduction", *_ALIKE)},
            must_send=lambda size, n, place: 0.0 if place == 0 else size,
            mean_sent=_once,
            algorithms=(by.TREE_REDUCE, by.SCATTER_GATHER_REDUCE),
        ),
        "gather": Collective(
            payload=lambda sent, received, n: _together(sent, n),
            calls={"gather": ("root", *_ALIKE)},
            must_send=lambda size, n, place: 0.0 if place == 0 else size / n,
            mean_sent=_mean_of_one_shard,
            algorithms=(by.DIRECT_GATHER,),
        ),
        "scatter": Collective(
            payload=lambda sent, received, n: _together(received, n),
            calls={"scatter": ("root", *_ALIKE)},
            must_send=lambda size, n, place: (n - 1) * (size / n) if place == 0 else 0.0,
            mean_sent=_mean_of_one_shard,
            algorithms=(by.DIRECT_SCATTER,),
        ),
        "all_to_all": Collective(
            # The most bytes of a rank: with uneven splits a round lasts as long as its largest message.
            payload=lambda sent, received, n: float(max(map(max, sent, received))),
            calls={"all_to_all": ("dtype",), "all_to_all_single": ("dtype",)},
            must_send=_once,  # with uneven splits: bytes for other ranks
            mean_sent=_once,
            algorithms=(by.GROUPED_ALL_TO_ALL, by.DIRECT_ALL_TO_ALL),
            libraries={"gloo": by.DIRECT_ALL_TO_ALL},
        ),
        "barrier": Collective(
            payload=lambda sent, received, n: 0.0,
            calls={"barrier": (), "monitored_barrier": ()},
            must_send=_nothing,
            mean_sent=_nothing,
            algorithms=(by.TREE_BARRIER,),
            libraries={"gloo": gloo.DISSEMINATION_BARRIER},
        ),
    }
)

# torch.distributed's function -> its collective, and the properties that must be equal on all ranks
CALLS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {call: (name, alike) for name, row in COLLECTIVES.items() for call, alike in row.calls.items()}
)
