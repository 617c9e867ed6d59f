"""Threads of a rank: one that communicates ends the run with the reason, whatever it swallows; others go on working."""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dnn
from torch.distributed.distributed_c10d import _get_default_store
from torch.utils.data import DataLoader, TensorDataset

from lablib import RankError, launch

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(30)]


def x() -> torch.Tensor:
    return torch.ones(2)


CALLS: dict[str, Callable[[dist.Work], Any]] = {
    "all_reduce": lambda work: dist.all_reduce(x()),
    "async all_reduce": lambda work: dist.all_reduce(x(), async_op=True),
    "functional all_reduce": lambda work: funcol.all_reduce(x(), "sum", dist.group.WORLD),  # pyright: ignore
    "barrier": lambda work: dist.barrier(),
    "send": lambda work: dist.send(x(), dst=1 - dist.get_rank()),
    "isend": lambda work: dist.isend(x(), dst=1 - dist.get_rank()),
    "recv": lambda work: dist.recv(x(), src=1 - dist.get_rank()),
    "irecv": lambda work: dist.irecv(x(), src=1 - dist.get_rank()),
    "broadcast of objects": lambda work: dist.broadcast_object_list([None], src=0),
    "wait": lambda work: work.wait(),
    "is_completed": lambda work: work.is_completed(),
    "get_future": lambda work: work.get_future(),
    "store set": lambda work: _get_default_store().set("key", "value"),
    "store get": lambda work: _get_default_store().get("key"),
    "store add": lambda work: _get_default_store().add("number", 1),
    "store check": lambda work: _get_default_store().check(["key"]),
    "store wait": lambda work: _get_default_store().wait(["key"]),
    "backward": lambda work: dnn.all_reduce(x().requires_grad_()).sum().backward(),
}


def in_a_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call, name="a helper")
    thread.start()
    thread.join()


def in_a_pool(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="a helper") as pool:
        pool.submit(call).result()


def in_a_timer(call: Callable[[], Any]) -> None:
    timer = threading.Timer(0.001, call)
    timer.name = "a helper"
    timer.start()
    timer.join()


def in_a_thread_of_a_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=in_a_thread, args=(call,))
    thread.start()
    thread.join()


@pytest.mark.filterwarnings("ignore:.*is deprecated.*:FutureWarning")
@pytest.mark.parametrize("name", CALLS)
def test_whatever_a_thread_calls_ends_the_run_and_names_thread_and_rank_and_line(name: str):
    def swallow(work: dist.Work) -> None:
        try:
            CALLS[name](work)
        except BaseException:
            pass

    def program() -> None:
        work = dist.all_reduce(x(), async_op=True)
        assert work is not None
        in_a_thread(lambda: swallow(work))
        work.wait()

    with pytest.raises(RankError, match="communicates from one thread only.*'a helper'.*rank 0 ") as caught:
        launch(program, ranks=2, timeout_s=20)
    assert caught.value.rank == 0
    assert "test_threads_of_a_rank.py:" in str(caught.value)


@pytest.mark.parametrize("start", [in_a_thread, in_a_pool, in_a_timer, in_a_thread_of_a_thread])
def test_it_names_the_rank_that_started_the_thread_however_it_did(start: Callable[[Callable[[], Any]], None]):
    def swallow() -> None:
        try:
            dist.barrier()
        except BaseException:
            pass

    def program() -> None:
        if dist.get_rank() == 2:
            start(swallow)
        dist.barrier()

    with pytest.raises(RankError, match="'a helper.*in the place of rank 2"):
        launch(program, ranks=3)


def test_a_thread_that_was_there_before_the_launch_is_refused_as_well():
    with ThreadPoolExecutor(1, thread_name_prefix="of the notebook") as pool:
        pool.submit(int).result()

        def program() -> None:
            try:
                pool.submit(dist.barrier).result()
            except RuntimeError:
                pass

        with pytest.raises(RankError, match="'of the notebook_0'"):
            launch(program, ranks=2)


def test_a_thread_that_communicates_while_its_rank_waits_ends_the_run_as_well():
    """The turn is another rank's then: the thread would communicate in that one's place."""

    threads: list[threading.Thread] = []
    may_go_on, refusals = threading.Event(), []

    def later() -> None:
        may_go_on.wait(10)
        try:
            dist.all_reduce(x())
        except RuntimeError as error:
            refusals.append(error)

    def program() -> None:
        if dist.get_rank() == 0:
            threads.append(threading.Thread(target=later, name="a late helper"))
            threads[0].start()
        else:
            may_go_on.set()
            threads[0].join()
        dist.barrier()

    with pytest.raises(RankError, match="'a late helper'.*in the place of rank 0"):
        launch(program, ranks=2)
    assert len(refusals) == 1


def test_threads_that_do_not_communicate_go_on_working():
    def prefetched(items: list[int]) -> Iterator[int]:
        ready: queue.Queue[int | None] = queue.Queue(maxsize=2)

        def produce() -> None:
            for item in items:
                ready.put(item * item)
            ready.put(None)

        threading.Thread(target=produce, daemon=True).start()
        while (item := ready.get()) is not None:
            yield item

    def program() -> tuple[list[int], float, int, float]:
        total = 0.0
        for number in prefetched([1, 2, 3]):
            y = torch.tensor([float(number)])
            dist.all_reduce(y)
            total += y.item()
        with ThreadPoolExecutor(3) as pool:
            squares = list(pool.map(lambda n: n * n, range(4)))
            norm = pool.submit(lambda: torch.ones(4).norm().item()).result()
        rows = sum(len(batch) for (batch,) in DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=4))
        rung: list[int] = []
        in_a_timer(lambda: rung.append(1))
        assert rung == [1]
        return squares, total, rows, norm

    assert launch(program, ranks=2).values == [([0, 1, 4, 9], 28.0, 6, 2.0)] * 2


def test_a_call_of_no_line_of_the_program_leaves_no_empty_brackets():
    def program() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dist.barrier).exception()

    with pytest.raises(RankError, match="in the place of rank 0; call torch.distributed"):
        launch(program, ranks=2)
