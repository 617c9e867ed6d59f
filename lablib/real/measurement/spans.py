"""Spans of a timeline from the profiler's events.

The profiler records a tree per thread. The stream "compute" has each outermost operation below autograd: `aten::linear`
only calls `aten::t` and `aten::addmm`, so only these two are spans; operations inside `aten::addmm` are part of it.

    forward                         a label: becomes the phase
        aten::linear                composite: not a span
            aten::t                 span "aten.t"
                aten::transpose     inside a span: not one
            aten::addmm             span "aten.addmm"

Times are of the thread or GPU stream that did the work: gloo_spans.py on the CPU, kernels.py on GPUs.

Phase: the innermost `record_function` block of the program (labels.py); without one "backward" inside autograd's
backward, "optimizer" inside `Optimizer.step`; otherwise it is inferred from the whole run (lablib/record/passes.py).

Simplified: `size_bytes` of compute spans is 0 (the profiler does not record the bytes that an op reads), and threads
that the program starts itself are not seen.
"""

from collections.abc import Iterable

from lablib.real.gpu.kernels import gpu_spans
from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import ProfilerEvent, RawSpan
from lablib.real.measurement.gloo_spans import host_spans
from lablib.real.measurement.labels import Phases


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
