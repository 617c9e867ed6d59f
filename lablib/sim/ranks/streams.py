"""Streams and events of a rank's GPU in virtual time, also as `torch.cpu`'s, which device-agnostic code uses.

A rank's clock is the clock of its current stream; the other streams keep theirs. So work on two streams overlaps,
unless an event orders it:

    stream.wait_event(e)     t_stream = max(t_stream, t_e)
    e.synchronize()          the host waits: nothing starts before t_e on any stream from now on

The host runs ahead of the device: a kernel starts when it is launched and its stream is free (Rank.compute).

In a launch without `device` all memory is the GPU's, although torch calls its device "cpu". FSDP gathers and reduces on
streams of `torch.cpu`, the module of that device; on a real CPU they have no effect. `torch_cpu_streams` replaces them
on ranks, so that FSDP communicates behind the layers, as on a GPU.

Simplified: kernels of two streams do not slow each other down. A send on a side stream may start in the virtual past of
other ranks; it has had its wires to itself until then (lablib/engine/network.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lablib.process.replaced import replaced
from lablib.sim.ranks.rank import Rank

HOST_STREAM = "host"  # the host's own work in a timeline


class Streams:
    """The streams of one rank."""

    def __init__(self, rank: Rank, default: Stream):
        self._rank = rank
        self.default = self.current = default
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


class Event:
    """Replacement of `torch.cpu.Event`. `time_s` is its virtual time, None before it was recorded."""

    def __init__(self) -> None:
        self.time_s: float | None = None

    def record(self, stream: Stream | None = None) -> Event:
        streams = streams_here()
        self.time_s = streams.time_s(stream or streams.current)
        return self

    def wait(self, stream: Stream | None = None) -> None:
        (stream or streams_here().current).wait_event(self)

    def query(self) -> bool:
        self.synchronize()  # so that a loop of queries ends
        return True

    def synchronize(self) -> None:
        if self.time_s is not None:
            streams_here().host_waits(self.time_s)


class Stream:
    """Replacement of `torch.cpu.Stream`."""

    event_type: type[Event] = Event

    def __init__(self, priority: int = -1):
        self.priority = priority
        self.clock_s = 0.0
        self._entered: list[Stream] = []

    def wait_event(self, event: Event) -> None:
        if event.time_s is not None:  # waiting for an unrecorded event has no effect, as in CUDA
            streams_here().delay(self, event.time_s)

    def wait_stream(self, stream: Stream) -> None:
        streams = streams_here()
        streams.delay(self, streams.time_s(stream))

    def record_event(self, event: Event | None = None) -> Event:
        return (event or self.event_type()).record(self)

    def synchronize(self) -> None:
        streams = streams_here()
        streams.host_waits(streams.time_s(self))

    def query(self) -> bool:
        self.synchronize()
        return True

    def __enter__(self) -> Stream:
        streams = streams_here()
        self._entered.append(streams.current)
        streams.switch(self)
        return self

    def __exit__(self, *_: Any) -> None:
        streams_here().switch(self._entered.pop())


class StreamContext:
    """Replacement of `torch.cuda.stream(...)` and `torch.cpu.stream(...)`; None has no effect."""

    def __init__(self, stream: Stream | None):
        self._context = nullcontext() if stream is None else stream

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)


def set_streams(streams: Streams) -> None:
    """Set the streams of the rank that runs on this thread."""
    threading.current_thread().rank_streams = streams  # pyright: ignore[reportAttributeAccessIssue]


def streams_here() -> Streams:
    """The streams of the rank on this thread. NotImplementedError: it has none."""
    if (streams := _found()) is None:
        raise NotImplementedError(
            "a stream has no answer on the simulator: this thread is not a rank's own; use the device in the main "
            "thread of the rank."
        )
    return streams


def torch_cpu_streams() -> AbstractContextManager[None]:
    """On ranks with streams, replace torch's streams of the CPU, and the current one of the accelerator."""

    def on_ranks(original: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (original if _found() is None else own)(*args, **kwargs)

    own: dict[str, Callable[..., Any]] = {"Stream": Stream, "Event": Event, "stream": StreamContext}
    own |= {"StreamContext": StreamContext, "current_stream": lambda device=None: streams_here().current}
    answers = [(torch.cpu, name, on_ranks(getattr(torch.cpu, name), one)) for name, one in own.items()]
    # FSDP2 asks the accelerator after a gather that no layer has used.
    name = "current_stream"
    return replaced(*answers, (torch.accelerator, name, on_ranks(torch.accelerator.current_stream, own[name])))


def _found() -> Streams | None:
    return getattr(threading.current_thread(), "rank_streams", None)
