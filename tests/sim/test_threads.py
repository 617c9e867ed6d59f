"""What a rank computes does not depend on the number of threads that the notebook computes with."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist

from lablib import launch


def program() -> list[torch.Tensor]:
    """Sums and products that are long enough to be split by threads, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1_000_003, generator=generator, requires_grad=True)
    weight = torch.randn(257, 513, generator=generator, requires_grad=True)
    rows = x[: 3001 * 257].view(3001, 257)
    out = (rows @ weight).relu()
    norm = torch.nn.functional.layer_norm(out, (513,)).square().sum()
    loss = norm + x.sum() + x.exp().mean()
    loss.backward()
    dist.barrier()
    assert x.grad is not None and weight.grad is not None
    return [x.sum().detach(), loss.detach(), x.grad, weight.grad, weight.grad.sum()]


def number_in_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(scope="module")
def with_one_thread() -> list[torch.Tensor]:
    return run_with(1)[1]


def run_with(num_threads: int) -> list[list[torch.Tensor]]:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        return launch(program, ranks=2).values
    finally:
        assert torch.get_num_threads() == number_in_a_new_thread() == num_threads
        torch.set_num_threads(before)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_values_are_equal_to_the_bit_whatever_the_notebooks_number_of_threads(num_threads: int, with_one_thread):
    for values in run_with(num_threads):
        for value, expected in zip(values, with_one_thread, strict=True):
            torch.testing.assert_close(value, expected, rtol=0, atol=0)


def test_a_program_may_take_more_threads_for_one_rank_and_no_other_has_them():
    def program() -> tuple[int, int]:
        if dist.get_rank() == 1:
            torch.set_num_threads(3)
        dist.barrier()
        inside = torch.get_num_threads()
        torch.ones(100_000).sum()
        return inside, torch.get_num_threads()

    before = torch.get_num_threads()
    assert launch(program, ranks=3).values == [(1, 1), (3, 3), (1, 1)]
    assert torch.get_num_threads() == number_in_a_new_thread() == before


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has SCHED_BATCH")
def test_a_rank_preempts_nobody_and_a_thread_that_it_starts_is_as_usual():
    def program() -> list[int]:
        seen = [os.sched_getscheduler(0)]
        thread = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()
        return seen

    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert launch(program, ranks=2).values == [[os.SCHED_BATCH, os.SCHED_OTHER]] * 2
    assert os.sched_getscheduler(0) == os.SCHED_OTHER  # so is the notebook


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has SCHED_BATCH")
def test_a_process_whose_policy_somebody_chose_keeps_it():
    code = (
        "import os\n"
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
        "from lablib import launch\n"
        "assert launch(lambda: os.sched_getscheduler(0), ranks=2).values == [os.SCHED_IDLE] * 2\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
