"""A span of one rank in the host's clock, before the run's zero is known."""

from dataclasses import dataclass

from lablib.real.measurement.events import Operation
from lablib.record.phase_path import split
from lablib.run import COMPUTE, Span


@dataclass(frozen=True, slots=True)
class RawSpan:
    """A span of one rank with times of the host's clock, `time.time_ns()`, and the path of its phase."""

    stream: str
    name: str
    phase: str
    start_ns: int
    end_ns: int
    flops: float = 0.0
    size_bytes: float = 0.0

    def at(self, rank: int, zero_ns: int) -> Span:
        """The `Span` of a run that began at `zero_ns`."""
        times = (self.start_ns - zero_ns) / 1e9, (self.end_ns - zero_ns) / 1e9
        phase, outer_phases = split(self.phase)
        what = (self.flops, self.size_bytes)
        return Span(rank, self.stream, self.name, phase, *times, *what, outer_phases=outer_phases)


def compute_span(op: Operation, phase: str, start_ns: int, end_ns: int, flops: float | None = None) -> RawSpan:
    """The span of an operation, or of a part of it with its share of the FLOPs."""
    name = op.event.name.replace("::", ".")
    return RawSpan(COMPUTE, name, phase, start_ns, end_ns, op.flops if flops is None else flops)
