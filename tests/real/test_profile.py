"""Runs from traces of torch.profiler: of this torch on the CPU, and made by hand after Kineto's format for GPUs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from lablib import Reconciliation, Run, launch
from lablib.real.measurement.events import read_events
from lablib.real.measurement.spans import spans_of
from lablib.record.timeline import COMPUTE
from tests.fuzz.anything import change_one_value


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    with record_function("forward"):
        loss = model(x).square().mean()
    loss.backward()
    if dist.is_initialized():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()


def made() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    return model, torch.optim.SGD(model.parameters(), 0.1), torch.randn(32, 64)


def record(folder: str, num_steps: int = 2, shapes: bool = True) -> None:
    """The user's job: it knows nothing of lablib."""
    parts, rank = made(), dist.get_rank() if dist.is_initialized() else 0
    when = schedule(wait=0, warmup=1, active=num_steps)
    write = lambda profiler: profiler.export_chrome_trace(f"{folder}/rank{rank}.json")  # noqa: E731
    with profile(
        activities=[ProfilerActivity.CPU], schedule=when, record_shapes=shapes, on_trace_ready=write
    ) as profiler:
        for _ in range(num_steps + 1):
            step(*parts)
            profiler.step()


@pytest.fixture(scope="module")
def gloo(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    launch(record, str(folder), ranks=2, backend="gloo", trace=False)
    return sorted(folder.glob("*.json"))


# ---- this torch ----


def test_a_trace_has_the_spans_that_the_profiler_has_in_memory(tmp_path):
    """Two readers of one session: of its events in memory, and of the file that torch writes."""
    parts = made()
    step(*parts)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step(*parts)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    in_memory = profiler.profiler
    assert in_memory is not None
    events = read_events(in_memory.kineto_results)
    main = next(event.thread for event in events if event.is_label)
    expected = sorted(spans_of(events, [], main), key=lambda span: span.start_ns)
    run = Run.from_profile(tmp_path / "trace.json")
    spans = list(run.timeline)
    assert len(spans) > 10 and [s.name for s in spans] == [s.name for s in expected]
    first_ns = expected[0].start_ns
    for span, other in zip(spans, expected, strict=True):  # a trace has nanoseconds, and floats of 64 bits
        assert span.start_s - spans[0].start_s == pytest.approx((other.start_ns - first_ns) / 1e9, abs=3e-9)
        assert span.duration_s == pytest.approx((other.end_ns - other.start_ns) / 1e9, abs=3e-9)
        assert other.phase in ("", span.phase)
    assert {"forward", "backward", "optimizer"} <= {span.phase for span in spans}
    assert (run.ranks, run.backend, len(run.traffic)) == (1, "gloo", 0)


def test_two_gloo_ranks_have_their_communications(gloo):
    run = Run.from_profile(list(reversed(gloo)))  # in any order
    assert (run.ranks, run.backend) == (2, "gloo")
    assert run.notes == ("Recorded by torch.profiler: 2 steps (ProfilerStep#1 to ProfilerStep#2)",)
    sizes = [(t.name, t.group, t.ranks, t.tensor_bytes, t.sent_bytes) for t in run.traffic.transfers]
    both = [4 * 64 * 64, 4 * 64]
    assert sizes == [("all_reduce", "world", (0, 1), s, (s, s)) for s in both * 2]
    for rank in (0, 1):
        work = run.timeline.select(rank, stream="compute")
        assert sum(span.flops for span in work) == 2 * 2 * (2 * 32 * 64 * 64)  # forward and weight gradient, 2 steps
        assert len(run.timeline.select(rank, stream="comm")) == 4
        states = run.timeline.states(rank)
        total_s = sum(end - start for some in states.values() for start, end in some)
        assert total_s == pytest.approx(run.timeline.makespan_s)
    assert run.summary(steps=2).step_time_s == pytest.approx(run.timeline.makespan_s / 2)


def test_a_profiled_job_is_reconciled_with_a_simulated_one(gloo):
    def program() -> None:
        parts = made()
        for _ in range(2):
            step(*parts)

    rows = Reconciliation.of(launch(program, ranks=2), [Run.from_profile(gloo)]).table()
    calls = rows[rows["kind"] == "communication"]
    assert list(calls["predicted_calls"]) == list(calls["measured_calls"]) and len(calls) == 2
    phases = rows[rows["kind"] == "compute"].set_index("name")
    assert (phases.loc[["forward", "backward", "optimizer"], "measured_s"] > 0).all()


def test_a_compressed_trace_and_a_part_of_the_ranks_are_read(gloo, tmp_path):
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(gloo[1].read_bytes()))
    whole, part = Run.from_profile(gloo), Run.from_profile(tmp_path / "rank1.json.gz")
    assert part.ranks == 2 and list(part.timeline.ranks) == [1]
    assert [s.name for s in part.timeline.select(1, "compute")] == [s.name for s in whole.timeline.select(1, "compute")]
    assert "Traces of ranks 1 of 2; the others have no records" in part.notes
    assert part.summary().ranks == (1,)


