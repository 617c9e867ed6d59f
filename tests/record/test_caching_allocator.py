"""The model of torch's allocator: against a naive one, torch's own parser, and peaks measured on an H200."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib import Memory, launch
from lablib.figures import describe
from lablib.record import Allocation, AllocatorSettings, CachingAllocator, ExpandableAllocator, OutOfMemory
from lablib.record.allocations import NEVER
from lablib.record.allocator_blocks import Block
from lablib.record.caching_allocator import rounded, segment_bytes
from tests.operators.test_efficiency import _STEPS, _train

MIB = 2**20
SIZES = st.one_of(
    st.integers(1, 5000),
    st.integers(1, 4 * MIB),
    st.integers(1, 64).map(lambda n: n * MIB),
    st.sampled_from([512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 20 * MIB, 21 * MIB]),
)
# A positive number requests bytes; a fraction frees the block at that share of the used ones.
EVENTS = st.lists(st.one_of(SIZES, SIZES, st.floats(-1, -0.001)), max_size=60)
SETTINGS = st.sampled_from(
    [
        "",
        "max_split_size_mb:20",
        "max_split_size_mb:30,max_non_split_rounding_mb:25",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[2:8,16:2,>:1]",
        "large_segment_size_mb:32",
        "per_process_memory_fraction:0.5",
    ]
)
CAPACITIES = st.sampled_from([60 * MIB, 128 * MIB, 10**18])


class Naive:
    """Segments as lists of used intervals; free pieces are found by looking at every gap."""

    def __init__(self, settings: AllocatorSettings, capacity: float):
        self.settings, self.capacity = settings, capacity * (settings.per_process_memory_fraction or 1)
        self.segments: dict[int, tuple[int, bool]] = {}  # start -> (size, is_small)
        self.used: dict[int, int] = {}  # start -> size
        self.next = 0

    @property
    def reserved(self) -> int:
        return sum(size for size, _ in self.segments.values())

    def gaps(self, is_small: bool) -> list[tuple[int, int, bool]]:
        """Size, start, whether it is a whole segment."""
        found = []
        for start, (size, small) in self.segments.items():
            inside = sorted(place for place in self.used if start <= place < start + size)
            ends = [start, *(place + self.used[place] for place in inside)]
            begins = [*inside, start + size]
            found += [(b - e, e, not inside) for e, b in zip(ends, begins, strict=True) if b > e and small == is_small]
        return sorted(found)

    def malloc(self, requested: int) -> int | None:
        size, limit = rounded(requested, self.settings), self.settings.max_split_size_bytes
        is_small = size <= MIB
        fits = [gap for gap in self.gaps(is_small) if gap[0] >= size][:1]
        if fits and size < limit <= fits[0][0]:
            fits = []
        if fits and size >= limit and fits[0][0] >= size + self.settings.max_non_split_rounding_bytes:
            fits = []
        segment = segment_bytes(size, self.settings)
        for remedy in (self.nothing, self.drop_oversize, self.drop_all):
            if not fits:
                remedy(size, is_small)
                if self.reserved + segment <= self.capacity:
                    self.segments[self.next] = segment, is_small
                    fits = [(segment, self.next, True)]
                    self.next += segment
        if not fits:
            return None
        room, place, _ = fits[0]
        splits = room - size >= 512 if is_small else room - size > MIB and size < limit
        self.used[place] = size if splits else room
        return place

    def nothing(self, size: int, is_small: bool) -> None:
        pass

    def drop_oversize(self, size: int, is_small: bool) -> None:
        limit = self.settings.max_split_size_bytes
        needed = max(size, limit)
        large = [gap for gap in self.gaps(is_small) if gap[0] >= limit]
        one = [gap for gap in large if gap[0] >= needed][:1]
        while needed > 0 and (one or large):
            room, place, _ = one.pop() if one else large.pop()
            del self.segments[place]
            needed -= room

    def drop_all(self, size: int, is_small: bool) -> None:
        for small in (True, False):
            for _, place, is_whole in self.gaps(small):
                if is_whole:
                    del self.segments[place]


def blocks_of(allocator: CachingAllocator, used: list[Block]) -> list[list[Block]]:
    """The blocks of each segment, in order."""
    free = [block for pool in allocator.pools.values() for block in pool.blocks.values()]
    first = [block for block in used + free if block.before is None]
    segments = []
    for block in first:
        segments.append([block])
        while (after := segments[-1][-1].after) is not None:
            assert after.before is segments[-1][-1]
            segments[-1].append(after)
    assert sum(map(len, segments)) == len(used) + len(free)
    return segments


def check_invariants(allocator: CachingAllocator, used: list[Block], page_sized: bool) -> None:
    for segment in blocks_of(allocator, used):
        for one, other in pairwise(segment):
            assert one.address + one.size_bytes == other.address, "blocks neither overlap nor leave gaps"
            assert one.is_used or other.is_used or one.is_mapped != other.is_mapped, "free neighbours are joined"
    mapped = [b for segment in blocks_of(allocator, used) for b in segment if b.is_mapped]
    assert sum(block.size_bytes for block in mapped) == allocator.reserved
    assert sum(block.size_bytes for block in used) == allocator.allocated
    assert sum(block.requested_bytes for block in used) == allocator.requested
    assert allocator.requested <= allocator.allocated <= allocator.reserved <= allocator.allowed_bytes
    if page_sized:
        assert all(
            (b.address - b.segment_start) % (2 * MIB) == 0 for p in allocator.pools.values() for b in unmapped(p)
        )


def unmapped(pool) -> list[Block]:
    return [pool.blocks[address] for address in pool.unmapped]


def run_events(allocator: CachingAllocator, events: list[float], after_each=lambda used: None) -> list[Block]:
    used: list[Block] = []
    for event in events:
        if event > 0:
            used.append(allocator.malloc(int(event)))
        elif used:
            allocator.free(used.pop(int(-event * len(used)) % len(used)))
        after_each(used)
    return used


@given(events=EVENTS, text=SETTINGS, capacity=CAPACITIES)
def test_segments_and_blocks_are_those_of_a_naive_allocator(events, text, capacity):
    settings = AllocatorSettings.parse(text)
    allocator, naive, used = CachingAllocator(settings, capacity), Naive(settings, capacity), list[Block]()
    places: list[int] = []
    for event in events:
        if event > 0:
            place = naive.malloc(int(event))
            if place is None:
                with pytest.raises(OutOfMemory):
                    allocator.malloc(int(event))
                continue
            used.append(allocator.malloc(int(event)))
            places.append(place)
            assert used[-1].size_bytes == naive.used[place]
        elif used:
            index = int(-event * len(used)) % len(used)
            allocator.free(used.pop(index))
            del naive.used[places.pop(index)]
        assert allocator.reserved == naive.reserved
        assert allocator.allocated == sum(naive.used.values())


@given(events=EVENTS, text=SETTINGS, capacity=CAPACITIES, expandable=st.booleans())
def test_blocks_never_overlap_and_the_sums_hold(events, text, capacity, expandable):
    settings = AllocatorSettings.parse(f"{text},expandable_segments:{expandable}")
    allocator = (ExpandableAllocator if expandable else CachingAllocator)(settings, capacity)
    try:
        run_events(allocator, events, lambda used: check_invariants(allocator, used, expandable))
    except OutOfMemory:
        pass


@given(events=EVENTS, text=SETTINGS, expandable=st.booleans())
def test_an_empty_cache_reserves_only_what_used_blocks_touch(events, text, expandable):
    settings = AllocatorSettings.parse(f"{text},expandable_segments:{expandable}")
    allocator = (ExpandableAllocator if expandable else CachingAllocator)(settings, 10**18)
    used = run_events(allocator, events)
    allocator.empty_cache()
    check_invariants(allocator, used, expandable)
    if expandable:
        touched: set[tuple[bool, int]] = set()
        for block in used:
            page = 2 * MIB if block.is_small else settings.large_segment_bytes
            first, last = (
                block.address - block.segment_start,
                block.address + block.size_bytes - 1 - block.segment_start,
            )
            touched |= {(block.is_small, number) for number in range(first // page, last // page + 1)}
        pages = (2 * MIB if is_small else settings.large_segment_bytes for is_small, _ in touched)
        assert allocator.reserved == sum(pages)
    else:
        assert all(any(b.is_used for b in segment) for segment in blocks_of(allocator, used))
    for block in used:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == allocator.allocated == 0


@given(events=EVENTS, capacity=st.sampled_from([60 * MIB, 128 * MIB]))
def test_expandable_segments_run_out_only_when_no_page_is_free(events, capacity):
    """At the failure the request needs more pages than the device has besides those that used blocks touch."""
    settings = AllocatorSettings.parse("expandable_segments:True")
    allocator, used = ExpandableAllocator(settings, capacity), list[Block]()
    for event in events:
        if event > 0:
            try:
                used.append(allocator.malloc(int(event)))
            except OutOfMemory:
                page = 2 * MIB if event <= MIB else 20 * MIB
                before = allocator.reserved
                allocator.empty_cache()
                assert allocator.reserved <= before
                assert allocator.reserved + -(-int(event) // page) * page > capacity
                return
        elif used:
            allocator.free(used.pop(int(-event * len(used)) % len(used)))


@pytest.mark.parametrize(
    ("size", "text", "expected"),
    [
        (1, "", 512),
        (513, "", 1024),
        (5 * MIB + 1, "", 5 * MIB + 512),
        # torch's notes on CUDA semantics: 1,200 with 4 divisions between 1,024 and 2,048 is 1,280
        (1200 * MIB, "roundup_power2_divisions:4", 1280 * MIB),
        # the sizes of torch's test_allocator_settings: 84 MiB and 400 MiB
        (84 * MIB, "roundup_power2_divisions:4", 96 * MIB),
        (84 * MIB, "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 88 * MIB),
        (400 * MIB, "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 512 * MIB),
        (128 * MIB, "roundup_power2_divisions:4", 128 * MIB),
        (2000, "roundup_power2_divisions:4", 2048),
    ],
)
def test_requests_are_rounded_as_torch_says(size, text, expected):
    assert rounded(size, AllocatorSettings.parse(text)) == expected


TEXTS = [
    *("", "max_split_size_mb:20", "max_split_size_mb:19", "max_split_size_mb:x", "max_split_size_mb:"),
    *("garbage_collection_threshold:0.8", "garbage_collection_threshold:1.0", "garbage_collection_threshold:0"),
    *("expandable_segments:True", "expandable_segments:true"),
    *("max_non_split_rounding_mb:19", "max_non_split_rounding_mb:20", "roundup_power2_divisions:3"),
    *("roundup_power2_divisions:8", "roundup_power2_divisions:[3:2]", "roundup_power2_divisions:[256:3]"),
    *("roundup_power2_divisions:[64:8,256:4,1024:2,>:1]", "roundup_power2_divisions:[256:0,>:4]"),
    *("roundup_power2_divisions:[1:2,65536:4]", "roundup_power2_divisions:[>:4]"),
    " max_split_size_mb : 64 , expandable_segments:False",
    *("large_segment_size_mb:10", "large_segment_size_mb:11"),  # last: torch keeps the value
]
ASK_TORCH = """
import ctypes, json, sys, torch
library = ctypes.CDLL(torch.__path__[0] + "/lib/libc10.so")
divisions = getattr(library, "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm")
divisions.restype, divisions.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
answers = []
for text in json.loads(sys.argv[1]):
    try:
        torch._C._accelerator_setAllocatorSettings(text)
        answers.append([divisions(2 ** (20 + i) + 1) for i in range(16)])
    except (ValueError, RuntimeError):
        answers.append(None)
