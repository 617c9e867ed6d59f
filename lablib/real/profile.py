"""A run from the traces of torch.profiler of a job that lablib did not launch, one file per rank.

    with profile(schedule=schedule(wait=1, warmup=1, active=3), record_shapes=True,
                 on_trace_ready=lambda p: p.export_chrome_trace(f"rank{rank}.json")) as profiler: ...

    run = Run.from_profile(["rank0.json", "rank1.json"], memory=["rank0.pickle", "rank1.pickle"])
    Reconciliation.of(launch(step, ranks=2, cluster="dgx-h100"), [run]).table()

Spans, phases and communications are made as for a measured run (measurement/spans.py, traffic.py). Time starts
at the first event of any rank. The n-th call of a group on one rank is the n-th on all, so all traces must cover the
same steps. Simplified: clocks of several hosts are taken to agree.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lablib.real.launch import measured_records
from lablib.real.measurement.calls import Call
from lablib.real.measurement.measure import Measurement
from lablib.real.measurement.spans import spans_of
from lablib.real.measurement.trace_file import TracedRank, read_trace
from lablib.real.measurement.volume import sent_of
from lablib.record.memory_snapshot import read_snapshots
from lablib.record.rank_text import ranks_in_words
from lablib.run import Memory, Run
from lablib.text.units import plural

_NEVER_NS = 2**63 - 1


def run_of_profile(traces: Sequence[str | Path], snapshots: Sequence[str | Path] = ()) -> Run:
    """The run in some traces, with the memory of snapshots in the order of ranks. Raises as `Run.from_profile`."""
    if not traces:
        raise ValueError("traces must be one file for each rank, one or more: got none; give the path of a trace")
    traced = _by_rank([read_trace(path) for path in traces], traces)
    world_size = next(iter(traced.values())).world_size or len(traced)
    measured = [Measurement(_NEVER_NS) for _ in range(world_size)]
    for rank, one in traced.items():
        calls = list(one.calls)
        spans = spans_of(one.events, calls, one.main_thread, one.on_gpu)
        for call in calls:
            _add_payload(call, one)
        measured[rank] = Measurement(one.events[0].start_ns, spans, calls)
    _check_order(measured)
    on_gpu = any(one.on_gpu for one in traced.values())
    timeline, traffic = measured_records(measured, "nccl" if on_gpu else "gloo")
    present, steps = tuple(traced), next(iter(traced.values())).steps
    notes = [f"Recorded by torch.profiler: {plural(len(steps), 'steps')} ({steps[0]} to {steps[-1]})"] if steps else []
    if len(traced) < world_size:
        notes.append(f"Traces of ranks {ranks_in_words(present)} of {world_size}; the others have no records")
        timeline = replace(timeline, simulated=present)
    zero_us = min(one.start_ns for one in measured) / 1000
    return Run(
        values=[None] * world_size,
        timeline=timeline,
        traffic=traffic,
        stdout=[""] * world_size,
        backend="nccl" if on_gpu else "gloo",
        cluster=next(iter(traced.values())).machine,
        wall_s=timeline.makespan_s,
        notes=tuple(notes),
        memory=read_snapshots(snapshots, zero_us, present, world_size) if snapshots else Memory(),
    )


def _by_rank(traced: Sequence[TracedRank], paths: Sequence[str | Path]) -> dict[int, TracedRank]:
    """The traces by rank: by their own numbers, or in the order given if none has one."""
    sizes, steps = {one.world_size for one in traced}, {one.steps for one in traced}
    if len(sizes) > 1:
        rule = "traces must be of one job"
        raise ValueError(f"{rule}: got world sizes {sorted(map(str, sizes))}; give one file per rank")
    if len(steps) > 1:
        rule = "traces must cover the same steps"
        raise ValueError(f"{rule}: got {sorted(map(list, steps))}; give all ranks the same schedule")
    found = {number if one.rank is None else one.rank: one for number, one in enumerate(traced)}
    if len(found) < len(traced):
        raise ValueError(f"traces must be of different ranks: got {len(traced)} of {ranks_in_words(sorted(found))}")
    return dict(sorted(found.items()))


def _add_payload(call: Call, traced: TracedRank) -> None:
    """The bytes of a call of gloo, from its own event of the work."""
    size_bytes = traced.payloads.get(call.end_ns, 0.0)
    if call.size_bytes or not size_bytes:
        return
    if call.name in ("all_gather", "all_gather_into_tensor"):
        size_bytes *= len(call.members)
    if call.name in ("all_reduce", "all_gather", "all_gather_into_tensor", "send", "recv"):
        call.size_bytes = size_bytes
        call.sent_bytes = sent_of(call.name, size_bytes, len(call.members), 0)


def _check_order(measured: Sequence[Measurement]) -> None:
    """Raise ValueError if the n-th calls of a group differ between ranks."""
    seen: dict[tuple[str, int], tuple[int, str]] = {}
    for rank, one in enumerate(measured):
        for call in one.calls:
            if not call.is_point_to_point:
                first, name = seen.setdefault((call.group_id, call.sequence), (rank, call.name))
                if name != call.name:
                    raise ValueError(
                        f"traces must cover the same calls: got {name} on rank {first} and {call.name} on rank {rank} "
                        f"as call {call.sequence} of group {call.group}; give all ranks the same schedule"
                    )
