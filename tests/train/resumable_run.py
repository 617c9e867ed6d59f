"""A small training run that resumes from its newest checkpoint, and a script of it for torchrun, killed as asked.

    python -m torch.distributed.run --nproc-per-node 2 --max-restarts 3 resumable_run.py FOLDER KILLS

KILLS are RANK:PLACE:COUNT, one after another. "1:step:7" kills rank 1 at most 50 ms after step 7 begins;
"0:file:3" rank 0 before its third checksum; "any:publish:1" the rank that publishes first, "any:flush:1" and
"any:flush:2" before and after the rename.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from lablib.data.resumable_sampler import ResumableSampler, merge_states
from lablib.train import Checkpoints, PerRank, checkpoint_save, generator_states, manifest, set_generator_states

SAMPLES_PER_STEP, MOST_STEPS = 4, 40


def net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 3)).double()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, sampler: ResumableSampler) -> dict[str, Any]:
    parameters, moments = get_state_dict(model, optimizer)
    return {
        "model": parameters,
        "optimizer": moments,
        "loader": PerRank(sampler.state_dict()),
        "generators": PerRank(generator_states()),
    }


def train(
    folder: str,
    num_steps: int,
    is_sharded: bool = False,
    noise: float = 0.3,
    note: Callable[[int], None] = lambda step: None,
) -> list[torch.Tensor]:
    """Train up to `num_steps`, from the newest checkpoint on, with a save after every second step.

    `noise`: of dropout and of numpy's generator. `note` is called with the number of each step before it.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = net(noise)
    torch.manual_seed(rank)
    np.random.seed(rank)
    if is_sharded:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = ResumableSampler(SAMPLES_PER_STEP * MOST_STEPS, SAMPLES_PER_STEP // ranks, rank, ranks, seed=3)
    with Checkpoints(folder) as checkpoints:
        state = state_of(model, optimizer, sampler)
        first = checkpoints.load_latest(state) or 0
        if first:
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            sampler.load_state_dict(merge_states(state["loader"].of_all))
            if states := state["generators"].value:  # a new rank has none
                set_generator_states(states)
        for step, places in zip(range(first, num_steps), iter(sampler), strict=False):
            note(step)
            x = torch.stack([torch.full((5,), float(place)).double().sin() for place in places])
            (model(x) + noise * np.random.rand()).square().mean().backward()
            for param in [] if is_sharded else model.parameters():
                assert param.grad is not None
                dist.all_reduce(param.grad)
                param.grad /= ranks
            optimizer.step()
            optimizer.zero_grad()
            sampler.mark_used()
            if step % 2:
                checkpoints.save(step + 1, state_of(model, optimizer, sampler))
    found: list[Any] = list(model.state_dict().values())
    return [value.full_tensor() if is_sharded else value for value in found]


def main(folder: Path, kills: list[str]) -> None:
    """Train on this rank; an attempt notes each step in `attempt-N`, and each kill makes a file `killed-N`."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    attempt, killed = os.environ["TORCHELASTIC_RESTART_COUNT"], len(list(folder.glob("killed-*")))
    rank, place, count = kills[killed].split(":") if killed < len(kills) else ("", "", "0")
    is_victim = rank in (str(dist.get_rank()), "any")

    def die() -> None:
        (folder / f"killed-{killed}").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def note(step: int) -> None:
        time.sleep(0.01)
        if dist.get_rank() == 0:
            with open(folder / f"attempt-{attempt}", "a") as file:
                file.write(f"{step}\n")
        if is_victim and place == "step" and step >= int(count):
            delay_s = random.Random(kills[killed]).uniform(0, 0.05)  # anywhere: in compute, communication or a save
            threading.Timer(delay_s, die).start()

    if is_victim and place != "step":
        call_at(place, int(count), die)
    weights = train(str(folder / "checkpoints"), MOST_STEPS, note=note)
    if dist.get_rank() == 0:
        torch.save(weights, folder / "weights.pt")
    dist.destroy_process_group()


def call_at(place: str, count: int, action: Callable[[], None]) -> None:
    """Call `action` when this process comes to a place of its saves for the `count`-th time."""
    module: Any = manifest if place == "flush" else checkpoint_save
    name = {"file": "size_and_checksum", "publish": "publish", "flush": "flush_folder"}[place]
    wanted, calls = getattr(module, name), 0

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            action()
        return wanted(*arguments)

    setattr(module, name, counted)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
