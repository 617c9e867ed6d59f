"""How long until 8 ranks have their first result: simulated, and as gloo processes from cold.

    python benchmarks/launch_speed.py [--ranks 8] [--repeats 5]

Each figure is taken in a fresh interpreter, after its imports: the first launch, not a warm one. For gloo that is the
start of the processes, their imports and their rendezvous; for sim it is a handful of threads.
"""

import argparse
import statistics
import subprocess
import sys

PROGRAM = """
import sys, time
import torch, torch.distributed as dist
from lablib import launch

def step():
    x = torch.full((4,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x

if __name__ == "__main__":
    began = time.perf_counter()
    run = launch(step, ranks=int(sys.argv[2]), backend=sys.argv[1])
    took = time.perf_counter() - began
    assert run.values[0][0] == sum(range(int(sys.argv[2])))
    print(took)
"""


def first_launch_s(backend: str, ranks: int) -> float:
    command = [sys.executable, "-c", PROGRAM, backend, str(ranks)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    sim, gloo = [], []
    for _ in range(args.repeats):
        sim.append(first_launch_s("sim", args.ranks))
        gloo.append(first_launch_s("gloo", args.ranks))
    sim_s, gloo_s = statistics.median(sim), statistics.median(gloo)
    print(f"{args.ranks} ranks, first result, median of {args.repeats} fresh interpreters each, taken in turn")
    print(f"  sim   {sim_s * 1e3:8.1f} ms   (all: {', '.join(f'{s * 1e3:.0f}' for s in sim)})   target: under 50 ms")
    print(f"  gloo  {gloo_s * 1e3:8.1f} ms   (all: {', '.join(f'{s * 1e3:.0f}' for s in gloo)})")
    print(f"sim is {gloo_s / sim_s:.0f} times faster   target: 100")


if __name__ == "__main__":
    main()
