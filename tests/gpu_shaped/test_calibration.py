"""Calibrating GPUs: kernels and messages by their spans, launches by the host's clock; and the same on both sides."""

import importlib
import sys
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import Reconciliation, find_cluster, launch, reconcile
from lablib.calibration import kernel_times
from lablib.calibration.calibrate import _Calibration, check_residuals
from lablib.calibration.cases import BenchmarkCase, precision_of, predicted_s, priced_ops
from lablib.calibration.catalogue_links import nearest_entry
from lablib.calibration.fit_device import Timing, fit_device
from lablib.calibration.fit_network import MessageTiming
from lablib.calibration.fit_network import predicted_s as message_s
from lablib.calibration.grid import device_cases
from lablib.calibration.kernel_times import case_seconds, launch_s, message_seconds, run_cases, run_messages
from lablib.calibration.timing import MessageCase
from lablib.hardware import DEVICES
from lablib.hardware.link import Link
from lablib.hardware.toml_file import load_cluster, save_cluster
from lablib.operators.op import op_cost
from lablib.run import Run, Span, Timeline, Traffic

reconcile_module = importlib.import_module("lablib.reconcile")
HOST_S, KERNEL_S = 6e-6, 2e-6  # what the host takes for a launch, and what the smallest kernel runs
WAY_BACK_S = 30e-6  # a launch, a synchronization: what a clock of the host counts besides
BASE = replace(DEVICES["A100-80GB-SXM"], cache_bytes=0.0)
KNOWN = replace(
    BASE,
    peak_flops_per_s={"float32": 15e12},
    matmul_efficiency=1.0,
    memory_efficiency=1.0,
    matmul_half_depth=0.0,
    matmul_efficiency_by_dtype={},
    memory_bandwidth_bytes_per_s=1.5e12,
    kernel_overhead_s=HOST_S + KERNEL_S,
    launch_s=HOST_S,
    row_alignment_bytes=0,
)
WIRE = Link("NVLink, say", 3e-6, 200e9)
CLUSTER = find_cluster("dgx-a100").replace(
    device=KNOWN, intra=WIRE, inter=WIRE, collective_overhead_s=5e-6, uses_nvls=False
)


KERNELS = replace(KNOWN, kernel_overhead_s=KERNEL_S, launch_s=0.0)  # as if launches took no time


def kernel_s(case: BenchmarkCase) -> float:
    with precision_of(case):
        return predicted_s(priced_ops(case), KERNELS)


# ---- one machine, calibrated ----


class GPUs(_Calibration):
    """A calibration of GPUs with known figures: each launch returns the times that they imply.

    `noise` multiplies each time of a kernel; `launches` each time of the host.
    """

    def __init__(self, ranks=2, noise=lambda case: 1.0, launches=1.0, dtypes=("float32",)):
        super().__init__("nccl", ranks, True, lambda done, total, what: self.steps.append((done, total)))
        self.steps, self.traces, self.noise, self.launches, self.dtypes = [], [], noise, launches, dtypes

    def _run(self, fn, *args, trace=False):
        self.traces.append((fn.__name__, trace))
        if fn.__name__ == "supported_dtypes":
            return SimpleNamespace(values=[self.dtypes] * self.ranks)
        cases, spans, calls = args[0], [], 10
        if fn.__name__ == "time_launches":  # by the clock: the time of the host alone
            seconds = [[self.launches * len(priced_ops(case)) * HOST_S] * 3 for case in cases]
            return SimpleNamespace(values=[seconds] * self.ranks)
        now_s = 0.0
        for number, case in enumerate(cases):
            for part in range(calls if fn.__name__ == "run_messages" else self.blocks):
                for rank in range(self.ranks):
                    if fn.__name__ == "run_cases":
                        end_s = now_s + calls * kernel_s(case) * self.noise(case)
                        spans.append(Span(rank, "compute", "aten.mm", f"case {number} {part}", now_s, end_s))
                    else:
                        timing = MessageTiming(case.name, case.size_bytes, 2, 1.0)
                        end_s = now_s + message_s(timing, CLUSTER)
                        label = f"message {number} {part}"
                        spans.append(Span(rank, "comm:world", case.name, label, now_s + rank * 1e-9, end_s))
                now_s = end_s + WAY_BACK_S
        timeline, n = Timeline.of(spans, self.ranks), self.ranks
        return Run([[calls] * len(cases)] * n, timeline, Traffic(()), [""] * n, "nccl", "GPUs")


