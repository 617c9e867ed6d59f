"""What other programs leave of this machine, measured while nothing of ours runs.

A measurement on a busy machine is longer than the program needs, by what nobody knows. So whoever measures asks before
and after, and says it beside the numbers. The figure is of the whole machine: in a container, of its host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.signature import checked
from lablib.text.units import plural

QUIET_SHARE = 0.1  # of the cores: less does not move a measurement of processes that leave none of them idle for long


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Cores that other programs kept busy, of how many: a mean over a short while."""

    busy_cores: float
    cores: int

    @property
    def is_quiet(self) -> bool:
        """Less than a tenth of the cores was busy."""
        return self.busy_cores < QUIET_SHARE * self.cores

    def __str__(self) -> str:
        return f"other programs kept {self.busy_cores:.1f} of {plural(self.cores, 'cores')} busy"


@checked
def host_load(seconds: float = 0.5) -> HostLoad:
    """Watch the machine's cores for so long, and do nothing meanwhile. Communicates with nobody.

    Raises:
        ValueError: not a time.
    """
    import psutil  # here: only who measures needs it

    if not 0 < seconds <= 60:
        raise ValueError(f"seconds must be from above 0 to 60: got {seconds!r}; try 0.5")
    cores = psutil.cpu_count() or 1
    return HostLoad(psutil.cpu_percent(interval=seconds) / 100 * cores, cores)


def busiest(loads: Sequence[HostLoad]) -> HostLoad | None:
    """The one with the most busy cores; None of none."""
    return max(loads, key=lambda load: load.busy_cores, default=None)
