"""Every rank has its own copy of the arguments: what one changes is seen by no other, nor by the notebook."""

import copy
import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lablib import launch

BACKENDS = ["sim", "gloo"]


@dataclass
class Counter:
    count: int = 0

    def up(self) -> int:
        self.count += 1 + dist.get_rank()
        return self.count


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_program_of_the_issue_adds_to_its_own_tensor(backend: str):
    def program(x: Tensor) -> float:
        x += dist.get_rank()
        dist.barrier()
        return x.sum().item()

    x = torch.zeros(2)
    assert launch(program, x, ranks=4, backend=backend).values == [0.0, 2.0, 4.0, 6.0]
    assert x.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_containers_arrays_and_objects_are_copied_and_what_is_one_object_stays_one(backend: str):
    def program(numbers: list, again: list, table: dict, array: np.ndarray, counter: Counter) -> tuple:
        numbers.append(dist.get_rank())
        table["inner"].add(dist.get_rank())
        array += dist.get_rank()
        counter.up()
        dist.barrier()
        return numbers is again, numbers, sorted(table["inner"]), array.tolist(), counter.count

    numbers, table, array, counter = [7], {"inner": {9}}, np.zeros(2), Counter()
    run = launch(program, numbers, numbers, table, array, counter, ranks=2, backend=backend)
    assert run.values == [(True, [7, 0], [0, 9], [0.0, 0.0], 1), (True, [7, 1], [1, 9], [1.0, 1.0], 2)]
    assert (numbers, table, array.tolist(), counter.count) == ([7], {"inner": {9}}, [0.0, 0.0], 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_of_a_partial_and_the_object_of_a_method_are_copied(backend: str):
    def program(numbers: list[int], more: list[int]) -> list[int]:
        numbers.append(dist.get_rank())
        more.append(dist.get_rank())
        return numbers + more

    numbers, more, counter = [], [], Counter()
    fn = partial(program, numbers, more=more)
    assert launch(fn, ranks=2, backend=backend).values == [[0, 0], [1, 1]] and (numbers, more) == ([], [])
    assert launch(counter.up, ranks=3, backend=backend).values == [1, 2, 3] and counter.count == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_leaves_gradients_and_attributes_arrive_as_they_are(backend: str):
    def program(leaf: Tensor, result: Tensor, conjugate: Tensor) -> tuple:
        kept = leaf.requires_grad, leaf.is_leaf, leaf.grad.tolist(), leaf.note  # pyright: ignore
        (leaf * 2).sum().backward()
        return *kept, result.requires_grad, conjugate.tolist(), leaf.grad.tolist()  # pyright: ignore

    leaf = torch.ones(1, requires_grad=True)
    leaf.grad, leaf.note = torch.full((1,), 3.0), "mine"  # pyright: ignore
    run = launch(program, leaf, leaf * 2, torch.tensor([1 + 2j]).conj(), ranks=2, backend=backend)
    assert run.values == [(True, True, [3.0], "mine", False, [1 - 2j], [5.0])] * 2
    assert leaf.grad is not None and leaf.grad.tolist() == [3.0]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 3)), min_size=2, max_size=5))
def test_views_of_one_memory_stay_views_of_one_memory(cuts: list[tuple[int, int, int]]):
    """Whatever slices of whichever tensors: writing into them does what it would do to a deep copy."""

    def write(views: list[Tensor]) -> list[list[float]]:
        for number, view in enumerate(views):
            view.mul_(2).add_(number + dist.get_rank())
        return [view.tolist() for view in views]

    bases = [torch.arange(12.0) + 100 * i for i in range(4)]
    views = [bases[which][start::step] for which, start, step in cuts]
    before = [view.tolist() for view in views]
    values = launch(write, views, ranks=2).values
    assert [view.tolist() for view in views] == before
    for rank, found in enumerate(values):
        own = copy.deepcopy(bases)
        same = [own[which][start::step] for which, start, step in cuts]
        for number, view in enumerate(same):
            view.mul_(2).add_(number + rank)
        assert found == [view.tolist() for view in same]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, wrap: Callable[[nn.Module], Any]) -> list[Tensor]:
    """Two steps; the optimizer that came with the model steps the parameters of this very model."""
    wrapped = wrap(model)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(torch.full((2, 3), 1.0 + dist.get_rank())).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_and_its_optimizer_stay_tied_on_each_rank(backend: str):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    before = [p.detach().clone() for p in model.parameters()]
    apart = launch(train, model, optimizer, nn.Identity.forward.__get__(nn.Identity()), ranks=2, backend=backend).values
    together = launch(train, model, optimizer, DistributedDataParallel, ranks=2, backend=backend).values
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*together, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(*apart, strict=True))


def test_fsdp_frees_and_restores_the_memory_of_a_model_that_was_an_argument():
    def program(model: nn.Module) -> float:
        fully_shard(model)
        x = model(torch.ones(2, 3))
        x.sum().backward()
        return sum(p.grad.full_tensor().sum().item() for p in model.parameters())  # pyright: ignore

    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    expected = 2 * 3 * 4 + 2 * 4
    assert launch(program, model, ranks=2).values == [expected] * 2


def test_many_ranks_share_the_memory_of_a_large_argument_until_they_write():
    """40 copies of 64 MB would be 2.5 GB."""

    unit = 1 if sys.platform == "darwin" else 1024
    x = torch.ones(16_000_000)
    launch(lambda: None, ranks=40)  # what ranks take without it
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert launch(lambda x: x[0].item() + x[-1].item(), x, ranks=40).values == [2.0] * 40
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before < 5 * x.nbytes


def test_the_memory_of_an_argument_is_counted_for_every_rank():
    def program(x: Tensor) -> None:
        (x + 1).sum()

    run = launch(program, torch.ones(1000), ranks=2)
    assert [run.memory.peak_bytes(rank) >= 8000 for rank in range(2)] == [True] * 2


def test_shapes_only_takes_real_arguments():
    def program(x: Tensor) -> tuple:
        y = x @ torch.ones(3, 5)
        return tuple(y.shape)

    assert launch(program, torch.ones(2, 3), ranks=2, fidelity="shapes").values == [(2, 5)] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrong", [threading.Lock(), (i for i in range(3))])
def test_what_cannot_be_copied_is_named_with_a_remedy(wrong: Any, backend: str):
    with pytest.raises(ValueError, match=r"argument 1 of type .* is not .*; make it inside the function"):
        launch(lambda a, b: None, 1, [wrong], ranks=2, backend=backend)


def test_an_array_of_numpy_keeps_the_memory_of_the_notebooks_tensor():
    x = torch.zeros(3)
    array = x.numpy()
    run = launch(lambda x: x, x, ranks=2)
    x += 1
    assert array.tolist() == [1.0] * 3 and [v.tolist() for v in run.values] == [[0.0] * 3] * 2