def test_a_run_of_a_profile_is_saved_and_drawn(gloo, tmp_path):
    run = Run.from_profile(gloo)
    again = Run.load(run.save(tmp_path / "run.json"))
    assert again.timeline.spans == run.timeline.spans and again.traffic.transfers == run.traffic.transfers
    assert len(run.timeline.figure().data)  # pyright: ignore[reportArgumentType]


# ---- a GPU, by hand ----


def host(name: str, start: float, end: float, number: int = 0, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    args |= {"External id": number} if number else {}
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": start, "dur": end - start, "args": args}


def on_gpu(name: str, start: float, end: float, number: int, stream: int = 7, cat: str = "kernel", **args: Any) -> list:
    """A call of CUDA and the work that it started."""
    ids = {"External id": number, "correlation": 100 + number}
    runtime: dict[str, Any] = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9}
    runtime |= {"ts": args.pop("launch"), "dur": 1}
    work = {"cat": cat, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": end - start}
    return [
        {"ph": "X", **runtime, "args": ids},
        {"ph": "X", **work, "args": ids | {"device": 0, "stream": stream} | args},
    ]


GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
    {"pg_name": "3", "pg_desc": "dp", "ranks": [0, 2]},
]


def gpu_trace(rank: int, late_us: float = 0.0) -> dict[str, Any]:
    """Forward, backward with an all-reduce of 1,024 bfloat16 in group "dp" behind it, a copy on a side stream."""
    comms = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2}
    comms |= {"dtype": "BFloat16", "Process Group Name": "3", "Process Group Description": "dp", "Rank": rank // 2}
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    product: dict[str, Any] = {"Input Dims": [[16, 32], [32, 8]]}
    events = [
        {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 0, "args": {"name": "python"}},
        host("ProfilerStep#3", 0, 400, cat="user_annotation"),
        host("forward", 0, 50, cat="user_annotation"),
        host("aten::mm", 10, 20, 1, **product),
        *on_gpu("ampere_bf16_gemm", 100, 150, 1, launch=12),
        host("autograd::engine::evaluate_function: MmBackward0", 60, 80, 2),
        host("aten::mm", 62, 70, 3, **product),
        *on_gpu("ampere_bf16_gemm", 150, 250, 3, launch=64),
        host("c10d::allreduce_", 82 + late_us, 90 + late_us, 4),
        host("record_param_comms", 83 + late_us, 89 + late_us, 5, **comms),
        *on_gpu(nccl, 200 + late_us, 300, 5, stream=20, launch=84 + late_us, **comms),
        *on_gpu("Memcpy HtoD (Pinned -> Device)", 210, 220, 6, 13, "gpu_memcpy", launch=92 + late_us, bytes=4096),
        host("Optimizer.step#SGD.step", 100 + late_us, 120 + late_us, cat="user_annotation"),
        host("aten::_foreach_add_", 101 + late_us, 110 + late_us, 7),
        *on_gpu("multi_tensor_apply_kernel", 300, 320, 7, launch=103 + late_us),
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": GROUPS},
        "host_name": "node-7",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }


def written(folder: Path, *traces: Any) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(traces))]
    for path, trace in zip(paths, traces, strict=True):
        path.write_text(json.dumps(trace))
    return paths


