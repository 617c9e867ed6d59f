"""Fit latency, bandwidth and the fixed time of a call to measured communication.

Every cost of lablib/cost/collective.py is linear in three figures once its algorithm is chosen:

    T = overhead + (number of rounds) alpha + (bytes in turn) beta

The coefficients come from the cost model: with alpha = 1 and the other figures 0, a cost is its number of rounds. The
fastest algorithm depends on alpha and beta, so choice and fit alternate until the choice stays; gloo has only one for
each collective (lablib/cost/library.py).

Simplified: one link for every rank of the machine. Differences between a library and the model's algorithms appear in
the residual of each collective.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite

import numpy as np

from lablib.calibration.robust import Residual, least_relative_error, residual
from lablib.cost import GroupNetwork, collective_cost
from lablib.cost.collectives import COLLECTIVES
from lablib.hardware.cluster import Cluster
from lablib.hardware.device import FREE
from lablib.hardware.link import Link

_MAX_TURNS = 20
_FEWEST = 3  # as many as figures
MESSAGES = ("send", "exchange")  # one message from end to end; in an exchange every rank sends one and receives one


@dataclass(frozen=True, slots=True)
class MessageTiming:
    """A measured communication of ranks 0 to `ranks` - 1: the median of last end - last start.

    `name` is a collective of lablib/cost, "send" or "exchange"; `size_bytes` is S there.
    """

    name: str
    size_bytes: float
    ranks: int
    time_s: float

    def __str__(self) -> str:
        return f"{self.name} of {self.size_bytes:.0f} B"


@dataclass(frozen=True)
class NetworkFit:
    """The cluster with the fitted figures, and its residuals for each kind of communication."""

    cluster: Cluster
    residuals: tuple[Residual, ...]


def fit_network(
    timings: Iterable[MessageTiming], base: Cluster, name: str = "measured", source: str = ""
) -> NetworkFit:
    """Alpha, beta and the overhead of a call from measured communication inside one node.

    Args:
        timings: three or more, of two or more sizes.
        base: the cluster; its `intra` link, its `inter` link and `collective_overhead_s` are replaced.
        name, source: of the new link.

    Raises ValueError: times that are not positive numbers, too few of them, or times that do not grow with size.
    """
    timings = list(timings)
    _check(timings, base)
    times_s = np.array([timing.time_s for timing in timings])
    cluster = _with(base, 0.0, float(times_s.min()), 1e9, name, source)
    chosen: list[str] = []
    for _ in range(_MAX_TURNS):
        if (best := [_fastest(timing, cluster) for timing in timings]) == chosen:
            break
        chosen = best
        pairs = zip(timings, chosen, strict=True)
        rows = np.array([_coefficients(timing, algorithm, base.library) for timing, algorithm in pairs])
        overhead_s, alpha, beta = least_relative_error(rows, times_s)
        if beta <= 0:
            raise ValueError("times of communication must grow with size: these do not; measure larger sizes")
        cluster = _with(base, overhead_s, alpha, 1 / beta, name, source)
    residuals = []
    for kind in dict.fromkeys(timing.name for timing in timings):
        those = [timing for timing in timings if timing.name == kind]
        predictions, measured_s = [predicted_s(t, cluster) for t in those], [t.time_s for t in those]
        residuals.append(residual(kind, list(map(str, those)), predictions, measured_s))
    return NetworkFit(cluster, tuple(residuals))


def predicted_s(timing: MessageTiming, cluster: Cluster, algorithm: str = "auto") -> float:
    if timing.name in MESSAGES:
        return cluster.edge(0, 1).transfer_s(timing.size_bytes)
    return collective_cost(timing.name, timing.size_bytes, GroupNetwork(cluster, range(timing.ranks)), algorithm).time_s


def _fastest(timing: MessageTiming, cluster: Cluster) -> str:
    if timing.name in MESSAGES or cluster.library in COLLECTIVES[timing.name].libraries:
        return "auto"  # there is only one algorithm
    return collective_cost(timing.name, timing.size_bytes, GroupNetwork(cluster, range(timing.ranks))).algorithm


@cache
def _coefficients(timing: MessageTiming, algorithm: str, library: str) -> tuple[float, float, float]:
    """Coefficients of overhead, alpha and beta in the cost."""

    def cost(overhead_s: float, alpha: float, beta: float) -> float:
        link = Link("probe", alpha, 1 / beta if beta else inf)
        probe = Cluster("probe", FREE, timing.ranks, link, link, collective_overhead_s=overhead_s, library=library)
        return predicted_s(timing, probe, algorithm)

    return cost(1, 0, 0), cost(0, 1, 0), cost(0, 0, 1)


def _with(base: Cluster, overhead_s: float, alpha: float, bandwidth: float, name: str, source: str) -> Cluster:
    link = Link(name, float(alpha), float(bandwidth), source)
    # Sums in a switch were not measured.
    return base.replace(intra=link, inter=link, collective_overhead_s=float(overhead_s), uses_nvls=False)


def _check(timings: Sequence[MessageTiming], base: Cluster) -> None:
    for timing in timings:
        if not (isfinite(timing.time_s) and timing.time_s > 0):
            raise ValueError(f"a measured time must be positive seconds: got {timing.time_s} for {timing}")
        if not 2 <= timing.ranks <= base.devices_per_node:
            rule = f"communication is measured inside a node, among 2 to {base.devices_per_node} ranks"
            raise ValueError(f"{rule}: got {timing.ranks} for {timing}")
    if len(timings) < _FEWEST:
        raise ValueError(f"a fit needs {_FEWEST} or more measured communications: got {len(timings)}; measure more")
