"""`Transfer.tensor_bytes` is one thing for every collective, the one its docstring names, simulated and real."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib import launch


def numbers(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def shards(count: int, n: int) -> list[Tensor]:
    return [numbers(count) for _ in range(n)]


def exchange(me: int, n: int, counts: list[int], root: int) -> None:
    """Each rank has one shard for every other, and that for rank r has counts[r] bytes."""
    dist.all_to_all(shards(counts[me], n), [numbers(count) for count in counts])


def exchange_single(me: int, n: int, counts: list[int], root: int) -> None:
    dist.all_to_all_single(numbers(n * counts[me]), numbers(sum(counts)), [counts[me]] * n, list(counts))


def even_exchange(me: int, n: int, counts: list[int], root: int) -> None:
    """gloo takes no lists of uneven tensors."""
    dist.all_to_all(shards(counts[0], n), shards(counts[0], n))


def send(me: int, n: int, counts: list[int], root: int) -> None:
    if me == root:
        dist.send(numbers(counts[0]), dst=(root + 1) % n)
    elif me == (root + 1) % n:
        dist.recv(numbers(counts[0]), src=root)


# Of the tensors that stand in the call: which of them the table names, in bytes.
whole = {
    "all_reduce": lambda n, counts: counts[0],
    "broadcast": lambda n, counts: counts[0],
    "reduce": lambda n, counts: counts[0],
    "all_gather": lambda n, counts: n * counts[0],
    "gather": lambda n, counts: n * counts[0],
    "scatter": lambda n, counts: n * counts[0],
    "reduce_scatter": lambda n, counts: n * counts[0],
    "all_to_all": lambda n, counts: max(sum(counts), n * max(counts)),
    "all_to_all_single": lambda n, counts: max(sum(counts), n * max(counts)),
    "send": lambda n, counts: counts[0],
    "barrier": lambda n, counts: 0,
}
calls: dict[str, Callable[[int, int, list[int], int], object]] = {
    "all_reduce": lambda me, n, counts, root: dist.all_reduce(numbers(counts[0])),
    "broadcast": lambda me, n, counts, root: dist.broadcast(numbers(counts[0]), src=root),
    "reduce": lambda me, n, counts, root: dist.reduce(numbers(counts[0]), dst=root),
    "all_gather": lambda me, n, counts, root: dist.all_gather(shards(counts[0], n), numbers(counts[0])),
    "gather": lambda me, n, counts, root: dist.gather(
        numbers(counts[0]), shards(counts[0], n) if me == root else None, dst=root
    ),
    "scatter": lambda me, n, counts, root: dist.scatter(
        numbers(counts[0]), shards(counts[0], n) if me == root else None, src=root
    ),
    "reduce_scatter": lambda me, n, counts, root: dist.reduce_scatter(numbers(counts[0]), shards(counts[0], n)),
    "all_to_all": exchange,
    "all_to_all_single": exchange_single,
    "send": send,
    "barrier": lambda me, n, counts, root: dist.barrier(),
}


@pytest.mark.parametrize("name", calls)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_the_bytes_of_the_tensor_are_those_of_the_table(name: str, data: st.DataObject):
    n = data.draw(st.integers(2, 6))
    counts = data.draw(st.lists(st.integers(1, 1000), min_size=n, max_size=n))
    root = data.draw(st.integers(0, n - 1))
    run = launch(lambda: calls[name](dist.get_rank(), n, counts, root), ranks=n)
    (transfer,) = run.traffic.transfers
    assert (transfer.name, transfer.tensor_bytes) == (name, whole[name](n, counts))
    assert run.traffic.table()["tensor_bytes"].tolist() == [whole[name](n, counts)]


def test_real_ranks_say_the_same():
    n, counts, root = 2, [12, 40], 1
    calls_of_gloo = calls | {"all_to_all": even_exchange}
    expected = {name: whole[name](n, counts) for name in calls} | {"all_to_all": n * counts[0]}

    def program() -> None:
        for call in calls_of_gloo.values():
            call(dist.get_rank(), n, counts, root)

    real = launch(program, ranks=n, backend="gloo")
    found = {transfer.name: transfer.tensor_bytes for transfer in real.traffic.transfers}
    assert found == expected


def test_the_type_of_the_tensors_is_told_where_they_have_one():
    def program() -> None:
        me, n = dist.get_rank(), dist.get_world_size()
        dist.all_reduce(torch.ones(2, dtype=torch.float64))
        dist.all_gather([torch.zeros(1) for _ in range(n)], torch.ones(1))
        dist.send(torch.ones(1, dtype=torch.int16), 1) if me == 0 else dist.recv(torch.ones(1, dtype=torch.int16), 0)
        dist.barrier()

    run = launch(program, ranks=2)
    assert [one.dtype for one in run.traffic.transfers] == ["float64", "float32", "int16", ""]
