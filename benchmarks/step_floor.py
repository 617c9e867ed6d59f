"""The least that two benchmarks can take here: the processor time of their programs in plain torch, without lablib.

    python benchmarks/step_floor.py [--meta]

A simulated rank runs the program's own Python and torch. So no simulator of threads can be faster than the program
itself, run in one thread without communication, once for each rank:

    gpt3_step.py            one rank of the first stage, a middle one and the last, times how many there are; layers and
                            micro-batches of GPT-3, tensors of toy size, so that their arithmetic costs nothing
    ... bare mode           the same below a dispatch mode that only calls the operator: the least that it costs to see
                            every operator from Python
    ... meta                the same at full size on torch's device "meta" (--meta: about 10 s more)
    many_ranks_training.py  a rank of DistributedDataParallel in a gloo group of one
"""

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gpt3_step
import torch
import torch.distributed as dist
from many_ranks_training import PROGRAM

from lablib.torch_compat import TorchDispatchMode

TENSOR, PIPELINE, MICRO_BATCHES = 8, 8, 8
TOY = gpt3_step.SMALL | {"layers": gpt3_step.GPT3["layers"]}
RANKS = 1024


class BareMode(TorchDispatchMode):
    """Sees every operator and does nothing with it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return func(*args, **(kwargs or {}))


class NoCommunication:
    """What the program asks of `torch.distributed`, for one rank that is alone."""

    ReduceOp, isend, irecv = dist.ReduceOp, None, None

    def __init__(self, rank: int):
        self._rank = rank

    def get_rank(self, group: Any = None) -> int:
        return self._rank if group is None else self._rank % TENSOR

    def get_world_size(self, group: Any = None) -> int:
        return TENSOR

    def new_group(self, ranks: Any, group_desc: str) -> object:
        return object()

    def all_reduce(self, *args: Any, **kwargs: Any) -> None:
        pass

    barrier = P2POp = all_reduce

    def batch_isend_irecv(self, ops: Any) -> list[Any]:
        return []


def cpu_s(work: Callable[[], object]) -> float:
    """Processor seconds of the second of two runs."""
    work()
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def gpt3_s(config: dict, around: Callable[[], AbstractContextManager]) -> float:
    """Processor seconds of all ranks' programs, one after another."""

    def of_stage(stage: int) -> float:
        gpt3_step.dist = NoCommunication(stage * TENSOR)  # pyright: ignore[reportAttributeAccessIssue]
        with torch.autograd.set_multithreading_enabled(False), around():
            return cpu_s(lambda: gpt3_step.step(config, TENSOR, PIPELINE, MICRO_BATCHES))

    return TENSOR * (of_stage(0) + (PIPELINE - 2) * of_stage(1) + of_stage(PIPELINE - 1))


def training_s() -> float:
    """Processor seconds of the training program, once for each of 1,024 ranks."""
    names: dict[str, Any] = {}
    exec(PROGRAM.split("if __name__")[0], names)
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    with torch.autograd.set_multithreading_enabled(False):
        seconds = cpu_s(lambda: [names["train"]() for _ in range(RANKS // 8)]) * 8
    dist.destroy_process_group()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meta", action="store_true", help="also on torch's device meta, at full size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ranks = f"gpt3_step.py, {TENSOR * PIPELINE} ranks,"
    print(f"{ranks} plain torch     {gpt3_s(TOY, nullcontext):7.1f} s of CPU", flush=True)
    print(f"{ranks} bare mode       {gpt3_s(TOY, BareMode):7.1f} s", flush=True)
    if options.meta:
        meta_s = gpt3_s(gpt3_step.GPT3, lambda: torch.device("meta"))
        print(f"{ranks} meta            {meta_s:7.1f} s", flush=True)
    print(f"many_ranks_training.py, {RANKS:,} ranks  {training_s():7.1f} s")


if __name__ == "__main__":
    main()
