"""Tokens per second of the trainer next to an equivalent plain loop, on real processes (gloo, or GPUs with nccl).

    python benchmarks/train_step.py [--ranks 2] [--repeats 15] [--steps 3] [--width 256] [--backend gloo]

The plain loop is torch alone: DistributedDataParallel, AdamW, a cosine `LambdaLR`, `clip_grad_norm_`, and the mean loss
of all ranks, which is read in every step as the trainer's is. All take the batches of the same loader from the same
start. The trainers use torch's DDP and lablib's DataParallel, each with buckets of 25 MiB and of 1 MiB.

    plain loop       mean loss of a rank, averaged over ranks; torch's clipping, with a norm in float32
    plain, counted   summed loss of a rank x W / N, with W ranks and N tokens of all ranks, as padding needs, and
                     lablib's clipping, with a norm in float64: the trainer's arithmetic

The two are equal up to rounding: the last bit of the factor that clips. Training enlarges it, and after some steps the
losses differ by about 1e-5. So the trainers must have the losses of "plain, counted", to the bit on 2 ranks (over
more ranks, sums in other buckets have another order), and the plain loop's losses to 1e-3.

A bucket of lablib has at most its bytes; torch's is closed by the parameter that exceeds them. So 1 MiB makes more
buckets here than in DDP (with the default width 31 and 19), and each all-reduce costs processor time.

In every repeat each takes its turn, in an order that rotates; the ratio is the median of the ratios within a repeat. On
a CPU processor time is compared too, which other programs disturb less.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lablib import launch
from lablib.batches.clipping import clip_grad_norm_
from lablib.batches.schedules import cosine
from lablib.train.build import build, make_loader, make_model
from lablib.train.read_config import parse_config

TRAINERS = {
    "DDP": {"library": "torch"},
    "DDP 1 MiB": {"library": "torch", "bucket_bytes": 2**20},
    "25 MiB": {},
    "1 MiB": {"bucket_bytes": 2**20},
}
PLAIN, COUNTED, NUM_WARMUP, MAX_NORM, LR = "plain loop", "plain, counted", 10, 1.0, 1e-3


def config_of(width: int, num_steps: int, parallel: dict[str, Any]):
    tables = {
        "num_steps": num_steps,
        "model": {"num_layers": 6, "d_model": width, "num_heads": 4, "vocab_size": 256, "max_seq_len": 128},
        "data": {"corpus": "python-stdlib", "batch_size": 8, "seq_len": 128},
        "optimizer": {"lr": LR, "schedule": "cosine", "num_warmup": NUM_WARMUP, "max_norm": MAX_NORM},
        "parallel": parallel,
    }
    return parse_config(tables, "benchmark").on(dist.get_world_size())


def plain_step(width: int, num_steps: int, counts_tokens: bool = False) -> Callable[[], float]:
    """`counts_tokens`: with the trainer's arithmetic; one more all-reduce, before backward."""
    config = config_of(width, num_steps, {"library": "torch"})
    model, loader, world_size = make_model(config), make_loader(config), dist.get_world_size()
    replica = torch.nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)

    def factor(step: int) -> float:
        return cosine(step, num_steps, NUM_WARMUP)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def step() -> float:
        inputs, targets = next(loader)
        optimizer.zero_grad()
        if counts_tokens:
            num_tokens = (targets != -100).sum()
            if world_size > 1:
                dist.all_reduce(num_tokens)
            logits = replica(inputs).flatten(0, 1)
            loss = F.cross_entropy(logits, targets.flatten(), reduction="sum") / num_tokens
            (loss * world_size).backward()
            total = loss.detach().double()
        else:
            loss = F.cross_entropy(replica(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            total = loss.detach() / world_size
        (clip_grad_norm_ if counts_tokens else torch.nn.utils.clip_grad_norm_)(model.parameters(), MAX_NORM)
        optimizer.step()
        schedule.step()
        if world_size > 1:
            dist.all_reduce(total)
        return total.item()

    return step


def trainer_step(width: int, num_steps: int, parallel: dict[str, Any]) -> Callable[[], float]:
    trainer = build(config_of(width, num_steps, parallel))
    return lambda: trainer.train_step()["loss"]


def program(width: int, repeats: int, num_steps: int) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """For each loop the seconds and processor seconds of a step in every repeat, and its losses."""
    total = (repeats + 1) * num_steps
    steps = {PLAIN: plain_step(width, total), COUNTED: plain_step(width, total, True)}
    steps |= {f"trainer, {name}": trainer_step(width, total, parallel) for name, parallel in TRAINERS.items()}
    taken = {name: ([], [], []) for name in steps}
    for repeat in range(repeats + 1):
        names = list(steps)
        names = names[repeat % len(names) :] + names[: repeat % len(names)]
        for name in names:
            dist.barrier()
            began, began_cpu = time.perf_counter(), time.process_time()
            for _ in range(num_steps):
                taken[name][2].append(steps[name]())
            taken[name][1].append((time.process_time() - began_cpu) / num_steps)
            dist.barrier()
            taken[name][0].append((time.perf_counter() - began) / num_steps)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--backend", default="gloo")
    args = parser.parse_args()
    given = (args.width, args.repeats, args.steps)
    taken = launch(program, *given, ranks=args.ranks, backend=args.backend, trace=False).values[0]
    plain = taken[PLAIN]
    print(f"{args.ranks} ranks on {args.backend}, {args.repeats} repeats of {args.steps} steps, 1,024 tokens a step")
    for name, (seconds, processor, losses) in taken.items():
        far = _distance(losses, plain[2])
        assert far < 1e-3 or math.isnan(far), f"the losses of {name} differ from the plain loop's by {far}"
        counted = _distance(losses, taken[COUNTED][2])
        assert name == PLAIN or counted == 0 or args.ranks > 2, (
            f"the losses of {name} differ from {COUNTED} by {counted}"
        )
        times, rates = seconds[1:], [a / b for a, b in zip(plain[0][1:], seconds[1:], strict=True)]
        ratios = [a / b for a, b in zip(plain[1][1:], processor[1:], strict=True)]
        quarters = statistics.quantiles(rates, n=4)
        middle, low, high = statistics.median(rates), quarters[0], quarters[2]
        print(
            f"  {name:19} {1024 / statistics.median(times):8.0f} tokens/s, {middle:.3f} times the plain loop's", end=""
        )
        print(f" (quartiles {low:.3f} to {high:.3f}), by processor time {statistics.median(ratios):.3f};", end="")
        print(f" losses differ by at most {far:.1e},", end="")
        print(f" from {COUNTED!r} by {counted:.1e}")


def _distance(losses: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(losses, others, strict=True))


if __name__ == "__main__":
    main()
