"""Memory snapshots of CUDA's caching allocator (`torch.cuda.memory._dump_snapshot`) as the memory of a run.

    torch.cuda.memory._record_memory_history()         before the steps
    torch.cuda.memory._dump_snapshot("rank0.pickle")   after them

A snapshot is a pickle of plain values. It is read without running code: a pickle that names any class or function is
refused.

    device_traces   per device, the events of the allocator (alloc, free_requested, free_completed, segment_alloc, oom
                    and others) with addr, size, time_us and frames
    segments        per piece of device memory, its blocks at the time of the snapshot

An allocation lasts from `alloc` to the `free_completed` of the same address. One that was freed without an `alloc`, or
is in a block and has none, existed before the history began. Each device with memory is one rank.

Source: torch 2.13, torch/cuda/memory.py (`_snapshot`) and torch/cuda/_memory_viz.py.
Simplified: CUDA's allocator does not know the role of a tensor, so an allocation is "other"; a snapshot of torch's
`profile_plot` has categories. Its phase is "optimizer" or "backward" if its stack shows so, otherwise "compute";
"before" for one that existed before.
"""

import io
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lablib.record.allocations import CATEGORIES, NEVER, Allocation
from lablib.record.memory import Memory
from lablib.record.passes import OTHER
from lablib.signature import shown
from lablib.text.files import read_bytes
from lablib.text.units import format_quantity, plural

_MAX_BYTES = 4 * 2**30
_BEFORE, _NO_TIME = "before", "this snapshot has no times: one microsecond is one event of the allocator"
_AGAIN = "write it with torch.cuda.memory._dump_snapshot(path)"
_PLAIN = """
PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE INT LONG LONG1 LONG4 BININT BININT1 BININT2 FLOAT BINFLOAT UNICODE
BINUNICODE SHORT_BINUNICODE BINUNICODE8 LIST EMPTY_LIST APPEND APPENDS TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 DICT
EMPTY_DICT SETITEM SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL INST
""".split()


class _PlainUnpickler(pickle._Unpickler):
    """Reads numbers, texts, lists, tuples and dictionaries; any other instruction of pickle is unknown to it."""

    dispatch = {code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _PLAIN)}

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and nothing but plain values is read")


def read_plain_pickle(content: bytes) -> Any:
    """The plain values of a pickle. Raises ValueError: it is damaged, or has a class or a function."""
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except KeyError as error:
        raise ValueError(f"its instruction {error} is not one of plain values") from None
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, AttributeError, struct.error) as error:
        raise ValueError(str(error) or "it ends too early") from None


class _Live(NamedTuple):
    event: int
    time_s: float
    size_bytes: int
    made_by: Mapping[str, Any]  # its event or block, with frames and category


def read_snapshots(
    paths: Sequence[str | Path], zero_us: float | None = None, ranks: Sequence[int] | None = None, num_ranks: int = 0
) -> Memory:
    """The memory in some snapshots: one rank for each device with memory, file by file.

    Args:
        zero_us: the begin of the run, in microseconds since 1970; None: the first event of all.
        ranks, num_ranks: the ranks of these devices, and of the run; None: 0, 1, ...

    Raises:
        OSError: a file cannot be read.
        ValueError: it is no snapshot, or damaged, or there are not as many devices as ranks.
    """
    devices = [(trace, blocks, f"device {i} of {path}") for path in paths for i, trace, blocks in _devices(path)]
    if ranks is not None and len(ranks) != len(devices):
        raise ValueError(
            f"memory must be one device for each trace: got {len(devices)} with memory for "
            f"{plural(len(ranks), 'traces')}; give one snapshot for each"
        )
    ranks, num_ranks = (range(len(devices)), len(devices)) if ranks is None else (ranks, num_ranks)
    times_us = [_time_us(entry, 0) for trace, _, _ in devices for entry in trace if "time_us" in entry]
    zero_us = min(times_us, default=0) if zero_us is None else zero_us
    notes = [_NO_TIME] if not times_us and any(trace for trace, _, _ in devices) else []
    allocations: list[Allocation] = []
    for rank, (trace, blocks, where) in zip(ranks, devices, strict=True):
        allocations += _allocations(rank, trace, blocks, zero_us if times_us else 0.0, where)
        for size_bytes in (_count(entry, "size", where) for entry in trace if entry.get("action") == "oom"):
            notes.append(f"rank {rank} ran out of memory when it asked for {format_quantity(size_bytes, 'B')}")
    simulated = tuple(ranks) if len(ranks) < num_ranks else None
    return Memory(allocations, num_ranks, simulated, run_notes=tuple(notes))


