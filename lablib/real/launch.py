"""Run a program on real processes: gloo on CPU, NCCL on GPUs."""

import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lablib.errors import NotOnNcclWarning, RankError, WorkerError
from lablib.process.visible_gpus import gpus_text
from lablib.real.gpu.kernel_notes import kernel_notes
from lablib.real.gpu.kernels import HOST_STREAMS, UNKNOWN
from lablib.real.gpu.message_circles import circle_note
from lablib.real.gpu.sharing import require_gpus, sharing_note
from lablib.real.measurement.measure import Measurement
from lablib.real.measurement.traffic import communications, traffic_of
from lablib.real.workers.messages import Finished, Job
from lablib.real.workers.pickling import unpack
from lablib.real.workers.pool import PoolIsStale
from lablib.real.workers.pools import pools
from lablib.real.workers.shipping import ship
from lablib.record.passes import with_phases
from lablib.run import COMPUTE, Memory, Run, Timeline, Traffic
from lablib.text.messages import error_text


def run_real(
    fn: Callable[..., Any],
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    ranks: int,
    backend: str,
    timeout_s: float | None = None,
    trace: bool = True,
    share_gpus: bool = False,
) -> Run:
    """Call `fn(*args, **kwargs)` on `ranks` processes of this machine. Arguments and errors as of `lablib.launch`.

    The processes stay for the next launch of the same size and backend, which finds them in the state of new ones; on
    gloo they are forked after their imports, unless the environment has LAB_FORK=off (processes.py). On "nccl" each
    rank's tensors are created on its GPU (lablib/process/default_device.py), and its arguments are moved there; tensors
    from a global or a closure are not (lablib/process/arguments.py). The ranks' stderr is printed here.

    Returns the run. Tensors in its values are on the CPU; those with a graph come detached. After an error other than
    ValueError, or KeyboardInterrupt, all processes of this size and backend have been ended.
    """
    started = time.perf_counter()
    if ranks < 1:
        raise ValueError(f"ranks must be 1 or more: got {ranks}")
    if backend not in ("gloo", "nccl"):
        raise ValueError(f"a real backend is 'gloo' or 'nccl': got {backend!r}")
    job = ship(fn, args, kwargs or {}, trace)
    if backend == "nccl":
        require_gpus(ranks, share_gpus)
    reports = _launch(job, backend, ranks, timeout_s)
    _forward_stderr([report.stderr for report in reports])
    measured = [report.measured for report in reports]
    timeline, traffic = measured_records(measured, backend)
    shared = tuple(filter(None, [sharing_note(backend, ranks)]))
    circle = circle_note([one.calls for one in measured]) if backend == "nccl" else ""
    if circle:
        warnings.warn(circle, NotOnNcclWarning, stacklevel=3)
    # As counted by each GPU's allocator; none on CPUs.
    peaks = tuple(report.peak_bytes for report in reports if report.peak_bytes is not None)
    return Run(
        values=[_value(rank, report) for rank, report in enumerate(reports)],
        timeline=replace(timeline, notes=shared),
        traffic=replace(traffic, notes=shared),
        stdout=[report.stdout for report in reports],
        backend=backend,
        cluster=f"{platform.node()} ({gpus_text() if backend == 'nccl' else f'{os.cpu_count()} CPU cores'})",
        wall_s=time.perf_counter() - started,
        notes=(*shared, *kernel_notes(measured), *filter(None, [circle])),
        memory=Memory(num_ranks=len(peaks), allocator_peaks=peaks, run_notes=shared),
    )


def _launch(job: Job, backend: str, ranks: int, timeout_s: float | None) -> list[Finished]:
    """Run the job on warm workers; on new ones if those are stale."""
    for _ in range(2):
        try:
            with pools().borrow(backend, ranks) as pool:
                return pool.launch(job, timeout_s)
        except PoolIsStale as error:
            reason = str(error)
    raise WorkerError(f"new workers of backend {backend!r} failed before the program started: {reason}")


def _value(rank: int, report: Finished) -> Any:
    """A rank's return value, rebuilt in this process. Raises RankError if its class fails to."""
    try:
        return unpack(report.value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, which would end the notebook
        reason = TypeError(
            f"a rank's value must be one that pickle can rebuild: rebuilding the value of rank {rank} raised "
            f"{error_text(error)}; return plain data and tensors"
        )
        raise RankError(rank, reason) from error


def measured_records(measured: Sequence[Measurement], backend: str) -> tuple[Timeline, Traffic]:
    """Timeline and traffic, with zero at the first rank's start of the program."""
    zero_ns = min(one.start_ns for one in measured)
    drawn = (COMPUTE, UNKNOWN, *HOST_STREAMS)  # the spans of calls are added with their matches
    work = [s.at(rank, zero_ns) for rank, one in enumerate(measured) for s in one.spans if s.stream in drawn]
    timeline = Timeline.of(with_phases([*work, *communications(measured, zero_ns)]), len(measured))
    return timeline, traffic_of(measured, zero_ns, backend)


def _forward_stderr(texts: list[str]) -> None:
    """Print the ranks' stderr; identical texts once."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks_of.setdefault(text.rstrip(), []).append(rank)
    for text, ranks in ranks_of.items():
        if text:
            name = f"[rank {ranks[0]}]" if len(ranks) == 1 else f"[ranks {', '.join(map(str, ranks))}]"
            print("\n".join(f"{name} {line}" for line in text.splitlines()), file=sys.stderr)
