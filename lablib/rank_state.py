"""The random state a rank starts with: what a fresh process would have, but repeatable.

A new process seeds torch's CPU generator with the same constant everywhere, so every rank draws the *same* torch numbers
until the program seeds by rank. Python's `random` and numpy seed themselves from the operating system, so ranks differ;
here they are seeded from the rank, so that they differ and still repeat.

Both the simulator and the real workers call this before every launch: the same program draws the same numbers on each.
"""

import random
import sys

import torch

# c10::detail::default_rng_seed_val in ATen/core/Generator.h: what `torch.initial_seed()` says in a new process.
TORCH_DEFAULT_SEED = 67280421310721


def seed_rank(rank: int) -> None:
    """Put torch's, Python's and numpy's default generators into the state in which `rank` starts."""
    torch.default_generator.manual_seed(TORCH_DEFAULT_SEED)
    random.seed(f"rank {rank}")
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(rank)
