"""Cost of a collective by algorithm: seconds, and bytes sent per rank.

    time = call + sum over rounds of (slowest edge's alpha + bytes beta)

The rounds of each algorithm: algorithms.py. The cluster's `collective_overhead_s` is added once per call. "auto" takes
the fastest algorithm, as a communication library's tuner does, or the one of the cluster's library (library.py).

Legend, source and simplifications: algorithms.py.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lablib.cost.algorithms import Algorithm
from lablib.cost.collectives import COLLECTIVES, Collective
from lablib.cost.network import GroupNetwork
from lablib.errors import unknown_name
from lablib.hardware.cluster import Cluster
from lablib.signature import check_types


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Cost of one collective: `time_s = latency_s + transfer_s`."""

    algorithm: str  # the algorithm used
    time_s: float  # seconds after the last rank has joined
    sent_bytes: tuple[float, ...]  # bytes that leave each rank, in group order
    # the part of `time_s` that bandwidth does not shorten: the call, and alpha of the slowest edge of each round
    latency_s: float = 0.0
    # bytes from each rank to each other rank, computed when called (routes.py); None if not requested
    route: Callable[[], Mapping[tuple[int, int], float]] | None = field(default=None, compare=False, repr=False)

    @property
    def transfer_s(self) -> float:
        """The part of `time_s` for moving bytes: it grows when a link is shared."""
        return self.time_s - self.latency_s


def cost_of(algorithm: Algorithm, net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    """Cost of this algorithm on a group of two ranks or more, without the call."""
    time_s = latency_s = 0.0
    for count, size, step in algorithm.rounds(net, size_bytes, root):
        time_s, latency_s = time_s + count * step.time_s(size), latency_s + count * step.latency_s(size)
    if not algorithm.across:
        sent = tuple(algorithm.sent(net.size, size_bytes, root))
        return CollectiveCost(algorithm.name, time_s, sent, latency_s)
    # All rails cross nodes at once, each by its fastest algorithm; the slowest rail counts.
    rails = [fastest(algorithm.across, rail, size_bytes / net.local) for rail in net.rails]
    slowest = max(rails, key=lambda cost: cost.time_s)
    outside = {
        rank: sent
        for rail, cost in zip(net.rails, rails, strict=True)
        for rank, sent in zip(rail.ranks, cost.sent_bytes, strict=True)
    }
    inside = algorithm.sent(net.local, size_bytes, 0)[0]
    sent = tuple(inside + outside[rank] for rank in net.ranks)
    return CollectiveCost(algorithm.name, time_s + slowest.time_s, sent, latency_s + slowest.latency_s)


def fastest(algorithms: Iterable[Algorithm], net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    """Cost of the fastest of some algorithms; of equal ones the first."""
    return min((cost_of(each, net, size_bytes, root) for each in algorithms), key=lambda cost: cost.time_s)


def algorithms_for(name: str, net: GroupNetwork) -> dict[str, Algorithm]:
    """Algorithms of this collective that this group can run and its cluster uses. ValueError: an unknown name."""
    if not (isinstance(name, str) and isinstance(net, GroupNetwork)):
        check_types("algorithms_for", (("name", name, str), ("net", net, GroupNetwork)))
    row, cluster = _row(name), net.cluster
    switches_add = cluster.uses_nvls and cluster.intra.nvls_latency_s is not None and net.size > 1
    each_way = [*row.algorithms, *(row.in_the_switch if switches_add else ())]
    return {each.name: each for each in each_way if each.fits(net)}


def _row(name: str) -> Collective:
    if name not in COLLECTIVES:
        raise unknown_name("collective", name, list(COLLECTIVES))
    return COLLECTIVES[name]


_PLAIN = (str, (int, float), GroupNetwork, str, int)


def collective_cost(
    name: str, size_bytes: float, net: GroupNetwork, algorithm: str = "auto", root: int = 0
) -> CollectiveCost:
    """Seconds and bytes of one collective.

    Args:
        name: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"
            or "barrier".
        size_bytes: S of the legend: the whole tensor; for gather-like operations the n shards together.
        net: the group on its cluster.
        algorithm: a name from the table of algorithms.py, or "auto": the fastest, or the one of the cluster's library.
            "auto" takes sums in the switch ("nvls") only if the cluster says `uses_nvls`.
        root: group rank of the root, if there is one.

    Raises:
        ValueError: an unknown collective or algorithm, one that this group's shape does not allow, a negative size, or
            a root outside the group; WrongType (a ValueError): an argument of another type.
    """
    given = (name, size_bytes, net, algorithm, root)
    if not all(map(isinstance, given, _PLAIN)):  # the simulator calls this often, with plain numbers
        names = ("name", "size_bytes", "net", "algorithm", "root")
        check_types("collective_cost", zip(names, given, (str, float, GroupNetwork, str, int), strict=True))
    if not size_bytes >= 0:
        raise ValueError(f"size_bytes must be 0 or more: got {size_bytes} for {name}")
    if not 0 <= root < net.size:
        raise ValueError(f"root is a group rank, 0 to {net.size - 1}: got {root} for {name}")
    candidates, row = algorithms_for(name, net), _row(name)
    if net.size == 1:
        return CollectiveCost("none", 0.0, (0.0,))
    if algorithm == "auto" and (own := row.libraries.get(net.cluster.library)):
        cost = cost_of(own, net, size_bytes, root)
    elif algorithm == "auto":
        cost = fastest(candidates.values(), net, size_bytes, root)
    else:
        cost = cost_of(candidates.get(algorithm) or _by_name(name, algorithm, net), net, size_bytes, root)
    overhead_s = net.cluster.collective_overhead_s
    if not overhead_s:
        return cost
    return replace(cost, time_s=cost.time_s + overhead_s, latency_s=cost.latency_s + overhead_s)


def _by_name(name: str, algorithm: str, net: GroupNetwork) -> Algorithm:
    """An algorithm that "auto" would not take here. Raises ValueError if it is not possible: rule, value, remedy."""
    row, candidates = _row(name), algorithms_for(name, net)
    known = next((each for each in row.in_the_switch + row.algorithms if each.name == algorithm), None)
    if known is None:
        raise unknown_name(f"{name} algorithm", algorithm, list(candidates))
    in_the_switch = known in row.in_the_switch
    if in_the_switch and net.cluster.intra.nvls_latency_s is None:
        raise ValueError(no_nvls(algorithm, net.cluster))
    if in_the_switch and known.fits(net):
        return known
    counts = [len(members) for members in net.by_node]
    instead = "'auto'" if in_the_switch else f"from {', '.join(candidates)}"
    raise ValueError(
        f"algorithm {algorithm!r} needs {known.needs}: ranks {net.ranks} have {counts} a node; choose {instead}"
    )


def no_nvls(algorithm: str, cluster: Cluster) -> str:
    """Message for a cluster with switches that cannot add."""
    return (
        f"algorithm {algorithm!r} needs switches that add (nvls_latency_s of the link inside a node): "
        f"{cluster.intra.name!r} of {cluster.name!r} has none; NVLink 4 and 5 have ('dgx-h100', 'dgx-b200')"
    )
