"""Cost and routes of an all-to-all with messages of different sizes, such as a mixture's tokens.

The same two algorithms as for equal messages (algorithms.py), with bytes[a, b] from rank a to rank b instead of S/n:

    grouped   every message at once:  max over ranks, levels, in and out of (alpha + sum over messages of bytes beta)
    direct    n - 1 shifted rounds:   sum over rounds k of max over ranks a of (alpha + bytes[a, a + k] beta)

A message of no bytes is still sent, and costs its alpha: torch posts all n (n - 1) of them, since ranks that leave one
out could miss each other (its note at `_nccl_should_send_recv`, torch/csrc/cuda/nccl.cpp, for NCCL above 2.13).

Legend, source and simplifications: algorithms.py. The bytes that a rank keeps, bytes[a, a], are not sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lablib.cost.algorithms import DIRECT_ALL_TO_ALL, GROUPED_ALL_TO_ALL
from lablib.cost.arrays import Array, np
from lablib.cost.collective import CollectiveCost
from lablib.cost.collectives import COLLECTIVES
from lablib.cost.network import GroupNetwork
from lablib.errors import unknown_name
from lablib.signature import check_types

_ROW = COLLECTIVES["all_to_all"]


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeRoute:
    """Bytes between ranks: `route()`, as (from, to) -> bytes, global ranks."""

    network: GroupNetwork  # the group on its cluster
    size_bytes: Array  # [n, n], from each rank to each, in group order; zero on the diagonal

    def __call__(self) -> dict[tuple[int, int], float]:
        ranks = self.network.ranks
        pairs = zip(*map(np.ndarray.tolist, np.nonzero(self.size_bytes)), strict=True)
        return {(ranks[a], ranks[b]): float(self.size_bytes[a, b]) for a, b in pairs}

    def levels(self) -> frozenset[str]:
        """Levels with traffic: "intra", inside nodes, and "inter"."""
        busy = self.size_bytes > 0
        is_inside = self.network.pairs[2]
        levels = {"intra": (busy & is_inside).any(), "inter": (busy & ~is_inside).any()}
        return frozenset(level for level, is_used in levels.items() if is_used)


def exchange_cost(
    size_bytes: Sequence[Sequence[float]] | Array, net: GroupNetwork, algorithm: str = "auto"
) -> CollectiveCost:
    """Seconds and bytes of an all-to-all with messages of any sizes.

    Args:
        size_bytes: [n, n], from each rank of the group to each other one, in group order.
        net: the group on its cluster.
        algorithm: "grouped", "direct", or "auto": the faster, or the one of the cluster's library.

    Raises:
        ValueError: a matrix of another shape, a negative or infinite size, an unknown algorithm; WrongType (a
            ValueError): an argument of another type.
    """
    check_types(
        "exchange_cost",
        (("size_bytes", size_bytes, (Sequence, np.ndarray)), ("net", net, GroupNetwork), ("algorithm", algorithm, str)),
    )
    sizes = _matrix(size_bytes, net.size)
    known = {each.name: each for each in _ROW.algorithms}
    if algorithm != "auto" and algorithm not in known:
        raise unknown_name("all_to_all algorithm", algorithm, list(known))
    route = ExchangeRoute(net, sizes)
    if net.size == 1:
        return CollectiveCost("none", 0.0, (0.0,), route=route)
    own = _ROW.libraries.get(net.cluster.library)
    names = [algorithm] if algorithm != "auto" else [own.name] if own else list(known)
    times = {name: _TIMES[name](sizes, net) for name in names}
    name = min(names, key=lambda name: times[name][0])
    time_s, latency_s = times[name]
    call_s = net.cluster.collective_overhead_s
    sent = tuple(sizes.sum(axis=1).tolist())
    return CollectiveCost(name, time_s + call_s, sent, latency_s + call_s, route)


def _matrix(size_bytes: Any, n: int) -> Array:
    try:
        sizes = np.array(size_bytes, dtype=float)
    except (TypeError, ValueError):
        sizes = np.empty(0)
    if sizes.shape != (n, n):
        raise ValueError(
            f"exchange_cost: size_bytes holds numbers, one row and one column a rank, for {n} ranks {(n, n)}: got "
            f"{sizes.shape if sizes.ndim else 'something else'}; give bytes[a][b] from each rank a to each rank b"
        )
    if not (np.isfinite(sizes).all() and (sizes >= 0).all()):
        raise ValueError("exchange_cost: every size is 0 bytes or more, and finite: got others; give bytes")
    np.fill_diagonal(sizes, 0.0)
    return sizes


def _grouped(sizes: Array, net: GroupNetwork) -> tuple[float, float]:
    """Seconds of the busiest wire, and its alpha."""
    alpha, beta, is_inside = net.pairs
    times = [(0.0, 0.0)]
    for level in (is_inside, ~is_inside & ~np.eye(net.size, dtype=bool)):
        for axis in (0, 1):  # receiving, sending
            latency_s = np.where(level, alpha, 0.0).max(axis)
            wire_s = latency_s + np.where(level, sizes * beta, 0.0).sum(axis)
            fullest = int(wire_s.argmax())
            times.append((float(wire_s[fullest]), float(latency_s[fullest])))
    return max(times)


def _direct(sizes: Array, net: GroupNetwork) -> tuple[float, float]:
    """Seconds of the slowest message of each round, and the alpha in them."""
    alpha, beta, _ = net.pairs
    place = np.arange(net.size)
    time_s = latency_s = 0.0
    for shift in range(1, net.size):
        to = (place + shift) % net.size
        round_s = alpha[place, to] + (sizes * beta)[place, to]
        slowest = int(round_s.argmax())
        time_s += float(round_s[slowest])
        latency_s += float(alpha[slowest, to[slowest]])
    return time_s, latency_s


_TIMES = {GROUPED_ALL_TO_ALL.name: _grouped, DIRECT_ALL_TO_ALL.name: _direct}
