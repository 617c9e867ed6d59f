"""Wall time of a tensor-parallel training step beside torch's DTensor plan, on real processes (gloo).

    python benchmarks/tensor_speed.py [--ranks 2] [--repeats 7] [--width 256]

The same small GPT, cut alike: columns and rows, the vocabulary, with and without sequence parallelism; float32, SGD. In
every repeat each takes its turn; medians of a rank's steps are compared, on the host's clock. torch's plan is without
sequence parallelism, its logits are cut for `loss_parallel`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from lablib import launch
from lablib.models import GPT, GPTConfig
from lablib.parallel import GPT_PLAN, GPT_SEQUENCE_PLAN, parallelize, vocabulary_parallel_loss

VOCAB, LAYERS, SEQ_LEN, ROWS = 512, 6, 128, 4


def torchs_plan() -> dict[str, Any]:
    """The cuts of `GPT_PLAN`."""
    plan: dict[str, Any] = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for block in (f"blocks.{i}." for i in range(LAYERS)):
        shared = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
        plan |= {block + "attention": shared, block + "attention.out": RowwiseParallel()}
        plan |= {block + f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {block + "mlp.up": ColwiseParallel(), block + "mlp.down": RowwiseParallel()}
    return plan


def losses(config: GPTConfig) -> dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]]:
    """Each way: its model, and its loss with backward."""

    def ours(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
        def step(tokens: Tensor, targets: Tensor) -> Tensor:
            loss = vocabulary_parallel_loss(model(tokens), targets, VOCAB)
            loss.backward()
            return loss

        return step

    def torchs(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
        def step(tokens: Tensor, targets: Tensor) -> Tensor:
            with loss_parallel():
                loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
                loss.backward()
            return loss

        return step

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    dtensor = parallelize_module(GPT(config), mesh, torchs_plan())
    plain, sequence = parallelize(GPT(config), plan=GPT_PLAN), parallelize(GPT(config), plan=GPT_SEQUENCE_PLAN)
    return {
        "DTensor": (dtensor, torchs(dtensor)),
        "f and g": (plain, ours(plain)),
        "sequence": (sequence, ours(sequence)),
    }


def program(width: int, repeats: int) -> dict[str, float]:
    config = GPTConfig(LAYERS, width, 4, vocab_size=VOCAB, max_seq_len=SEQ_LEN, tied_head=False)
    tokens = torch.randint(0, VOCAB, (ROWS, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    ways = losses(config)
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.01) for name, (model, _) in ways.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, (_, step) in ways.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(2):
                step(tokens[:, :-1], tokens[:, 1:])
                optimizers[name].step()
                optimizers[name].zero_grad()
            dist.barrier()
            taken[name].append((time.perf_counter() - began) / 2)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    run = launch(program, args.width, args.repeats, ranks=args.ranks, backend="gloo", trace=False)
    taken = run.values[0]
    print(f"{args.ranks} gloo ranks, seconds of a step, median of {args.repeats}, in turn")
    for name, seconds in taken.items():
        print(f"  {name:8} {seconds * 1e3:8.1f} ms   {seconds / taken['DTensor']:.2f} times DTensor   target: 1.3")


if __name__ == "__main__":
    main()
