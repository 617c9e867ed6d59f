"""Hook of the engine for faults: the cost of a collective, and the reason why a communication never ends.

Faults act nowhere else in the engine: a slow link changes `cost`; a link that is down and a rank that dies give a
reason in `stops` (lablib/sim/faults/inject.py overrides both). lablib/sim/faults/rank.py handles the clock of a rank
that is slow or dies.
"""

import numpy as np

from lablib.cost.collective import CollectiveCost, collective_cost
from lablib.cost.exchange import exchange_cost
from lablib.cost.network import GroupNetwork


class Conditions:
    """A healthy cluster."""

    def cost(self, kind: str, size_bytes: float, network: GroupNetwork, root: int = 0) -> CollectiveCost:
        return collective_cost(kind, size_bytes, network, root=root)

    def exchange_cost(self, size_bytes: np.ndarray, network: GroupNetwork) -> CollectiveCost:
        """Cost of an all-to-all with size_bytes[a, b] from rank a to rank b."""
        return exchange_cost(size_bytes, network)

    def stops(
        self, what: str, kind: str, algorithm: str, ranks: tuple[int, ...], root: int, start_s: float, end_s: float
    ) -> str:
        """The reason why a communication that would end at `end_s` never does, or "". `what` is its name in
        messages.
        """
        return ""
