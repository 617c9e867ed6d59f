"""Host seconds and memory of a training run on many simulated ranks, clock and memory tracker on.

    python benchmarks/many_ranks_training.py [--ranks 1024]

A small model, torch's DistributedDataParallel, 2 steps of SGD. Each row is a fresh interpreter. Its first
DistributedDataParallel imports torch's compiler, once a process, simulated or not: that is a column of its own, and not
in the others. A straight line in ranks would be one number of milliseconds for each rank. In the last two rows tensors
have shapes only; in the last one rank 0 alone is simulated, and its step must take what it takes among all.
"""

import argparse
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
    shapes = {"fidelity": "shapes", "simulate": [0] if sys.argv[3] == "rank 0" else None}
    imports = time.process_time()
    import torch._dynamo
    began, cpu = time.perf_counter(), time.process_time()
    imports = cpu - imports
    run = launch(train, ranks=ranks, trace=trace, **({} if sys.argv[3] == "values" else shapes))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    unit = 1 if sys.platform == "darwin" else 1024
    size_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(took, cpu, imports, size_bytes, len(run.timeline), len(run.memory))
    print(run.timeline.makespan_s, run.memory.peak_bytes(0) if trace else 0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    most = parser.parse_args().ranks
    print(
        "ranks  tensors  clock, memory tracker   host s    CPU s   imports   ms per rank   GB in all    spans   blocks"
    )
    rows = [(most // 8, "on", "values"), (most // 4, "on", "values"), (most // 2, "on", "values")]
    rows += [(most, "off", "values"), (most, "on", "values"), (most, "on", "shapes"), (most, "on", "rank 0")]
    steps = {}
    for ranks, trace, tensors in rows:
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(ranks), trace, tensors]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        took_s, cpu_s, imports_s, size_bytes, spans, blocks = map(float, out[:6])
        steps[tensors] = out[6:]
        target = "   target: 10 s, 4 GB" if (ranks, trace, tensors) == (1024, "on", "values") else ""
        print(
            f"{ranks:5}  {tensors:7}  {trace:>21}   {took_s:6.1f}   {cpu_s:6.1f}   {imports_s:7.1f}   "
            f"{1e3 * took_s / ranks:11.1f}   {size_bytes / 1e9:9.2f}   {spans:6.0f}   {blocks:6.0f}{target}",
            flush=True,
        )
    makespan_s, peak_bytes = steps["rank 0"]
    same = "the same" if steps["rank 0"] == steps["shapes"] else f"among all {', '.join(steps['shapes'])}"
    print(f"rank 0 alone: {makespan_s} s of the cluster, peak {peak_bytes} bytes; {same}")


if __name__ == "__main__":
    main()
