"""A training under torchrun in which rank 1 sleeps for ever after its second step."""

import sys
import time
from functools import partial
from typing import Any

import torch.distributed as dist

from lablib.train import Trainer, torchrun
from lablib.train.run import run


def sleep_on_rank_1(trainer: Trainer) -> None:
    def sleep(metrics: Any) -> None:
        if metrics["step"] == 2 and dist.get_rank() == 1:
            time.sleep(1e6)

    trainer.on_step.append(sleep)


if __name__ == "__main__":
    torchrun.run = partial(run, attach=[sleep_on_rank_1])
    torchrun.main(sys.argv[1:])
