"""Measuring one rank: its program runs under torch's profiler while its communication calls are recorded.

Overhead: some microseconds for each operation, so a program of tiny operations looks slower than it is; some
milliseconds for each launch, outside of what is timed.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.profiler import profile

from lablib.real.calls import Call, CallRecorder
from lablib.real.events import read_events
from lablib.real.spans import RawSpan, spans_of


@dataclass(slots=True)
class Measurement:
    """What one rank measured. Times are `time.time_ns()`: one clock for all ranks of a machine."""

    start_ns: int = 0
    spans: list[RawSpan] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def measure(
    program: Callable[[], Any], wait_for_start: Callable[[], None], trace: bool, on_gpu: bool
) -> tuple[Any, Measurement]:
    """Run a program and measure it; `wait_for_start` is called when everything else is ready.

    Without `trace` the profiler stays off: communication is counted, but neither timed nor drawn.

    Returns what the program returned, and what was measured. Raises what the program raises.
    """
    recorder = CallRecorder()
    # torch.autograd.profiler is the engine of torch.profiler, without the second that importing the latter takes.
    profiler = profile(enabled=trace, use_device="cuda" if on_gpu else None, with_flops=True)
    with recorder.recording(), profiler:
        wait_for_start()
        start_ns = time.time_ns()
        value = program()
        if on_gpu:
            torch.cuda.synchronize()  # kernels still running belong to the program
        else:
            recorder.settle()
    events = [event for event in read_events(profiler) if event.end_ns >= start_ns] if trace else []
    spans = spans_of(events, recorder.calls, threading.get_native_id())
    return value, Measurement(start_ns, spans, recorder.calls)
