"""CUDA streams and events in virtual time (lablib/sim/ranks/streams.py), with what only CUDA's have:

a.elapsed_time(b)        t_b - t_a in milliseconds of virtual time
"""

from __future__ import annotations

from typing import Any

import torch

from lablib.script.process import here, refuse
from lablib.sim.ranks import streams


class Event(streams.Event):
    """Replacement of `torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **kw: Any):
        if interprocess:
            refuse("torch.cuda.Event(interprocess=True)", "ranks share no CUDA memory", "use an event of one rank")
        super().__init__()
        self.enable_timing = enable_timing or bool(kw.get("external"))

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of virtual time from this event to `end_event`."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.time_s is None or end_event.time_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event.time_s - self.time_s) * 1e3


class Stream(streams.Stream):
    """Replacement of `torch.cuda.Stream`."""

    event_type = Event

    def __init__(self, device: Any = None, priority: int = 0, _index: int | None = None, **_: Any):
        super().__init__(priority)
        process = here()
        self.device_index = _index if _index is not None else (process.placement.device_index if process else 0)
        self.device = torch.device("cuda", self.device_index)
        self.device_type = 2  # c10::DeviceType::CUDA
        self.stream_id = self.cuda_stream = 0 if _index is not None else id(self)

    def is_capturing(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"
