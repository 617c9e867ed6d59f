"""Measure one rank: run its program under torch's profiler and record its communication calls.

Overhead: some microseconds per operation, so a program of tiny operations appears slower than it is; some milliseconds
per launch, outside of the measured time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.profiler import profile

from lablib.real.gpu.kernels import KernelCount, count_kernels, lowest_stream
from lablib.real.gpu.under_way import explain
from lablib.real.measurement.calls import Call, CallRecorder
from lablib.real.measurement.events import ProfilerEvent, RawSpan, read_events
from lablib.real.measurement.profiler import profiler_of, run_warm_up_kernels
from lablib.real.measurement.spans import spans_of

_CLOCK_SLACK_NS = 1_000_000  # host and GPU clocks agree far better; a larger difference is another clock


@dataclass(slots=True)
class Measurement:
    """The measurement of one rank. Times are `time.time_ns()`: one clock for all ranks of a machine.

    `kernels` counts the recorded GPU work; None without times, and on the CPU.
    """

    start_ns: int = 0
    spans: list[RawSpan] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    kernels: KernelCount | None = None


def measure(
    program: Callable[[], Any],
    wait_for_start: Callable[[], None],
    trace: bool,
    on_gpu: bool,
    warm_up_kernels: int = 0,
    recorder: CallRecorder | None = None,
) -> tuple[Any, Measurement]:
    """Run a program and measure it. Returns its value and the measurement; raises the program's exceptions.

    `wait_for_start` is called last before the start, and returns when all ranks begin. Without `trace` the profiler
    stays off: communication is counted, but neither timed nor drawn. `warm_up_kernels` are launched before the program,
    if times are measured on a GPU (profiler.py).
    """
    recorder = recorder or CallRecorder(on_gpu)
    profiler = profiler_of(trace, on_gpu)
    with recorder.recording(), _on(profiler):
        if trace and on_gpu:
            run_warm_up_kernels(warm_up_kernels)
        wait_for_start()
        start_ns = time.time_ns()
        if on_gpu:
            value = _to_the_end(program, recorder)
        else:
            value = program()
            recorder.settle()
    measured = Measurement(start_ns, calls=recorder.calls)
    if trace:
        recorded = read_events(profiler.kineto_results)
        events = since(recorded, start_ns)
        default = lowest_stream(recorded) if on_gpu else None  # the stream of the warm-up kernels
        measured.spans = spans_of(events, recorder.calls, threading.get_native_id(), on_gpu, default)
        if on_gpu:
            measured.kernels = count_kernels(events, any(event.on_device for event in recorded), measured.spans)
    return value, measured


def _to_the_end(program: Callable[[], Any], recorder: CallRecorder) -> Any:
    """Run a program until its GPU is idle: kernels still running are part of it."""
    has_returned = False
    try:
        value = program()
        has_returned = True
        wait_for_gpu()
        return value
    except RuntimeError as error:
        explain(error, recorder.under_way.text(), has_returned)
        raise


def wait_for_gpu() -> None:
    """Wait for the GPU after the program has returned (frames.py looks for this name)."""
    torch.cuda.synchronize()


def since(events: list[ProfilerEvent], start_ns: int) -> list[ProfilerEvent]:
    """The events of the program, which began at this time, without earlier work still on the GPU.

    A kernel that begins before its own launch has times of another clock, and is dropped.
    """
    launched_ns = {event.correlation: event.start_ns for event in events if event.is_cuda_call}

    def belongs(event: ProfilerEvent) -> bool:
        if not event.is_gpu_work:
            return event.end_ns >= start_ns
        at_ns = launched_ns.get(event.correlation, start_ns)
        return at_ns >= start_ns and event.start_ns >= at_ns - _CLOCK_SLACK_NS

    return [event for event in events if belongs(event)]


@contextmanager
def _on(profiler: profile) -> Iterator[None]:
    """The profiler's session. If the program fails, its error is raised.

    After a failed assertion on a GPU every call of CUDA fails, also the one that ends the profiler.
    """
    profiler.__enter__()
    try:
        yield
    except BaseException as error:
        with suppress(RuntimeError):
            profiler.__exit__(type(error), error, error.__traceback__)
        raise
    profiler.__exit__(None, None, None)
