"""Real seconds of one all-reduce, simulated against gloo processes: small (1 KB) and large (64 MB), 4 ranks.

    python benchmarks/all_reduce_speed.py [--ranks 4] [--repeats 5]

Both run the same program: `count` all-reduces of one tensor between two barriers, timed by rank 0 on the host's clock.
The backends take turns, and medians are compared. (Virtual time is another matter: it is what a cluster would take.)
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

from lablib import launch


def program(size_bytes: int, count: int) -> float:
    x = torch.ones(size_bytes // 4)
    dist.all_reduce(x)  # connections, buffers
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(x)
    dist.barrier()
    return (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{args.ranks} ranks, host seconds of one all-reduce, median of {args.repeats}, backends in turn")
    for label, size_bytes, count, target in (("1 KB", 1024, 200, 10), ("64 MB", 64 * 10**6, 3, 1)):
        times: dict[str, list[float]] = {"sim": [], "gloo": []}
        for _ in range(args.repeats):
            for backend, taken in times.items():
                run = launch(program, size_bytes, count, ranks=args.ranks, backend=backend, trace=False)
                taken.append(run.values[0])
        sim_s, gloo_s = (statistics.median(times[backend]) for backend in ("sim", "gloo"))
        print(
            f"  {label:>5}  sim {sim_s * 1e3:8.3f} ms   gloo {gloo_s * 1e3:8.3f} ms   "
            f"sim is {gloo_s / sim_s:.1f} times faster   target: {target}"
        )


if __name__ == "__main__":
    main()
