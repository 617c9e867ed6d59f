"""What a prediction for processes on this machine gets right and wrong, cause by cause: a small program for each.

    python benchmarks/reconcile_parts.py [--repeats 5] [--quick] [--real-time] [--out FILE.md]

Each program does one thing again and again, on gloo and on the simulator with the profile that a calibration makes just
before: products alone and on all ranks, functions, small operations, new memory, collectives back to back and after
work, messages, work beside messages. Prints one line each: predicted and measured seconds of a turn, their ratio, and
the processor seconds a rank used of the measured ones; with --out a table in Markdown.

`--real-time` (Linux, root): ranks run before every other program (SCHED_FIFO). On a machine that others use, that is
what makes a measurement repeat. It also wakes threads at once: an idle machine takes longer, so measure there too.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lablib import Cluster, calibrate, launch, phase
from lablib.record.spent import counted

TURNS = 20


def ahead_of_others(on: bool) -> None:
    """Every thread of this process before those of other programs, or as before. Does nothing where that is refused."""
    for thread in os.listdir("/proc/self/task"):
        try:
            policy = os.SCHED_FIFO if on else os.SCHED_OTHER
            os.sched_setscheduler(int(thread), policy, os.sched_param(1 if on else 0))
        except (OSError, AttributeError):
            return


def turns(make: Callable[..., Callable[[], Any]], args: tuple, real_time: bool) -> float:
    """A rank: prepare in phase "setup", with a turn that warms up; then the turns. Returns its processor seconds."""
    with phase("setup"):
        turn = make(*args)
        if real_time:
            ahead_of_others(True)
        turn()
        dist.barrier()
    start_s = time.process_time()
    for _ in range(TURNS):
        turn()
    used_s = time.process_time() - start_s
    if real_time:
        ahead_of_others(False)
    return used_s


# ---- programs: each returns one turn ----


def products(busy: int) -> Callable[[], Any]:
    """Products of a layer's size with other operands each time, on the first `busy` ranks."""
    xs, ws = ([torch.rand(256, n) for _ in range(TURNS + 1)] for n in (256, 1024))
    kept = []
    if dist.get_rank() >= busy:
        return lambda: None
    return lambda: kept.append(xs[len(kept)] @ ws[len(kept)])


def function(name: str) -> Callable[[], Any]:
    xs, kept = [torch.rand(256, 1024) for _ in range(TURNS + 1)], []
    functions = {
        "add": lambda x: x + x,
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
        "softmax": lambda x: torch.softmax(x, -1),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    }
    return lambda: kept.append(functions[name](xs[len(kept)]))


def small_model() -> Callable[[], Any]:
    layers = [torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)]
    model, x = torch.nn.Sequential(*layers, *layers), torch.rand(4, 8)
    return lambda: model(x).sum().backward()


def new_memory() -> Callable[[], Any]:
    kept = []
    return lambda: kept.append(torch.zeros(2**18))


def work() -> Callable[[], None]:
    """Products of a millisecond or two, whose operands fill the cache."""
    xs = [torch.rand(256, 256) for _ in range(16)]

    def product() -> None:
        for x, y in zip(xs[::2], xs[1::2], strict=True):
            torch.mm(x, y)

    return product


