"""What a rank's programs held of its GPU, with a stand-in for torch's allocator: each program is counted anew."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.figures import describe, figure_memory
from lablib.real.gpu import memory as gpu_memory
from lablib.real.measurement.measure import Measurement
from lablib.record.memory import Memory
from lablib.record.summary import Summary
from lablib.record.timeline import Timeline

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


class Allocator:
    """torch's caching allocator, as its documented statistics are: held, the highest of it, and what is kept."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.held = self.peak = self.reserved = 0
        for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "max_memory_allocated"):
            patch.setattr(torch.cuda, name, getattr(self, name))

    def program(self, sizes: list[int]) -> None:
        """Takes so many bytes at once, one after another, and frees each."""
        for size in sizes:
            self.peak, self.reserved = max(self.peak, self.held + size), max(self.reserved, self.held + size)

    def synchronize(self, device: torch.device) -> None:
        pass

    def empty_cache(self) -> None:
        self.reserved = self.held

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peak = self.held

    def max_memory_allocated(self, device: torch.device) -> int:
        return self.peak


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=4), min_size=1, max_size=5))
def test_each_program_has_its_own_peak_and_leaves_no_cache(programs):
    with pytest.MonkeyPatch.context() as patch:
        allocator = Allocator(patch)
        for sizes in programs:
            gpu_memory.begin_count(GPU)
            allocator.program(sizes)
            assert gpu_memory.peak_bytes(GPU) == max(sizes)
            gpu_memory.give_back_cache(GPU)
            assert allocator.reserved == 0


def test_a_cpu_is_not_asked():
    gpu_memory.begin_count(CPU)
    gpu_memory.give_back_cache(CPU)
    assert gpu_memory.peak_bytes(CPU) is None


def test_a_run_on_gpus_knows_the_peak_of_each_rank_and_says_what_it_does_not_know(run_of):
    memory = run_of([Measurement(start_ns=1)] * 2, "gloo", [3_000_000, 5_000_000]).memory
    assert (memory.num_ranks, memory.peak_rank(), memory.peak_bytes()) == (2, 1, 5_000_000)
    assert [memory.peak_bytes(rank) for rank in range(2)] == [3_000_000, 5_000_000]
    assert memory.at_peak() == {} and memory.peak_phase() == "" and memory.peak_at_s() != memory.peak_at_s()
    assert list(memory.table()["peak_bytes"]) == [3_000_000, 5_000_000]
    assert bool(memory.table()["activation"].isna().all())
    assert "5.00 MB, by the count of its GPU's allocator" in memory.explain().replace("5 MB", "5.00 MB")
    assert "peaks by the allocator" in repr(memory)
    assert Summary.of(Timeline((), 2), memory=memory).peak_memory_bytes == (3e6, 5e6)
    with pytest.raises(ValueError, match="ranks 0 to 1: got rank 2"):
        memory.peak_bytes(2)


def test_the_figure_of_such_a_run_shows_the_peak_and_names_the_allocator(run_of):
    figure = figure_memory(run_of([Measurement(start_ns=1)] * 2, "gloo", [3_000_000, 5_000_000]).memory)
    assert "allocator" in describe(figure) and "5 MB" in describe(figure)


def test_a_run_on_cpus_says_that_nobody_counted(run_of):
    memory = run_of([Measurement(start_ns=1)] * 2, "gloo").memory
    assert not memory.is_known and Summary.of(Timeline((), 2), memory=memory).peak_memory_bytes is None
    assert "on nccl the GPUs' allocators" in describe(figure_memory(memory))


def test_peaks_are_one_a_rank_and_stand_in_place_of_allocations():
    with pytest.raises(ValueError, match="got 1 for 2 ranks"):
        Memory(num_ranks=2, allocator_peaks=(1,))
