# pyright: reportOptionalMemberAccess=false, reportPrivateImportUsage=false

"""The same program twice gives the same values, timeline, traffic and output, to the bit, whatever the host does."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lablib import Run, launch


def everything_at_once() -> dict[str, Any]:
    """Unseeded random numbers, dropout, overlapping collectives, messages from anyone, polls, printing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)), bucket_cap_mb=0.001
    )
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(4, 8)).square().mean() * (1 + rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    senders = []
    if rank == 0:
        for _ in range(size - 1):
            senders.append(dist.recv(torch.empty(1000)))
    else:
        for _ in range(rank):
            torch.randn(64, 64) @ torch.randn(64, 64)
        dist.send(torch.ones(1000), dst=0)
    work = dist.all_reduce(torch.ones(100), async_op=True)
    polls = 0
    while not work.is_completed():
        polls += 1
    print(f"rank {rank}: {losses}, {senders}")
    numbers = [random.random(), numpy.random.rand(), numpy.random.normal(), torch.rand(()).item()]
    return {"losses": losses, "senders": senders, "numbers": numbers, "polls": polls, "set": list({"a", "b", "c"})}


def assert_identical(first: Run, second: Run) -> None:
    assert first.values == second.values
    assert first.timeline == second.timeline
    assert first.traffic == second.traffic
    assert first.stdout == second.stdout


@contextmanager
def busy_host() -> Iterator[None]:
    """Other threads of the process that compete for the interpreter and use the random generators' module."""
    stop = threading.Event()

    def work() -> None:
        generator = torch.Generator().manual_seed(0)
        while not stop.is_set():
            torch.randn(2000, generator=generator).sort()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_program_repeats_to_the_bit_on_a_busy_host():
    quiet = launch(everything_at_once, ranks=5)
    with busy_host():
        assert_identical(quiet, launch(everything_at_once, ranks=5))


def test_a_program_repeats_whatever_ran_before_and_however_the_host_was_seeded():
    first = launch(everything_at_once, ranks=3)
    torch.manual_seed(99), random.seed(99), numpy.random.seed(99)
    launch(dist.get_rank, ranks=7)
    assert_identical(first, launch(everything_at_once, ranks=3))


def test_ranks_are_not_alike_unless_the_program_seeds_them_alike():
    def program(seed: int | None) -> list[float]:
        if seed is not None:
            torch.manual_seed(seed), random.seed(seed), numpy.random.seed(seed)
        return [torch.rand(()).item(), random.random(), numpy.random.rand()]

    unseeded, seeded = launch(program, None, ranks=4).values, launch(program, 5, ranks=4).values
    assert all(len({values[i] for values in unseeded}) == 4 for i in range(3))
    assert all(len({values[i] for values in seeded}) == 1 for i in range(3))