def all_reduces(size_bytes: int, works: bool, pairs: bool = False) -> Callable[[], Any]:
    x, before = torch.ones(size_bytes // 4), work() if works else (lambda: None)
    groups = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)] if pairs else [None]

    def turn() -> None:
        before()
        dist.all_reduce(x, group=groups[dist.get_rank() // 2 if pairs else 0])

    return turn


def ping_pong(size_bytes: int) -> Callable[[], Any]:
    x, rank = torch.ones(size_bytes // 4), dist.get_rank()

    def turn() -> None:
        for sender in (0, 1):
            dist.send(x, 1 - sender) if rank == sender else dist.recv(x, sender)

    return turn


def message_beside_work(size_bytes: int) -> Callable[[], Any]:
    """Two ranks exchange a message while both compute, and wait for it afterwards."""
    out, into, peer, busy = torch.ones(size_bytes // 4), torch.ones(size_bytes // 4), 1 - dist.get_rank(), work()

    def turn() -> None:
        ops = [dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, peer)]
        works = dist.batch_isend_irecv(ops)
        busy()
        for each in works:
            each.wait()

    return turn


def all_reduce_beside_work(size_bytes: int) -> Callable[[], Any]:
    x, busy = torch.ones(size_bytes // 4), work()

    def turn() -> None:
        handle = dist.all_reduce(x, async_op=True)
        busy()
        assert handle is not None
        handle.wait()

    return turn


def objects() -> Callable[[], Any]:
    return lambda: dist.all_gather_object([None] * dist.get_world_size(), {"loss": 1.0})


PROGRAMS: dict[str, tuple[Callable[..., Callable[[], Any]], tuple, int]] = {
    "product on 1 rank of 2": (products, (1,), 2),
    "product on 2 ranks": (products, (2,), 2),
    "product on 4 ranks": (products, (4,), 4),
    **{f"{name} of 1 MB": (function, (name,), 2) for name in ("add", "layer_norm", "softmax", "gelu tanh")},
    "small model, forward and backward": (small_model, (), 2),
    "1 MB of new memory": (new_memory, (), 2),
    "all_reduce of 2 kB, 2 ranks": (all_reduces, (2048, False), 2),
    "all_reduce of 512 kB, 2 ranks": (all_reduces, (2**19, False), 2),
    "work, then all_reduce of 2 kB, 2 ranks": (all_reduces, (2048, True), 2),
    "work, then all_reduce of 512 kB, 2 ranks": (all_reduces, (2**19, True), 2),
    "work, then all_reduce of 256 kB, 4 ranks": (all_reduces, (2**18, True), 4),
    "work, then all_reduce of 256 kB, 2 pairs": (all_reduces, (2**18, True, True), 4),
    "ping-pong of 128 B": (ping_pong, (128,), 2),
    "ping-pong of 256 kB": (ping_pong, (2**18,), 2),
    "work beside a message of 256 kB": (message_beside_work, (2**18,), 2),
    "work beside an all_reduce of 512 kB": (all_reduce_beside_work, (2**19,), 2),
    "all_gather_object, 2 ranks": (objects, (), 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="quick calibrations")
    parser.add_argument("--real-time", action="store_true", help="run before other programs (root)")
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    options = parser.parse_args()

    @cache
    def profile(ranks: int) -> Cluster:
        return calibrated(ranks, options.quick, options.real_time)

    lines = ["| a turn of | predicted | measured | ratio | processor |", "|---|--:|--:|--:|--:|"]
    for name, (make, args, ranks) in PROGRAMS.items():
        predicted = launch(turns, make, args, False, ranks=ranks, cluster=profile(ranks))
        runs = [
            launch(turns, make, args, options.real_time, ranks=ranks, backend="gloo") for _ in range(options.repeats)
        ]
        predicted_ms = 1e3 * counted(predicted, "setup").makespan_s / TURNS
        measured_ms = 1e3 * median(counted(run, "setup").makespan_s for run in runs) / TURNS
        used_ms = 1e3 * median(max(run.values) for run in runs) / TURNS
        ratio = predicted_ms / measured_ms
        lines.append(f"| {name} | {predicted_ms:.3f} ms | {measured_ms:.3f} ms | {ratio:.2f} | {used_ms:.3f} ms |")
        print(f"{name:45} {predicted_ms:8.3f} ms predicted {measured_ms:8.3f} ms measured {ratio:6.2f}", flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", "utf-8")


def calibrated(ranks: int, quick: bool, real_time: bool) -> Cluster:
    """The profile of this machine; the workers of a pool keep their place before other programs."""
    if real_time:
        launch(ahead_of_others, True, ranks=ranks, backend="gloo")
    cluster = calibrate(ranks=ranks, quick=quick)
    if real_time:
        launch(ahead_of_others, False, ranks=ranks, backend="gloo")
    return cluster


if __name__ == "__main__":
    main()