print(json.dumps(answers))
"""


def test_settings_are_read_as_torch_reads_them():
    """torch's own parser accepts the same texts and divides the same intervals; asked in a process of its own."""
    asked = [sys.executable, "-c", ASK_TORCH, json.dumps(TEXTS)]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    if found.returncode:
        assert "AttributeError" in found.stderr or "OSError" in found.stderr, found.stderr
        pytest.skip("this torch does not show its parser")
    for text, divisions in zip(TEXTS, json.loads(found.stdout), strict=True):
        if divisions is None:
            with pytest.raises(ValueError, match="must be"):
                AllocatorSettings.parse(text)
        else:
            assert list(AllocatorSettings.parse(text).roundup_power2_divisions) == divisions, text


def test_an_unknown_option_has_a_remedy():
    with pytest.raises(ValueError, match="got expandable_segment; did you mean 'expandable_segments'?"):
        AllocatorSettings.parse("expandable_segment:True")


def memory_of(*rows: tuple[int, int, int | None]) -> Memory:
    """Allocations of (MiB, the number of the event that makes it, of the event that frees it)."""
    events = [(size, start, NEVER if end is None else end) for size, start, end in rows]
    return Memory(
        [Allocation(0, "other", size * MIB, start, end, "", "", "", start, end) for size, start, end in events], 1
    )


