"""Spans of a timeline from the profiler's events.

The profiler records a tree per thread. The stream "compute" has each outermost operation below autograd: `aten::linear`
only calls `aten::t` and `aten::addmm`, so only these two are spans; operations inside `aten::addmm` are part of it.

    forward                         a label: becomes the phase
        aten::linear                composite: not a span
            aten::t                 span "aten.t"
                aten::transpose     inside a span: not one
            aten::addmm             span "aten.addmm"

Times are of the thread or GPU stream that did the work: a thread of gloo on the CPU, a stream on GPUs (kernels.py).

Phase: the innermost `record_function` block of the program (labels.py); without one "backward" inside autograd's
backward, "optimizer" inside `Optimizer.step`; otherwise it is inferred from the whole run (lablib/record/passes.py).

Simplified: `size_bytes` of compute spans is 0 (the profiler does not record the bytes that an op reads), and threads
that the program starts itself are not seen.

Spans of a rank on the CPU: operations with the host's times, communication with gloo's.

gloo's threads record "gloo:all_reduce" events; it has two threads per group, so two collectives of one group may
overlap. Such an event does not identify its call, but gloo runs calls in the order in which they were issued, and a
thread of gloo serves one group. A receive ends when the program has waited for it. A message begins with its call:
gloo's event of a send begins when the bytes are under way, which may be after they have arrived.
"""

from collections.abc import Iterable
from itertools import takewhile

from lablib.real.gpu.kernels import gpu_spans
from lablib.real.measurement.calls import Call, UnmatchedCalls
from lablib.real.measurement.events import ProfilerEvent, RawSpan, compute_span, walk
from lablib.real.measurement.labels import Phases
from lablib.real.measurement.volume import kind_of

_ALSO = {"reduce_scatter": "all_reduce", "recv": "recvAnySource"}  # gloo's other names: it may build one from another
_CLOCK_SLACK_NS = 20_000  # events of two threads are stamped on two cores


def host_spans(events: list[ProfilerEvent], calls: list[Call], phases: Phases) -> list[RawSpan]:
    """The compute spans of one rank on the CPU. Changes `calls`: fills in phase and times."""
    spans: list[RawSpan] = []
    queues = UnmatchedCalls(calls)
    issued: list[tuple[Call, ProfilerEvent]] = []
    # Events of the threads that run the program and its backward, without gloo's threads.
    gloo_threads = {e.thread for e in events if _is_transport(e)} - {call.thread for call in calls}
    own = (e for e in events if not e.on_device and e.thread not in gloo_threads and not _is_transport(e))
    for op in walk(own):
        phase = phases.at(op.event.start_ns, op.event.thread, op.in_backward)
        if not op.event.name.startswith("c10d::"):
            spans.append(compute_span(op, phase, op.event.start_ns, op.event.end_ns))
        elif call := queues.next(op.event, phase):
            if call.name == "monitored_barrier":  # gloo runs it at once, with its own messages
                call.ran([op.event])
            issued.append((call, op.event))
    _match(issued, sorted((e for e in events if _is_transport(e)), key=lambda e: e.start_ns))
    return spans


def _is_transport(event: ProfilerEvent) -> bool:
    return event.name.startswith("gloo:")


def _match(issued: list[tuple[Call, ProfilerEvent]], transport: list[ProfilerEvent]) -> None:
    """Find for each call the transport event.

    A point-to-point event begins while its call is being issued, on the same thread.
    """
    waiting = sorted((pair for pair in issued if not pair[0].end_ns), key=lambda pair: pair[1].start_ns)
    group_of_thread: dict[int, str] = {}
    for event in transport:
        latest_ns = event.start_ns + _CLOCK_SLACK_NS
        started = list(takewhile(lambda pair, latest_ns=latest_ns: pair[1].start_ns <= latest_ns, waiting))
        fits = [(call, window) for call, window in started if _fits(event, call, window)]
        known = group_of_thread.get(event.thread)
        fits = [pair for pair in fits if pair[0].group_id == known] or fits
        if not fits:
            continue
        call, window = fits[0]
        if not call.is_point_to_point and len({other.group_id for other, _ in fits}) == 1:
            group_of_thread[event.thread] = call.group_id
        call.ran([window, event] if call.is_point_to_point else [event])
        waiting[: len(started)] = [pair for pair in started if not pair[0].end_ns]


def _fits(event: ProfilerEvent, call: Call, window: ProfilerEvent) -> bool:
    """Whether this event may be the transport of this call, which was issued before it."""
    if call.is_point_to_point and (event.thread != window.thread or event.start_ns > window.end_ns + _CLOCK_SLACK_NS):
        return False
    return event.name.removeprefix("gloo:") in (kind := kind_of(call.name), _ALSO.get(kind))


def spans_of(
    events: Iterable[ProfilerEvent],
    calls: Iterable[Call],
    main_thread: int,
    on_gpu: bool = False,
    default_stream: int | None = None,
) -> list[RawSpan]:
    """The spans of one rank. Changes `calls`, in the order in which they were made: fills in phase and times.

    Args:
        main_thread: system id of the thread that ran the program.
        on_gpu: whether the rank computes on a GPU: then only GPU work is a span.
        default_stream: the number of its default stream; None: the lowest used one.
    """
    events, calls = list(events), list(calls)
    phases = Phases(events, main_thread)
    spans = gpu_spans(events, calls, phases, default_stream) if on_gpu else host_spans(events, calls, phases)
    spans += [
        RawSpan(c.stream, c.span_name, c.phase, c.start_ns, c.end_ns, 0.0, c.size_bytes) for c in calls if c.end_ns
    ]
    return spans
