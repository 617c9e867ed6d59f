"""From the profiler's events to the spans of a timeline.

What the profiler records is a tree per thread. Of it we keep, on the stream "compute", each outermost operation below
autograd: `aten::linear` is only a name for `aten::t` and `aten::addmm`, so these two are spans and it is none; what
`aten::addmm` calls inside is part of it.

    forward                         a label: becomes the phase
        aten::linear                composite: not a span
            aten::t                 span "aten.t"
                aten::transpose     inside a span: not one
            aten::addmm             span "aten.addmm"

Communication is shown with the time it really took, from the thread or GPU stream that ran it:

    gloo    "gloo:all_reduce" events on gloo's own threads; it has two for each group, so two collectives of one group
            may overlap. A receive ends when the program has waited for it.
    nccl    the kernels that the call launched. On a GPU, compute spans are kernels' times as well.

Phase: the innermost `record_function` block of the program; without one "backward" inside autograd's backward,
"optimizer" inside `Optimizer.step`; what else it is, the whole run tells (lablib/record/passes.py).

Simplified: `size_bytes` of compute spans is 0 (the profiler does not know what an op reads), and threads that the
program starts itself are not seen.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from lablib.real.calls import Call
from lablib.real.events import Event, Phases, walk
from lablib.run import COMPUTE, Span

# gloo's own names where they differ from torch.distributed's, also because it builds one collective from another.
_GLOO_NAMES = {
    "all_gather_into_tensor": ("all_gather",),
    "reduce_scatter": ("reduce_scatter", "all_reduce"),
    "reduce_scatter_tensor": ("reduce_scatter", "all_reduce"),
    "all_to_all_single": ("all_to_all",),
    "recv": ("recv", "recvAnySource"),
}
_CLOCK_SLACK_NS = 20_000  # events of two threads are stamped by two cores


@dataclass(frozen=True, slots=True)
class RawSpan:
    """A span of one rank whose times are still those of the host's clock, `time.time_ns()`."""

    stream: str
    name: str
    phase: str
    start_ns: int
    end_ns: int
    flops: float = 0.0
    size_bytes: float = 0.0

    def at(self, rank: int, zero_ns: int) -> Span:
        """The span of a run that began at `zero_ns`."""
        times = (self.start_ns - zero_ns) / 1e9, (self.end_ns - zero_ns) / 1e9
        return Span(rank, self.stream, self.name, self.phase, *times, self.flops, self.size_bytes)


def spans_of(events: Iterable[Event], calls: Iterable[Call], main_thread: int) -> list[RawSpan]:
    """The spans of one rank. Changes `calls`: fills in their phase and when they ran.

    Args:
        events: everything the profiler recorded.
        calls: the rank's communication calls, in the order in which they were made.
        main_thread: system id of the thread that ran the program; its labels are the phases.
    """
    events, calls = list(events), list(calls)
    phases = Phases(events, main_thread)
    kernels = _kernels(events)
    on_gpu = bool(kernels)
    spans: list[RawSpan] = []
    calls_of_op = _queues(calls)
    issued: list[tuple[Call, Event]] = []
    for op in walk(_program_events(events, calls)):
        event, phase = op.event, phases.at(op.event.start_ns, op.in_backward)
        own = [kernel for event_id in op.ids for kernel in kernels.pop(event_id, ())]
        if event.name.startswith("c10d::"):
            if queue := calls_of_op.get((event.thread, event.name)):
                call = queue.popleft()
                call.phase = phase
                call.start_ns = event.start_ns
                # gloo does a monitored barrier at once, with messages of its own.
                _ran(call, [event] if call.name == "monitored_barrier" else own)
                issued.append((call, event))
        elif own or not on_gpu:  # on a GPU machine, an op without a kernel is the host's bookkeeping
            start_ns, end_ns = _extent(own or [event])
            spans.append(RawSpan(COMPUTE, event.name.replace("::", "."), phase, start_ns, end_ns, op.flops))
    left = [kernel for group in kernels.values() for kernel in group]
    transport = [e for e in events if e.name.startswith("gloo:")] + [k for k in left if _is_nccl(k)]
    _match(issued, sorted(transport, key=lambda e: e.start_ns))
    for kernel in left:  # kernels that no torch operation launched, such as Triton's
        if not _is_nccl(kernel):
            phase = phases.at(kernel.start_ns, False)
            spans.append(RawSpan(COMPUTE, kernel.name, phase, kernel.start_ns, kernel.end_ns))
    spans += [
        RawSpan(c.stream, c.span_name, c.phase, c.start_ns, c.end_ns, 0.0, c.size_bytes) for c in calls if c.end_ns
    ]
    return spans