def run_with_results() -> None:
    """Eight steps with 24 MiB of activations; a result of 13 MiB of each step is kept."""
    kept = []
    for _ in range(8):
        activations = torch.empty(24 * MIB, dtype=torch.uint8)
        del activations
        kept.append(torch.empty(13 * MIB, dtype=torch.uint8))


def test_fragmentation_ends_a_run_that_expandable_segments_or_a_split_limit_save():
    """Each result takes 13 of the 24 MiB that are cached, so each step needs a new segment: the sixth does not fit.

    With a limit of 20 MiB, results have segments of 14 MiB: 24 + 8 * 14 = 136 MiB. Expandable: 7 * 13 + 24 in 6 pages.
    """
    memory = launch(run_with_results, ranks=1).memory
    assert memory.peak_bytes() == (7 * 13 + 24) * MIB
    failed = memory.replay_allocator("", capacity_bytes=140 * MIB).out_of_memory
    assert failed is not None and failed.is_fragmentation
    assert (failed.size_bytes, failed.reserved_bytes, failed.allocated_bytes) == (24 * MIB, 120 * MIB, 65 * MIB)
    assert failed.largest_cached_bytes == 11 * MIB
    assert "78.6 MB are free, in pieces: 21 MB not reserved, the largest cached piece 11.5 MB" in str(failed)
    saved = memory.replay_allocator("max_split_size_mb:20", capacity_bytes=140 * MIB)
    assert saved.out_of_memory is None and saved.peak_reserved_bytes == 136 * MIB
    saved = memory.replay_allocator("expandable_segments:True", capacity_bytes=140 * MIB)
    assert saved.out_of_memory is None and saved.peak_reserved_bytes == 120 * MIB


