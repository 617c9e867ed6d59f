"""Calibrating GPUs: kernels and messages by their spans, launches by the host's clock; and the same on both sides."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lablib import Reconciliation, find_cluster, launch, reconcile
from lablib.calibration.calibrate import _Calibration
from lablib.calibration.cases import BenchmarkCase, predicted_s, priced_ops
from lablib.calibration.fit_device import Timing, fit_device
from lablib.calibration.fit_network import MessageTiming
from lablib.calibration.fit_network import predicted_s as message_s
from lablib.calibration.grid import device_cases
from lablib.calibration.kernel_times import case_seconds, message_seconds, run_cases, run_messages
from lablib.calibration.timing import MessageCase
from lablib.hardware import DEVICES
from lablib.hardware.link import Link
from lablib.hardware.toml_file import load_cluster, save_cluster
from lablib.operators.op import op_cost
from lablib.run import Run, Span, Timeline, Traffic

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
    kernel_overhead_s=HOST_S,
    launch_s=HOST_S - KERNEL_S,
    row_alignment_bytes=0,
)
WIRE = Link("NVLink, say", 3e-6, 200e9)
CLUSTER = find_cluster("dgx-a100").replace(
    device=KNOWN, intra=WIRE, inter=WIRE, collective_overhead_s=5e-6, uses_nvls=False
)


def kernel_s(case: BenchmarkCase) -> float:
    return predicted_s(priced_ops(case), replace(KNOWN, kernel_overhead_s=KERNEL_S, launch_s=0.0))


# ---- one machine, calibrated ----


class GPUs(_Calibration):
    """A calibration on two GPUs with known figures: each launch returns what they would show."""

    def __init__(self):
        super().__init__("nccl", 2, True, lambda done, total, what: self.steps.append((done, total)))
        self.steps, self.traces = [], []

    def _run(self, fn, *args, trace=False):
        self.traces.append((fn.__name__, trace))
        if fn.__name__ == "supported_dtypes":
            return SimpleNamespace(values=[("float32",)] * 2)
        cases, spans, calls = args[0], [], 10
        if fn.__name__ == "time_cases":  # by the clock: what the host needs, or the GPU where that is longer
            seconds = [[max(len(priced_ops(case)) * HOST_S, kernel_s(case))] * 3 for case in cases]
            return SimpleNamespace(values=[seconds] * 2)
        now_s = 0.0
        for number, case in enumerate(cases):
            for part in range(calls if fn.__name__ == "run_messages" else self.blocks):
                for rank in range(2):
                    if fn.__name__ == "run_cases":
                        end_s = now_s + calls * kernel_s(case)
                        spans.append(Span(rank, "compute", "aten.mm", f"case {number} {part}", now_s, end_s))
                    else:
                        timing = MessageTiming(case.name, case.size_bytes, 2, 1.0)
                        end_s = now_s + message_s(timing, CLUSTER)
                        label = f"message {number} {part}"
                        spans.append(Span(rank, "comm:world", case.name, label, now_s + rank * 1e-9, end_s))
                now_s = end_s + WAY_BACK_S
        return Run([[calls] * len(cases)] * 2, Timeline.of(spans, 2), Traffic(()), [""] * 2, "nccl", "two GPUs")


@pytest.fixture
def calibrated(monkeypatch):
    monkeypatch.setattr(GPUs, "_base_device", lambda self: replace(BASE, peak_flops_per_s={"float32": 1.0}))
    monkeypatch.setattr("lablib.calibration.machine.machine_text", lambda on_gpu: "two GPUs")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpus = GPUs()
    return gpus, gpus.run()


def test_kernels_are_fitted_from_spans_and_launches_from_the_hosts_clock(calibrated):
    gpus, cluster = calibrated
    device = cluster.device
    assert device.kernel_overhead_s == pytest.approx(HOST_S, rel=0.02)
    assert device.kernel_overhead_s - device.launch_s == pytest.approx(KERNEL_S, rel=0.02)
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(1.5e12, rel=0.02)
    assert device.peak_flops_per_s["float32"] == pytest.approx(15e12, rel=0.1)
    traces = set(gpus.traces)
    assert {("run_cases", True), ("run_messages", True), ("time_cases", False)} <= traces
    assert ("time_messages", False) not in traces
    assert gpus.steps[-1][0] == gpus.steps[-1][1] and [s for s, _ in gpus.steps] == sorted(s for s, _ in gpus.steps)


def test_messages_are_fitted_without_launch_and_synchronization(calibrated):
    _, cluster = calibrated
    assert cluster.intra.bandwidth_bytes_per_s == pytest.approx(200e9, rel=0.02)
    assert cluster.intra.latency_s + cluster.collective_overhead_s < WAY_BACK_S / 2


def test_a_profile_with_a_launch_is_saved_and_read_again(calibrated, tmp_path):
    _, cluster = calibrated
    save_cluster(cluster, tmp_path / "gpus.toml")
    assert load_cluster(tmp_path / "gpus.toml").device == cluster.device


def test_a_run_that_recorded_no_kernel_calibrates_nothing(monkeypatch):
    empty = Run([[3] * 6] * 2, Timeline.of((), 2), Traffic(()), [""] * 2, "nccl", "", notes=("no kernel of any GPU",))
    gpus = GPUs()
    monkeypatch.setattr(gpus, "_run", lambda fn, *args, trace: empty)
    with pytest.raises(ValueError, match="needs the times of kernels: .* of add 8 float32 .no kernel of any GPU"):
        gpus._time_kernels([BenchmarkCase("dispatch", "add", (8,))])


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
    with pytest.raises(ValueError, match="launch_s is a part of kernel_overhead_s: got 7e-06 s of 6e-06 s"):
        replace(KNOWN, launch_s=7e-6)
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
