"""What a rank can wait for: a collective, or a posted message. It happens twice.

data    the last rank has joined: the tensors can move, and do so for each rank that waits (delivery.py)
end     virtual time has come so far that nothing can change the moment any more at which the transfer is over
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from lablib.errors import Wait
from lablib.sim.delivery import Delivery
from lablib.sim.source import Source


@dataclass(slots=True, eq=False, kw_only=True)
class Event:
    """A communication as those who wait for it see it.

    Attributes:
        is_done: whether the data is there.
        is_final: whether `end_s` is known.
        stopped: why it never ends, where a fault sees to that.
        data_waiters, end_waiters: global ranks to wake then.
        delivery: the tensors that move.
    """

    is_done: bool = False
    is_final: bool = False
    end_s: float = 0.0
    stopped: str = ""
    data_waiters: list[int] = field(default_factory=list)
    end_waiters: list[int] = field(default_factory=list)
    delivery: Delivery = field(default_factory=Delivery)

    @property
    def title(self) -> str:
        """What it is, whoever waits: "all_reduce of group world"."""
        raise NotImplementedError

    def describe(self, rank: int, source: Source, verb: str = "waits in") -> Callable[[], Wait]:
        """What to say of a rank that waits for this; put together only when asked for."""
        raise NotImplementedError
