"""Measure this machine into a `Cluster`, for predictions of real runs on it.

    measure    operations and communication in the worker processes that real launches use, all ranks at once
    fit        the figures of the cost model (fit_device.py, fit_network.py)
    profile    date, machine, versions, ranks, residuals of each part

Everything is measured under the conditions of a program: with the threads of a worker, with every rank busy at the same
time, and, on CPUs, for the overhead of an operation and of a call, under the profiler that records a launch's timeline
(the profile also has the overhead without it). But at most as many ranks compute at once as there are cores, so that
the figures apply to a rank with a core. With more ranks than cores, times depend on the ranks that compute at once: the
simulator lets ranks take turns (`Cluster.shared_cores`, lablib/engine/cores.py). Communication is timed among all
ranks, so a profile states their number.
On GPUs kernels and messages have the times of their spans, and a launch is host time, by the host's clock and without
the profiler (kernel_times.py). Each measured rank has its own GPU. One GPU measures the device alone, and the links
come from a cluster of the catalogue (catalogue_links.py).

A profile of GPUs that does not explain its own measurements is refused (`check_residuals`).

Cost: under three minutes for 4 ranks on 2 cores; `quick` under half a minute, with fewer sizes.
Simplified: one node. The link between nodes is assumed to equal the link inside (`inter` says so).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from lablib.calibration.cases import BenchmarkCase
from lablib.calibration.catalogue_links import with_catalogue_links
from lablib.calibration.fit_device import Timing, fit_device, program_overhead_s
from lablib.calibration.fit_network import MESSAGES, MessageTiming, fit_network
from lablib.calibration.grid import COLLECTIVES, device_cases, message_sizes
from lablib.calibration.kernel_times import case_seconds, message_seconds, run_cases, run_messages, time_launches
from lablib.calibration.machine import gpu_sizes, machine_text, num_cores, total_memory_bytes, versions
from lablib.calibration.robust import Residual
from lablib.calibration.timing import MessageCase, supported_dtypes, time_cases, time_messages
from lablib.errors import unknown_name
from lablib.hardware import Cluster, Device, Link
from lablib.hardware.device import FREE
from lablib.launch import launch
from lablib.real.gpu.sharing import ranks_with_own_gpu
from lablib.run import Run
from lablib.signature import checked, whole_number
from lablib.text.units import plural

NAME = "this-machine"
BACKENDS = ("gloo", "nccl")
_TRACED_BLOCK_S = 0.005
MOST_RESIDUAL = 0.5  # |predicted / measured - 1| of a part, median: a larger one would mislead
_BATCH = 6  # cases of one launch: progress is reported between launches
Progress = Callable[[int, int, str], None]


@checked
def calibrate(backend: str = "gloo", ranks: int = 4, quick: bool = False, progress: Progress | None = None) -> Cluster:
    """Measure this machine with `ranks` processes and return it as a cluster.

    Args:
        backend: "gloo" (processes on this CPU) or "nccl" (one GPU per rank).
        ranks: number of busy ranks: at least 2 on "gloo". On "nccl" at most the number of GPUs is measured; one
            measures the device alone and takes the links from the catalogue.
        quick: fewer sizes and repeats: half a minute, and rougher figures.
        progress: called as `progress(done, total, what)` before each batch of measurements and at the end.

    Returns a cluster named "this-machine"; `profile` has the date and conditions of the measurement, and its residuals.

    ValueError: an unknown backend, too few ranks, or measurements that are impossible or that no fit explains.
    LaunchError: the processes could not be started.
    """
    check_ranks(backend, ranks)
    return _Calibration(backend, ranks_with_own_gpu(backend, ranks), quick, progress or (lambda *step: None)).run()


def check_ranks(backend: str, ranks: int) -> None:
    """Raises ValueError for an unknown backend, or a number of ranks that cannot be measured on it."""
    if backend not in BACKENDS:
        raise unknown_name("backend to calibrate", backend, BACKENDS)
    if backend == "gloo" and ranks < 2:
        raise ValueError(f"a calibration needs 2 or more ranks, which talk to each other: got {ranks!r}; try ranks=4")
    whole_number("ranks", ranks, example=2)


class _Calibration:
    """One calibration: the measurements in order, and its progress."""

    def __init__(self, backend: str, ranks: int, quick: bool, progress: Progress):
        self.backend, self.ranks, self.quick, self.progress = backend, ranks, quick, progress
        self.on_gpu = backend == "nccl"
        self.source = f"measured by `lab calibrate` with {plural(ranks, 'ranks')} on {backend}"
        self.block_s, self.blocks = (0.015, 3) if quick else (0.05, 5)
        self.done = self.total = 0

    def run(self) -> Cluster:
        self.progress(0, 1, "starting processes")
        dtypes = self._run(supported_dtypes).values[0]
        cases = device_cases(dtypes, self.on_gpu, self.quick)
        messages = self._message_cases() if self.ranks > 1 else []
        programs = [case for case in cases if case.part == "program"]
        kernels = [case for case in cases if case.part != "program"] if self.on_gpu else []
        by_clock = [case for case in cases if case not in kernels]
        traced = [] if self.on_gpu else programs  # on a GPU the profiler would be most of a launch
        self.total = sum(-(-len(some) // _BATCH) for some in (by_clock, kernels, traced, messages)) + 1
        if self.on_gpu:
            timings = self._by_clock(by_clock, "launches", time_launches, 3 * self.blocks)
            seconds_of = partial(case_seconds, blocks=self.blocks)
            found = self._by_spans(kernels, None, run_cases, (_TRACED_BLOCK_S, self.blocks), seconds_of)
            measured = timings + [Timing(case, seconds) for case, seconds in found]
            spans = self._by_spans(messages, "communication", run_messages, (4 * self.block_s, 60), message_seconds)
            times = [MessageTiming(case.name, case.size_bytes, self.ranks, seconds) for case, seconds in spans]
        else:
            timings = self._time_cases(by_clock)
            measured = [t for t in timings if t.case.part != "program"] + self._time_cases(traced, trace=True)
            times = self._time_messages(messages)
        self.progress(self.done, self.total, "fitting")
        device = fit_device(measured, self._base_device(), of_kernels=self.on_gpu)
        cluster, residuals = self._with_links(device.device, times)
        self.progress(self.total, self.total, "done")
        bare_s = program_overhead_s(timings, FREE if self.on_gpu else device.device)
        if self.on_gpu:  # on a CPU other programs disturb single measurements, and the profile has the residuals
            check_residuals([*device.residuals, *residuals])
        return cluster.replace(profile=self._profile(bare_s, [*device.residuals, *residuals]) | dict(cluster.profile))

    def _with_links(self, device: Device, times: Sequence[MessageTiming]) -> tuple[Cluster, Sequence[Residual]]:
        """The cluster of this device: its links as measured, or from the catalogue for a single rank."""
        base = self._base_cluster(device)
        if self.ranks == 1:
            return with_catalogue_links(base), ()
        network = fit_network(times, base, f"{self.backend}, measured", self.source)
        profile = {"link_between_nodes": "not measured: that inside a node"}
        return network.cluster.replace(profile=profile), network.residuals

    # ---- measurements ----

    def _run(self, fn: Callable[..., Any], *args: Any, trace: bool = False) -> Run:
        return launch(fn, *args, ranks=self.ranks, backend=self.backend, trace=trace)

    def _time_cases(self, cases: Sequence[BenchmarkCase], trace: bool = False) -> list[Timing]:
        # The profiler keeps every event: limit them to a program's number.
        block_s, what = (_TRACED_BLOCK_S, "programs under the profiler") if trace else (self.block_s, None)
        busy_ranks = self.ranks if self.on_gpu else min(self.ranks, num_cores())  # at most one per core computes
        return self._by_clock(cases, what, time_cases, block_s, self.blocks, busy_ranks, trace=trace)

    def _by_clock(
        self, cases: Sequence[BenchmarkCase], what: str | None, fn: Callable[..., Any], *args: Any, trace: bool = False
    ) -> list[Timing]:
        """The median over ranks and repeats of the seconds that `fn` returns for each case."""
        timings = []
        for batch in self._batches(cases, what):
            for case, *seconds in zip(batch, *self._run(fn, batch, *args, trace=trace).values, strict=True):
                timings.append(Timing(case, median(one for rank in seconds for one in rank)))
        return timings

    def _time_messages(self, cases: Sequence[MessageCase]) -> list[MessageTiming]:
        timings = []
        for batch in self._batches(cases, "communication"):
            by_rank = self._run(time_messages, batch, 8 * self.block_s, 60, trace=True).values
            for case, *stamps in zip(batch, *by_rank, strict=True):
                seconds = median(map(_call_s, zip(*stamps, strict=True)))
                timings.append(MessageTiming(case.name, case.size_bytes, self.ranks, seconds))
        return timings

    def _by_spans(
        self, cases: Sequence[Any], what: str | None, fn: Callable[..., Any], args: tuple, seconds_of: Callable
    ) -> Iterator[tuple[Any, float]]:
        """Each case with the median of its kernel seconds in the timeline of a run of `fn`."""
        for batch in self._batches(cases, what):
            run = self._run(fn, batch, *args, trace=True)
            for number, (case, calls) in enumerate(zip(batch, run.values[0], strict=True)):
                seconds = seconds_of(run.timeline, number, calls)
                if not seconds:
                    why = "; ".join(run.notes) or "none has its label"
                    rule = "a calibration of GPUs needs the times of kernels"
                    raise ValueError(f"{rule}: the run recorded none of {case} ({why})")
                yield case, median(seconds)

    def _batches(self, cases: Sequence[Any], what: str | None) -> Iterator[list[Any]]:
        for first in range(0, len(cases), _BATCH):
            batch = list(cases[first : first + _BATCH])
            self.progress(self.done, self.total, what or batch[0].part)
            yield batch
            self.done += 1

    def _message_cases(self) -> list[MessageCase]:
        unit = 4 * self.ranks  # shards of whole float32 numbers
        sizes = [-(-size // unit) * unit for size in message_sizes(self.quick, self.on_gpu)]
        cases = [MessageCase(name, size) for name in (*COLLECTIVES, *MESSAGES) for size in sizes]
        return [MessageCase("barrier", 0), *cases]

    # ---- figures that need no measurement ----

    def _base_device(self) -> Device:
        if self.on_gpu:
            memory_bytes, cores = self._run(gpu_sizes).values[0]  # asked on a rank: CUDA is already initialised there
        else:  # one process has its share of the memory, and one thread (lablib/process/rank_state.py)
            memory_bytes, cores = total_memory_bytes() / self.ranks, 1
        name = machine_text(self.on_gpu) + ("" if self.on_gpu else f", one of {plural(self.ranks, 'ranks')}")
        return Device(name, {"float32": 1.0}, memory_bytes, 1.0, num_cores=cores, source=self.source)

    def _base_cluster(self, device: Device) -> Cluster:
        link = Link("not measured", 0.0, 1.0)
        # All processes of one CPU are on one node.
        devices = max(torch.cuda.device_count() if self.on_gpu else 64, self.ranks)
        library, cores = ("", 0) if self.on_gpu else (self.backend, num_cores())
        return Cluster(NAME, device, devices, link, link, source=self.source, library=library, shared_cores=cores)

    def _profile(self, bare_overhead_s: float, residuals: Sequence[Any]) -> dict[str, str]:
        about = versions() | {"machine": machine_text(self.on_gpu), "backend": self.backend, "ranks": str(self.ranks)}
        about["quick"] = str(self.quick).lower()
        about["kernel_overhead_s_without_profiler"] = f"{bare_overhead_s:.3g}"
        return about | {f"error_of_{one.part}": str(one) for one in residuals}


def check_residuals(residuals: Sequence[Residual]) -> None:
    """Refuse figures that do not explain their own measurements.

    ValueError: half of the measurements of one part are off by more than `MOST_RESIDUAL`; all such parts are named.
    """
    if beyond := [f"{one.part}: {one}" for one in residuals if one.median > MOST_RESIDUAL]:
        raise ValueError(
            f"a profile must explain each part of its measurements to within {MOST_RESIDUAL:.0%} in the median: "
            f"got {'; '.join(beyond)}. Close other programs and measure again, without `quick`; or use a cluster of "
            "the catalogue"
        )


def _call_s(stamps: Sequence[tuple[int, int]]) -> float:
    """Seconds of one call from each rank's (start, end): from the last start to the last end."""
    return max(1, max(end for _, end in stamps) - max(start for start, _ in stamps)) / 1e9
