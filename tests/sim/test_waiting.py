"""Whatever way a program waits for a communication, it finds the answer of the synchronous call.

gloo cannot be asked: its handle of a reduce_scatter has no future, and a poll of it never ends. So the synchronous call
(held to gloo in test_backend_contract.py) is the reference here.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from lablib import launch
from lablib.errors import UnwaitedWarning

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13 deprecates names that programs still use

Issued = tuple[Any, list[Tensor]]  # the handle of a call, and the tensors that it writes
GROUPS = ([0, 1, 2], [2, 0], [1])


def drawn(*shape: int) -> Tensor:
    return torch.randint(-3, 4, shape).float()


def all_reduce(n: int, **options: Any) -> Issued:
    x = drawn(3, 5)
    return dist.all_reduce(x, **options), [x]


def reduce(n: int, **options: Any) -> Issued:
    x = drawn(3, 5)
    return dist.reduce(x, group_dst=0, **options), [x]


def broadcast(n: int, **options: Any) -> Issued:
    x = drawn(3, 5)
    return dist.broadcast(x, group_src=n - 1, **options), [x]


def all_gather(n: int, **options: Any) -> Issued:
    out = list(torch.zeros(n, 3, 5))
    return dist.all_gather(out, drawn(3, 5), **options), out


def all_gather_into_tensor(n: int, **options: Any) -> Issued:
    out = torch.zeros(3 * n, 5)
    return dist.all_gather_into_tensor(out, drawn(3, 5), **options), [out]


def gather(n: int, **options: Any) -> Issued:
    out = list(torch.zeros(n, 3)) if dist.get_rank(options["group"]) == 0 else []
    return dist.gather(drawn(3), out or None, group_dst=0, **options), out


def scatter(n: int, **options: Any) -> Issued:
    out, parts = torch.zeros(3), list(drawn(n, 3)) if dist.get_rank(options["group"]) == 0 else None
    return dist.scatter(out, parts, group_src=0, **options), [out]


def reduce_scatter(n: int, **options: Any) -> Issued:
    out = torch.zeros(5)
    return dist.reduce_scatter(out, list(drawn(n, 5)), **options), [out]


def reduce_scatter_tensor(n: int, **options: Any) -> Issued:
    out = torch.zeros(3, 5)
    return dist.reduce_scatter_tensor(out, drawn(3 * n, 5), **options), [out]


def all_to_all(n: int, **options: Any) -> Issued:
    out = list(torch.zeros(n, 5))
    return dist.all_to_all(out, list(drawn(n, 5)), **options), out


def all_to_all_single(n: int, **options: Any) -> Issued:
    out = torch.zeros(2 * n, 5)
    return dist.all_to_all_single(out, drawn(2 * n, 5), **options), [out]


CALLS: list[Callable[..., Issued]] = [
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
]
CALLS += [reduce_scatter, reduce_scatter_tensor, all_to_all, all_to_all_single]


def poll(work: dist.Work) -> None:
    while not work.is_completed():
        pass


WAYS: dict[str, Callable[[dist.Work], Any]] = {
    "wait": lambda work: work.wait(),
    "wait twice": lambda work: (work.wait(), work.wait()),
    "synchronize": lambda work: work.synchronize(),
    "result": lambda work: work.result(),
    "poll": poll,
    "future": lambda work: work.get_future().wait(),
    "then": lambda work: work.get_future().then(lambda future: future.value()).wait(),
}


def answers(wait: Callable[[dist.Work], Any] | None) -> list[list[Tensor]]:
    """What every call leaves on this rank, in every group that it is in."""
    torch.manual_seed(dist.get_rank())
    found: list[list[Tensor]] = []
    for members in GROUPS:
        group = dist.new_group(members)
        for call in CALLS if dist.get_rank() in members else []:
            work, out = call(len(members), group=group, async_op=wait is not None)
            if wait is not None:
                wait(work)
            found.append([x.clone() for x in out])
    return found


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_waiting_gives_what_the_synchronous_call_gives(way: str):
    expected, found = launch(answers, None, ranks=3).values, launch(answers, WAYS[way], ranks=3).values
    for rank in range(3):
        for one, other in zip(expected[rank], found[rank], strict=True):
            assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("is_async", [False, True])
def test_coalesced_gathers_and_scatters_equal_those_made_one_by_one(is_async: bool):
    def program() -> tuple[list[Tensor], list[Tensor]]:
        shards, wholes = [drawn(2, 3) for _ in range(3)], [torch.zeros(6, 3) for _ in range(3)]
        with _coalescing_manager(async_ops=is_async) as manager:
            for whole, shard in zip(wholes, shards, strict=True):
                dist.all_gather_into_tensor(whole, shard)
        if is_async:
            manager.wait()
        parts, sums = [drawn(6, 3) for _ in range(3)], [torch.zeros(2, 3) for _ in range(3)]
        with _coalescing_manager(async_ops=is_async) as manager:
            for total, part in zip(sums, parts, strict=True):
                dist.reduce_scatter_tensor(total, part)
        if is_async:
            manager.wait()
        plain = [torch.zeros(6, 3) for _ in range(3)] + [torch.zeros(2, 3) for _ in range(3)]
        for k in range(3):
            dist.all_gather_into_tensor(plain[k], shards[k])
            dist.reduce_scatter_tensor(plain[3 + k], parts[k])
        return wholes + sums, plain

    for coalesced, plain in launch(program, ranks=3).values:
        assert all(torch.equal(x, y) for x, y in zip(coalesced, plain, strict=True))


def test_one_poll_of_what_is_under_way_is_false_and_no_wait():
    """`work.is_completed(); x /= n` without a loop is a race: nobody waited."""

    def program() -> bool:
        x = torch.ones(100_000)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        seen = work.is_completed()
        x /= dist.get_world_size()
        return seen

    with pytest.warns(UnwaitedWarning):
        run = launch(program, ranks=3)
    assert run.values == [False] * 3


def test_a_poll_after_enough_work_is_true():
    def program() -> tuple[bool, bool, float]:
        x = torch.ones(1000)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        early = work.is_completed()
        torch.ones(3000, 3000) @ torch.ones(3000, 3000)
        return early, work.is_completed(), x[0].item()

    assert launch(program, ranks=2).values == [(False, True, 2.0)] * 2
