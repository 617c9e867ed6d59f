"""From the profiler's events to the spans of a timeline.

What the profiler records is a tree per thread. Of it we keep, on the stream "compute", each outermost operation below
autograd: `aten::linear` is only a name for `aten::t` and `aten::addmm`, so these two are spans and it is none; what
`aten::addmm` calls inside is part of it.

    forward                         a label: becomes the phase
        aten::linear                composite: not a span
            aten::t                 span "aten.t"
                aten::transpose     inside a span: not one
            aten::addmm             span "aten.addmm"

Times are those of the thread or GPU stream that really did the work: gloo_spans.py on the CPU, kernels.py on GPUs.

Phase: the innermost `record_function` block of the program (labels.py); without one "backward" inside autograd's
backward, "optimizer" inside `Optimizer.step`; what else it is, the whole run tells (lablib/record/passes.py).

Simplified: `size_bytes` of compute spans is 0 (the profiler does not know what an op reads), and threads that the
program starts itself are not seen.
"""

from collections.abc import Iterable

from lablib.real.gpu.kernels import gpu_spans
from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import Event
from lablib.real.measurement.gloo_spans import host_spans
from lablib.real.measurement.labels import Phases
from lablib.real.measurement.raw_span import RawSpan


def spans_of(
    events: Iterable[Event],
    calls: Iterable[Call],
    main_thread: int,
    on_gpu: bool = False,
    default_stream: int | None = None,
) -> list[RawSpan]:
    """The spans of one rank. Changes `calls`: fills in their phase and when they ran.

    Args:
        events: everything the profiler recorded.
        calls: the rank's communication calls, in the order in which they were made.
        main_thread: system id of the thread that ran the program.
        on_gpu: whether the rank computes on a GPU: then only what ran there is a span.
        default_stream: the number of its default stream; None: the lowest one that was used.
    """
    events, calls = list(events), list(calls)
    phases = Phases(events, main_thread)
    spans = gpu_spans(events, calls, phases, default_stream) if on_gpu else host_spans(events, calls, phases)
    spans += [
        RawSpan(c.stream, c.span_name, c.phase, c.start_ns, c.end_ns, 0.0, c.size_bytes) for c in calls if c.end_ns
    ]
    return spans
