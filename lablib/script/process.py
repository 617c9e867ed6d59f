"""What one rank of a script has beyond what every simulated rank has; and how code finds the rank it runs on.

A launched function shares its modules with the notebook, as it should. A script expects a process: its own modules,
arguments, standard error, logging, working directory and current CUDA device. `Process` holds a rank's; the parts that
Python keeps once for the process are belongings (lablib/sim/rank.py), put in place at every turn.

A rank's thread carries its `Process`, so functions that stand in for torch's find theirs with `here()`, and nothing
global is kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from lablib.hardware.cluster import Cluster
from lablib.sim.rank import Rank
from lablib.sim.source import program_line
from lablib.sim.store import SimStore

if TYPE_CHECKING:
    from lablib.script.devices import DeviceCalls
    from lablib.script.placement import Placement
    from lablib.script.streams import Streams


class AllocationStatistics(Protocol):
    """What `torch.cuda`'s memory statistics ask of a rank's memory tracker, in bytes on the device."""

    def allocated_bytes(self) -> int: ...

    def peak_bytes(self) -> int: ...

    def reset_peak(self) -> None: ...


@dataclass(eq=False)
class Process:
    """One rank of a script.

    Attributes:
        rank: the simulated rank.
        ranks: how many there are.
        local_rank: its place in its node: the device it should use.
        num_devices: devices of its node.
        cluster: what it runs on.
        store: where ranks meet.
        placement: which of its tensors are on the device.
        streams: its CUDA streams.
        calls: the mode that answers its device arguments.
        autocast: what `torch.autocast("cuda")` was set to.
        is_importing: inside the import of a library.
        binds_device: whether it named its device to a process group.
        notes: what the run must say about this rank (what was answered in another way than on a real machine).
        exit_handlers: what the script gave to `atexit.register`.
    """

    rank: Rank
    ranks: int
    local_rank: int
    num_devices: int
    cluster: Cluster
    store: SimStore
    placement: Placement = field(init=False)
    streams: Streams = field(init=False)
    calls: DeviceCalls = field(init=False)
    autocast: dict[str, Any] = field(default_factory=dict)
    is_importing: bool = False
    binds_device: bool = False
    notes: list[str] = field(default_factory=list)
    exit_handlers: list[tuple[Any, tuple, dict]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Have the run say this, once."""
        if text not in self.notes:
            self.notes.append(text)


def here() -> Process | None:
    """The rank of a script whose thread this is; None anywhere else."""
    return getattr(threading.current_thread(), "script_process", None)


class NotSimulatedError(NotImplementedError):
    """The script called something that the simulated machine has no answer to; the message names the call."""


def refuse(call: str, why: str, remedy: str) -> NoReturn:
    """Say that a call has no answer.

    Raises:
        NotSimulatedError: always.
    """
    source = str(program_line())
    raise NotSimulatedError(
        f"{call} has no answer on the simulator: {why}; {remedy}" + (f" (at {source})" if source else "")
    )
