"""Chrome trace of torch.profiler (`export_chrome_trace`): the events and communication calls of one rank.

Of its events these are read (`cat` of each; times are microseconds after `baseTimeNanoseconds`):

    cpu_op, user_annotation       operations and labels of a host thread; "External id" is torch's id
    cuda_runtime, cuda_driver     calls of CUDA in an operation: its "External id", and CUDA's "correlation"
    kernel, gpu_memcpy, _memset   work on a stream of the GPU, with both numbers of its launch

They become the events that the profiler gives in memory (events.py), so a trace has the spans of a measured run.

FLOPs: of matrix products, with `record_shapes=True`; other operations count 0.
Source: torch 2.13, `export_chrome_trace`; pytorch/kineto, libkineto/src/output_json.cpp. Simplified: one GPU per trace.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import ProfilerEvent, is_operation
from lablib.real.measurement.trace_calls import AGAIN, Job, calls_of, payload, whole
from lablib.signature import shown
from lablib.text.files import read_json

_MAX_BYTES, _MAX_US = 2 * 2**30, 1e16
_CUDA, _ON_GPU = ("cuda_runtime", "cuda_driver"), ("kernel", "gpu_memcpy", "gpu_memset")
_READ = frozenset(("cpu_op", "user_annotation", *_CUDA, *_ON_GPU))
_STEP = "ProfilerStep#"
_FACTORS = MappingProxyType({"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)})


@dataclass(frozen=True)
class TracedRank:
    """One trace."""

    rank: int | None  # rank, world_size: of the job; None for a trace of one process without torch.distributed
    world_size: int | None
    events: Sequence[ProfilerEvent]  # events, calls: in order of start; times are `time.time_ns()`
    calls: Sequence[Call]
    main_thread: int  # system id of the thread that runs the program
    payloads: Mapping[int, float]  # end of gloo's work on a tensor -> the tensor's bytes
    steps: Sequence[str]  # the profiler's steps, "ProfilerStep#7"
    machine: str  # host and GPU

    @property
    def on_gpu(self) -> bool:
        return any(event.on_device for event in self.events)


def read_trace(path: str | Path) -> TracedRank:
    """The trace in a JSON file, which may be compressed with gzip.

    OSError: the file cannot be read. ValueError: it is no trace of torch.profiler, or damaged.
    """
    trace = read_json(path, _MAX_BYTES)
    raw = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(raw, list):
        raise ValueError(f"{path} must be a trace of torch.profiler, with traceEvents: got {shown(trace)}; {AGAIN}")
    base_ns = whole(trace, "baseTimeNanoseconds")
    found = [
        (_event(one, base_ns, f"event {number} of {path}"), _args(one))
        for number, one in enumerate(raw)
        if isinstance(one, dict) and one.get("ph") == "X" and isinstance(cat := one.get("cat"), str) and cat in _READ
    ]
    if not found:
        rule = f"{path} must have operations or kernels of torch.profiler"
        raise ValueError(f"{rule}: got none in {len(raw)} events; record with ProfilerActivity.CPU, and CUDA for a GPU")
    found.sort(key=lambda one: one[0].start_ns)
    info = trace.get("distributedInfo")
    job = Job.of(info if isinstance(info, dict) else {}, str(path))
    events = [event for event, _ in found]
    gpus = trace.get("deviceProperties")
    names = [gpu["name"] for gpu in gpus if isinstance(gpu, dict) and "name" in gpu] if isinstance(gpus, list) else []
    host = str(trace.get("host_name", "another machine"))
    return TracedRank(
        rank=job.rank if info else None,
        world_size=job.world_size if info else None,
        events=events,
        calls=calls_of(found, job),
        main_thread=_main_thread(raw, events),
        payloads={event.end_ns: payload(args) for event, args in found if event.name.startswith("gloo:")},
        steps=tuple(dict.fromkeys(event.name for event in events if event.name.startswith(_STEP))),
        machine=f"{host} ({names[0]})" if names else host,
    )


def _event(raw: Mapping[str, Any], base_ns: int, where: str) -> ProfilerEvent:
    name = raw.get("name")
    times: list[Any] = [t for t in (raw.get("ts"), raw.get("dur")) if type(t) in (int, float)]
    if not isinstance(name, str) or len(times) < 2 or not all(0 <= t < _MAX_US for t in times):
        got = {key: raw.get(key) for key in ("name", "ts", "dur")}
        raise ValueError(f"{where} must have a name, and ts and dur in microseconds: got {shown(got)}; {AGAIN}")
    start_ns = base_ns + round(1000 * times[0])
    end_ns, args, cat = start_ns + round(1000 * times[1]), _args(raw), raw["cat"]
    on_device, torch_id = cat in _ON_GPU, whole(args, "External id")
    place = (name, start_ns, end_ns, whole(args, "stream") if on_device else whole(raw, "tid"))
    if on_device or cat in _CUDA:
        numbers = {"correlation": whole(args, "correlation"), "size_bytes": float(whole(args, "bytes"))}
        return ProfilerEvent(*place, launched_by=torch_id, on_device=on_device, **numbers)
    is_label, flops = cat == "user_annotation", _flops(name, args.get("Input Dims"))
    of_torch = not is_label and is_operation(name)
    return ProfilerEvent(*place, torch_id, is_label=is_label, is_operation=of_torch, flops=flops)


def _args(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    args = raw.get("args")
    return args if isinstance(args, dict) else {}


def _flops(name: str, shapes: Any) -> float:
    """2 m k n for each product of [m, k] and [k, n]."""
    try:
        a, b = (shapes[place] for place in _FACTORS[name])
        return 2.0 * prod(a) * b[-1]
    except (KeyError, IndexError, TypeError, OverflowError):
        return 0.0


def _main_thread(raw: Sequence[Any], events: Sequence[ProfilerEvent]) -> int:
    """The thread of the steps; otherwise the one with its process's number; otherwise the busiest."""
    host = Counter(event.thread for event in events if not event.on_device)
    marked = [event.thread for event in events if event.name.startswith(_STEP) and not event.on_device]
    first = [tid for one in raw if isinstance(one, dict) and (tid := whole(one, "tid", -1)) == whole(one, "pid", -2)]
    own = [thread for thread in (*marked, *first) if thread in host]
    return own[0] if own else max(host, key=lambda thread: host[thread], default=0)
