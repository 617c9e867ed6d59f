"""Wall time of a training step of ZeRO stages 2 and 3 beside torch's FSDP2, on real processes (gloo).

    python benchmarks/zero_speed.py [--ranks 2] [--repeats 5] [--width 256]

The same small GPT, blocks as units, AdamW, float32. In every repeat each takes its turn; medians of a rank's steps are
compared, on the host's clock.
"""

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from lablib import launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import Zero

METHODS = ("FSDP2", "stage 3", "stage 2", "stage 1")


def replica_of(method: str, model: Any) -> tuple[Any, Any]:
    """What is called, and what is stepped."""
    if method != "FSDP2":
        zero = Zero(model, torch.optim.AdamW, int(method[-1]))
        return zero, zero
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model), torch.optim.AdamW(model.parameters())


def program(width: int, repeats: int) -> dict[str, float]:
    config = GPTConfig(6, width, 4, vocab_size=512, max_seq_len=128)
    replicas = {method: replica_of(method, GPT(config)) for method in METHODS}
    tokens = torch.randint(0, 512, (4, 129))
    taken: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(repeats + 1):
        for method, (replica, optimizer) in replicas.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(2):
                next_token_loss(replica(tokens[:, :-1]), tokens[:, 1:]).backward()
                optimizer.step()
                optimizer.zero_grad()
            dist.barrier()
            taken[method].append((time.perf_counter() - began) / 2)
    return {method: statistics.median(times[1:]) for method, times in taken.items()}  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    run = launch(program, args.width, args.repeats, ranks=args.ranks, backend="gloo", trace=False)
    taken = run.values[0]
    print(f"{args.ranks} gloo ranks, seconds of a step, median of {args.repeats}, in turn")
    for method, seconds in taken.items():
        print(f"  {method:8} {seconds * 1e3:8.1f} ms   {seconds / taken['FSDP2']:.2f} times FSDP2   target: 1.3")


if __name__ == "__main__":
    main()
