"""Seconds of a measured step by kind of work, from a number, a table of seconds, or a trace.

    measured_step(1.83), measured_step("1.83")     the step alone
    measured_step({"step": 1.83, "idle": 0.2})     the step and some of its terms; or a JSON file of such an object
    measured_step("trace.json.gz")                 a Chrome trace: of torch's profiler on a GPU, or of `to_perfetto`

Of a trace, every second of a rank is one of five kinds: the first of them that is active.

    products        matrix products                              by the name of the kernel or operator
    attention       attention kernels
    other kernels   all other compute
    communication   NCCL's kernels, copies between host and device or devices; communication streams of lablib: the
                    exposed part
    idle            none of these: launches, a pipeline's bubble, waiting for data

Seconds are means over the ranks of the trace. torch's profiler marks steps (`ProfilerStep#7`): then they are per step,
from the first mark to the end of the last. Otherwise the whole trace is one step.

Source: "Trace Event Format", Google, 2016; torch.profiler's categories of events: pytorch/kineto,
libkineto/src/output_json.cpp.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from lablib.record.timeline import Interval, Timeline, difference, length, union
from lablib.text.files import read_json
from lablib.text.units import format_quantity

KINDS = ("products", "attention", "other kernels", "communication", "idle")
STEP = "step"
_MAX_BYTES = 2 * 2**30
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_SENT = re.compile(r"nccl|rccl|nvshmem|deep_?ep|cross_device_reduce|memcpy (htod|dtoh|ptop|dtod.*peer)", re.IGNORECASE)
_FUSED = re.compile(r"triton_(poi|red|per)_")  # inductor names these after all operators that they fuse
_ATTENTION = re.compile(r"attention|attn|flash|fmha", re.IGNORECASE)
_PRODUCT = re.compile(r"(?<!fb)gemm|gemv|matmul|nvjet|cutlass|xmma|cijk|splitk|(?<!fbge)mm($|_|\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StepTerms:
    """A measured step."""

    step_s: float  # seconds of the step
    terms: Mapping[str, float] = field(default_factory=dict)  # name -> seconds, all or some of the step
    hidden_s: float | None = None  # communication behind compute, which is in no term; None: unknown
    source: str = "a number"  # the file, or the kind of input

    def __post_init__(self) -> None:
        for name, seconds in {STEP: self.step_s, **self.terms}.items():
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < inf:
                raise ValueError(f"{name} of a measured step must be seconds, 0 or more: got {seconds!r}; try 1.83")
        total_s = sum(self.terms.values())
        if not self.step_s or total_s > self.step_s * (1 + 1e-6):
            raise ValueError(
                f"the terms of a measured step must add up to {STEP} or less, which is above 0: got "
                f"{format_quantity(total_s, 's')} and {format_quantity(self.step_s, 's')}"
            )


def measured_step(given: float | str | Path | Mapping[str, float] | StepTerms) -> StepTerms:
    """The measured step of a number in seconds, a mapping, or a file.

    Raises:
        ValueError: no number, no such file, terms that are no seconds or add up to more than the step.
    """
    if isinstance(given, StepTerms):
        return given
    if isinstance(given, Mapping):
        return _of_table(given, "a mapping")
    if isinstance(given, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", given.strip()):
        given = float(given)
    return _of_file(Path(given)) if isinstance(given, (str, Path)) else StepTerms(given)


def _of_file(path: Path) -> StepTerms:
    try:
        record = read_json(path, _MAX_BYTES)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; a measured step is seconds (1.83), a JSON file, or a trace"
        ) from None
    events = record.get("traceEvents") if isinstance(record, dict) else record
    if isinstance(events, list):
        return _of_trace([event for event in events if isinstance(event, dict)], str(path))
    if not isinstance(record, dict):
        raise ValueError(f"{path} must hold seconds by term, or a trace: got {type(record).__name__}")
    return _of_table(record, str(path))


def _of_table(table: Mapping[str, Any], source: str) -> StepTerms:
    if STEP not in table:
        raise ValueError(f'{source} must have the seconds of the whole step under "{STEP}": got {", ".join(table)}')
    return StepTerms(table[STEP], {name: time for name, time in table.items() if name != STEP}, source=source)


# ---- timelines and traces ----


def timeline_step(timeline: Timeline) -> StepTerms:
    """One step of a timeline: means over the ranks that have spans."""
    lanes: dict[Any, dict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    for span in timeline:
        if span.is_communication or span.is_compute:
            kind = "communication" if span.is_communication else kind_of(span.name)
            lanes[span.rank][kind].append((span.start_s, span.end_s))
    return _mean_step(lanes, (timeline.start_s, timeline.end_s), 1, "a timeline")


def _of_trace(events: list[dict[str, Any]], source: str) -> StepTerms:
    times = ("ts", "dur")
    spans = [e for e in events if e.get("ph") == "X" and all(isinstance(e.get(name), (int, float)) for name in times)]
    lanes = _lanes_of_gpus(spans) or _lanes_of_lablib(events, spans)
    if not lanes:
        raise ValueError(
            f"{source} has no kernels of a GPU and no streams of lablib: record with ProfilerActivity.CUDA, or write "
            "run.timeline.to_perfetto(path)"
        )
    marks = [event for event in spans if str(event.get("name", "")).startswith("ProfilerStep")]
    on_gpu = [event for event in marks if event.get("cat") == "gpu_user_annotation"]
    steps = [_interval(event) for event in on_gpu or marks]
    times = steps or [interval for lane in lanes.values() for each in lane.values() for interval in each]
    window = min(start for start, _ in times), max(end for _, end in times)
    num_steps = len({event["name"] for event in on_gpu or marks}) or 1
    return _mean_step(lanes, window, num_steps, source)


def _mean_step(
    lanes: Mapping[Any, Mapping[str, list[Interval]]], window: Interval, num_steps: int, source: str
) -> StepTerms:
    seconds = [_seconds(lane, window) for lane in lanes.values()]
    means = {kind: sum(each[kind] for each in seconds) / len(seconds) / num_steps for kind in (*KINDS, "hidden")}
    hidden_s = means.pop("hidden")
    return StepTerms((window[1] - window[0]) / num_steps, means, hidden_s, source)


def _interval(event: Mapping[str, Any]) -> Interval:
    return event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6


def _lanes_of_gpus(spans: Iterable[Mapping[str, Any]]) -> dict[Any, dict[str, list[Interval]]]:
    """Device -> kind -> intervals, of torch's profiler."""
    lanes: dict[Any, dict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    for event in spans:
        if event.get("cat") in _ON_GPU:
            name = str(event.get("name", ""))
            kind = "communication" if _SENT.search(name) else kind_of(name)
            lanes[event.get("pid")][kind].append(_interval(event))
    return lanes


def _lanes_of_lablib(events: Iterable[Mapping[str, Any]], spans: Iterable[Mapping[str, Any]]) -> dict[Any, Any]:
    """Rank -> kind -> intervals, of `to_perfetto`: its threads are named after streams."""
    threads = {
        (event.get("pid"), event.get("tid")): str(event["args"].get("name", ""))
        for event in events
        if event.get("name") == "thread_name" and isinstance(event.get("args"), dict)
    }
    lanes: dict[Any, dict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    for event in spans:
        stream = threads.get((event.get("pid"), event.get("tid")), "")
        if stream.startswith(("comm", "compute")):
            kind = "communication" if stream.startswith("comm") else kind_of(str(event.get("name", "")))
            lanes[event.get("pid")][kind].append(_interval(event))
    return lanes


def kind_of(name: str) -> str:
    """The kind of a kernel or operator that computes, by its name."""
    if _FUSED.search(name):
        return "other kernels"
    return "attention" if _ATTENTION.search(name) else "products" if _PRODUCT.search(name) else "other kernels"


def _seconds(lane: Mapping[str, list[Interval]], window: Interval) -> dict[str, float]:
    """Seconds of each kind on one rank, each second once; and "hidden" communication."""
    left, seconds = [window], dict[str, float]()
    for kind in KINDS[:-1]:
        after = difference(left, union(lane.get(kind, [])))
        seconds[kind] = length(left) - length(after)
        left = after
    inside = union((max(start, window[0]), min(end, window[1])) for start, end in lane.get("communication", []))
    sent_s = length([(start, end) for start, end in inside if start < end])
    return seconds | {"idle": length(left), "hidden": max(0.0, sent_s - seconds["communication"])}