def test_a_request_beyond_the_device_is_no_fragmentation():
    failed = memory_of((40, 1, None), (40, 2, None)).replay_allocator("", capacity_bytes=64 * MIB).out_of_memory
    assert failed is not None and not failed.is_fragmentation and "only 25.2 MB are free" in str(failed)


def test_cached_segments_are_given_back_before_a_run_fails():
    """30 MiB freed, 40 MiB asked for, 64 MiB there: one retry."""
    replay = memory_of((30, 1, 2), (40, 3, None)).replay_allocator("", capacity_bytes=64 * MIB)
    assert replay.num_retries == 1 and replay.out_of_memory is None
    assert replay.reserved_bytes.tolist() == [30 * MIB, 30 * MIB, 40 * MIB]


def test_a_memory_fraction_limits_a_process():
    memory = memory_of((40, 1, None))
    assert memory.replay_allocator("per_process_memory_fraction:0.5", 80 * MIB).out_of_memory is None
    failed = memory.replay_allocator("per_process_memory_fraction:0.49", 80 * MIB).out_of_memory
    assert failed is not None and failed.capacity_bytes == pytest.approx(0.49 * 80 * MIB)


def test_garbage_is_collected_above_the_threshold_of_a_fraction():
    """42 MiB are cached, 2 above the threshold: of 12, 14 and 16 MiB the first two have the average age or more.

    Searches since they were freed: 1, 1 and 1 at the fourth request, so all go; without a fraction, none.
    """
    memory = memory_of((12, 1, 4), (14, 2, 5), (16, 3, 6), (30, 7, None))
    threshold = "garbage_collection_threshold:0.5"
    assert memory.replay_allocator(threshold, 80 * MIB).peak_reserved_bytes == 72 * MIB
    replay = memory.replay_allocator(f"{threshold},per_process_memory_fraction:1.0", 80 * MIB)
    assert replay.num_retries == 0 and replay.reserved_bytes[-1] == 30 * MIB


