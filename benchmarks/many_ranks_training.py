"""Host seconds and memory of a training run on many simulated ranks, clock and memory tracker on.

    python benchmarks/many_ranks_training.py

A small model, torch's DistributedDataParallel, 2 steps of SGD. Each row is a fresh interpreter. A straight line in
ranks would be one number of milliseconds for each rank.
"""

import subprocess
import sys

PROGRAM = """
import resource, sys, time
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from lablib import launch

def train():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(8, 32)
        (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    ranks, trace = int(sys.argv[1]), sys.argv[2] == "on"
    began, cpu = time.perf_counter(), time.process_time()
    run = launch(train, ranks=ranks, trace=trace)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    unit = 1 if sys.platform == "darwin" else 1024
    print(took, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, len(run.timeline), len(run.memory))
"""


def main() -> None:
    print("ranks  clock and memory tracker   host s    CPU s   ms per rank   GB in all    spans   blocks")
    for ranks, trace in ((128, "on"), (256, "on"), (512, "on"), (1024, "off"), (1024, "on")):
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(ranks), trace]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        took_s, cpu_s, size_bytes, spans, blocks = map(float, out)
        target = "   target: 30 s, 4 GB" if (ranks, trace) == (1024, "on") else ""
        print(
            f"{ranks:5}  {trace:>16}   {took_s:6.1f}   {cpu_s:6.1f}   {1e3 * took_s / ranks:11.1f}   "
            f"{size_bytes / 1e9:9.2f}   {spans:6.0f}   {blocks:6.0f}{target}"
        )


if __name__ == "__main__":
    main()
