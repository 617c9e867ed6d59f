"""Optimizer step on the CPU (as DeepSpeedCPUAdam): torch's fused AdamW beside its loop and foreach, and an addition.

    python benchmarks/cpu_adam.py [--numel 4e7] [--repeats 9] [--threads 1]

One FP32 shard, as `lablib.parallel.zero.offload` steps it. AdamW reads parameter, gradient and two moments and writes
three of them: 28 bytes per parameter. `target += source` moves 12 bytes per number, also in place. In every repeat each
takes its turn; medians of processor time with one thread, of the clock with more. `share`: bytes per second over those
of the addition. With a share of 1 or more the step is limited by memory and not by arithmetic, so the host's bandwidth
is the figure for `ZeroOffload(host_bytes_per_s=)`.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

ADAM_BYTES = 28  # per parameter: 16 read, 12 written


def step_of(numel: int, **how: bool) -> Callable[[], object]:
    param = torch.nn.Parameter(torch.randn(numel))
    param.grad = torch.randn(numel)
    optimizer = torch.optim.AdamW([param], **how)
    return optimizer.step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numel", type=float, default=4e7)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    numel = int(args.numel)
    source, target = torch.randn(2 * numel), torch.zeros(2 * numel)  # as many bytes as AdamW touches
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "addition": (lambda: target.add_(source), 12 * 2 * numel),
        "loop": (step_of(numel, foreach=False), ADAM_BYTES * numel),
        "foreach": (step_of(numel, foreach=True), ADAM_BYTES * numel),
        "fused": (step_of(numel, fused=True), ADAM_BYTES * numel),
    }
    clock = time.process_time if args.threads == 1 else time.perf_counter
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.repeats + 1):
        for name, (run, _) in ways.items():
            began = clock()
            run()
            taken[name].append(clock() - began)
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}  # the first warms up
    rates = {name: ways[name][1] / seconds for name, seconds in medians.items()}
    print(f"{numel:,} parameters, {args.threads} threads, median of {args.repeats}, in turn")
    for name, seconds in medians.items():
        times, rate, share = seconds / medians["fused"], rates[name] / 1e9, rates[name] / rates["addition"]
        print(f"  {name:8} {seconds * 1e3:8.1f} ms  {times:5.2f} times fused  {rate:5.1f} GB/s  share {share:.2f}")


if __name__ == "__main__":
    main()
