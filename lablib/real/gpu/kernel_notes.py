"""Notes for a run on GPUs if the profiler missed kernels."""

from collections.abc import Sequence

from lablib.real.measurement.measure import Measurement
from lablib.record.rank_text import short_ranks
from lablib.text.units import plural


def kernel_notes(measured: Sequence[Measurement]) -> list[str]:
    """The notes of a run, from the measurements in rank order; none if all kernels were recorded."""
    counts = {rank: one.kernels for rank, one in enumerate(measured) if one.kernels is not None}

    notes = []
    if blind := [rank for rank, count in counts.items() if not count.is_recorded]:
        notes.append(
            f"the profiler recorded no kernel of any GPU work on {_words(blind)}, so the timeline lacks it: CUDA's "
            "profiling library CUPTI is missing or in use; install the libcupti of torch's CUDA, end other profilers"
        )
    recorded = {rank: count for rank, count in counts.items() if count.is_recorded}
    if idle := [rank for rank, count in recorded.items() if not count.kernels and not count.launches]:
        notes.append(f"the program launched no kernel on {_words(idle)}: its timeline has none of the GPU")
    if lossy := [rank for rank, count in recorded.items() if count.lost]:
        lost, launches = (sum(getattr(counts[rank], name) for rank in lossy) for name in ("lost", "launches"))
        notes.append(
            f"the profiler lost {lost} of {plural(launches, 'kernels')} that {_words(lossy)} launched: the timeline "
            "lacks them, and its compute is too short; launch again, or with CUDA 13.1 or newer"
        )
    if strays := [rank for rank, count in counts.items() if count.strays]:
        number = sum(counts[rank].strays for rank in strays)
        notes.append(
            f"{plural(number, 'kernels')} of NCCL on {_words(strays)} belong to no recorded call: they are in the "
            'lane "comm:unknown", and the calls that they carried out have no times'
        )
    return notes


def _words(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {short_ranks(tuple(ranks))}"
