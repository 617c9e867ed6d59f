"""What one rank of a script has beyond what every simulated rank has; and how code finds the rank it runs on.

A launched function shares its modules with the notebook, as it should. A script expects a process: its own modules,
arguments, standard error, logging, working directory and current CUDA device. `Process` holds a rank's; the parts that
Python keeps once for the process are belongings (lablib/sim/ranks/rank.py), put in place at every turn.

A rank's thread carries its `Process`, so functions that stand in for torch's find theirs with `here()`, and nothing
global is kept.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from lablib.hardware.cluster import Cluster
from lablib.sim.communication.store import SimStore
from lablib.sim.ranks.rank import Rank
from lablib.sim.source import program_line
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.script.devices import DeviceCalls
    from lablib.script.placement import Placement
    from lablib.script.streams import Streams


class AllocationStatistics(Protocol):
    """What `torch.cuda`'s memory statistics ask of a rank's memory tracker, in bytes on the device."""

    def allocated_bytes(self) -> int: ...

    def peak_bytes(self) -> int: ...

    def reset_peak(self) -> None: ...


class ClockReadings:
    """When a script first and last read this machine's clock: real and virtual seconds."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._line = ""
        self._number = 0

    def read(self, real_s: float, virtual_s: float, frame: FrameType) -> None:
        """The script reads the clock, in this frame."""
        if self._first is None:
            self._first = (real_s, virtual_s)
            self._line = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        self._last = (real_s, virtual_s)
        self._number += 1

    def note(self, rank: int) -> list[str]:
        """Both times between these readings, where there are several."""
        if self._first is None or self._number < 2:
            return []
        passed_s = [end - begin for begin, end in zip(self._first, self._last, strict=True)]
        real, virtual = (format_quantity(one, "s", 4) for one in passed_s)
        return [
            f"The script reads this machine's clock (first at {self._line}): from its first to its last reading rank "
            f"{rank} took {real} here and {virtual} of virtual time. Times from time.time() or perf_counter() are "
            "those of the simulator; torch.cuda.Event measures virtual time."
        ]


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
        clock: its readings of this machine's clock.
        notes: sentences of the run about this rank (calls with another answer than on a real machine).
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
    clock: ClockReadings = field(default_factory=ClockReadings)
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
