"""A run's memory as a snapshot for torch's viewer: read by torch's own functions, and by ours."""

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.cuda import _memory_viz as torch_viz

from lablib import Memory, Run, launch
from lablib.record.allocations import CATEGORIES, NEVER, Allocation
from lablib.record.memory_viz import snapshot_of, snapshot_pickle

# Instructions of pickle that torch/utils/viz/MemoryViz.js reads.
VIEWER = set(
    "PROTO FRAME STOP MARK MEMOIZE BINGET LONG_BINGET BINPUT LONG_BINPUT NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 "
    "LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3".split()
)


def program() -> None:
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(7, 300)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def run() -> Run:
    return launch(program, ranks=3)


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    """Allocations of up to three ranks, each numbered in a drawn order of allocations and releases."""
    allocations = []
    num_ranks = draw(st.integers(1, 3))
    for rank in range(num_ranks):
        sizes = draw(
            st.lists(st.sampled_from([1, 511, 512, 2**20, 2**20 + 1, 10**7, 3 * 10**7]), min_size=1, max_size=9)
        )
        events = draw(st.permutations([index for index in range(len(sizes)) for _ in range(2)]))
        ever = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
        for index, size in enumerate(sizes):
            first, last = (i for i, of in enumerate(events) if of == index)
            category = draw(st.sampled_from(CATEGORIES))
            times = (float(first), float(last)) if ever[index] else (float(first), float(len(events)))
            source = draw(st.sampled_from(["", "train.py:3: y = f(x)", "no line"]))
            label = ("aten.mm", "forward", source)
            numbers = (first + 1, last + 1 if ever[index] else NEVER)
            allocations.append(Allocation(rank, category, size, *times, *label, *numbers))
    return Memory(allocations, num_ranks)


@given(memories())
def test_used_blocks_lie_in_segments_and_never_overlap(memory: Memory):
    snapshot = snapshot_of(memory)
    for rank, trace in enumerate(snapshot["device_traces"]):
        segments: dict[int, int] = {}
        used: dict[int, int] = {}
        held = peak = 0
        for event in trace:
            address, size = event["addr"], event["size"]
            if event["action"] == "segment_alloc":
                assert all(address + size <= start or start + length <= address for start, length in segments.items())
                segments[address] = size
            elif event["action"] == "alloc":
                assert any(start <= address and address + size <= start + n for start, n in segments.items())
                assert all(address + size <= start or start + length <= address for start, length in used.items())
                used[address] = size
                held += size
            elif event["action"] == "free_completed":
                held -= used.pop(address)
            peak = max(peak, held)
        assert peak == memory.peak_bytes(rank)
        of_rank = [segment for segment in snapshot["segments"] if segment["device"] == rank]
        assert {segment["address"]: segment["total_size"] for segment in of_rank} == segments
        blocks = [block for segment in of_rank for block in segment["blocks"] if block["state"] != "inactive"]
        assert {block["address"]: block["requested_size"] for block in blocks} == used
    assert f"segments: {len(snapshot['segments'])}\n" in torch_viz.segsum(snapshot)  # raises if sizes do not add up


def test_a_run_reads_back_with_its_peaks_and_categories(run: Run, tmp_path: Path):
    back = Memory.from_snapshot(run.to_memory_viz(tmp_path / "new" / "memory.pickle"))
    for rank in range(3):
        assert back.peak_bytes(rank) == run.memory.peak_bytes(rank)
        assert back.at_peak(rank) == run.memory.at_peak(rank)
    assert "test_memory_viz.py" in back.explain(0)


def test_torchs_viewer_and_commands_read_it(run: Run, tmp_path: Path):
    content = run.to_memory_viz(tmp_path / "memory.pickle").read_bytes()
    found = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    assert {name for name, _ in found} <= VIEWER and found[0] == ("PROTO", 4)
    snapshot: dict[str, Any] = pickle.loads(content)
    page = torch_viz.trace_plot(snapshot)
    assert "Active Memory Timeline" in page and len(page) > len(content)
    assert "Allocator State History" in torch_viz.segment_plot(snapshot)
    text = torch_viz.trace(snapshot)
    assert "Device 2 -" in text and "cudaMalloc" in text and "free completed" in text
    frames = [frame for event in snapshot["device_traces"][0] for frame in event["frames"]]
    assert any(frame["name"].startswith("aten.") for frame in frames)
    assert any(frame["filename"] == "test_memory_viz.py" and frame["line"] > 0 for frame in frames)


def test_memory_that_was_not_counted_is_refused(tmp_path: Path):
    untraced = launch(program, ranks=1, trace=False)
    with pytest.raises(ValueError, match="needs the allocations of a run"):
        untraced.to_memory_viz(tmp_path / "memory.pickle")
    with pytest.raises(ValueError, match="needs the allocations of a run"):
        snapshot_pickle(Memory(num_ranks=1, allocator_peaks=(5,)))
    assert not list(tmp_path.iterdir())
