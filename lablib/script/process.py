"""Per-rank process state of a script, and the lookup of the current rank.

A launched function shares its modules with the notebook. A script expects a process: its own modules, arguments,
standard error, logging, working directory and current CUDA device. `Process` holds a rank's; state that Python keeps
once per process is swapped at every turn (lablib/sim/ranks/rank.py).

A rank's thread holds its `Process`, so replacements of torch's functions find it with `here()`, without global state.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from lablib.hardware.cluster import Cluster
from lablib.sim.communication.store import SimStore
from lablib.sim.ranks.rank import Rank
from lablib.sim.source import program_line
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.script.devices import DeviceCalls
    from lablib.script.placement import Placement
    from lablib.sim.ranks.streams import Streams


class ClockReadings:
    """First and last time at which a script read this machine's clock: real and virtual seconds."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None
        self._line = ""

    def read(self, real_s: float, virtual_s: float, frame: FrameType) -> None:
        """Record a reading of the clock in this frame."""
        if self._first is None:
            self._first = (real_s, virtual_s)
            self._line = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        else:
            self._last = (real_s, virtual_s)

    def note(self, rank: int) -> list[str]:
        """A note with both times between the first and last reading, if there are several."""
        if self._first is None or self._last is None:
            return []
        passed_s = [end - begin for begin, end in zip(self._first, self._last, strict=True)]
        real, virtual = (format_quantity(one, "s", 4) for one in passed_s)
        return [
            f"The script reads this machine's clock (first at {self._line}): from its first to its last reading rank "
            f"{rank} took {real} here and {virtual} of virtual time. Times from time.time() or perf_counter() are "
            "of the simulator; torch.cuda.Event measures virtual time."
        ]


@dataclass(eq=False)
class Process:
    """One rank of a script."""

    rank: Rank
    ranks: int
    local_rank: int  # its place in its node: the device it should use
    num_devices: int  # devices of its node
    cluster: Cluster
    store: SimStore
    is_shapes: bool = False  # whether tensors of the program have no values (`fidelity="shapes"`)
    placement: Placement = field(init=False)
    streams: Streams = field(init=False)
    calls: DeviceCalls = field(init=False)  # the mode that handles its device arguments
    autocast: dict[str, Any] = field(default_factory=dict)  # settings of `torch.autocast("cuda")`
    is_importing: bool = False  # inside the import of a library
    binds_device: bool = False  # whether it gave its device to a process group
    clock: ClockReadings = field(default_factory=ClockReadings)  # its readings of this machine's clock
    # sentences of the run about this rank (calls with another result than on a real machine)
    notes: list[str] = field(default_factory=list)
    # functions registered with `atexit.register`
    exit_handlers: list[tuple[Any, tuple, dict]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note to the run, once."""
        if text not in self.notes:
            self.notes.append(text)


def here() -> Process | None:
    """The rank of a script on this thread; None on any other."""
    return getattr(threading.current_thread(), "script_process", None)


class NotSimulatedError(NotImplementedError):
    """The script called a function that the simulated machine does not support; the message names the call."""


def refuse(call: str, why: str, remedy: str) -> NoReturn:
    source = str(program_line())
    raise NotSimulatedError(
        f"{call} has no answer on the simulator: {why}; {remedy}" + (f" (at {source})" if source else "")
    )
