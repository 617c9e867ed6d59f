"""A run says which variables of the notebook the program changed, and says nothing where it changed none."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lablib import launch

counter = 0
tensor = torch.zeros(3)
array = np.zeros(3)
model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
settings: dict[str, Any] = {"deep": {"list": [1, 2]}}
numbers = list(range(10_000))
unchanged = [1, 2, 3]


class Tally:
    """Counts in the class and in the object."""

    total = 0

    def __init__(self) -> None:
        self.count = 0


tally = Tally()


def helper() -> None:
    settings["deep"]["list"].append(dist.get_rank())


def rebind() -> None:
    global counter
    counter += 1


def train() -> None:
    model(torch.ones(2, 2)).sum().backward()


def in_the_class() -> None:
    Tally.total += 1


CHANGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "a name that is bound again": ("counter (global)", rebind),
    "a tensor in place": ("tensor (global)", lambda: tensor.add_(1)),
    "a part of an array": ("array (global)", lambda: array.__setitem__(1, array[1] + 1)),
    "gradients and buffers of a model": ("model (global)", train),
    "what a helper changes, deep inside": ("settings (global)", lambda: helper()),
    "one item more in a long list": ("numbers (global)", lambda: numbers.append(0)),
    "an attribute of an object": ("tally (global)", lambda: setattr(tally, "count", tally.count + 1)),
    "an attribute of a class": ("Tally (global)", in_the_class),
}


@pytest.mark.parametrize("how", CHANGES)
def test_what_a_program_changes_is_noted_by_its_name(how: str):
    name, change = CHANGES[how]
    (note,) = launch(change, ranks=2).notes
    assert name in note and note.count("(") == 1 and "each rank changes a separate copy" in note


def test_a_variable_of_an_enclosing_function_and_what_comes_by_argument_and_partial_is_noted():
    found, queue = [], deque()
    (note,) = launch(lambda: found.append(1), ranks=2).notes
    assert "found (variable of an enclosing function)" in note
    (note,) = launch(partial(lambda call: call(), lambda: queue.append(1)), ranks=2).notes
    assert "queue (variable of an enclosing function)" in note


def test_what_is_only_read_or_a_ranks_own_is_not_noted():
    def program(x: torch.Tensor, values: list[int]) -> float:
        x += dist.get_rank()
        values.append(len(unchanged) + len(numbers) + counter)
        own = nn.Linear(2, 2)
        own(tensor[:2] + settings["deep"]["list"][0]).sum().backward()
        return x.sum().item() + array.sum()

    assert launch(program, torch.ones(2), [1], ranks=2).notes == ()


def test_a_look_has_an_end():
    """Ten million items cost no more than a few thousand."""
    global many
    many = [[[i] for i in range(1000)]] * 10_000
    try:
        assert launch(lambda: len(many), ranks=1).notes == ()
    finally:
        many = []


many: list[Any] = []