@pytest.fixture
def machine(monkeypatch):
    base = replace(BASE, name="2 x NVIDIA A100-SXM4-80GB", peak_flops_per_s={"float32": 1.0})
    monkeypatch.setattr(GPUs, "_base_device", lambda self: base)
    monkeypatch.setattr("lablib.calibration.machine.machine_text", lambda on_gpu: base.name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def calibrated(machine):
    gpus = GPUs()
    return gpus, gpus.run()


def test_kernels_are_fitted_from_spans_and_launches_from_the_hosts_clock(calibrated):
    gpus, cluster = calibrated
    device = cluster.device
    assert device.launch_s == pytest.approx(HOST_S, rel=0.02)
    assert device.kernel_overhead_s - device.launch_s == pytest.approx(KERNEL_S, rel=0.02)
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(1.5e12, rel=0.02)
    assert device.peak_flops_per_s["float32"] == pytest.approx(15e12, rel=0.1)
    traces = set(gpus.traces)
    assert {("run_cases", True), ("run_messages", True), ("time_launches", False)} <= traces
    assert ("time_launches", True) not in traces, "the profiler would be most of a launch"
    assert not {name for name, _ in traces} & {"time_messages", "time_cases"}
    assert gpus.steps[-1][0] == gpus.steps[-1][1] and [s for s, _ in gpus.steps] == sorted(s for s, _ in gpus.steps)


def test_messages_are_fitted_without_launch_and_synchronization(calibrated):
    _, cluster = calibrated
    assert cluster.intra.bandwidth_bytes_per_s == pytest.approx(200e9, rel=0.02)
    assert cluster.intra.latency_s + cluster.collective_overhead_s < WAY_BACK_S / 2


def test_a_profile_with_a_launch_is_saved_and_read_again(calibrated, tmp_path):
    _, cluster = calibrated
    save_cluster(cluster, tmp_path / "gpus.toml")
    assert load_cluster(tmp_path / "gpus.toml").device == cluster.device


@given(st.floats(0, 100e-6), st.floats(1e-6, 50e-6), st.floats(0, 1e-3))
def test_a_launch_is_the_slope_of_a_loop_that_waits_for_nothing(call_s, per_program_s, ends_s):
    now_s, waits = [0.0], []

    def program():
        now_s[0] += call_s + per_program_s

    def clock():
        now_s[0] += ends_s  # the time of the loop at either end
        return now_s[0]

    found = launch_s(program, lambda: waits.append(now_s[0]), clock)
    assert found == pytest.approx(call_s + per_program_s, rel=1e-6, abs=1e-9)
    assert len(waits) == 4, "before each loop, and at the end"


def test_no_loop_fills_the_queue_of_launches_that_a_gpu_holds():
    """A full queue makes the host wait for the GPU, and its time is then no launch."""
    longest = max(len(priced_ops(case)) for case in device_cases(("float32",), True, True) if case.part == "program")
    assert 4 * kernel_times._FEW_CALLS * longest < 1024


def test_launches_that_take_three_times_as_long_leave_kernels_as_they_are_and_long_kernels_hide_them(machine):
    quick, slow = GPUs().run().device, GPUs(launches=3.0).run().device
    assert slow.launch_s == pytest.approx(3 * quick.launch_s)
    assert slow.queued_s == pytest.approx(quick.queued_s)

    def step_s(device, side):
        def program():
            x = torch.empty(side, side)
            for _ in range(20):
                torch.mm(x, x)

        return launch(program, ranks=1, cluster=CLUSTER.replace(device=device), fidelity="shapes").timeline.makespan_s

    assert step_s(slow, 4096) == pytest.approx(step_s(quick, 4096), rel=1e-2)
    assert step_s(slow, 8) == pytest.approx(3 * step_s(quick, 8), rel=0.05)


def test_one_gpu_is_measured_alone_and_has_the_links_of_the_catalogue(machine):
    alone = GPUs(ranks=1)
    cluster, entry = alone.run(), find_cluster("dgx-a100")
    assert "run_messages" not in {name for name, _ in alone.traces} and alone.steps[-1][0] == alone.steps[-1][1]
    assert (cluster.intra, cluster.inter, cluster.devices_per_node) == (entry.intra, entry.inter, 8)
    assert cluster.name == "this-machine" and "dgx-a100 in the catalogue" in cluster.profile["links"]
    assert cluster.device == GPUs().run().device and cluster.profile["ranks"] == "1"
    notes = reconcile_module._notes(cluster, 2, "nccl", launch(step, ranks=2, cluster=cluster))
    assert len(notes) == 1 and "links of this-machine are those of dgx-a100" in notes[0]


@pytest.mark.parametrize(
    ("gpu", "memory_bytes", "name"),
    [
        ("1 x NVIDIA H200", 150e9, "hgx-h200"),
        ("1 x NVIDIA H100 80GB HBM3", 85e9, "dgx-h100"),
        ("1 x NVIDIA A100-SXM4-40GB", 42e9, "p4d"),
        ("1 x NVIDIA A100-SXM4-80GB", 85e9, "dgx-a100"),
        ("1 x NVIDIA A100 80GB PCIe", 85e9, "a100-80gb-pcie"),
        ("1 x Tesla V100-SXM2-16GB", 17e9, "dgx-v100"),
        ("1 x NVIDIA GB200", 190e9, "gb200-nvl72"),
        ("1 x NVIDIA GeForce RTX 4090", 25e9, "rtx-4090"),
        ("1 GPU", 0.0, "pcie-a100"),
    ],
)
def test_a_gpu_finds_its_entry_of_the_catalogue(gpu, memory_bytes, name):
    assert nearest_entry(gpu, memory_bytes).name == name


def test_products_in_tfloat32_are_priced_at_their_own_peak(machine):
    """Their operators have the names of float32's: only torch's setting differs."""
    known = replace(KERNELS, peak_flops_per_s={"float32": 15e12, "tfloat32": 120e12})
    cases = device_cases(("float32", "tfloat32"), on_gpu=True, quick=True)
    timings = []
    for case in cases:
        with precision_of(case):
            host_s = len(priced_ops(case)) * HOST_S
            timings.append(Timing(case, host_s if case.part == "program" else predicted_s(priced_ops(case), known)))
    fit = fit_device(timings, BASE, of_kernels=True)
    assert fit.device.peak_flops_per_s["tfloat32"] == pytest.approx(120e12, rel=0.05)
    assert all(residual.worst < 0.2 for residual in fit.residuals), fit.residuals


# Microseconds of products [M, K, N] on one H200 (eager, CUDA events, L2 flushed before each), 2026-11-27.
H200_US = {
    "bfloat16": {
        **{(1024, 1024, 1024): 9.22, (2048, 2048, 2048): 27.42, (4096, 4096, 4096): 177.66, (8192,) * 3: 1409.6},
        # of other depths, as a calibration has them: these alone separate size from depth
        **{(8192, 2048, 8192): 364.06, (8192, 8192, 2048): 343.46, (2048, 4096, 4096): 106.4},
        **{(8192, 12288, 1536): 440.06, (8192, 1536, 12288): 472.1, (16384, 768, 3072): 137.5},
    },
    "float32": {
        (1024, 1024, 1024): 66.08,
        (2048, 2048, 2048): 346.91,
        (4096,) * 3: 2721.82,
        (8192, 2048, 8192): 5511.17,
    },
    "tfloat32": {(1024, 1024, 1024): 14.72, (2048, 2048, 2048): 49.18, (4096, 4096, 4096): 341.95, (8192,) * 3: 2712.0},
}


def test_products_that_an_h200_has_made_are_explained():
    cases = [case for case in device_cases(("float32",), on_gpu=True, quick=True) if case.part != "matmul"]
    timings = [
        Timing(case, len(priced_ops(case)) * 12e-6 if case.part == "program" else kernel_s(case)) for case in cases
    ]
    for dtype, times_us in H200_US.items():
        timings += [Timing(BenchmarkCase("matmul", "matmul", s, dtype), us * 1e-6) for s, us in times_us.items()]
    fit = fit_device(timings, BASE, of_kernels=True)
    check_residuals(fit.residuals)
    products = [residual for residual in fit.residuals if residual.part.startswith("matmul_")]
    assert len(products) == 3 and all(one.median < 0.1 and one.worst < 0.5 for one in products), products
    peaks = fit.device.peak_flops_per_s
    # A peak is for endless depth, so it is above the rate of the largest product: 780, 405 and 50 TFLOP/s.
    reached = {"bfloat16": 780e12, "tfloat32": 405e12, "float32": 50e12}
    assert all(1 <= peaks[dtype] / rate < 1.2 for dtype, rate in reached.items()), peaks


@pytest.mark.parametrize("part", ["memory", "matmul", "elementwise"])
def test_a_profile_that_does_not_explain_its_own_measurements_is_refused(machine, part):

    def noise(case):
        return 100 ** Random(str(case)).uniform(-1, 1) if case.part == part else 1.0

    with pytest.raises(ValueError, match=f"explain each part of its .* within 50%.*{part}.*: median .*again, wi"):
        GPUs(noise=noise).run()


def test_a_run_that_recorded_no_kernel_calibrates_nothing(monkeypatch):
    empty = Run([[3] * 6] * 2, Timeline.of((), 2), Traffic(()), [""] * 2, "nccl", "", notes=("no kernel of any GPU",))
    gpus, add = GPUs(), BenchmarkCase("dispatch", "add", (8,))
    monkeypatch.setattr(gpus, "_run", lambda fn, *args, trace: empty)
    with pytest.raises(ValueError, match="needs the times of kernels: .* of add 8 float32 .no kernel of any GPU"):
        list(gpus._by_spans([add], None, run_cases, (), partial(case_seconds, blocks=3)))


def test_on_a_cpu_no_launch_is_told_apart():
    cases = device_cases(("float32",), on_gpu=False, quick=True)
    on_cpu = replace(KNOWN, launch_s=0.0)
    timings = [Timing(case, predicted_s(priced_ops(case), on_cpu)) for case in cases]
    assert fit_device(timings, BASE).device.launch_s == 0.0


# ---- labels, on processes that are there ----


def test_labelled_blocks_and_calls_are_found_in_the_timeline_of_a_run():
    def program():
        cases = [
            BenchmarkCase("dispatch", "add", (8,)),
            BenchmarkCase("program", "backward", (4, 4)),
            BenchmarkCase("memory", "copy", (2**20,)),
        ]
        messages = [MessageCase(name, 4096) for name in ("all_reduce", "send", "exchange", "barrier")]
        return run_cases(cases, 1e-3, 3), run_messages(messages, 1e-3, 6)

    run = launch(program, ranks=2, backend="gloo")
    assert run.values[0] == run.values[1]
    cases, messages = run.values[0]
    small, backward, large = (case_seconds(run.timeline, n, calls, 3) for n, calls in enumerate(cases))
    assert [len(each) for each in (small, backward, large)] == [2 * 3] * 3, "one of each rank and block"
    assert max(small) < min(large)
    for number, calls in enumerate(messages):
        seconds = message_seconds(run.timeline, number, calls)
        assert 5 <= calls <= 6 and 1 <= len(seconds) <= calls and all(0 < each < 5 for each in seconds)


def test_a_message_takes_from_the_last_start_to_the_last_end_of_all_ranks():
    spans = [
        Span(0, "comm:world", "all_reduce", "message 1 0", 1.0, 4.0),
        Span(1, "comm:world", "all_reduce", "message 1 0", 3.0, 4.5),
        Span(0, "wait:world", "all_reduce", "message 1 0", 0.0, 1.0),
        Span(0, "comm:world", "barrier", "setup", 0.0, 9.0),
        Span(0, "comm:world", "all_reduce", "message 0 0", 0.0, 9.0),
    ]
    assert message_seconds(Timeline.of(spans, 2), 1, calls=3) == [1.5]


# ---- the simulator's side ----


def step():
    x = torch.ones(64, 64)
    y = x @ x
    dist.all_reduce(y)
    return (y + 1).sum()


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_a_simulated_span_begins_when_it_is_launched_and_the_one_before_has_ended(fidelity):
    def program():
        x = torch.ones(64, 64)
        torch.add(x @ x, 1).sum()

    spans = launch(program, ranks=1, cluster=CLUSTER, fidelity=fidelity).timeline.select(0)
    ends_s = [0.0, *(span.end_s for span in spans)]
    assert len(spans) == 4
    for number, (span, end_s) in enumerate(zip(spans, ends_s, strict=False), 1):
        assert span.start_s == pytest.approx(max(end_s, number * KNOWN.launch_s))


def test_a_list_operator_has_a_launch_for_each_kernel_it_starts():
    tensors = [torch.ones(3) for _ in range(1000)]
    arguments = (torch.ops.aten._foreach_add_.Scalar, (tensors, 1.0), {}, None)
    cost = op_cost(*arguments, KNOWN)
    kernels = round(cost.launch_s / KNOWN.launch_s)
    assert kernels > 1 and op_cost(*arguments, replace(KNOWN, launch_s=0.0)).time_s == cost.time_s


def test_a_device_whose_launch_is_longer_than_its_smallest_operation_is_refused():
    with pytest.raises(ValueError, match="launch_s is a part of kernel_overhead_s: got 9e-06 s of 8e-06 s"):
        replace(KNOWN, launch_s=9e-6)
    with pytest.raises(ValueError, match="launch_s"):
        replace(KNOWN, launch_s=-1e-6)


# ---- reconcile ----


def reconciled(monkeypatch, cluster) -> Reconciliation:
    """Held against a GPU that is as the cluster says, whose spans are kernels: its launches are gaps."""
    truth = launch(step, ranks=2, cluster=CLUSTER)
    found = []

    def launch_either(fn, *args, backend="sim", **options):
        found.append(backend)
        return launch(fn, *args, **options) if backend == "sim" else replace(truth, backend="nccl", device=None)

    monkeypatch.setattr(sys.modules["lablib.reconcile"], "launch", launch_either)
    return reconcile(step, ranks=2, backend="nccl", cluster=cluster, repeats=1)


def test_kernels_are_held_against_kernels_and_launches_are_idle_time_on_both_sides(monkeypatch):
    rows = reconciled(monkeypatch, CLUSTER).table().fillna(0.0).to_dict("records")
    assert all(abs(row["error_pct"]) < 1e-6 for row in rows)
    (idle,) = (row for row in rows if row["kind"] == "idle")
    assert idle["predicted_s"] > 0, "between the kernels of a rank"


def test_a_catalogues_overhead_is_taken_for_launch_and_the_comparison_says_so(monkeypatch):
    catalogue = CLUSTER.replace(device=replace(KNOWN, launch_s=0.0))
    found = reconciled(monkeypatch, catalogue)
    assert any("does not tell launch from kernel" in note for note in found.notes)
    (forward,) = (row for row in found.table().to_dict("records") if row["kind"] == "compute")
    assert forward["predicted_s"] < forward["measured_s"]
    assert not any("launch from kernel" in note for note in reconciled(monkeypatch, CLUSTER).notes)
