"""Timing on each rank: blocks of calls that all ranks make at the same time.

Compute. A case is called n times in a row, with n chosen so that a block takes about `block_s`; all ranks begin a block
together, and so share caches and memory as in a program. One block's figure is its time over n. With more ranks than
cores, blocks would share a core at random: a block of some milliseconds is about as long as a turn on the core. So at
most one rank per core computes, and the others sleep.

Communication. Each call is timed separately, after a barrier and some work, by the clock that all processes of a
machine share:

    seconds = last rank's end - last rank's start        the model's definition of a collective's time

The work is a product or two, `WORK_S` long, as between two calls of a program: it leaves the library's threads asleep
and their data out of the caches. Right after another call one takes a third of the time.

This applies to CPUs. On GPUs a host clock also counts launch and synchronization; there kernel_times.py measures.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from lablib.calibration.cases import BenchmarkCase, precision_of, program_of

WORK_S = 1e-3  # between two communications
Stamps = list[tuple[int, int]]  # (start, end) of each call in nanoseconds of the machine's clock


def time_cases(
    cases: Sequence[BenchmarkCase], block_s: float, blocks: int, busy_ranks: int | None = None
) -> list[list[float]]:
    """Seconds per call, block by block, for each case. Every rank of the default group calls this.

    The first `busy_ranks` (None: all) of them compute; the others have no seconds.
    """
    busy_ranks = dist.get_world_size() if busy_ranks is None else busy_ranks
    return [_time_case(case, block_s, blocks, busy_ranks) for case in cases]


def _time_case(case: BenchmarkCase, block_s: float, blocks: int, busy_ranks: int) -> list[float]:
    is_busy = dist.get_rank() < busy_ranks
    device = torch.get_default_device()
    program = program_of(case, device)
    with precision_of(case):
        once_s = agree(block_seconds(program, 1, device, warm_up=1) if is_busy else 0.0, device, busy_ranks)
        calls = num_calls(once_s, block_s)
        found = []
        for _ in range(blocks if once_s < 2 * block_s else 1):  # slow cases need no repeats
            dist.barrier()
            if is_busy:
                found.append(block_seconds(program, calls, device) / calls)
    return found


def num_calls(once_s: float, block_s: float) -> int:
    """Number of calls in a block, if one takes `once_s`."""
    return max(1, int(block_s / once_s))


def block_seconds(program: Callable[[], Any], calls: int, device: torch.device, warm_up: int = 0) -> float:
    """Seconds of a block of calls by the clock, after `warm_up` calls that do not count."""
    for _ in range(warm_up):
        program()
    finish(device)
    start_s = time.perf_counter()
    for _ in range(calls):
        program()
    finish(device)
    return time.perf_counter() - start_s


def agree(seconds: float, device: torch.device, ranks: int | None = None) -> float:
    """The mean over ranks: all must make the same number of calls, or some would run alone at the end.

    `ranks`: number of ranks with seconds, where the others give 0; None: all.
    """
    total = torch.tensor([seconds], device=device)
    dist.all_reduce(total)
    return max(total.item() / (ranks or dist.get_world_size()), 1e-7)


def finish(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class MessageCase:
    """One communication to time: a collective's name, "barrier", "send" (0 to 1, 2 to 3, ...) or "exchange" (a ring).

    `size_bytes` is S of lablib/cost/collective.py, a multiple of 4 n.
    """

    name: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.name} of {self.size_bytes} B"


def time_messages(cases: Sequence[MessageCase], block_s: float, max_calls: int) -> list[Stamps]:
    """Start and end of each call on this rank, for each case. Every rank of the default group calls this."""
    return [_time_message(case, block_s, max_calls) for case in cases]


def _time_message(case: MessageCase, block_s: float, max_calls: int) -> Stamps:
    device = torch.get_default_device()
    program, work = message_program(case, device), work_program(device)
    first = [stamp(program, device, work) for _ in range(3)][1:]
    mean_s = agree(WORK_S + sum(end - start for start, end in first) / 2e9, device)
    return [stamp(program, device, work) for _ in range(min(max_calls, max(5, int(block_s / mean_s))))]


def work_program(device: torch.device) -> Callable[[], None]:
    """Some `WORK_S` of products."""
    program = program_of(BenchmarkCase("matmul", "matmul", (128, 128, 128)), device)

    def work() -> None:
        end_s = time.perf_counter() + WORK_S
        while time.perf_counter() < end_s:
            program()

    return work


def stamp(program: Callable[[], Any], device: torch.device, work: Callable[[], None] = lambda: None) -> tuple[int, int]:
    """Start and end of a call by the clock, after a barrier and some work."""
    dist.barrier()
    work()
    finish(device)
    start_ns = time.time_ns()
    program()
    finish(device)
    return start_ns, time.time_ns()


def message_program(case: MessageCase, device: torch.device) -> Callable[[], Any]:
    """This rank's part of one call of a communication."""
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = torch.ones(max(n, case.size_bytes // 4 // n * n), device=device)
    other = torch.ones_like(whole)
    shard = whole[: whole.numel() // n].clone()
    has_peer = rank % 2 == 1 or rank + 1 < n
    match case.name:
        case "all_reduce":
            return lambda: dist.all_reduce(whole)
        case "all_gather":
            gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.13
            return lambda: gather(whole, shard)
        case "reduce_scatter":
            scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
            return lambda: scatter(shard, whole)
        case "broadcast":
            return lambda: dist.broadcast(whole, 0)
        case "all_to_all":
            return lambda: dist.all_to_all_single(other, whole)
        case "barrier":
            return dist.barrier
        case "send" if not has_peer:
            return lambda: None
        case "send":
            return (lambda: dist.recv(whole, rank - 1)) if rank % 2 else (lambda: dist.send(whole, rank + 1))
        case "exchange":
            return lambda: _exchange(whole, other, (rank + 1) % n, (rank - 1) % n)
    raise AssertionError(case.name)


def _exchange(outgoing: torch.Tensor, incoming: torch.Tensor, to_rank: int, from_rank: int) -> None:
    ops = [dist.P2POp(dist.isend, outgoing, to_rank), dist.P2POp(dist.irecv, incoming, from_rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def supported_dtypes() -> tuple[str, ...]:
    """The dtypes in which this rank's device multiplies matrices."""
    device, found = torch.get_default_device(), list[str]()
    for name in ("float32", "float64", "bfloat16", "float16"):
        with suppress(RuntimeError):
            x = torch.ones(8, 8, device=device).to(getattr(torch, name))
            torch.mm(x, x)
            found.append(name)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        found.append("tfloat32")
    return tuple(found)