def test_kernels_have_the_phase_of_their_launch_and_their_own_times(tmp_path):
    run = Run.from_profile(written(tmp_path, gpu_trace(0)))
    assert (run.backend, run.cluster) == ("nccl", "node-7 (NVIDIA H100 80GB HBM3)")
    spans = [(s.stream, s.name, s.phase, round(1e6 * s.start_s), round(1e6 * s.end_s), s.flops) for s in run.timeline]
    assert spans == [
        (COMPUTE, "aten.mm", "forward", 100, 150, 2 * 16 * 32 * 8),
        (COMPUTE, "aten.mm", "backward", 150, 250, 2 * 16 * 32 * 8),
        (COMPUTE, "aten._foreach_add_", "optimizer", 300, 320, 0),
        ("comm:dp", "all_reduce", "compute", 200, 300, 0),
        ("comm:host:recv", "copy host to device", "compute", 210, 220, 0),
    ]
    assert run.timeline.exposed_s(0) == pytest.approx(50e-6)  # the all-reduce after backward
    assert run.timeline.select(0, "comm:host:recv")[0].size_bytes == 4096


def test_calls_of_nccl_have_group_bytes_and_the_wait_for_the_last_rank(tmp_path):
    run = Run.from_profile(written(tmp_path, gpu_trace(2, late_us=40), gpu_trace(0)))
    (transfer,) = run.traffic.transfers
    assert (transfer.group, transfer.name, transfer.ranks) == ("dp", "all_reduce", (0, 2))
    assert (transfer.tensor_bytes, transfer.sent_bytes) == (2048, (2048, 2048))
    assert [round(1e6 * s) for s in transfer.issued_s] == [200, 240]
    waits = [(s.rank, round(1e6 * s.start_s), round(1e6 * s.end_s)) for s in run.timeline if s.is_waiting]
    assert waits == [(0, 200, 240)]
    assert list(run.timeline.ranks) == [0, 2] and run.ranks == 4


def test_messages_of_nccl_have_their_peers(tmp_path):
    def trace(rank: int) -> dict[str, Any]:
        op, peer = ("send", "Dst Rank") if rank == 0 else ("recv_", "Src Rank")
        comms: dict[str, Any] = {"Collective name": op.strip("_"), "dtype": "Float", "Process Group Name": "0"}
        comms |= {"In msg nelems": 256, "Out msg nelems": 256, "Group size": 4, peer: 1 - rank}
        kernel = on_gpu("ncclDevKernel_SendRecv", 50, 60, 2, stream=22, launch=13)
        events = [host(f"c10d::{op}", 10, 20, 1), host("record_param_comms", 12, 19, 2, **comms), *kernel]
        return gpu_trace(rank) | {"traceEvents": events}

    run = Run.from_profile(written(tmp_path, trace(0), trace(1)))
    (transfer,) = run.traffic.transfers
    assert (transfer.name, transfer.ranks, transfer.tensor_bytes, transfer.sent_bytes) == (
        "send",
        (0, 1),
        1024,
        (1024, 0),
    )
    assert {s.stream for s in run.timeline} == {"comm:world:send", "comm:world:recv"}


