"""Times of kernels on GPUs: from the spans of a timed run, without launch and synchronization.

A host clock around a call counts the launch, the wait for the GPU and the way back: for small kernels and messages
several times the work itself. The spans of a run on GPUs are kernels. So each call or block is labelled, and its
seconds come from the spans with that label:

    compute          sum of a rank's spans in a block / calls in the block
    communication    last end - last start of a call's spans over the ranks, as in timing.py by clocks

The launch itself is host time, and the profiler that records spans multiplies it (442 us instead of 148 for ten
additions of ten numbers, on an H200). So programs of small operations run by the clock alone, without waiting for the
GPU in between: n calls take a + n b seconds of the host, and b is the slope between n and 4 n calls.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from lablib.calibration.cases import BenchmarkCase, precision_of, program_of
from lablib.calibration.timing import MessageCase, agree, block_seconds, finish, message_program, num_calls, stamp
from lablib.record.timeline import Timeline

_CASE, _MESSAGE = "case", "message"
_FEW_CALLS = 6  # and four times as many: the longest program has 30 launches, and a GPU's queue holds 1,024


def time_launches(cases: Sequence[BenchmarkCase], repeats: int) -> list[list[float]]:
    """Host seconds of one call of each program, repeat by repeat. Communicates nothing."""
    device = torch.get_default_device()
    programs = [program_of(case, device) for case in cases]
    return [[launch_s(program, lambda: finish(device)) for _ in range(repeats)] for program in programs]


def launch_s(
    program: Callable[[], Any], wait: Callable[[], None], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Host seconds of one call of a program, which does not wait for its work, without the overhead at a loop's ends.

    `wait` returns when the device is idle; `clock` is the host's, in seconds.
    """
    seconds = {}
    for calls in (1, _FEW_CALLS, 4 * _FEW_CALLS):  # the first warms up
        wait()
        start_s = clock()
        for _ in range(calls):
            program()
        seconds[calls] = clock() - start_s
    wait()
    return max((seconds[4 * _FEW_CALLS] - seconds[_FEW_CALLS]) / (3 * _FEW_CALLS), 1e-9)


def run_cases(cases: Sequence[BenchmarkCase], block_s: float, blocks: int) -> list[int]:
    """Run labelled blocks of calls per case; returns the calls per block. Every rank of the default group calls it."""
    found = []
    for number, case in enumerate(cases):
        device = torch.get_default_device()
        program = program_of(case, device)
        with precision_of(case):
            calls = num_calls(agree(block_seconds(program, 1, device, warm_up=1), device), block_s)
            for block in range(blocks):
                dist.barrier()
                finish(device)
                with torch.profiler.record_function(_label(_CASE, number, block)):
                    for _ in range(calls):
                        program()
                finish(device)
        found.append(calls)
    return found


def case_seconds(timeline: Timeline, number: int, calls: int, blocks: int) -> list[float]:
    """Kernel seconds of one call of the `number`-th case of `run_cases`, for each of its blocks and rank with spans."""
    busy: dict[tuple[int, str], float] = defaultdict(float)
    labels = {_label(_CASE, number, block) for block in range(blocks)}
    for span in timeline:
        if span.is_compute and span.phase in labels:
            busy[span.rank, span.phase] += span.duration_s
    return [seconds / calls for seconds in busy.values() if seconds > 0]


def run_messages(cases: Sequence[MessageCase], block_s: float, max_calls: int) -> list[int]:
    """Make labelled calls of each communication; returns their numbers. Every rank of the default group calls it."""
    found = []
    for number, case in enumerate(cases):
        device = torch.get_default_device()
        program = message_program(case, device)
        first = [stamp(program, device) for _ in range(3)][1:]
        mean_s = agree(sum(end - start for start, end in first) / 2e9, device)
        calls = min(max_calls, max(5, int(block_s / mean_s)))
        for call in range(calls):
            dist.barrier()
            finish(device)
            with torch.profiler.record_function(_label(_MESSAGE, number, call)):
                program()
            finish(device)
        found.append(calls)
    return found


def message_seconds(timeline: Timeline, number: int, calls: int) -> list[float]:
    """Seconds of each call of the `number`-th communication of `run_messages`, for calls with spans."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    labels = {_label(_MESSAGE, number, call) for call in range(calls)}
    for span in timeline:
        if span.is_communication and span.phase in labels:
            times[span.phase].append((span.start_s, span.end_s))
    took = [max(end for _, end in spans) - max(start for start, _ in spans) for spans in times.values()]
    return [seconds for seconds in took if seconds > 0]


def _label(kind: str, number: int, part: int) -> str:
    return f"{kind} {number} {part}"
