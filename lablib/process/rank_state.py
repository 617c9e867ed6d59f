"""Initial state of a rank, independent of the notebook: seeds of random generators, number of threads.

Seeds: different on every rank, as in fresh processes, but repeatable.

A new process seeds torch's generators of the CPU and of each GPU, Python's `random` and numpy from the operating
system, so unseeded ranks draw different numbers, and different ones on every run. Here each is seeded from the rank
instead: ranks still differ, and the same program repeats. (The GPU's: pytorch's `getDefaultCUDAGenerator`,
ATen/cuda/CUDAGeneratorImpl.cpp, calls `seed()`. Only a `torch.Generator("cuda")` starts from a constant.)

Both the simulator and the real workers call this before every launch: the same program draws the same numbers on each.

Threads: one, as torchrun sets for several ranks of a machine (OMP_NUM_THREADS=1). A sum over many numbers is split by
the number of threads, so its last bits depend on it; with one, a laptop and a server give the same bits.
"""

import random

import numpy.random
import torch


def seed_rank(rank: int) -> None:
    """Seed torch's CPU, Python's and numpy's default generators for a rank."""
    seeds = random.Random(f"rank {rank}")
    torch.default_generator.manual_seed(seeds.getrandbits(63))
    numpy.random.seed(seeds.getrandbits(32))
    random.seed(seeds.getrandbits(64))


def device_seed(rank: int) -> int:
    """The initial seed of the default generator of the rank's GPU."""
    return random.Random(f"GPU of rank {rank}").getrandbits(63)


def compute_with_one_thread() -> None:
    """Let torch compute with one thread in the calling thread. Other threads that compute already keep their number."""
    torch.get_num_threads()  # the first call in a thread sets its number to the process's; after that, set it
    torch.set_num_threads(1)
