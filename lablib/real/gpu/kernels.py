"""GPU kernels of a rank and the operations that launched them, as spans with kernel times.

A span never has the host's times instead of the GPU's. So an operation without a kernel has no span, and a run without
one recorded kernel has no compute spans at all.

    operation       its kernels, one span if they follow each other closely; gaps from slow launches give several spans,
                    as the GPU was idle between them
    collective      NCCL's kernels among those that its call launched. One that launched none (a group of one rank) has
                    no span, and takes none of a later call.
    batch           sends and receives between start and end of coalescing (`batch_isend_irecv`) are one NCCL group with
                    one kernel, launched at the end. It has a number, and its end a mark (batches.py), so each of its
                    calls has the times of that kernel.
    host copies     on a side stream they overlap compute and use the link to the host: their streams are
                    "comm:host:send" and "comm:host:recv", as on the simulator. On the default stream they are compute.
    Triton          a kernel outside of all operations has the phase of its launch, not of its start on the GPU

NCCL names its kernels ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclDevKernel_SendRecv (src/device, 2.28.9 and 2.29.7).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lablib.real.gpu.batches import BATCH_MARK
from lablib.real.measurement.calls import Call, UnmatchedCalls
from lablib.real.measurement.events import Operation, ProfilerEvent, RawSpan, compute_span, walk
from lablib.real.measurement.labels import Phases
from lablib.record.passes import UNNAMED
from lablib.run import COMPUTE

UNKNOWN = "comm:unknown"  # stream of communication without a recorded call
# CUDA's name of a copy -> the simulator's name, and its direction (lablib/script/placement.py).
_HOST_COPIES = {"Memcpy HtoD": ("copy host to device", "recv"), "Memcpy DtoH": ("copy device to host", "send")}
HOST_STREAMS = ("comm:host:send", "comm:host:recv")
_CLOSE_NS = 2_000  # dependent kernels are about 1 us apart
# The launch of one kernel. A graph's launch starts many; one that is captured into a graph starts none.
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchKernel", "cuLaunchCooperativeKernel")
_CAPTURE = ("cudaStreamBeginCapture", "cudaStreamEndCapture")


@dataclass(frozen=True, slots=True)
class KernelCount:
    """Number of kernels recorded on one rank's GPU."""

    is_recorded: bool  # whether the profiler recorded any GPU event, also before the program (profiler.py)
    kernels: int = 0  # GPU events recorded while the program ran
    launches: int = 0  # kernels that the program launched
    lost: int = 0  # launched kernels that were not recorded
    strays: int = 0  # NCCL kernels without a recorded call, on the stream "comm:unknown"


class Kernels:
    """The kernels and copies of a GPU that no operation has taken yet."""

    def __init__(self, events: Iterable[ProfilerEvent]):
        self._by_id: dict[int, list[ProfilerEvent]] = defaultdict(list)
        self._by_correlation: dict[int, list[ProfilerEvent]] = defaultdict(list)
        self.left: dict[int, ProfilerEvent] = {}
        for event in events:
            if event.is_gpu_work:
                self.left[id(event)] = event
                self._by_id[event.launched_by].append(event)
                self._by_correlation[event.correlation].append(event)
        self._by_id.pop(0, None)
        self._by_correlation.pop(0, None)

    def take(self, op: Operation) -> list[ProfilerEvent]:
        """Take the kernels that an operation launched, in order of start."""
        found = [kernel for one in op.ids for kernel in self._by_id.get(one, ())]
        found += [kernel for one in op.correlations for kernel in self._by_correlation.get(one, ())]
        return sorted(filter(None, (self.left.pop(id(k), None) for k in found)), key=lambda k: k.start_ns)


