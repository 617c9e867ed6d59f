"""One rank as the engine knows it: how far it has come in virtual time, and its ends of the wires.

The engine does not know what a rank computes: whoever runs the rank, in a thread or in a process, moves its clock by
the seconds that its work takes, and to the end of what it waits for (lablib/sim/ranks/rank.py). The rank's
communication arrives as calls of a group (group.py).
"""

from lablib.engine.cores import Cores
from lablib.engine.port import Port


class RankClock:
    """The clock of one rank.

    Attributes:
        rank: global rank.
        clock_s: how far the stream that it issues work to has come, in virtual seconds.
        cores: those of its node, where ranks share them; None: it has a device of its own.
    """

    def __init__(self, rank: int, clock_s: float = 0.0):
        self.rank = rank
        self.clock_s = clock_s
        self.cores: Cores | None = None
        self._ports: dict[str, Port] = {}
        self._num_sends = 0

    def port(self, name: str) -> Port:
        """One end of a wire of this rank, "intra:out", "inter:in", ...; messages of all groups share it."""
        return self._ports.setdefault(name, Port())

    def count_send(self) -> int:
        """The number of this rank's next send."""
        self._num_sends += 1
        return self._num_sends
