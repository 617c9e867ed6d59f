"""The state that a cluster is in: what a collective costs there, and what keeps a communication from ending.

This is the one place at which faults reach the engine: a slow link is another `cost`, a link that is down and a rank
that dies are a reason in `stops` (lablib/sim/faults/inject.py overrides both). The clock of a rank that is slow, or
dies, goes on in its own way (lablib/sim/faults/rank.py).
"""

import numpy as np

from lablib.cost.collective import CollectiveCost, collective_cost
from lablib.cost.exchange import exchange_cost
from lablib.cost.network import GroupNetwork


class Conditions:
    """A healthy cluster."""

    def cost(self, kind: str, size_bytes: float, network: GroupNetwork, root: int = 0) -> CollectiveCost:
        """What a collective costs."""
        return collective_cost(kind, size_bytes, network, root=root)

    def exchange_cost(self, size_bytes: np.ndarray, network: GroupNetwork) -> CollectiveCost:
        """What an all-to-all costs with size_bytes[a, b] from rank a to rank b."""
        return exchange_cost(size_bytes, network)

    def stops(
        self, what: str, kind: str, algorithm: str, ranks: tuple[int, ...], root: int, start_s: float, end_s: float
    ) -> str:
        """Why a communication that would end at `end_s` never does; "" where it does. `what` names it for people."""
        return ""
