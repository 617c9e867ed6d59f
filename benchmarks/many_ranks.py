"""Host seconds and memory of many simulated ranks; and whether cost grows linearly in ranks x operations.

    python benchmarks/many_ranks.py

Each row is a fresh interpreter, so that memory is that of this run alone: the peak of the process minus what it held
after importing torch and lablib.
"""

import subprocess
import sys

PROGRAM = """
import resource, sys, time
import torch, torch.distributed as dist
from lablib import launch

def program(count):
    x = torch.ones(256)
    for _ in range(count):
        dist.all_reduce(x)

if __name__ == "__main__":
    ranks, count = int(sys.argv[1]), int(sys.argv[2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    run = launch(program, count, ranks=ranks)
    took = time.perf_counter() - began
    unit = 1 if sys.platform == "darwin" else 1024
    print(took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit)
"""


def main() -> None:
    print("ranks  all-reduces   host s   us per rank and all-reduce   MB beyond torch")
    for ranks, count in ((64, 10), (128, 10), (256, 10), (512, 10), (512, 20), (512, 40), (1024, 10)):
        command = [sys.executable, "-c", PROGRAM, str(ranks), str(count)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        took_s, size_bytes = float(out[0]), float(out[1])
        each_us = took_s / (ranks * count) * 1e6
        target = "   target: 5 s, 1000 MB" if (ranks, count) == (512, 10) else ""
        print(f"{ranks:5}  {count:11}   {took_s:6.2f}   {each_us:27.0f}   {size_bytes / 1e6:15.0f}{target}")


if __name__ == "__main__":
    main()
