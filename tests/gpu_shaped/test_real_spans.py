"""Which kernel is whose: spans of a rank on a GPU, from recorded event streams as kineto gives them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib import Run, Span, Timeline, Traffic, launch
from lablib.real.gpu.batches import BATCH_MARK
from lablib.real.gpu.kernels import UNKNOWN, count_kernels
from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import read_events
from lablib.real.measurement.spans import spans_of
from lablib.record.spent import parts_of
from tests.gpu_shaped.kineto import BACKWARD, COMM_STREAM, MAIN, STREAM, Raw, Recording

REDUCE, SENDRECV = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_SendRecv"


def call(op: str, name: str, batch: int = 0, thread: int = MAIN) -> Call:
    return Call(op, name, "world", "0", (0, 1), 0, 0, 1, 0, 64.0, 64.0, thread=thread, batch=batch)


def spans(recording: Recording, calls=()):
    return spans_of(read_events(recording), list(calls), MAIN, on_gpu=True)


def all_reduce(recording: Recording, takes: int | None, delay: int = 0) -> Raw | None:
    """As ProcessGroupNCCL does it; without a kernel where `takes` is None, as in a group of one rank."""
    with recording.operation("c10d::allreduce_"), recording.operation("record_param_comms"):
        return None if takes is None else recording.launch(REDUCE, takes, COMM_STREAM, delay, "cudaLaunchKernelExC")


def batch(recording: Recording, number: int, sends: int, takes: int, delay: int = 0) -> Raw:
    for _ in range(sends):
        with recording.operation("c10d::send"), recording.operation("record_param_comms"):
            pass
    with recording.operation(f"{BATCH_MARK}{number}"):
        return recording.launch(SENDRECV, takes, COMM_STREAM, delay, "cuLaunchKernelEx")


def ran(one: Call) -> tuple[int, int]:
    return one.start_ns, one.end_ns


def times(kernel: Raw) -> tuple[int, int]:
    return kernel.start, kernel.end


# ---- communication ----


def test_what_a_collective_copies_is_compute_and_its_time_that_of_nccls_kernel():
    recording = Recording()
    with recording.operation("c10d::allgather_"), recording.operation("record_param_comms"):
        gathered = recording.launch("ncclDevKernel_AllGather_RING_LL", 9_000, COMM_STREAM)
        with recording.operation("aten::copy_"):
            copied = recording.launch("Memcpy DtoD (Device -> Device)", 4_000, COMM_STREAM, 50_000, "cudaMemcpyAsync")
    one = call("allgather_", "all_gather")
    drawn = spans(recording, [one])
    assert ran(one) == times(gathered)
    assert [(s.start_ns, s.end_ns) for s in drawn if s.stream == "compute"] == [times(copied)]


def test_a_kernel_of_nccl_that_no_call_explains_is_drawn_as_unknown_and_given_to_nobody():
    recording = Recording()
    with recording.operation("c10d::send"), recording.operation("record_param_comms"):
        pass
    recording.launch(SENDRECV, 1_000, COMM_STREAM)  # by a thread of NCCL's own, say
    one = call("send", "send")
    drawn = spans(recording, [one])
    assert one.end_ns == 0 and [s.stream for s in drawn] == [UNKNOWN]
    assert count_kernels(read_events(recording), True, drawn).strays == 1


# ---- compute ----


def test_kernels_that_the_host_pulled_apart_are_spans_of_their_own_with_their_share_of_flops():
    recording = Recording()
    with recording.operation("aten::mm", flops=900):
        first = recording.launch("gemm", 2_000)
        recording.now += 50_000
        last = recording.launch("split_k_reduce", 1_000)
    with recording.operation("aten::add"):
        close = [recording.launch("add", 1_000), recording.launch("add", 1_000, delay=800)]
    product, reduction, both = spans(recording)
    assert [(s.start_ns, s.end_ns) for s in (product, reduction)] == [times(first), times(last)]
    assert (product.flops, reduction.flops) == (pytest.approx(600), pytest.approx(300))
    assert (both.start_ns, both.end_ns) == (close[0].start, close[1].end)


def test_without_one_recorded_kernel_there_are_no_compute_spans():
    recording = Recording()
    with recording.operation("aten::mm"):
        recording.launch("gemm", 1_000, is_lost=True)
    assert spans(recording) == []


# ---- copies ----

SIDE = 13
HTOD, DTOH = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"


def offload():
    """A product, its result to the host on a side stream and back on another, and a copy on the default stream."""
    x = torch.ones(64, 64, device="cuda")
    y = x @ x
    kept = torch.empty(64, 64, device="cpu")
    out, back = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(out):
        kept.copy_(y, non_blocking=True)
    with torch.cuda.stream(back):
        y.copy_(kept, non_blocking=True)
    return kept.to("cuda")


def test_copies_to_the_host_are_in_the_lanes_of_the_simulator():
    recording = Recording()
    with recording.operation("aten::ones"):
        recording.launch("fill", 1_000)
    with recording.operation("aten::mm"):
        recording.launch("gemm", 9_000)
    for copy, stream in ((DTOH, SIDE), (HTOD, SIDE + 1), (HTOD, STREAM)):
        with recording.operation("aten::copy_"):
            launched = recording.launch(copy, 5_000, stream, call="cudaMemcpyAsync")
        launched.metadata_json = lambda: '"stream": 13, "bytes": 16384, "memory bandwidth (GB/s)": 3.2'  # type: ignore
    drawn = spans(recording)
    simulated = launch(offload, ranks=1, device="cuda", cluster="dgx-h100").timeline
    lanes = {
        side: sorted((s.stream, s.name, s.size_bytes) for s in some if s.stream.startswith("comm:"))
        for side, some in (("simulated", simulated), ("measured", drawn))
    }
    assert len(lanes["simulated"]) == 2 and lanes["measured"] == lanes["simulated"]
    assert [s.stream for s in drawn if not s.stream.startswith("comm:")] == ["compute"] * 3
    assert sum(s.is_compute for s in simulated) == 3


@given(st.lists(st.sampled_from([STREAM, SIDE, SIDE + 1]), min_size=1), st.booleans())
def test_a_kernel_or_a_copy_within_the_gpu_is_compute_on_any_stream(streams, is_copy):
    recording = Recording()
    for stream in streams:
        with recording.operation("aten::copy_"):
            recording.launch("Memcpy DtoD (Device -> Device)" if is_copy else "copy_kernel", 1_000, stream)
    assert {s.stream for s in spans_of(read_events(recording), [], MAIN, True, STREAM)} == {"compute"}


def test_the_streams_of_copies_have_one_row_for_each_direction_whatever_their_size():
    both = [Span(0, "comm:host:send", "copy device to host", "", 0.0, 1.0, 0.0, size) for size in (0.0, 4096.0)]
    (row,) = (part for part in parts_of(run_of(both)) if part.kind == "communication")
    assert (row.name, row.group, row.size_bytes) == ("copy device to host", "host:send", 0.0)


def run_of(some):
    return Run([None], Timeline.of(some, 1), Traffic(()), [""], "nccl", "a GPU")


# ---- phases ----


def test_a_triton_kernel_of_a_backward_is_backward_and_one_inside_a_named_region_has_its_launchs_phase():
    recording = Recording()
    with (
        recording.operation("autograd::engine::evaluate_function: CompiledFunctionBackward"),
        recording.operation("CompiledFunctionBackward", scope=1),
    ):
        recording.launch("triton_red", 1_000)
    with recording.operation("evaluate", scope=7), recording.operation("triton_region"):  # no operation: no "::"
        recording.launch("triton_mul", 1_000)
    assert {s.name: s.phase for s in spans(recording)} == {"triton_red": "backward", "triton_mul": "evaluate"}


def test_a_label_of_a_hook_counts_on_backwards_own_thread_and_elsewhere_the_main_threads():
    recording = Recording()
    with recording.operation("step", scope=7), recording.on_thread(BACKWARD):
        with recording.operation("autograd::engine::evaluate_function: MmBackward0"):
            with recording.operation("aten::mm"):
                recording.launch("gemm", 1_000)
            with recording.operation("compress", scope=7), recording.operation("aten::sign"):
                recording.launch("sign", 1_000)
            all_reduce(recording, 5_000)
    with recording.on_thread(BACKWARD), recording.operation("autograd::engine::evaluate_function: AddBackward0"):
        with recording.operation("aten::add"):
            recording.launch("add", 1_000)
    one = call("allreduce_", "all_reduce", thread=BACKWARD)
    recorded = [s.at(0, 0) for s in spans(recording, [one])]
    expected = {"aten.mm": "step", "aten.sign": "compress", "all_reduce": "step", "aten.add": "backward"}
    assert {s.name: s.phase for s in recorded} == expected
    assert {s.name: s.outer_phases for s in recorded if s.outer_phases} == {"aten.sign": ("step",)}


def test_annotations_of_the_gpu_are_neither_kernels_nor_labels_of_a_thread():
    recording = Recording()
    with recording.operation("aten::mm"):
        kernel = recording.launch("gemm", 1_000)
    annotation = Raw("forward", 0, kernel.end, MAIN, 1, 1, 7, device=kernel.device, annotation=True)
    recording.raws.append(annotation)  # its stream has the number of the main thread
    assert [(s.name, s.phase) for s in spans(recording)] == [("aten.mm", "")]


# ---- any program ----

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["operation", "triton", "all_reduce", "alone", "batch", "hook"]),
        st.integers(1, 100_000),  # ns on the GPU
        st.integers(0, 50_000),  # ns of waiting for other ranks
        st.integers(1, 3),  # kernels, or calls of a batch
        st.sampled_from(["", "forward", "update"]),
    ),
    max_size=30,
)


@given(ACTIONS)
def test_every_kernel_is_drawn_once_where_and_when_it_ran_under_the_phase_of_its_launch(actions):
    recording, calls, truth = Recording(), [], []
    for number, (kind, takes, delay, count, phase) in enumerate(actions, 1):
        if phase:
            label = recording.operation(phase, scope=7)
            label.__enter__()
        if kind in ("operation", "hook"):
            thread = BACKWARD if kind == "hook" else MAIN
            with recording.on_thread(thread), recording.operation("aten::mm"):
                for _ in range(count):
                    truth.append(("compute", phase, *times(recording.launch("gemm", takes))))
                    recording.now += 2_000_000  # each kernel is a span of its own
        elif kind == "triton":
            truth.append(("compute", phase, *times(recording.launch("triton_mul", takes))))
        elif kind == "batch":
            calls += [call("send", "send", number) for _ in range(count)]
            kernel = batch(recording, number, count, takes, delay)
            truth += [("comm:world:send", phase, *times(kernel))] * count
        else:
            calls.append(call("allreduce_", "all_reduce"))
            kernel = all_reduce(recording, takes if kind == "all_reduce" else None, delay)
            truth += [("comm:world", phase, *times(kernel))] if kernel else []
        if phase:
            label.__exit__(None, None, None)
    drawn = spans(recording, calls)
    assert sorted((s.stream, s.phase, s.start_ns, s.end_ns) for s in drawn) == sorted(truth)
    counted = count_kernels(read_events(recording), True, drawn)
    assert (counted.lost, counted.strays) == (0, 0)
    assert (
        counted.launches
        == counted.kernels
        == sum(not raw.label.startswith("cu") and raw.thread < MAIN for raw in recording.raws)
    )
