"""Messages between the launching process and its workers: one frozen record per kind, and signals.

    launcher                         worker
       |  <------- Hello ------------  |    once, after the imports
       |  -------- Setup ----------->  |
       |  <------- Ready ------------  |    groups are made, nothing runs
       |  -------- Job ------------->  |    the program, by value
       |  <------- ARMED ------------  |    unpacked, generators seeded, profiler on
       |  -------- Go -------------->  |    one start time for all ranks
       |  <--- Finished | Failed ----  |
       |  -------- RESET ----------->  |    when all ranks have finished; then Ready again, in advance

At any time the launcher may send `WHERE` and receives `Whereabouts`: so a timeout names the line of each rank.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lablib.real.measurement.measure import Measurement
from lablib.real.workers.pickling import PackedObject


class Signal(Enum):
    """Messages without content."""

    ARMED = "this rank is ready to call the program"
    RESET = "every rank has finished: discard the program's state and make the groups of the next one"
    WHERE = "request the stack of the rank's main thread"


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker has started."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Settings for the whole life of a worker. `environment` is set before the first process group is made."""

    backend: str
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank's default process group is made; `error` is the reason if not."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One program: (fn, args, kwargs) packed, and the launching process's settings, such as its `sys.path`.

    `timeout_s` is the launch's: no communication times out before it (real/groups.py).
    """

    program: PackedObject
    trace: bool
    settings: dict[str, Any]
    source_lines: dict[str, list[str]]
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Go:
    """Start at this time of the host's clock (`time.time_ns`)."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The program returned. `peak_bytes` is the peak of its tensors on the rank's GPU; None on a CPU."""

    value: PackedObject
    stdout: str
    stderr: str
    measured: Measurement
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The program raised, or its value could not be packed.

    `error` is the packed exception, None if it cannot be sent; `lost_peer`: it only reports a lost peer.
    """

    type_name: str
    text: str
    traceback: str
    error: PackedObject | None
    lost_peer: bool
    at_ns: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The stack of the main thread as text, with the program's frames only; on GPUs the incomplete communications."""

    stack: str
    under_way: str = ""
