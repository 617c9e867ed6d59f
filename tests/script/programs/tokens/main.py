# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false
"""Globals of the script and of a package beside it: every process changes its own."""

import atexit
import os
import pickle
import random
import signal
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from mingpt import REGISTRY, utils

STEP = 0
best = float("inf")


@dataclass
class Config:
    name: str
    rank: int


class Trainer:
    callbacks = []  # shared by all trainers of a process

    def __init__(self, config):
        self.config = config
        self.callbacks.append(config.rank)


def train(rank):
    global STEP, best
    for step in range(3 + rank):
        STEP += 1
        best = min(best, 10.0 - step)
        utils.count()
        dist.barrier() if step < 3 else None


if __name__ == "__main__":
    dist.init_process_group(backend="gloo", init_method="env://")
    rank = dist.get_rank()
    signal.signal(signal.SIGTERM, lambda *_: None)
    atexit.register(print, "goodbye from", rank)
    os.environ["MY_RANK"] = str(rank)
    sys.argv.append(f"extra{rank}")
    utils.set_seed(rank)
    config = pickle.loads(pickle.dumps(Config("run", rank)))
    trainer = Trainer(config)
    train(rank)
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, config)
    facts = {
        "step": STEP,
        "best": best,
        "calls": utils.STATE["calls"],
        "callbacks": Trainer.callbacks,
        "registry": REGISTRY["utils"] is utils and len(REGISTRY),
        "draw": random.random(),
        "environment": os.environ["MY_RANK"],
        "argv": sys.argv[1:],
        "main": sys.modules["__main__"].STEP,
        "configs": [(type(c).__name__, c.rank) for c in everybody],
        "world": utils.WORLD,
        "cuda": torch.cuda.device_count(),
    }
    dist.barrier()
    print(facts)
    dist.destroy_process_group()
    sys.exit(0)