@pytest.mark.parametrize(
    ("op", "numbers", "size", "sent"),
    [
        ("allgather_", (256, 512), 2048, 1024),
        ("_reduce_scatter_base_", (512, 256), 2048, 1024),
        ("alltoall_base_", (512, 512), 2048, 1024),
        ("broadcast_", (512, 512), 2048, 2048),
        ("gather_", (256, 512), 2048, 0),
        ("scatter_", (512, 256), 2048, 1024),
        ("barrier", (0, 0), 0, 0),
    ],
)
def test_bytes_of_collectives_are_those_of_the_whole_tensor(tmp_path, op, numbers, size, sent):
    """Two ranks, float32; rank 0 is the root. As Transfer.tensor_bytes says, and must_send of lablib/cost."""
    comms = {"dtype": "Float", "Process Group Name": "3", "Group size": 2, "Rank": 0}
    comms |= {"In msg nelems": numbers[0], "Out msg nelems": numbers[1]}
    events = [host(f"c10d::{op}", 10, 20, 1), host("record_param_comms", 12, 19, 2, **comms)]
    events += on_gpu("ncclDevKernel", 50, 60, 2, stream=20, launch=13)
    run = Run.from_profile(written(tmp_path, gpu_trace(0) | {"traceEvents": events}))
    (transfer,) = run.traffic.transfers
    assert (transfer.tensor_bytes, transfer.sent_bytes[0]) == (size, sent)


# ---- wrong files ----


def changed(**fields: Any) -> dict[str, Any]:
    return gpu_trace(0) | fields


def with_event(**fields: Any) -> dict[str, Any]:
    return changed(traceEvents=[host("aten::mm", 1, 2, 1) | fields])


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([[1, 2]], "must be a trace of torch.profiler, with traceEvents: got"),
        ([{"traceEvents": []}], "must have operations or kernels .*: got none in 0 events; record with"),
        ([with_event(ts="soon")], "event 0 of .* must have a name, and ts and dur in microseconds: got .*'soon'"),
        ([with_event(dur=-1)], "must have a name, and ts and dur"),
        ([with_event(ts=float("nan"))], "must have a name, and ts and dur"),
        ([with_event(name=None)], "must have a name, and ts and dur"),
        ([changed(distributedInfo={"rank": 4, "world_size": 4})], "must have a rank below its world_size: got"),
        ([changed(distributedInfo={"rank": 0, "world_size": 10**12})], "must have a rank below its world_size"),
        ([gpu_trace(0), gpu_trace(0)], "traces must be of different ranks: got 2 of 0"),
        ([gpu_trace(0), changed(distributedInfo={"rank": 1, "world_size": 2})], "traces must be of one job"),
        ([gpu_trace(0), gpu_trace(1) | {"traceEvents": [host("aten::mm", 1, 2)]}], "traces must cover the same steps"),
        ([], "traces must be one file for each rank, one or more: got none"),
    ],
)
def test_a_wrong_trace_is_one_error(tmp_path, traces, message):
    with pytest.raises(ValueError, match=message):
        Run.from_profile(written(tmp_path, *traces))


def test_ranks_that_call_differently_are_one_error(tmp_path):
    other = json.loads(json.dumps(gpu_trace(2)).replace("c10d::allreduce_", "c10d::broadcast_"))
    with pytest.raises(ValueError, match="the same calls: got all_reduce on rank 0 and broadcast on rank 2 as call 0"):
        Run.from_profile(written(tmp_path, gpu_trace(0), other))


TEXT = json.dumps(gpu_trace(0))
numbers = st.integers() | st.floats()
plain = st.none() | st.booleans() | numbers | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@given(st.integers(0, len(TEXT) - 1), st.integers(0, len(TEXT) - 1))
def test_a_truncated_or_damaged_trace_is_one_error_or_a_run(tmp_path_factory, start, length):
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_text(TEXT[:start] + TEXT[start + length % 40 + 1 :])
    try:
        assert Run.from_profile(path).ranks >= 1
    except ValueError as error:
        assert str(path) in str(error) or "traces must" in str(error)


@given(st.data())
def test_any_value_in_any_field_is_one_error_or_a_run(tmp_path_factory, data):
    trace = json.loads(TEXT)
    change_one_value(data, trace, plain)
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(trace))
    try:
        run = Run.from_profile(path)
    except ValueError as error:
        assert str(path) in str(error)
    else:
        run.summary()
        run.traffic.matrix()
