"""Memory snapshots of CUDA's allocator: made by torch, made by hand after its format, damaged, and hostile."""

import json
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.cuda import _memory_viz as memory_viz
from torch.profiler import ProfilerActivity, profile

from lablib import Memory, Run
from lablib.record.memory_snapshot import read_plain_pickle
from tests.fuzz.anything import change_one_value

PYTHON = {"filename": "/home/me/train.py", "line": 12, "name": "forward"}
LIBRARY = {"filename": "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", "line": 134, "name": "forward"}
OPTIMIZER = {"filename": "/usr/lib/python3/site-packages/torch/optim/adamw.py", "line": 60, "name": "_init_group"}
ENGINE = {"filename": "??", "line": 0, "name": "torch::autograd::Engine::thread_main(...)"}


def event(action: str, address: int, size: int, time_us: int, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us, "frames": list(frames)}


def snapshot() -> dict[str, Any]:
    """Device 1 of two: 100 B from before, 30 B of forward, 20 B of backward, 50 B of the optimizer, 7 B freed early."""
    trace = [
        event("segment_alloc", 4096, 2_097_152, 1_000_000),
        event("free_requested", 900, 7, 1_000_001),
        event("free_completed", 900, 7, 1_000_001),
        event("alloc", 200, 30, 1_000_002, LIBRARY, PYTHON),
        event("alloc", 300, 20, 1_000_004, ENGINE),
        event("free_requested", 200, 30, 1_000_005),
        event("free_completed", 200, 30, 1_000_006),
        event("alloc", 200, 50, 1_000_007, OPTIMIZER, PYTHON),
        {"action": "oom", "size": 10**9, "device_free": 10, "stream": 0, "time_us": 1_000_008, "frames": []},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 1_000_009, "frames": []},
    ]
    blocks = [
        {"address": 100, "size": 512, "requested_size": 100, "state": "active_allocated", "frames": [PYTHON]},
        {"address": 200, "size": 512, "requested_size": 50, "state": "active_allocated", "frames": [OPTIMIZER]},
        {"address": 300, "size": 512, "requested_size": 20, "state": "active_awaiting_free", "frames": []},
        {"address": 812, "size": 512, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    segment = {"device": 1, "address": 100, "total_size": 2048, "stream": 0, "blocks": blocks}
    return {"segments": [segment], "device_traces": [[], trace], "allocator_settings": {"PYTORCH_ALLOC_CONF": ""}}


def written(folder: Path, value: Any, name: str = "snapshot.pickle", protocol: int | None = None) -> Path:
    (folder / name).write_bytes(pickle.dumps(value, protocol))
    return folder / name


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_snapshot_has_every_allocation_with_its_time_and_origin(tmp_path, protocol):
    memory = Memory.from_snapshot(written(tmp_path, snapshot(), protocol=protocol))
    rows = [
        (a.size_bytes, a.phase, a.name, a.source, round(1e6 * a.start_s), round(1e6 * a.end_s))
        for a in memory.allocations
    ]
    assert sorted(rows) == [
        (7, "before", "", "", 0, 1),
        (20, "backward", "allocation", "", 4, 9),
        (30, "compute", "forward", "train.py:12: forward", 2, 6),
        (50, "optimizer", "forward", "train.py:12: forward", 7, 9),
        (100, "before", "", "train.py:12: forward", 0, 9),
    ]
    assert memory.peak_bytes() == 100 + 50 + 20 and memory.peak_at_s() == pytest.approx(7e-6)
    assert memory.at(0, 2.5e-6) == dict.fromkeys(memory.at(0, 0), 0) | {"other": 130}
    assert memory.run_notes == ("rank 0 ran out of memory when it asked for 1 GB",)


def test_the_memory_is_drawn_and_explained(tmp_path):
    memory = Memory.from_snapshot(written(tmp_path, snapshot()))
    assert "170 B" in memory.figure().layout.meta["summary"]  # pyright: ignore[reportAttributeAccessIssue]
    assert "train.py:12" in memory.explain()


def test_files_and_devices_are_ranks_in_order(tmp_path):
    two = snapshot()
    two["device_traces"][0] = [event("alloc", 1, 10**6, 1_000_000)]
    memory = Memory.from_snapshot([written(tmp_path, two, "0"), written(tmp_path, snapshot(), "1")])
    assert [memory.peak_bytes(rank) for rank in range(3)] == [10**6, 170, 170]


def test_a_snapshot_without_times_or_history_has_its_bytes(tmp_path):
    timeless = snapshot()
    for entry in timeless["device_traces"][1]:
        del entry["time_us"]
    memory = Memory.from_snapshot(written(tmp_path, timeless))
    assert memory.peak_bytes() == 170 and "has no times" in memory.run_notes[0]
    memory = Memory.from_snapshot(written(tmp_path, snapshot() | {"device_traces": [[], []]}))
    assert memory.peak_bytes() == 170 and memory.allocations[0].phase == "before"


def test_a_run_of_a_profile_has_the_memory_of_its_snapshot_on_the_same_clock(tmp_path):
    """The trace begins one second after 1970, as the snapshot does."""
    work = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 10, "args": {}}
    (tmp_path / "trace.json").write_text(json.dumps({"baseTimeNanoseconds": 10**9, "traceEvents": [work]}))
    assert not Run.from_profile(tmp_path / "trace.json").memory.is_known
    both = Run.from_profile(tmp_path / "trace.json", memory=written(tmp_path, snapshot()))
    assert both.memory.peak_at_s() == pytest.approx(7e-6) and both.memory.peak_bytes() == 170
    assert both.timeline.makespan_s == pytest.approx(10e-6)
    assert both.summary().peak_memory_bytes == (170,)


def test_snapshots_belong_to_the_ranks_of_their_traces(tmp_path):
    work = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 10, "args": {}}
    traces = [tmp_path / f"{rank}.json" for rank in (1, 3)]
    for rank, path in zip((1, 3), traces, strict=True):
        job = {"rank": rank, "world_size": 4}
        path.write_text(json.dumps({"distributedInfo": job, "traceEvents": [work]}))
    file = written(tmp_path, snapshot())
    run = Run.from_profile(traces, memory=[file, file])
    assert run.summary().peak_memory_bytes == (170, 170) and list(run.memory.ranks) == [1, 3]
    with pytest.raises(ValueError, match="one device for each trace: got 1 with memory for 2 traces; give one"):
        Run.from_profile(traces, memory=file)