def _kernels(events: list[Event]) -> dict[int, list[Event]]:
    """What ran on the GPU, by the id of the event that launched it."""
    kernels = defaultdict(list)
    for event in events:
        if event.on_device and not event.is_label:
            kernels[event.launched_by].append(event)
    return kernels


def _program_events(events: list[Event], calls: list[Call]) -> Iterator[Event]:
    """Events of the threads that run the program and its backward: not those of gloo's threads, nor of the GPU."""
    issuing = {call.thread for call in calls}
    gloo_threads = {e.thread for e in events if e.name.startswith("gloo:")} - issuing
    return (e for e in events if not e.on_device and e.thread not in gloo_threads and not e.name.startswith("gloo:"))


def _queues(calls: list[Call]) -> dict[tuple[int, str], deque[Call]]:
    """The calls in order, by the thread and name under which the profiler saw them."""
    queues: dict[tuple[int, str], deque[Call]] = defaultdict(deque)
    for call in calls:
        queues[call.thread, "c10d::" + call.op].append(call)
    return queues


def _match(issued: list[tuple[Call, Event]], transport: list[Event]) -> None:
    """Find for each call the event of the thread or stream that carried it out.

    Such an event does not say whose call it is, but works on calls in the order in which they were issued; and a thread
    of gloo serves one group. A point-to-point event begins while its call is being issued, on the same thread.
    """
    waiting = sorted((pair for pair in issued if not pair[0].end_ns), key=lambda pair: pair[1].start_ns)
    group_of_thread: dict[int, str] = {}
    for event in transport:
        latest_ns = event.start_ns + _CLOCK_SLACK_NS
        started = list(takewhile(lambda pair, latest_ns=latest_ns: pair[1].start_ns <= latest_ns, waiting))
        fits = [call for call, window in started if _fits(event, call, window)]
        known = group_of_thread.get(event.thread)
        fits = [call for call in fits if call.group_id == known] or fits
        if not fits:
            continue
        if _is_nccl(event):  # one kernel does all sends and receives of a batch
            done = [call for call in fits if call.is_point_to_point] if fits[0].is_point_to_point else fits[:1]
        else:
            done = fits[:1]
            if not fits[0].is_point_to_point and len({call.group_id for call in fits}) == 1:
                group_of_thread[event.thread] = fits[0].group_id
        for call in done:
            _ran(call, [event])
        waiting[: len(started)] = [pair for pair in started if not pair[0].end_ns]


def _fits(event: Event, call: Call, window: Event) -> bool:
    """Whether this event may be the work of this call, which was issued before it."""
    if _is_nccl(event):
        return True
    if call.is_point_to_point and (event.thread != window.thread or event.start_ns > window.end_ns + _CLOCK_SLACK_NS):
        return False
    return event.name.removeprefix("gloo:") in _GLOO_NAMES.get(call.name, (call.name,))


def _is_nccl(event: Event) -> bool:
    return event.on_device and "nccl" in event.name.lower()


def _ran(call: Call, events: list[Event]) -> None:
    if events:
        call.start_ns, call.end_ns = _extent(events)


def _extent(events: list[Event]) -> tuple[int, int]:
    """First start and last end."""
    return min(e.start_ns for e in events), max(e.end_ns for e in events)
