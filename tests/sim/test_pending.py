"""Results under way: whoever touches one waits, whoever only got its address after it does not."""

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib import launch
from lablib.sim.communication.pending import Pending
from tests.sim.toy import TOY, compute


class Awaited:
    def __init__(self, is_over: bool = False) -> None:
        self.num_waits, self._is_over = 0, is_over

    def wait(self) -> bool:
        self.num_waits += 1
        return True

    def is_over(self) -> bool:
        return self._is_over


def test_the_first_that_touches_a_result_or_a_view_of_it_waits():
    for touch in (lambda x: x, lambda x: x[2:], lambda x: x.view(2, 4).t()):
        pending, awaited, x = Pending(), Awaited(), torch.empty(8)
        pending.add(x, awaited)
        pending.join(torch.empty(8))
        assert awaited.num_waits == 0 and pending
        pending.join(touch(x))
        pending.join(x)
        assert awaited.num_waits == 1 and not pending


def test_two_communications_into_one_memory_are_both_waited_for():
    pending, x, first, second = Pending(), torch.empty(8), Awaited(), Awaited()
    pending.add(x[:4], first)
    pending.add(x[4:], second)
    pending.join(x)
    assert first.num_waits == second.num_waits == 1


def test_what_is_over_is_not_kept_beside_what_is_new():
    pending, x, old, new = Pending(), torch.empty(8), Awaited(is_over=True), Awaited()
    pending.add(x, old)
    pending.add(x, new)
    pending.join(x)
    assert (old.num_waits, new.num_waits) == (0, 1)


def test_a_tensor_that_gets_the_address_of_a_dropped_result_does_not_wait_for_it():
    pending, awaited = Pending(), Awaited()
    for _ in range(500):
        x = torch.empty(8)
        pending.add(x, awaited)
        del x
        pending.join(torch.empty(8))
    assert awaited.num_waits == 0


def test_dropped_results_are_forgotten_and_their_memory_freed():
    pending = Pending()
    for _ in range(1000):
        pending.add(torch.empty(8), Awaited())
    assert len(pending) <= 17
    kept = [torch.empty(8) for _ in range(100)]
    awaited = Awaited()
    for x in kept:
        pending.add(x, awaited)
    for x in kept:
        pending.join(x)
    assert awaited.num_waits == len(kept)


def starts_of(program: Any) -> tuple[list[float], float]:
    timeline = launch(program, ranks=2, cluster=TOY).timeline
    return [span.start_s for span in timeline.select(0, "compute")], timeline.select(0, "comm")[0].end_s


def test_a_program_that_drops_a_future_computes_on():
    def program() -> None:
        for _ in range(50):
            work = dist.all_reduce(torch.empty(1000), async_op=True)
            assert work is not None
            work.get_future()
            del work
            compute(4000)  # as large as what was dropped

    starts, end_s = starts_of(program)
    assert len(starts) == 50 and starts[-1] == pytest.approx(49 * 4e-6) and starts[-1] < 49 * end_s


@pytest.mark.parametrize("take", [lambda work: work.result(), lambda work: work.get_future().value()])
def test_a_result_taken_without_waiting_is_waited_for_by_its_first_use(take: Any):
    def program() -> None:
        work = dist.all_reduce(torch.empty(1000), async_op=True)
        assert work is not None
        (x,) = take(work)
        compute(100)
        x.add_(1)
        x.add_(1)

    (free, first, second), end_s = starts_of(program)
    assert free == 0.0 and first == end_s and second > end_s


def test_nothing_of_a_dropped_result_stays_alive():
    def program() -> int:
        work = dist.all_reduce(torch.empty(1000), async_op=True)
        assert work is not None
        reference = torch.multiprocessing.reductions.StorageWeakRef(work.get_future().value()[0].untyped_storage())
        del work
        gc.collect()
        return int(reference.expired())

    assert launch(program, ranks=2).values == [1, 1]


@pytest.mark.parametrize("num_kept", [0, 5, 40])
def test_what_the_program_has_dropped_takes_no_room_for_long(num_kept: int):
    pending = Pending()
    kept = [torch.empty(8) for _ in range(num_kept)]
    for x in kept:
        pending.add(x, Awaited())
    for i in range(500):
        pending.add(torch.empty(8 + i), Awaited())
        assert num_kept <= len(pending) <= max(16, 2 * (num_kept + 1)) + 1
    del kept
