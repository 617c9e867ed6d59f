"""Events of the profiler: a flat list, and the operations on each thread.

On a GPU three kinds of events are related (torch 2.13 with kineto; torch/csrc/autograd/profiler_kineto.cpp and
libkineto's CuptiActivityProfiler.cpp):

    aten::mm               host    id 17, counted by torch
      cudaLaunchKernel     host    correlation 903, counted by CUDA; linked to 17
    gemm                   GPU     correlation 903, linked to 17

Both numbers are read with `correlation_id()`, although they are different counts. A kernel that no operation of torch
launched (Triton) is linked to none: its launch gives the time of the call.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from lablib.record.phase_path import split
from lablib.run import COMPUTE, Span
from lablib.torch_compat import ProfiledDevice, has_kernel_for

_FUNCTION_SCOPE, _USER_SCOPE = 0, 7  # at::RecordScope: a function; record_function blocks and library labels
# FSDP ends its backward in callbacks of the engine, outside of any function of the graph.
_BACKWARD = ("autograd::engine::evaluate_function", "FSDP::post_backward", "FSDP::root_post_backward")
_NOT_OPERATIONS = ("autograd::", "torch::", "profiler::", "prim::", "_c10d_functional::", "c10d_functional::")
_CUDA_CALL = re.compile("cu(da)?[A-Z]")  # runtime (cudaLaunchKernel) or driver (cuLaunchKernelEx)


class ProfilerEvent(NamedTuple):
    """One event of the profiler. Times are `time.time_ns()`.

    `thread` is the system's thread id (of a device event: its GPU stream). `id` is 0 for an event that is not torch's;
    `launched_by` is the id of the event that launched a kernel or called CUDA, 0 if not one of torch's. `is_label` is
    true for a record_function block. `correlation` is CUDA's number of a call, and of the GPU work that it started; 0
    for torch's events. `size_bytes` is set for copies, if the profiler reports it.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    id: int = 0
    launched_by: int = 0
    on_device: bool = False
    is_label: bool = False
    is_operation: bool = False
    flops: float = 0.0
    correlation: int = 0
    size_bytes: float = 0.0

    @property
    def is_cuda_call(self) -> bool:
        return bool(self.correlation) and not self.on_device

    @property
    def is_gpu_work(self) -> bool:
        return self.on_device and not self.is_label


@dataclass(slots=True)
class Operation:
    """An outermost operation, or a call of CUDA outside of all operations.

    Its event, whether it is part of backward, the ids of its events, CUDA's numbers of the calls in it, its FLOPs.
    """

    event: ProfilerEvent
    in_backward: bool
    ids: list[int] = field(default_factory=list)
    correlations: list[int] = field(default_factory=list)
    flops: float = 0.0


def read_events(kineto_results: Any) -> list[ProfilerEvent]:
    """All events of a finished profile, from its `kineto_results`."""
    return [_event(raw) for raw in kineto_results.events()]


def _event(raw: Any) -> ProfilerEvent:
    # Tens of thousands per program: few calls into the profiler.
    name, start_ns, linked, number = raw.name(), raw.start_ns(), raw.linked_correlation_id(), raw.correlation_id()
    place = (name, start_ns, start_ns + raw.duration_ns(), raw.device_resource_id())
    if raw.device_type() != ProfiledDevice.CPU:
        # Bytes of a copy, from the metadata of torch 2.13 on: `"device": 0, "bytes": 4096, ...`.
        metadata = getattr(raw, "metadata_json", str)() if name.startswith("Memcpy") else ""
        size_bytes = float(found[1]) if (found := re.search(r'"bytes": (\d+)', metadata)) else 0.0
        return ProfilerEvent(*place, 0, linked, True, raw.is_user_annotation(), False, 0.0, number, size_bytes)
    scope = raw.scope()
    if scope == _FUNCTION_SCOPE and _CUDA_CALL.match(name):
        return ProfilerEvent(*place, launched_by=linked, correlation=number)
    of_torch = scope == _FUNCTION_SCOPE and is_operation(name)
    flops = float(raw.flops()) if of_torch else 0.0
    # Other events linked to an operation have ids that are not torch's.
    return ProfilerEvent(*place, 0 if linked else number, 0, False, scope == _USER_SCOPE, of_torch, flops)


def is_operation(name: str) -> bool:
    """Whether a function's name is one of torch's operations, and none of autograd's or the profiler's own."""
    return "::" in name and not name.startswith(_NOT_OPERATIONS)


def walk(events: Iterable[ProfilerEvent]) -> Iterator[Operation]:
    """The outermost operations of each thread in order of start, including `c10d::` calls.

    Composite operations (`aten::linear`) are skipped: their parts are outermost.
    """
    threads: dict[int, list[ProfilerEvent]] = defaultdict(list)
    for event in events:
        threads[event.thread].append(event)
    for thread_events in threads.values():
        yield from _walk_thread(sorted(thread_events, key=lambda e: (e.start_ns, -e.end_ns)))


def _walk_thread(events: list[ProfilerEvent]) -> list[Operation]:
    found: list[Operation] = []
    # event, operation, in backward, flops counted
    open_events: list[tuple[ProfilerEvent, Operation | None, bool, bool]] = []
    for event in events:
        while open_events and open_events[-1][0].end_ns <= event.start_ns:
            open_events.pop()
        _, operation, in_backward, counted = open_events[-1] if open_events else (event, None, False, False)
        in_backward = in_backward or event.name.startswith(_BACKWARD)
        if operation is None and event.is_operation and not is_composite(event.name):
            operation, counted = Operation(event, in_backward), False
            found.append(operation)
        if event.is_cuda_call:
            if operation is None:
                found.append(Operation(event, in_backward, correlations=[event.correlation]))
            else:
                operation.correlations.append(event.correlation)
        elif operation is not None:
            if event.id:
                operation.ids.append(event.id)
            # An op's own count includes its parts (conv2d); a wrapper without one has the counts of its parts.
            operation.flops += 0.0 if counted else event.flops
        open_events.append((event, operation, in_backward, counted or event.flops > 0))
    return found


@cache
def is_composite(name: str) -> bool:
    """Whether an operation only calls others (CompositeImplicitAutograd), which are recorded as well."""
    try:
        return has_kernel_for(name, "CompositeImplicitAutograd")
    except RuntimeError:  # an operation under another overload name
        return False


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
        phase, outer_phases = split(self.phase)
        numbers = (self.start_ns - zero_ns) / 1e9, (self.end_ns - zero_ns) / 1e9, self.flops, self.size_bytes
        return Span(rank, self.stream, self.name, phase, *numbers, outer_phases=outer_phases)


def compute_span(op: Operation, phase: str, start_ns: int, end_ns: int, flops: float | None = None) -> RawSpan:
    """The span of an operation, or of a part of it with its share of the FLOPs."""
    name = op.event.name.replace("::", ".")
    return RawSpan(COMPUTE, name, phase, start_ns, end_ns, op.flops if flops is None else flops)