def test_garbage_collection_takes_the_oldest_segments():
    """12 MiB were freed before three searches, 16 MiB before one: their average is 2."""
    memory = memory_of((12, 1, 2), (16, 3, 6), (14, 4, 5), (30, 7, None))
    text = "garbage_collection_threshold:0.5,per_process_memory_fraction:1.0"
    replay = memory.replay_allocator(text, 82 * MIB)
    assert replay.reserved_bytes[-2:].tolist() == [42 * MIB, (42 - 12 + 30) * MIB]


@pytest.mark.parametrize("tag", ["small eager", "small eager fused", "small eager B4", "big eager"])
def test_rounding_brings_predicted_peaks_nearer_to_those_of_an_h200(tag):
    """`max_memory_allocated` of four measured steps: the replay is between the requested bytes and the measurement."""
    row = _STEPS[tag]
    memory = launch(_train, row, ranks=1, cluster="hgx-h200", fidelity="shapes").memory
    replay = memory.replay_allocator(capacity_bytes=141e9)
    assert memory.peak_bytes() < replay.peak_allocated_bytes < row["peak_bytes"]
    assert replay.peak_allocated_bytes == pytest.approx(row["peak_bytes"], rel=0.013)
    assert replay.num_retries == 0 and replay.peak_reserved_bytes < 1.2 * row["peak_bytes"]


RECORDED = """
import sys, torch
torch.cuda.memory._record_memory_history()
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for rows in (512, 3000, 1024, 4096):
    model(torch.randn(rows, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot(sys.argv[1])
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


@pytest.mark.gpu
@pytest.mark.parametrize("text", ["", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:4"])
def test_a_recorded_run_on_a_gpu_has_the_peaks_of_its_replay(tmp_path, text):
    """Steps of changing size; the whole history is in the snapshot."""
    asked = [sys.executable, "-c", RECORDED, str(tmp_path / "snapshot.pickle")]
    variables = os.environ | {"PYTORCH_ALLOC_CONF": text}
    found = subprocess.run(asked, capture_output=True, text=True, timeout=240, check=True, env=variables)
    allocated, reserved = map(int, found.stdout.split())
    replay = Memory.from_snapshot(tmp_path / "snapshot.pickle").replay_allocator(text)
    assert replay.peak_allocated_bytes == pytest.approx(allocated, rel=0.01)
    assert replay.peak_reserved_bytes == pytest.approx(reserved, rel=0.05)


def test_a_replay_is_drawn_with_its_failure():
    memory = launch(run_with_results, ranks=1).memory
    figure = memory.replay_allocator("", capacity_bytes=140 * MIB).figure()
    assert "25.2 MB do not fit" in describe(figure)
    replay = memory.replay_allocator()
    assert np.all(replay.fragmentation >= 0) and np.all(replay.fragmentation <= 1)
    assert "in 8 calls to the driver" in describe(replay.figure())


def test_an_empty_memory_and_one_with_peaks_alone():
    assert Memory((), 1).replay_allocator().peak_reserved_bytes == 0
    assert describe(Memory((), 1).replay_allocator().figure())
    with pytest.raises(ValueError, match="read a snapshot with Memory.from_snapshot"):
        Memory((), 1, allocator_peaks=(5,)).replay_allocator()