def _devices(path: str | Path) -> Iterator[tuple[int, list[dict[str, Any]], list[dict[str, Any]]]]:
    """Number, events and used blocks of each device with any."""
    try:
        snapshot = read_plain_pickle(read_bytes(path, _MAX_BYTES))
        traces, segments = snapshot["device_traces"], snapshot["segments"]
        if not all(isinstance(trace, list) and all(isinstance(entry, dict) for entry in trace) for trace in traces):
            raise ValueError("its device_traces must be lists of dictionaries")
        held = [(segment.get("device", 0), block) for segment in segments for block in _used_blocks(segment)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} must be a memory snapshot of torch: {reason[:200]}; {_AGAIN}") from None
    for number, trace in enumerate(traces):
        blocks = [block for device, block in held if device == number]
        if trace or blocks:
            yield number, trace, blocks


def _used_blocks(segment: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The blocks of a segment that hold a tensor, with their addresses, which old snapshots leave out."""
    address = segment["address"]
    for block in segment["blocks"]:
        if block["state"] != "inactive":
            yield {"address": address, **block}
        address += block["size"]


def _allocations(
    rank: int, trace: list[dict[str, Any]], blocks: list[dict[str, Any]], zero_us: float, where: str
) -> list[Allocation]:
    live: dict[int, _Live] = {}
    first_s = (_time_us(trace[0], 1) - zero_us) / 1e6 if trace else 0.0
    now_s, found = first_s, list[Allocation]()
    for number, entry in enumerate(trace, 1):
        # Threads record in any order: time does not go back.
        now_s = max(now_s, (_time_us(entry, number) - zero_us) / 1e6)
        if entry.get("action") not in ("alloc", "free_completed"):
            continue
        address, size_bytes = (_count(entry, name, f"event {number} of {where}") for name in ("addr", "size"))
        if entry["action"] == "alloc":
            live[address] = _Live(number, now_s, size_bytes, entry)
        else:
            begun = live.pop(address, None) or _Live(0, first_s, size_bytes, {})
            found.append(_allocation(rank, begun, now_s, number))
    for block in blocks:
        address = _count(block, "address", f"a block of {where}")
        size_bytes = _count(block, "requested_size" if "requested_size" in block else "size", f"a block of {where}")
        live.setdefault(address, _Live(0, first_s, size_bytes, block))
    found += [_allocation(rank, begun, now_s, NEVER) for begun in live.values()]
    return sorted(found, key=lambda one: one.start_event)


def _allocation(rank: int, begun: _Live, end_s: float, end_event: int) -> Allocation:
    phase, name, source = _origin(begun.made_by.get("frames"))
    if not begun.event:
        phase, name = _BEFORE, ""
    times = (begun.time_s, end_s, name, phase, source, begun.event, end_event)
    category = str(begun.made_by.get("category")).replace("_", " ")
    return Allocation(rank, category if category in CATEGORIES else "other", begun.size_bytes, *times)


def _origin(frames: Any) -> tuple[str, str, str]:
    """Phase, function and line of a stack, innermost frame first: of the program's own code if any is there."""
    stack = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
    places = [(str(frame.get("filename", "")), str(frame.get("name", "")), frame.get("line")) for frame in stack]
    phase = OTHER
    if any("/torch/optim/" in file for file, _, _ in places):
        phase = "optimizer"
    elif any("autograd::Engine" in name or "run_backward" in name for _, name, _ in places):
        phase = "backward"
    python = [place for place in places if place[0].endswith(".py")]
    own = [place for place in python if "-packages/" not in place[0] and "/torch/" not in place[0]]
    file, name, line = next(iter(own or python), ("", "", 0))
    return phase, name or "allocation", f"{file.rpartition('/')[2]}:{line}: {name}" if file else ""


def _time_us(entry: Mapping[str, Any], number: int) -> float:
    time_us = entry.get("time_us", number)
    return time_us if type(time_us) in (int, float) and abs(time_us) < 1e18 else number


def _count(entry: Mapping[str, Any], name: str, where: str) -> int:
    value = entry.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{where} must have a whole number under {name}: got {shown(value)}; {_AGAIN}")
    return value
