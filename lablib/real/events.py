"""Reading what the profiler recorded: a flat list of events, the tree they form on each thread, the phases in it."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from torch.autograd.profiler import profile

from lablib.record.passes import UNNAMED
from lablib.torch_compat import ProfiledDevice, has_kernel_for

_USER_SCOPE = 7  # at::RecordScope::USER_SCOPE: record_function blocks, and labels that libraries open the same way
# FSDP ends its backward in callbacks of the engine, which run outside of any function of the graph.
_BACKWARD = ("autograd::engine::evaluate_function", "FSDP::post_backward", "FSDP::root_post_backward")
_OPTIMIZER = "Optimizer."
_LIBRARY_MARKS = (".", "::", "#")  # in labels that torch opens by itself: "Optimizer.step#SGD.step", "FSDP::all_gather"
_NOT_OPERATIONS = ("autograd::", "torch::", "profiler::", "prim::", "_c10d_functional::", "c10d_functional::")


class Event(NamedTuple):
    """One event of the profiler. Times are `time.time_ns()`.

    `thread` is the system's thread id (of a device event: its GPU stream). `id` is 0 for an event that is not torch's;
    `launched_by` is the id of the event that launched a kernel, 0 if none of torch's did. `is_label` is true of a
    record_function block.
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


@dataclass(slots=True)
class Operation:
    """An outermost operation: its event, the ids of all events in it, its FLOPs, whether it belongs to backward."""

    event: Event
    in_backward: bool
    ids: list[int] = field(default_factory=list)
    flops: float = 0.0


def read_events(profiler: profile) -> list[Event]:
    """All events of a finished profile."""
    assert profiler.kineto_results is not None
    return [_event(raw) for raw in profiler.kineto_results.events()]


def _event(raw: Any) -> Event:
    # Tens of thousands of these for one program: as few calls into the profiler as will do.
    name, start_ns, thread = raw.name(), raw.start_ns(), raw.device_resource_id()
    end_ns = start_ns + raw.duration_ns()
    if raw.device_type() != ProfiledDevice.CPU:
        return Event(name, start_ns, end_ns, thread, 0, raw.linked_correlation_id(), True, raw.is_user_annotation())
    scope = raw.scope()
    is_operation = scope == 0 and "::" in name and not name.startswith(_NOT_OPERATIONS)
    flops = float(raw.flops()) if is_operation else 0.0
    # Calls of the CUDA runtime are linked to an operation too; their own ids are numbers of another kind.
    event_id = 0 if raw.linked_correlation_id() else raw.correlation_id()
    return Event(name, start_ns, end_ns, thread, event_id, 0, False, scope == _USER_SCOPE, is_operation, flops)


def walk(events: Iterable[Event]) -> Iterator[Operation]:
    """The outermost operations of each thread in order of start, `c10d::` calls among them.

    Composite operations (`aten::linear`) are looked through: what they are made of is outermost.
    """
    threads: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.thread].append(event)
    for thread_events in threads.values():
        yield from _walk_thread(sorted(thread_events, key=lambda e: (e.start_ns, -e.end_ns)))


def _walk_thread(events: list[Event]) -> list[Operation]:
    found: list[Operation] = []
    open_events: list[tuple[Event, Operation | None, bool, bool]] = []  # event, operation, in backward, flops counted
    for event in events:
        while open_events and open_events[-1][0].end_ns <= event.start_ns:
            open_events.pop()
        _, operation, in_backward, counted = open_events[-1] if open_events else (event, None, False, False)
        in_backward = in_backward or event.name.startswith(_BACKWARD)
        if operation is None and event.is_operation and not is_composite(event.name):
            operation, counted = Operation(event, in_backward), False
            found.append(operation)
        if operation is not None:
            if event.id:
                operation.ids.append(event.id)
            # An op's own count covers its parts (conv2d); a wrapper without one has the counts of its parts.
            operation.flops += 0.0 if counted else event.flops
        open_events.append((event, operation, in_backward, counted or event.flops > 0))
    return found


@cache
def is_composite(name: str) -> bool:
    """Whether an operation is only a name for others (CompositeImplicitAutograd), which are recorded as well."""
    try:
        return has_kernel_for(name, "CompositeImplicitAutograd")
    except RuntimeError:  # an operation under another overload name
        return False


class Phases:
    """What the program was doing when, from the record_function blocks of its main thread."""

    def __init__(self, events: Iterable[Event], thread: int):
        self._starts: list[int] = [0]
        self._states: list[tuple[str, bool]] = [("", False)]  # innermost label of the program, inside an optimizer
        labels = [e for e in events if e.is_label and e.thread == thread and not e.name.startswith(("gloo:", "nccl:"))]
        open_labels: list[tuple[int, tuple[str, bool]]] = []
        for event in sorted(labels, key=lambda e: (e.start_ns, -e.end_ns)):
            self._close(open_labels, event.start_ns)
            label, in_step = open_labels[-1][1] if open_labels else ("", False)
            if not any(mark in event.name for mark in _LIBRARY_MARKS):
                label = event.name
            state = (label, in_step or event.name.startswith(_OPTIMIZER))
            self._enter(event.start_ns, state)
            open_labels.append((event.end_ns, state))
        self._close(open_labels, None)

    def _close(self, open_labels: list[tuple[int, tuple[str, bool]]], until_ns: int | None) -> None:
        while open_labels and (until_ns is None or open_labels[-1][0] <= until_ns):
            end_ns, _ = open_labels.pop()
            self._enter(end_ns, open_labels[-1][1] if open_labels else ("", False))

    def _enter(self, time_ns: int, state: tuple[str, bool]) -> None:
        self._starts.append(time_ns)
        self._states.append(state)

    def at(self, time_ns: int, in_backward: bool) -> str:
        """The phase of what started at this time."""
        label, in_step = self._states[bisect_right(self._starts, time_ns) - 1]
        return label or ("backward" if in_backward else "optimizer" if in_step else UNNAMED)
