"""What a launch returns: values, timeline, memory, traffic and output, the same records on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lablib.hardware.device import Device
from lablib.record.memory import Memory
from lablib.record.summary import Summary
from lablib.record.timeline import COMPUTE, Span, Timeline
from lablib.record.traffic import Traffic, Transfer
from lablib.signature import check_type, checked
from lablib.units import plural

__all__ = ["COMPUTE", "Memory", "Run", "Span", "Summary", "Timeline", "Traffic", "Transfer"]


@dataclass(frozen=True)
class Run:
    """One launched program, after it ended.

    Attributes:
        values: what `fn` returned on each rank.
        timeline: spans per rank and stream.
        traffic: every communication.
        stdout: what each rank printed.
        backend: "sim", "gloo" or "nccl".
        cluster: name of the simulated cluster, or of the machine that ran it.
        wall_s: real seconds from call to return.
        notes: what the reader must know about these numbers (e.g. several ranks shared one GPU).
        memory: bytes per rank and category over time on "sim"; the peak of each rank on "nccl", by its GPU's
            allocator; empty where nobody counted ("gloo": a CPU's allocator keeps no count; `trace=False` on "sim").
        device: the simulated accelerator; None on real backends.
        fidelity: "values" (real tensors) or "shapes" (meta tensors: time, memory and traffic, no values).
    """

    values: list[Any]
    timeline: Timeline
    traffic: Traffic
    stdout: list[str]
    backend: str
    cluster: str
    wall_s: float = 0.0
    notes: Sequence[str] = field(default=())
    memory: Memory = field(default_factory=Memory)
    device: Device | None = None
    fidelity: str = "values"

    @property
    def ranks(self) -> int:
        return len(self.values)

    @checked
    def to_perfetto(self, path: str | Path) -> Path:
        """Write timeline and memory as one trace that ui.perfetto.dev opens (lablib/record/perfetto.py)."""
        return self.timeline.to_perfetto(path, self.memory)

    def summary(self, steps: int = 1, timeline: Timeline | None = None, device: Device | None = None) -> Summary:
        """Where the time went, rank by rank.

        Args:
            steps: how many equal steps the run is made of: times, FLOPs and bytes are those of one.
            timeline: a part of the run's, such as `run.timeline.without("setup")`; None: all of it.
            device: whose peak MFU and HFU refer to; None: that of the run.
        """
        check_type("device", device, Device | None)
        whole = self.timeline if timeline is None else timeline
        return Summary.of(whole, self.traffic, self.memory, device or self.device, steps)

    def __repr__(self) -> str:
        return (
            f"Run({plural(self.ranks, 'ranks')} on {self.backend} ({self.cluster}): makespan "
            f"{self.timeline.makespan_s:.4g} s, "
            f"{plural(len(self.traffic), 'communications')}, {self.traffic.sent_bytes():.4g} bytes sent)"
        )
