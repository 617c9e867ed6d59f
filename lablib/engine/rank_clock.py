"""One rank as the engine knows it: how far it has come in virtual time, and its ends of the wires.

The engine does not know what a rank computes. Its work arrives as seconds (`advance`), its communication as calls of a
group (group.py); where it must wait, its clock goes on at the end of what it waited for (`join`). Whoever runs the
rank, in a thread or in a process, may keep more about it: lablib/sim/rank.py.
"""

from lablib.engine.port import Port


class RankClock:
    """The clock of one rank.

    Attributes:
        rank: global rank.
        clock_s: how far the stream that it issues work to has come, in virtual seconds.
    """

    def __init__(self, rank: int, clock_s: float = 0.0):
        self.rank = rank
        self.clock_s = clock_s
        self._ports: dict[str, Port] = {}
        self._num_sends = 0

    def advance(self, time_s: float) -> float:
        """The current stream does `time_s` seconds of work. Returns when that began."""
        start_s = self.clock_s
        self.clock_s = start_s + time_s
        return start_s

    def join(self, end_s: float) -> None:
        """The current stream waits for something that ends at `end_s`."""
        self.clock_s = max(self.clock_s, end_s)

    def port(self, name: str) -> Port:
        """One end of a wire of this rank, "intra:out", "inter:in", ...; messages of all groups share it."""
        return self._ports.setdefault(name, Port())

    def count_send(self) -> int:
        """The number of this rank's next send."""
        self._num_sends += 1
        return self._num_sends
