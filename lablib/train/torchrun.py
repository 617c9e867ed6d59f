"""The program of `lab train` as a script under torchrun and `lab sim` (examples/train.py).

    torchrun --nproc-per-node 4 examples/train.py train.toml optimizer.lr=1e-3

A hang is ended and explained by the watch of the run (hang.py) after `health.hang_s`. torch's own limit for a waiting
rank is longer, for the case that the watch cannot run.

Source: torchrun's environment variables (torch 2.13, "torchrun (Elastic Launch)").
"""

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from lablib.train.health import RunStopped
from lablib.train.run import load, run


def main(arguments: Sequence[str]) -> None:
    """The script under torchrun: a file and overrides. Joins the ranks of the environment.

    A wrong configuration ends it with exit code 2, a policy with 1, each with a sentence of rank 0.
    """
    is_first = os.environ.get("RANK", "0") == "0"
    if not arguments:
        _end("a configuration is needed: got no arguments; try FILE.toml [NAME=VALUE ...]", 2, is_first)
    try:
        config, sentences = load(arguments[0], arguments[1:], int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError as error:
        _end(str(error), 2, is_first)
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        torch.set_default_device("cuda")
    # Later than the watch, which explains more: torch's own limit for a rank that the watch could not end.
    limit = timedelta(seconds=2 * config.health.hang_s + 60) if config.health.hang_s else None
    dist.init_process_group("nccl" if has_gpu else "gloo", timeout=limit)
    try:
        if is_first:
            print("".join(f"{sentence}\n" for sentence in sentences), end="")
        run(config)
    except RunStopped as error:
        _end(str(error), 1, is_first)
    finally:
        dist.destroy_process_group()


def _end(message: str, code: int, is_first: bool) -> NoReturn:
    if is_first:
        print(message, file=sys.stderr, flush=True)
    raise SystemExit(code)