def test_a_snapshot_that_torch_made_has_the_bytes_and_categories_of_its_profile(tmp_path):
    """torch writes the format itself from a profile on the CPU; its events are added up here."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as profiler:
        for _ in range(2):
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    made = memory_viz._profile_to_snapshot(profiler)
    memory = Memory.from_snapshot(written(tmp_path, made))
    trace = made["device_traces"][-1]
    allocated = sum(entry["size"] for entry in trace if entry["action"] == "alloc")
    held = sum(block["size"] for s in made["segments"] for block in s["blocks"] if block["state"] == "active_allocated")
    freed = sum(entry["size"] for entry in trace if entry["action"] == "free_completed")
    total, change, highest = held + freed - allocated, 0, 0  # before the history
    for entry in trace:
        change += {"alloc": entry["size"], "free_completed": -entry["size"]}.get(entry["action"], 0)
        highest = max(highest, change)
    assert len(trace) > 100 and memory.peak_bytes() == total + highest
    parameters = 4 * sum(parameter.numel() for parameter in model.parameters())
    at_peak = memory.at_peak()
    assert at_peak["optimizer state"] >= 2 * parameters and at_peak["activation"] > 0


# ---- wrong files ----


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch harmed",)


class Plain:
    pass


@pytest.mark.parametrize("value", [Hostile(), Plain(), Plain, os.system, torch.zeros(1), {1, 2}, b"bytes", 1j])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_with_more_than_plain_values_runs_nothing_and_is_one_error(tmp_path, monkeypatch, value, protocol):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, snapshot() | {"more": [value]}, protocol=protocol)
    with pytest.raises(ValueError, match="must be a memory snapshot of torch: it.*; write it with torch.cuda.memory"):
        Memory.from_snapshot(path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("segments"), "must be a memory snapshot of torch: it has no 'segments'"),
        (lambda s: s.update(device_traces=[3]), "its device_traces must be lists of dictionaries"),
        (lambda s: s["device_traces"][1][3].update(size=None), "event 4 of device 1 of .* a whole number under size"),
        (lambda s: s["device_traces"][1][3].pop("addr"), "a whole number under addr: got None; write it with"),
        (
            lambda s: s["segments"][0]["blocks"][0].update(requested_size=-1),
            "a block of device 1 .* under requested_size",
        ),
    ],
)
def test_a_wrong_snapshot_is_one_error(tmp_path, change, message):
    changed = snapshot()
    change(changed)
    with pytest.raises(ValueError, match=message):
        Memory.from_snapshot(written(tmp_path, changed))


CONTENT = pickle.dumps(snapshot())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(values, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back(value, protocol):
    assert read_plain_pickle(pickle.dumps(value, protocol)) == value


def test_every_instruction_that_can_call_is_unknown_or_refused():
    for opcode in pickletools.opcodes:
        if opcode.name in "REDUCE BUILD NEWOBJ NEWOBJ_EX OBJ EXT1 EXT2 EXT4 PERSID BINPERSID".split():
            with pytest.raises(ValueError, match="is not one of plain values"):
                read_plain_pickle(b"\x80\x04N(" + opcode.code.encode("latin-1") + b"\x00\x00\x00\x00\n.")


@given(st.integers(0, len(CONTENT) - 1), st.binary(max_size=6), st.integers(0, 6))
def test_a_damaged_snapshot_is_one_error_or_a_memory(tmp_path_factory, place, inserted, removed):
    path = tmp_path_factory.getbasetemp() / "damaged.pickle"
    path.write_bytes(CONTENT[:place] + inserted + CONTENT[place + removed :])
    try:
        Memory.from_snapshot(path).peak_bytes()
    except ValueError as error:
        assert str(path) in str(error)


@given(st.data())
def test_any_value_in_any_field_is_one_error_or_a_memory(tmp_path_factory, data):
    changed: Any = pickle.loads(CONTENT)
    change_one_value(data, changed, values)
    path = tmp_path_factory.getbasetemp() / "changed.pickle"
    path.write_bytes(pickle.dumps(changed))
    try:
        memory = Memory.from_snapshot(path)
    except ValueError as error:
        assert str(path) in str(error)
    else:
        memory.figure()
