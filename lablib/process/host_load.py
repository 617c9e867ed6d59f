"""Host load: cores kept busy by other programs, measured before and after a benchmark.

A measurement on a busy machine is too long by an unknown amount, so a benchmark reports the load with its numbers. The
figure is for the whole machine: in a container, for its host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from lablib.signature import checked
from lablib.signature.bounds import Range
from lablib.text.units import plural

QUIET_SHARE = 0.1  # of the cores: less does not affect processes that keep all cores busy


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Mean number of cores that other programs kept busy over a short time, and number of cores."""

    busy_cores: float
    cores: int

    @property
    def is_quiet(self) -> bool:
        """Whether less than a tenth of the cores was busy."""
        return self.busy_cores < QUIET_SHARE * self.cores

    def __str__(self) -> str:
        return f"other programs kept {self.busy_cores:.1f} of {plural(self.cores, 'cores')} busy"


@checked
def host_load(seconds: Annotated[float, Range(gt=0, le=60)] = 0.5) -> HostLoad:
    """Measure the load of the machine's cores for `seconds`, while the calling process sleeps. Does not communicate."""
    import psutil  # imported on demand

    cores = psutil.cpu_count() or 1
    return HostLoad(psutil.cpu_percent(interval=seconds) / 100 * cores, cores)


def busiest(loads: Sequence[HostLoad]) -> HostLoad | None:
    """The load with the most busy cores; None for an empty sequence."""
    return max(loads, key=lambda load: load.busy_cores, default=None)