def gpu_spans(
    events: list[ProfilerEvent], calls: list[Call], phases: Phases, default_stream: int | None = None
) -> list[RawSpan]:
    """The spans of one rank on a GPU, without its calls. Changes `calls`. Arguments as in `spans_of` (spans.py)."""
    spans: list[RawSpan] = []
    default_stream = lowest_stream(events) if default_stream is None else default_stream
    kernels, queues = Kernels(events), UnmatchedCalls(calls)
    operations = list(walk(e for e in events if not e.on_device))
    batches: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        batches[call.batch].append(call)
    # torch's ids first: they hold even if a CUDA call seems to lie outside of its operation.
    for op in sorted(operations, key=lambda op: not op.ids):
        event, own = op.event, kernels.take(op)
        phase = phases.at(event.start_ns, event.thread, op.in_backward)
        if copies := [kernel for kernel in own if _host_copy(kernel, default_stream)]:
            spans += [_alone(kernel, phase, default_stream) for kernel in copies]
            own = [kernel for kernel in own if kernel not in copies]
        if event.name.startswith(BATCH_MARK):
            transport = [kernel for kernel in own if _is_nccl(kernel)]
            for call in batches[int(event.name.removeprefix(BATCH_MARK))]:
                call.ran(transport)
        elif event.name.startswith("c10d::"):
            if call := queues.next(event, phase):
                transport = [kernel for kernel in own if _is_nccl(kernel)] or own  # one rank alone only copies
                call.ran(transport)
                own = [kernel for kernel in own if kernel not in transport]
            spans += _pieces(op, phase, own)
        elif op.ids:
            spans += _pieces(op, phase, own)
        else:
            spans += [_alone(kernel, phase, default_stream) for kernel in own]
    issuing = {event.id: event for event in events if event.id}
    for kernel in kernels.left.values():
        launch = issuing.get(kernel.launched_by)
        phase = phases.at(launch.start_ns, launch.thread, False) if launch else UNNAMED
        spans.append(_alone(kernel, phase, default_stream))
    return spans


def lowest_stream(events: Iterable[ProfilerEvent]) -> int:
    """The lowest GPU stream number: the default stream, which exists before a program can make another."""
    return min((event.thread for event in events if event.is_gpu_work), default=0)


def count_kernels(events: list[ProfilerEvent], is_recorded: bool, spans: Iterable[RawSpan]) -> KernelCount:
    """Count the kernels that the program launched, that the profiler lost, and that belong to no call."""
    launches, kernels = list(_launches(events)), [event for event in events if event.is_gpu_work]
    shown = {kernel.correlation for kernel in kernels}
    lost = sum(launch.correlation not in shown for launch in launches)
    strays = sum(span.stream == UNKNOWN for span in spans)
    return KernelCount(is_recorded, len(kernels), len(launches), lost, strays)


def _launches(events: Iterable[ProfilerEvent]) -> Iterator[ProfilerEvent]:
    capturing: set[int] = set()
    for event in sorted((e for e in events if e.is_cuda_call), key=lambda e: e.start_ns):
        if event.name.startswith(_CAPTURE[0]):
            capturing.add(event.thread)
        elif event.name.startswith(_CAPTURE[1]):
            capturing.discard(event.thread)
        elif event.name.startswith(_LAUNCHES) and event.thread not in capturing:
            yield event


def _pieces(op: Operation, phase: str, kernels: list[ProfilerEvent]) -> Iterator[RawSpan]:
    """The spans of an operation: one per sequence of close kernels, with its share of the FLOPs."""
    pieces: list[tuple[int, int]] = []
    for kernel in kernels:
        if pieces and kernel.start_ns - pieces[-1][1] <= _CLOSE_NS:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], kernel.end_ns))
        else:
            pieces.append((kernel.start_ns, kernel.end_ns))
    busy_ns = sum(end_ns - start_ns for start_ns, end_ns in pieces)
    for start_ns, end_ns in pieces:
        share = (end_ns - start_ns) / busy_ns if busy_ns else 1 / len(pieces)
        yield compute_span(op, phase, start_ns, end_ns, op.flops * share)


def _host_copy(event: ProfilerEvent, default_stream: int) -> tuple[str, str] | None:
    """Name and direction of a copy between host and device on a side stream; None for other events."""
    return None if event.thread == default_stream else _HOST_COPIES.get(event.name[: len("Memcpy HtoD")])


def _alone(kernel: ProfilerEvent, phase: str, default_stream: int) -> RawSpan:
    if copy := _host_copy(kernel, default_stream):
        name, way = copy
        return RawSpan(f"comm:host:{way}", name, phase, kernel.start_ns, kernel.end_ns, 0.0, kernel.size_bytes)
    stream = UNKNOWN if _is_nccl(kernel) else COMPUTE
    return RawSpan(stream, kernel.name, phase, kernel.start_ns, kernel.end_ns)


def _is_nccl(event: ProfilerEvent) -> bool:
    return "nccl" in event.name.lower()
