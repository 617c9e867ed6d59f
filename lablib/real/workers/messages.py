"""What the launching process and its workers say to each other: one frozen record for each kind of message.

    launcher                         worker
       |  <------- Hello ------------  |    once, after the imports
       |  -------- Setup ----------->  |
       |  <------- Ready ------------  |    groups stand, nothing runs
       |  -------- Job ------------->  |    the program, by value
       |  <------- Armed ------------  |    unpacked, generators seeded, profiler on
       |  -------- Go -------------->  |    one start time for all ranks
       |  <--- Finished | Failed ----  |
       |  -------- Reset ----------->  |    when all ranks have finished; then Ready again, before it is asked for

At any time the launcher may ask `Where` and gets `Whereabouts`: that is how a timeout names the line each rank is at.
"""

from dataclasses import dataclass, field
from typing import Any

from lablib.real.measurement.measure import Measurement
from lablib.real.workers.pickling import Packed


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker is up."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What holds for the whole life of a worker. `environment` is set before the first process group is made."""

    backend: str
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank's default process group stands. `error` says why not."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One program: (fn, args, kwargs) packed, and the launching process's settings, such as where it finds modules.

    `timeout_s` is the launch's: no communication gives up before it (timeouts.py).
    """

    program: Packed
    trace: bool
    settings: dict[str, Any]
    source_lines: dict[str, list[str]]
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Armed:
    """The next thing this rank does is call the program."""


@dataclass(frozen=True, slots=True)
class Go:
    """Start at this moment of the host's clock (`time.time_ns`)."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The program returned. `peak_bytes` is the most its tensors held of the rank's GPU; None on a CPU."""

    value: Packed
    stdout: str
    stderr: str
    measured: Measurement
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The program raised, or its value could not be packed.

    `error` is the packed exception, None where it cannot travel; `lost_peer` is true when the exception only says that
    another rank went away.
    """

    type_name: str
    text: str
    traceback: str
    error: Packed | None
    lost_peer: bool
    at_ns: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Every rank has finished: drop what the program left behind and make the groups of the next one."""


@dataclass(frozen=True, slots=True)
class Where:
    """Asks for the stack of the rank's main thread."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """That stack as text, the frames of the program only; and on GPUs the communications that are not complete."""

    stack: str
    under_way: str = ""
