"""CUDA streams and events in virtual time.

A rank's clock is the clock of its current stream; the other streams keep theirs. So work on two streams overlaps,
unless an event orders it:

    stream.wait_event(e)     t_stream = max(t_stream, t_e)
    e.synchronize()          the host waits: nothing starts before t_e on any stream from now on
    a.elapsed_time(b)        t_b - t_a in milliseconds of virtual time

The host runs ahead of the device: a kernel starts when it is launched and its stream is free (Rank.compute).

Simplified: kernels of two streams do not slow each other down. A send on a side stream may start in the virtual past of
other ranks; it has had its wires to itself until then (lablib/engine/network.py).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from lablib.script.process import Process, here, refuse
from lablib.sim.ranks.rank import Rank

HOST_STREAM = "host"  # the host's own work in a timeline


class Streams:
    """The streams of one rank."""

    def __init__(self, rank: Rank, index: int):
        self._rank = rank
        self.default = Stream(_index=index)
        self.current = self.default
        self._last_s = 0.0  # the latest end on a stream other than the current one

    def time_s(self, stream: Stream) -> float:
        return self._rank.clock_s if stream is self.current else stream.clock_s

    def delay(self, stream: Stream, until_s: float) -> None:
        """Let a stream start nothing before `until_s`."""
        if stream is self.current:
            self._rank.join(until_s)
        else:
            stream.clock_s = max(stream.clock_s, until_s)

    def switch(self, stream: Stream) -> None:
        if stream is self.current:
            return
        self.current.clock_s = self._rank.clock_s
        self._last_s = max(self._last_s, self._rank.clock_s)
        self._rank.clock_s = max(stream.clock_s, self._rank.host_s)
        self.current = stream
        self._rank.is_on_side_stream = stream is not self.default

    def host_waits(self, until_s: float | None = None) -> None:
        """Make the host wait until a time (default: for the current stream): nothing is issued earlier."""
        self._rank.host_s = max(self._rank.host_s, self._rank.clock_s if until_s is None else until_s)
        self._rank.join(self._rank.host_s)

    def host_works(self, name: str, time_s: float, size_bytes: float) -> None:
        """Let the host compute for that long without issuing work; the streams go on."""
        start_s, phase = self._rank.host_s, self._rank.phase()
        self.host_waits(start_s + time_s)
        self._rank.communicate(HOST_STREAM, name, phase, start_s, self._rank.host_s, size_bytes, "", None, 0)

    def synchronize(self) -> None:
        """Make the host wait for all streams, and so for all communication, which then needs no other `wait`."""
        self._rank.pending.join_all()
        for work in list(self._rank.unwaited.values()):
            work.wait()
        self.host_waits(max(self._rank.clock_s, self._last_s))


class Stream:
    """Replacement of `torch.cuda.Stream`."""

    def __init__(self, device: Any = None, priority: int = 0, _index: int | None = None, **_: Any):
        process = here()
        self.priority = priority
        self.clock_s = 0.0
        self.device_index = _index if _index is not None else (process.placement.device_index if process else 0)
        self.device = torch.device("cuda", self.device_index)
        self.device_type = 2  # c10::DeviceType::CUDA
        self.stream_id = self.cuda_stream = 0 if _index is not None else id(self)
        self._entered: list[Stream] = []

    def wait_event(self, event: Event) -> None:
        if event.time_s is not None:  # waiting for an unrecorded event has no effect, as in CUDA
            _process().streams.delay(self, event.time_s)

    def wait_stream(self, stream: Stream) -> None:
        streams = _process().streams
        streams.delay(self, streams.time_s(stream))

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        streams = _process().streams
        streams.host_waits(streams.time_s(self))

    def query(self) -> bool:
        self.synchronize()  # so that a loop of queries ends
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        streams = _process().streams
        self._entered.append(streams.current)
        streams.switch(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _process().streams.switch(self._entered.pop())

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event:
    """Replacement of `torch.cuda.Event`. `time_s` is its virtual time, None before it was recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **kw: Any):
        if interprocess:
            refuse("torch.cuda.Event(interprocess=True)", "ranks share no CUDA memory", "use an event of one rank")
        self.enable_timing = enable_timing or bool(kw.get("external"))
        self.time_s: float | None = None

    def record(self, stream: Stream | None = None) -> Event:
        streams = _process().streams
        self.time_s = streams.time_s(stream or streams.current)
        return self

    def wait(self, stream: Stream | None = None) -> None:
        (stream or _process().streams.current).wait_event(self)

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if self.time_s is not None:
            _process().streams.host_waits(self.time_s)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of virtual time from this event to `end_event`."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.time_s is None or end_event.time_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event.time_s - self.time_s) * 1e3


class StreamContext:
    """Replacement of `torch.cuda.stream(...)`; None has no effect."""

    def __init__(self, stream: Stream | None):
        self._context = nullcontext() if stream is None else stream

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)


def _process() -> Process:
    process = here()
    if process is None:
        refuse("a CUDA stream", "this thread is not a rank's own", "use the device in the script's main thread")
    return process
