"""The virtual clock of one rank, and its ports.

The engine does not model the work of a rank: the thread or process that runs the rank advances its clock by the seconds
of each operation, and to the end of each wait (lablib/sim/ranks/rank.py). Its communication is calls of a group
(group.py).
"""

from lablib.engine.cores import Cores
from lablib.engine.port import Port


class RankClock:
    """The clock of one rank.

    Attributes:
        clock_s: time reached by the stream that the rank issues work to, in virtual seconds.
        cores: the cores of its node, if ranks share them; None if the rank has its own device.
    """

    def __init__(self, rank: int, clock_s: float = 0.0):
        self.rank = rank
        self.clock_s = clock_s
        self.cores: Cores | None = None
        self._ports: dict[str, Port] = {}
        self._num_sends = 0

    def port(self, name: str) -> Port:
        """One port of this rank, "intra:out", "inter:in", ...; messages of all groups share it."""
        return self._ports.setdefault(name, Port())

    def count_send(self) -> int:
        """Count one more send. Returns its number."""
        self._num_sends += 1
        return self._num_sends
