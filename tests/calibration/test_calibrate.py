"""A calibration from end to end, on real processes; what it refuses."""

import re
from collections import deque
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib import calibrate, launch
from lablib.calibration.calibrate import _call_s
from lablib.calibration.cases import BenchmarkCase, precision_of, predicted_s, priced_ops, program_of
from lablib.calibration.grid import COLLECTIVES, device_cases, message_sizes, program_cases
from lablib.calibration.machine import num_cores
from lablib.calibration.timing import MessageCase, supported_dtypes, time_cases, time_messages
from lablib.hardware import DEVICES

PROFILE = ("date", "torch", "python", "system", "machine", "backend", "ranks", "kernel_overhead_s_without_profiler")


def check_calibration(backend: str, measured: int = 2) -> None:
    seen: list[tuple[int, int, str]] = []
    cluster = calibrate(backend, ranks=2, quick=True, progress=lambda *step: seen.append(step))
    assert cluster.name == "this-machine" and cluster.device.kernel_overhead_s > 0
    assert cluster.intra.bandwidth_bytes_per_s > 1e6 and (cluster.intra == cluster.inter) == (measured > 1)
    assert set(PROFILE) <= set(cluster.profile) and cluster.profile["ranks"] == str(measured)
    assert cluster.profile["torch"] == torch.__version__ and cluster.profile["backend"] == backend
    assert measured == 1 or {f"error_of_{name}" for name in COLLECTIVES} <= set(cluster.profile)
    assert cluster.shared_cores == (num_cores() if backend == "gloo" else 0)
    assert ("gelu tanh" in cluster.device.element_s) == (backend == "gloo")
    done = [step for step, _, _ in seen]
    assert done == sorted(done) and seen[-1][0] == seen[-1][1]

    def program():
        x = torch.ones(1000)
        dist.all_reduce(x)
        return x[0].item()

    run = launch(program, ranks=2, cluster=cluster)
    assert run.values == [2.0, 2.0] and run.timeline.makespan_s > cluster.device.kernel_overhead_s


@pytest.mark.slow
def test_a_quick_calibration_gives_a_cluster_that_predicts():
    check_calibration("gloo")


@pytest.mark.gpu
def test_a_quick_calibration_of_gpus_gives_a_cluster_that_predicts():
    check_calibration("nccl", measured=min(2, torch.cuda.device_count()))


def test_what_cannot_be_measured_is_refused_at_once():
    with pytest.raises(ValueError, match="unknown backend to calibrate 'sim'.*Valid: gloo, nccl"):
        calibrate("sim")
    for ranks in (1, 0):
        with pytest.raises(ValueError, match=f"2 or more ranks, which talk to each other: got {ranks!r}"):
            calibrate(ranks=ranks)
    for ranks in (True, 2.0):
        with pytest.raises(ValueError, match=f"ranks must be a whole number: got {ranks!r}"):
            calibrate(ranks=ranks)  # type: ignore[arg-type]


def test_a_call_takes_from_its_last_start_to_its_last_end():
    assert _call_s([(100, 900), (400, 1000), (200, 950)]) == pytest.approx((1000 - 400) / 1e9)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("quick", [False, True])
def test_every_case_of_the_grid_is_priced(on_gpu, quick):
    for case in device_cases(("float32", "float64", "tfloat32"), on_gpu, quick):
        assert predicted_s(priced_ops(case), DEVICES["A100-80GB-SXM"]) > 0, case


@pytest.mark.parametrize("quick", [False, True])
def test_the_grid_reaches_from_latency_to_bandwidth(quick):
    sizes = message_sizes(quick, on_gpu=False)
    assert min(sizes) <= 1000 and max(sizes) >= 2**23 and len(sizes) >= 3
    elements = [case.shape[0] for case in device_cases(("float32",), False, quick) if case.part == "memory"]
    assert min(elements) * 4 <= 2**15 and max(elements) * 4 >= 2**23


def test_prediction_and_measurement_are_of_one_program():
    for case in program_cases():
        program = program_of(case, torch.device("cpu"))
        with torch.profiler.profile() as profiler:
            program()
        names = {re.sub(r"^aten::", "", event.name) for event in profiler.events() or ()}
        priced = {op._schema.name.split("::")[-1] for op, *_ in priced_ops(case)}
        assert priced <= names, case


def test_operands_take_turns_on_a_cpu_and_results_stay():
    program: Any = program_of(BenchmarkCase("memory", "add", (2**20,)), torch.device("cpu"))
    (kept,) = (cell.cell_contents for cell in program.__closure__ if isinstance(cell.cell_contents, deque))
    assert len(kept) == 32_000_000 // (2 * 2**22)
    before = list(kept)
    program()
    assert [x.data_ptr() for x in kept][:-1] == [x.data_ptr() for x in before][1:]
    assert len({x.data_ptr() for x in kept}) == len(kept)


def test_tfloat32_is_the_precision_of_its_own_cases_only():
    before = torch.get_float32_matmul_precision()
    with precision_of(BenchmarkCase("matmul", "matmul", (8, 8, 8), "tfloat32")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_every_rank_times_every_case_and_message():
    def program():
        cases = [BenchmarkCase("memory", "copy", (64,)), BenchmarkCase("matmul", "matmul", (2, 4, 8, 4))]
        messages = [MessageCase(name, 64) for name in (*COLLECTIVES, "barrier", "send", "exchange")]
        return time_cases(cases, 0.02, 3), time_messages(messages, 1e-3, 6), supported_dtypes()

    run = launch(program, ranks=3, backend="gloo", trace=False)
    for blocks, stamps, dtypes in run.values:
        assert [len(each) for each in blocks] == [3, 3] and all(s > 0 for each in blocks for s in each)
        assert all(5 <= len(calls) <= 6 and all(start <= end for start, end in calls) for calls in stamps)
        assert "float32" in dtypes
    counts = [[len(calls) for calls in stamps] for _, stamps, _ in run.values]
    assert counts[0] == counts[1] == counts[2]  # or the ranks would wait for each other for ever


def test_ranks_without_a_core_wait_while_the_others_are_timed():
    def program():
        return time_cases([BenchmarkCase("memory", "copy", (64,)), BenchmarkCase("memory", "copy", (128,))], 1e-4, 3, 2)

    values = launch(program, ranks=3, backend="gloo", trace=False).values
    assert [[len(blocks) for blocks in one] for one in values] == [[3, 3], [3, 3], [0, 0]]
