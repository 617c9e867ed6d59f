"""Notes for a run on GPUs if the profiler missed kernels."""

from collections.abc import Callable, Sequence

from lablib.real.gpu.kernels import KernelCount
from lablib.real.measurement.measure import Measurement
from lablib.record.rank_text import short_ranks
from lablib.text.units import plural


def kernel_notes(measured: Sequence[Measurement]) -> list[str]:
    """The notes of a run, from the measurements in rank order; none if all kernels were recorded."""
    counts = {rank: one.kernels for rank, one in enumerate(measured) if one.kernels is not None}

    def those(kind: Callable[[KernelCount], bool | int]) -> dict[int, KernelCount]:
        return {rank: count for rank, count in counts.items() if kind(count)}

    notes = []
    if blind := those(lambda count: not count.is_recorded):
        notes.append(
            f"the profiler recorded no kernel of any GPU work on {_ranks(blind)}, so the timeline lacks it: CUDA's "
            "profiling library CUPTI is missing or in use; install the libcupti of torch's CUDA, end other profilers"
        )
    if idle := those(lambda count: count.is_recorded and not count.kernels and not count.launches):
        notes.append(f"the program launched no kernel on {_ranks(idle)}: its timeline has none of the GPU")
    if lossy := those(lambda count: count.is_recorded and count.lost):
        lost, launches = (sum(getattr(count, name) for count in lossy.values()) for name in ("lost", "launches"))
        notes.append(
            f"the profiler lost {lost} of {plural(launches, 'kernels')} that {_ranks(lossy)} launched: the timeline "
            "lacks them, and its compute is too short; launch again, or with CUDA 13.1 or newer"
        )
    if strays := those(lambda count: count.strays):
        number = sum(count.strays for count in strays.values())
        notes.append(
            f"{plural(number, 'kernels')} of NCCL on {_ranks(strays)} belong to no recorded call: they are in the "
            'lane "comm:unknown", and the calls that they carried out have no times'
        )
    return notes


def _ranks(counts: dict[int, KernelCount]) -> str:
    return f"rank {next(iter(counts))}" if len(counts) == 1 else f"ranks {short_ranks(tuple(counts))}"
