"""How long until 8 ranks have their first result and their second: simulated, and as gloo processes from cold.

    python benchmarks/launch_speed.py [--ranks 8] [--repeats 5]

Each figure is taken in a fresh interpreter that has imported torch and lablib, and with them the simulator. The first
launch on gloo starts the process that imports torch and forks the ranks, and the ranks meet; the second one finds all
that done.
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
    for _ in range(2):
        began = time.perf_counter()
        run = launch(step, ranks=int(sys.argv[2]), backend=sys.argv[1])
        print(time.perf_counter() - began)
        assert run.values[0][0] == sum(range(int(sys.argv[2])))
"""


def two_launches_s(backend: str, ranks: int) -> list[float]:
    command = [sys.executable, "-c", PROGRAM, backend, str(ranks)]
    return [float(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    took: dict[str, list[list[float]]] = {"sim": [], "gloo": []}
    for _ in range(args.repeats):
        for backend, launches in took.items():
            launches.append(two_launches_s(backend, args.ranks))
    print(f"{args.ranks} ranks, median of {args.repeats} fresh interpreters each, taken in turn")
    for place, name in enumerate(("first result", "second")):
        for backend, launches in took.items():
            seconds = [one[place] for one in launches]
            each = ", ".join(f"{1e3 * s:.0f}" for s in seconds)
            print(f"  {name:12}  {backend:4}  {1e3 * statistics.median(seconds):8.1f} ms   (all: {each})")


if __name__ == "__main__":
    main()
