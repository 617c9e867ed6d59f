"""What a rank starts with, whatever the notebook has: random generators, and the number of threads.

Random generators: different on every rank, as in fresh processes, but repeatable.

A new process seeds torch's generators of the CPU and of each GPU, Python's `random` and numpy from the operating
system, so unseeded ranks draw different numbers, and different ones on every run. Here each is seeded from the rank
instead: ranks still differ, and the same program repeats. (A GPU's: pytorch's `getDefaultCUDAGenerator`,
ATen/cuda/CUDAGeneratorImpl.cpp, calls `seed()`. Only a `torch.Generator("cuda")` starts from a constant.)

Both the simulator and the real workers call this before every launch: the same program draws the same numbers on each.

Threads: one, as torchrun sets for several ranks of a machine (OMP_NUM_THREADS=1). A sum over many numbers is split by
the number of threads, so its last bits depend on it; with one, a program computes the same on a laptop and on a server.
"""

import random

import numpy.random
import torch


def seed_rank(rank: int) -> None:
    """Put torch's CPU, Python's and numpy's default generators into the state in which `rank` starts."""
    seeds = random.Random(f"rank {rank}")
    torch.default_generator.manual_seed(seeds.getrandbits(63))
    numpy.random.seed(seeds.getrandbits(32))
    random.seed(seeds.getrandbits(64))


def device_seed(rank: int) -> int:
    """The seed from which the default generator of the rank's GPU starts."""
    return random.Random(f"GPU of rank {rank}").getrandbits(63)


def compute_with_one_thread() -> None:
    """Have torch compute with one thread in the calling thread. Others that compute already keep their number."""
    torch.get_num_threads()  # a thread's first question sets its number to the process's: then it is set to stay
    torch.set_num_threads(1)
